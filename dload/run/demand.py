"""What one cursor of a running pipeline is going to need, and when."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

from dload.cache import ShardCache
from dload.manifest import ShardInfo
from dload.pipeline.node import Need
from dload.store.base import Store

_GLANCE = 0.002  # seconds

Key = tuple[int, str]  # id of the origin, digest


class Origin(Protocol):
    """Where a source is read from."""

    store: Store
    cache: ShardCache


def key_of(need: Need) -> Key:
    return id(need.source.origin), need.source.manifest.shards.digests[need.shard]


def shard_of(need: Need) -> ShardInfo:
    return need.source.manifest.shards[need.shard]


class Demand:
    """The needs from the cursor's place on, as far as they were looked at.

    Nodes aren't made for several threads: only the cursor's own may call `look`.
    """

    def __init__(self, coming: Iterator[Need]) -> None:
        self._coming = coming
        self._needs = list(islice(coming, 1))
        self._due = 1
        self.place = self._needs[0].first if self._needs else 0
        self.border = 0
        """From this place on other shards are needed."""

    def look(self, ahead: int) -> None:
        """Forget what is behind the place; look at all that is due, at least one, and the next `ahead`."""
        place = self.place
        needs = self._needs = [need for need in self._needs if need.last > place]
        while (not needs or needs[-1].first <= place) and self._look_further():
            pass
        self._due = due = max(1, sum(need.first <= place for need in needs))
        while len(needs) < due + ahead and self._look_further():
            pass
        ends = [need.last for need in needs[:due]]
        self.border = min(ends + [need.first for need in needs[due : due + 1]], default=sys.maxsize)

    def _look_further(self) -> bool:
        need = next(self._coming, None)
        if need is not None:
            self._needs.append(need)
        return need is not None

    def held(self, ahead: int) -> list[Need]:
        """The needs whose shards are to be there: those that are due, and the next `ahead` that were looked at."""
        return self._needs[: self._due + ahead]

    def end(self) -> None:
        """Nothing is needed any more."""
        self._needs, self._coming, self.border = [], iter(()), sys.maxsize

    def distance(self, key: Key) -> int | None:
        """In how many places a shard is needed, as far as that was looked at."""
        for need in self._needs:
            if need.last > self.place and key_of(need) == key:
                return max(0, need.first - self.place)
        return None


class Outlook:
    """When a pass and the one after it need each shard. For many shards that takes a while to find out, so it is done a
    piece at a time."""

    def __init__(self, later: Callable[[int], Iterator[Need]]) -> None:
        self._coming = _passes(later)
        self._origins: dict[int, Origin] = {}
        self._first: tuple[dict[Key, int], dict[Key, int]] = {}, {}  # of each pass: the first place that needs a shard
        self._length = 0

    def look(self) -> bool:
        """Look a little further; says whether there is more."""
        until = time.perf_counter() + _GLANCE
        for number, need in self._coming:
            key = key_of(need)
            self._origins[key[0]] = need.source.origin
            self._first[number].setdefault(key, need.first)
            if not number:
                self._length = max(self._length, need.last)
            if time.perf_counter() > until:
                return True
        return False

    def distance(self, key: Key, place: int) -> int | None:
        """How many places from this one on the next pass needs a shard."""
        again = self._first[1].get(key)
        return None if again is None else max(0, self._length - place) + again

    def tell(self, place: int, pace: float) -> None:
        """Tell the caches in how many seconds shards are needed, from this place on at so many seconds a place."""
        uses: dict[Path, tuple[ShardCache, list[tuple[str, float]]]] = {}  # by the folder: several caches may have one
        for key in self._first[0] | self._first[1]:
            first = self._first[0].get(key, -1)
            distance = first - place if first >= place else self.distance(key, place)
            if distance is not None:
                cache = self._origins[key[0]].cache
                uses.setdefault(cache.root, (cache, []))[1].append((key[1], distance * pace))
        for cache, seconds in uses.values():
            cache.expect(seconds)


def _passes(later: Callable[[int], Iterator[Need]]) -> Iterator[tuple[int, Need]]:
    for number in (0, 1):
        for need in later(number):
            yield number, need


class Pace:
    """How fast a cursor goes forward, on average."""

    def __init__(self) -> None:
        self._begun: tuple[int, float] | None = None

    def at(self, place: int) -> float | None:
        """Seconds a place, up to this one; None at the first."""
        now = time.monotonic()
        if self._begun is None:
            self._begun = place, now
        first, begun = self._begun
        return (now - begun) / (place - first) if place > first else None
