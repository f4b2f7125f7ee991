"""A few bytes that several processes share, without a name.

They are in an anonymous file: no name, no place on any disk, gone with the last process that has it open. Whoever
inherits the object has the file as well: a child made by fork, and, since pickling for a new process hands over the
descriptor, one that multiprocessing spawned or made by its fork server. A copy that is pickled for anything else (a
queue, a file) has bytes of its own, all zero.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# A record lock belongs to a process and is lost when any descriptor of its file is closed, so the threads of this
# process go one by one, over all files.
_one_thread = threading.Lock()


def _new_lock() -> None:
    global _one_thread  # noqa: PLW0603  a thread of the parent may have held it at the fork
    _one_thread = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


class SharedBytes:
    """`size` bytes, all zero at first; a write behind their end makes them more. Read and write them while nobody else
    does: in `alone()`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._descriptor = _anonymous_file(size)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when the interpreter ends
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
        if descriptor >= 0:
            close(descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing import context, reduction

        if context.get_spawning_popen() is None:
            return SharedBytes, (self.size,)
        return _inherited, (self.size, reduction.DupFd(self._descriptor))

    def read(self, size: int, at: int = 0) -> bytes:
        return os.pread(self._descriptor, size, at)

    def write(self, data: bytes, at: int = 0) -> None:
        os.pwrite(self._descriptor, data, at)

    def mapped(self, size: int) -> mmap.mmap:
        """All bytes as memory, which all processes see; at least `size`. Its slices may be read and written while
        nobody else has to do with them."""
        if os.fstat(self._descriptor).st_size < size:
            os.ftruncate(self._descriptor, size)
        return mmap.mmap(self._descriptor, 0)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While no other thread or process is in here. A few microseconds; never wait for anything else inside."""
        with _one_thread:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


def _inherited(size: int, descriptor: Any) -> SharedBytes:
    shared = SharedBytes.__new__(SharedBytes)
    shared.size, shared._descriptor = size, descriptor.detach()
    return shared


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("dload")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
