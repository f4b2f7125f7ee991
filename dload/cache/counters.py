"""What a cache did, counted over all processes that work with one object.

The numbers are in an anonymous file: no name, no place on any disk, gone with the last process that has it open.
Whoever inherits the object has the file as well: a child made by fork, and, since pickling for a new process hands
over the descriptor, one that multiprocessing spawned or made by its fork server. A copy that is pickled for anything
else (a queue, a file) counts for itself, from zero.
"""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Counts:
    """Since the cache object was made, in all processes that share it.

    `hits`: shards that were there when they were wanted. `misses`: shards that had to be fetched. `bytes_down`: what
    came from the store. `waits`: how often room, or another's download, had to be waited for. `evictions`: files that
    were deleted to make room. `refetches`: those of the misses whose shard the same process had before, evicted or
    damaged since, and bodies that were fetched again since they came wrong.
    """

    hits: int = 0
    misses: int = 0
    bytes_down: int = 0
    waits: int = 0
    evictions: int = 0
    refetches: int = 0


_COUNTS = struct.Struct("<6q")
_TIME = struct.Struct("<d")  # behind the counts: when the next bytes may come (monotonic clock), for a limited rate

# A record lock belongs to a process and is lost when any descriptor of its file is closed, so the threads of this
# process go one by one, over all files.
_one_thread = threading.Lock()


def _new_lock() -> None:
    global _one_thread  # noqa: PLW0603  a thread of the parent may have held it at the fork
    _one_thread = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


class Counters:
    """Counts that any number of threads and processes add to. A few microseconds for each addition."""

    def __init__(self) -> None:
        self._descriptor = _anonymous_file()

    def __del__(self) -> None:
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing import context, reduction

        if context.get_spawning_popen() is None:
            return Counters, ()
        return _inherited, (reduction.DupFd(self._descriptor),)

    def add(
        self, *, hits: int = 0, misses: int = 0, bytes_down: int = 0, waits: int = 0, evictions: int = 0,
        refetches: int = 0,
    ) -> None:  # fmt: skip
        more = (hits, misses, bytes_down, waits, evictions, refetches)
        with self._alone():
            counts = _COUNTS.unpack(os.pread(self._descriptor, _COUNTS.size, 0))
            os.pwrite(self._descriptor, _COUNTS.pack(*map(sum, zip(counts, more, strict=True))), 0)

    def read(self) -> Counts:
        with self._alone():
            return Counts(*_COUNTS.unpack(os.pread(self._descriptor, _COUNTS.size, 0)))

    def turn_of(self, size: int, rate: float) -> float:
        """Take the next `size` bytes' place at `rate` bytes a second; returns how many seconds to wait for it."""
        now = time.monotonic()
        with self._alone():
            free: float = _TIME.unpack(os.pread(self._descriptor, _TIME.size, _COUNTS.size))[0]
            begin = max(now, free)
            os.pwrite(self._descriptor, _TIME.pack(begin + size / rate), _COUNTS.size)
        return begin - now

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with _one_thread:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


def _inherited(descriptor: Any) -> Counters:
    counters = Counters.__new__(Counters)
    counters._descriptor = descriptor.detach()
    return counters


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("dload-counters")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _COUNTS.size + _TIME.size)
    return descriptor
