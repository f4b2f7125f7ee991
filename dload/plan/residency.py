"""Which shards must be in a cache at the same time, and how many bytes those are."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import add

from dload.pipeline.combine import Concat
from dload.pipeline.lanes import Lane
from dload.pipeline.node import Need, Node, Run, merged
from dload.pipeline.places import places_of
from dload.pipeline.sources import Samples
from dload.plan.tops import sources_of

_STRETCHES = 8  # of a long epoch that are looked at, spread over it
_LEAST = 100  # needs of a stretch that are looked at; more, where its first window isn't over by then


@dataclass(frozen=True, slots=True)
class Use:
    """What a part of a pipeline needs in one cache at the same time: bytes, by how many cursors, and of each source (by
    its id) so many shards and bytes."""

    bytes: int
    feeds: int
    sources: dict[int, tuple[Samples, int, int]]

    def joined(self, other: Use, how: Callable[[int, int], int]) -> Use:
        sources = dict(self.sources)
        for number, (source, shards, size) in other.sources.items():
            _, before, bytes_before = sources.get(number, (source, 0, 0))
            sources[number] = source, how(before, shards), how(bytes_before, size)
        return Use(how(self.bytes, other.bytes), how(self.feeds, other.feeds), sources)


def uses(node: Node, run: Run, caches: dict[int, str], lanes: Sequence[Lane]) -> dict[str, Use]:
    """What a pipeline needs in each cache, by its name; `caches`: the cache of each source, by the source's id. `lanes`
    go forward in step; what several hold counts once."""
    if node.indexed:
        return _uses_of_top(node, run, caches, lanes)
    how = max if isinstance(node, Concat) else add  # one after another, or all at once
    found: dict[str, Use] = {}
    for parent in node.parents:
        for name, use in uses(parent, run, caches, lanes).items():
            found[name] = found[name].joined(use, how) if name in found else use
    return found


def largest_of(source: Samples) -> int:
    """Bytes of a source's largest shard."""
    return max(source.manifest.shards.sizes, default=0)


def of_lane(node: Node, run: Run, lane: Lane, start: int = 0) -> Iterator[Need]:
    """What a lane needs in epoch 0, from its element `start` on."""
    return places_of(node, lane).demand(run, (0,), start)


def _uses_of_top(node: Node, run: Run, caches: dict[int, str], lanes: Sequence[Lane]) -> dict[str, Use]:
    seen = _Seen(caches)
    whole = _look(node, run, lanes, seen)
    found: dict[str, Use] = {}
    for source in sources_of(node):
        most, name = seen.by_source.get(id(source)), caches[id(source)]
        if most or not whole:
            largest = 0 if whole else largest_of(source)  # what wasn't looked at may have larger ones
            peak = max(largest, seen.by_cache[name].bytes if name in seen.by_cache else 0)
            entry = (source, most.shards, most.bytes) if most else (source, 1, largest)
            use = Use(peak, len(lanes), {id(source): entry})
            found[name] = found[name].joined(use, max) if name in found else use
    return found


def _look(node: Node, run: Run, lanes: Sequence[Lane], seen: _Seen) -> bool:
    """Go over the demand, of a long epoch in stretches; says whether that was all of it."""
    length = max((places_of(node, lane).length or 0 for lane in lanes), default=0)
    reached = 0
    for number in range(_STRETCHES):
        start = length * number // _STRETCHES
        if start < reached or (number and not start):
            continue
        seen.begin()
        over = start  # the place behind the stretch's first window
        for count, need in enumerate(merged([of_lane(node, run, lane, start) for lane in lanes])):
            if need.first <= start:
                over = max(over, need.last)
            elif count >= _LEAST and need.first >= over:
                reached = need.first
                break
            seen.add(need)
        else:
            return not number
    return False


class _Seen:
    """What was there at once, at most, as one goes over a demand: in each cache (by its name), and of each source (by
    its id)."""

    def __init__(self, caches: dict[int, str]) -> None:
        self.by_cache: dict[str, _Most] = {}
        self.by_source: dict[int, _Most] = {}
        self._caches = caches
        self._leaving: list[tuple[int, int, _Most, _Most, str, int]] = []  # by the place behind their last use
        self._count = 0

    def begin(self) -> None:
        """Nothing is there."""
        self._leaving = []
        for most in [*self.by_cache.values(), *self.by_source.values()]:
            most.begin()

    def add(self, need: Need) -> None:
        """The next one of the demand."""
        leaving = self._leaving
        while leaving and leaving[0][0] <= need.first:
            _, _, in_cache, of_source, digest, size = heapq.heappop(leaving)
            in_cache.remove(digest, size)
            of_source.remove(digest, size)
        source, shards = need.source, need.source.manifest.shards
        digest, size = shards.digests[need.shard], shards.sizes[need.shard]
        in_cache = self.by_cache.setdefault(self._caches[id(source)], _Most())
        of_source = self.by_source.setdefault(id(source), _Most())
        in_cache.add(digest, size)
        of_source.add(digest, size)
        self._count += 1
        heapq.heappush(leaving, (need.last, self._count, in_cache, of_source, digest, size))


class _Most:
    """Shards that are there, each once however many needs it has, and how many at most there were at once."""

    def __init__(self) -> None:
        self.shards = self.bytes = 0
        self.begin()

    def begin(self) -> None:
        self._uses: Counter[str] = Counter()
        self._shards = self._bytes = 0

    def add(self, digest: str, size: int) -> None:
        self._uses[digest] += 1
        if self._uses[digest] == 1:
            self._shards += 1
            self._bytes += size
            self.shards = max(self.shards, self._shards)
            self.bytes = max(self.bytes, self._bytes)

    def remove(self, digest: str, size: int) -> None:
        self._uses[digest] -= 1
        if not self._uses[digest]:
            del self._uses[digest]
            self._shards -= 1
            self._bytes -= size
