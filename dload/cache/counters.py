"""What a cache did, counted over all processes that work with one object: see `SharedBytes` for which these are."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from dload.files.shared import SharedBytes


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


class Counters:
    """Counts that any number of threads and processes add to. A few microseconds for each addition."""

    def __init__(self) -> None:
        self._shared = SharedBytes(_COUNTS.size + _TIME.size)

    def add(
        self,
        *,
        hits: int = 0,
        misses: int = 0,
        bytes_down: int = 0,
        waits: int = 0,
        evictions: int = 0,
        refetches: int = 0,
    ) -> None:
        more = (hits, misses, bytes_down, waits, evictions, refetches)
        with self._shared.alone():
            counts = _COUNTS.unpack(self._shared.read(_COUNTS.size))
            self._shared.write(_COUNTS.pack(*map(sum, zip(counts, more, strict=True))))

    def read(self) -> Counts:
        with self._shared.alone():
            return Counts(*_COUNTS.unpack(self._shared.read(_COUNTS.size)))

    def turn_of(self, size: int, rate: float) -> float:
        """Take the next `size` bytes' place at `rate` bytes a second; returns how many seconds to wait for it."""
        now = time.monotonic()
        with self._shared.alone():
            free: float = _TIME.unpack(self._shared.read(_TIME.size, _COUNTS.size))[0]
            begin = max(now, free)
            self._shared.write(_TIME.pack(begin + size / rate), _COUNTS.size)
        return begin - now
