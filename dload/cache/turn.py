"""Whose turn it is to get room where the pins of others are in the way.

Eight processes that hold a shard each and want a second could all stand still. So who needs room that others hold takes
the turn, an exclusive lock that one process of the machine can have; who doesn't get it gives up its pins before it
waits. Nobody waits for room while it holds a pin unless it holds the turn. The turn's file says how many bytes its
holder is waiting for: others leave it these.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dload.cache.pins import own
from dload.files.locks import LockFile, try_lock

# The turn's file has always the same length, so that the least budget that does doesn't depend on what happened: the
# holder's process, a number that changes with what it waits for, and how many bytes that is.
LINE = 32
_CHANGES = 1_000_000


class Seat:
    """A reader's place at the cache in `root`, for as long as it reads there.

    `give_up` is called from any thread that waits for room, again and again: it lets go of all pins of this reader but
    one that is being read from at that moment, or that someone has waited for and not read from yet. It must not wait.
    """

    def __init__(self, root: Path, give_up: Callable[[], object] = lambda: None) -> None:
        self.root = root
        self.give_up = give_up
        with _guard:
            _seats.add(self)

    def settled(self) -> None:
        """All that this reader needs now is resident: it doesn't need the turn any more. Cheap; call it often."""
        if not _turns or self.root not in _turns:
            return
        with _guard:
            turn = _turns.get(self.root)
            if turn is None or self not in turn.seats:
                return
            turn.seats.discard(self)
            if not turn.seats:
                del _turns[self.root]
                turn.lock.close()

    def close(self) -> None:
        """The reader is gone. Closing twice is fine."""
        with _guard:
            _seats.discard(self)
        self.settled()

    def has_turn(self) -> bool:
        with _guard:
            turn = _turns.get(self.root)
            return turn is not None and self in turn.seats


@dataclass
class _Turn:
    """The turn at one cache, while this process has it."""

    lock: LockFile
    seats: set[Seat] = field(default_factory=set)  # who needs it
    wanted: dict[str, int] = field(default_factory=dict)  # what they wait for: bytes by name
    changes: int = 0

    def write(self) -> None:
        self.changes = (self.changes + 1) % _CHANGES
        line = f"{os.getpid()} {self.changes} {sum(self.wanted.values())}"
        os.pwrite(self.lock.descriptor, line.ljust(LINE).encode(), 0)


_guard = threading.RLock()
_seats: weakref.WeakSet[Seat] = weakref.WeakSet()
_turns: dict[Path, _Turn] = {}


def _begin_process() -> None:
    global _guard  # noqa: PLW0603  a thread of the parent may have held it at the fork
    _guard = threading.RLock()
    _seats.clear()
    _turns.clear()


os.register_at_fork(after_in_child=_begin_process)


def take(seat: Seat, name: str, size: int) -> bool:
    """Take the turn for `seat`, which waits for `size` bytes; False where another process has it.

    The cache's lock is held. Raises OSError.
    """
    with _guard:
        turn = _turns.get(seat.root)
        if turn is None:
            lock = LockFile(seat.root / "turn", os.O_RDWR | os.O_CREAT)
            if not try_lock(lock.descriptor):
                lock.close()
                return False
            turn = _turns[seat.root] = _Turn(lock)
        turn.seats.add(seat)
        if turn.wanted.get(name) != size:
            turn.wanted[name] = size
            turn.write()
        return True


def got(root: Path, name: str) -> None:
    """What `take` was called for isn't waited for any more."""
    with _guard:
        turn = _turns.get(root)
        if turn is not None and turn.wanted.pop(name, None) is not None:
            turn.write()


def state(root: Path) -> tuple[str, int]:
    """Who has the turn, in a text that changes when it does ("" for nobody), and the bytes that are waited for.

    The cache's lock is held.
    """
    with _guard:
        turn = _turns.get(root)
        if turn is not None:
            return f"{os.getpid()} {turn.changes}", sum(turn.wanted.values())
    try:
        with LockFile(root / "turn") as lock:
            if try_lock(lock.descriptor, shared=True):
                return "", 0
            line = os.pread(lock.descriptor, LINE, 0).decode("ascii", "replace")
    except FileNotFoundError:
        return "", 0
    wanted = line.split()[-1:]
    return line, int(wanted[0]) if wanted and wanted[0].isdigit() else 0


def make_way(root: Path) -> bool:
    """Let every reader of this process give up what it can; says whether any did."""
    held = len(own(root))
    with _guard:
        seats = [seat for seat in _seats if seat.root == root]
    for seat in seats:
        seat.give_up()
    return len(own(root)) < held
