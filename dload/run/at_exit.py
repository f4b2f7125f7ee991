"""What runs user code on threads is closed before the interpreter ends.

A daemon thread is killed where it stands when the interpreter goes: in the middle of a user's function, whose libraries
may be C++ and end the whole process with an abort then. Threads that aren't daemons would keep a program from ending
whose iterator was left in the middle.
"""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol


class _Closable(Protocol):
    def close(self) -> None: ...


_open: weakref.WeakSet[_Closable] = weakref.WeakSet()


def close_at_exit(thing: _Closable) -> None:
    """Have `thing.close()` called when the interpreter ends, if it is still there. It may have been closed before."""
    _open.add(thing)


@atexit.register
def _close_all() -> None:
    for thing in list(_open):
        thing.close()
