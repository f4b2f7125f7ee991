"""Whether a pipeline fits into the caches, how far ahead it may fetch, and what to change where it doesn't."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import add

from dload.pipeline.combine import Concat, Zip
from dload.pipeline.elementwise import Prefetch
from dload.pipeline.lanes import Lane
from dload.pipeline.node import Need, Node, Run, merged
from dload.pipeline.places import places_of
from dload.pipeline.sources import Samples
from dload.plan.tops import index_tops, sources_of
from dload.sizes import format_size

_ENDLESS = 1 << 62
_MOST_AHEAD, _BYTES_AHEAD = 15, 1 << 30  # fetched ahead of what is being read, where the user doesn't say
_LOOKED_AT = 20_000  # needs of one top that are looked at: windows further on are like those before


@dataclass(frozen=True, slots=True)
class CacheLimit:
    """A cache that sources share: its name for people, how many bytes of shards it has room for (None: any), and how
    many bytes of its budget other files take."""

    name: str
    budget: int | None
    beside: int = 0


@dataclass(frozen=True, slots=True)
class Resident:
    """What one source needs in its cache at the same time, at most, while the pipeline runs."""

    source: str
    shards: int
    bytes: int
    largest: int


@dataclass(frozen=True)
class PlanReport:
    """The verdict, with its figures. `needed`: bytes that must be resident at once, in all caches together; `prefetch`:
    how many shards each cursor fetches beyond those that are being read."""

    ok: bool
    lines: list[str] = field(default_factory=list)
    residents: list[Resident] = field(default_factory=list)
    needed: int = 0
    prefetch: int = 0

    @property
    def message(self) -> str:
        return "\n".join(self.lines)


def check(top: Node, run: Run, limit_of: Callable[[Samples], CacheLimit], lanes: Sequence[Lane] = ()) -> PlanReport:
    """Whether the pipeline can run: the shards that must be in each cache at the same time, against its room. `lanes`:
    those that run on this machine, each of which holds shards of its own; what several hold counts once.

    Reads no storage. Needs the more time the more shards a window spans. Epoch 0 is looked at, of a long one the
    beginning, so that no later epoch is refused. Where another stretch or epoch needs more for a moment, the window
    holds less there and fetches some shards twice: only a shard that doesn't fit alone would be an error, and the
    figure is never less than the largest one.
    """
    limits: dict[str, CacheLimit] = {}
    caches: dict[int, str] = {}  # by id of a source: the name of its cache
    for source in sources_of(top):
        limit = limit_of(source)
        caches[id(source)] = limit.name
        limits[limit.name] = _narrower(limit, limits.get(limit.name, limit))
    asked = next((node.count for node in _all(top) if isinstance(node, Prefetch)), None)
    uses = _uses(top, run, caches, lanes or [run.lane])
    found = [_Verdict(limits[name], use, asked) for name, use in uses.items()]
    if not found:
        return PlanReport(True, ["fits: no data set is read"])
    lines = [line for verdict in found for line in verdict.lines(top)] + _lane_lines(top, run, lanes)
    residents = [resident for verdict in found for resident in verdict.residents()]
    needed, prefetch = sum(verdict.use.bytes for verdict in found), min(verdict.depth for verdict in found)
    return PlanReport(all(verdict.fits for verdict in found), lines, residents, needed, prefetch)


def _narrower(one: CacheLimit, other: CacheLimit) -> CacheLimit:
    """Of two limits of one cache, the one that holds."""
    return min(one, other, key=lambda limit: _ENDLESS if limit.budget is None else limit.budget)


@dataclass(frozen=True, slots=True)
class _Use:
    """What a part of a pipeline needs in one cache at the same time: bytes, by how many cursors, and of each source (by
    its id) so many shards and bytes."""

    bytes: int
    feeds: int
    sources: dict[int, tuple[Samples, int, int]]

    def joined(self, other: _Use, how: Callable[[int, int], int]) -> _Use:
        sources = dict(self.sources)
        for number, (source, shards, size) in other.sources.items():
            _, before, bytes_before = sources.get(number, (source, 0, 0))
            sources[number] = source, how(before, shards), how(bytes_before, size)
        return _Use(how(self.bytes, other.bytes), how(self.feeds, other.feeds), sources)


class _Verdict:
    """On one cache."""

    def __init__(self, limit: CacheLimit, use: _Use, asked: int | None) -> None:
        self.use = use
        self._limit = limit
        self._sources = list(use.sources.values())
        self._spare = _ENDLESS if limit.budget is None else limit.budget - use.bytes
        self._asked = max(_ahead(source) for source, _, _ in self._sources) if asked is None else asked

    @property
    def fits(self) -> bool:
        return self._spare >= 0

    @property
    def depth(self) -> int:
        """How many shards each cursor may fetch ahead."""
        largest = max(_largest(source) for source, _, _ in self._sources)
        return max(0, min(self._asked, self._spare // (self.use.feeds * largest))) if largest else self._asked

    def residents(self) -> list[Resident]:
        return [Resident(_title(source), shards, size, _largest(source)) for source, shards, size in self._sources]

    def lines(self, top: Node) -> list[str]:
        needed, limit = self.use.bytes, self._limit
        lines = [
            f"{'fits' if self.fits else 'does not fit'}: {format_size(needed)} ({needed} bytes) must be in "
            f"{limit.name} at once, which has room for {format_size(limit.budget)}"
        ]
        for source, shards, size in self._sources:
            count = len(source.manifest.shards)
            lines.append(f"  {_title(source)}: {shards} of {count} shards at a time, {format_size(size)}")
        if not self.fits:
            return lines + _remedies(top, needed + limit.beside)
        asked = "" if self.depth == self._asked else f" ({self._asked} asked for)"
        return [*lines, f"  fetched ahead: {self.depth} shards{asked}"]


def _ahead(source: Samples) -> int:
    """How many shards to fetch ahead of those that are being read: as the user said, else about a gigabyte."""
    if source.prefetch is not None:
        return max(0, source.prefetch - 1)
    return max(2, min(_MOST_AHEAD, _BYTES_AHEAD // max(1, _largest(source))))


def _title(source: Samples) -> str:
    return f"{source.manifest.name}@{source.manifest.version[:12]}"


def _largest(source: Samples) -> int:
    return max(source.manifest.shards.sizes, default=0)


def _remedies(top: Node, least: int) -> list[str]:
    lines = [f"  set a budget of at least {least} bytes ({format_size(least)}): DLOAD_CACHE_BUDGET, or cache_budget="]
    kinds = {(node.kind, bool(node.parameters().get("full"))) for node in _all(top)}
    if ("shuffle", True) in kinds:
        lines.append("  or shuffle within a window: shuffle(buffer_size=4096) instead of shuffle(full=True)")
    elif ("shuffle", False) in kinds:
        lines.append("  or shuffle within a smaller window (buffer_size)")
    if len(sources_of(top)) > 1:
        lines.append("  or read fewer data sets at the same time")
    lines.append("  or commit with smaller shards: target_shard_size=, dload commit --shard-size")
    return lines


def _all(top: Node) -> Iterable[Node]:
    yield top
    for parent in top.parents:
        yield from _all(parent)


def _lane_lines(top: Node, run: Run, lanes: Sequence[Lane]) -> list[str]:
    if not lanes:
        return []
    first: dict[tuple[int, int], int] = {}  # shards that the first batch needs, with their bytes
    for node in index_tops(top):
        for lane in lanes:
            for need in _of_lane(node, run, lane):
                if need.first >= lane.grid.c or lane.number % lane.grid.m:
                    break
                first[id(need.source), need.shard] = need.source.manifest.shards.sizes[need.shard]
    lines = [
        f"  over {len(lanes)} lanes, each with shards of its own: the first batch needs {len(first)} shards, "
        f"{format_size(sum(first.values()))}"
    ]
    if lanes[0].grid.lanes > 1 and any(isinstance(node, Zip) and not node.indexed for node in _all(top)):
        lines.append("  zip pairs the elements of each lane among themselves: its sides can only be streamed")
    return lines


def _of_lane(node: Node, run: Run, lane: Lane) -> Iterator[Need]:
    return places_of(node, lane).demand(run, (0,), 0)


class _Held:
    """Shards that are there, each once however many needs it has, and how many at most there were at once."""

    def __init__(self) -> None:
        self._uses: Counter[str] = Counter()
        self._shards = self._bytes = 0
        self.most_shards = self.most_bytes = 0

    def add(self, digest: str, size: int) -> None:
        self._uses[digest] += 1
        if self._uses[digest] == 1:
            self._shards += 1
            self._bytes += size
            self.most_shards = max(self.most_shards, self._shards)
            self.most_bytes = max(self.most_bytes, self._bytes)

    def remove(self, digest: str, size: int) -> None:
        self._uses[digest] -= 1
        if not self._uses[digest]:
            del self._uses[digest]
            self._shards -= 1
            self._bytes -= size


def _uses(node: Node, run: Run, caches: dict[int, str], lanes: Sequence[Lane]) -> dict[str, _Use]:
    """What a pipeline needs in each cache, by its name; `caches`: the cache of each source, by the source's id."""
    if node.indexed:
        return _uses_of_top(node, run, caches, lanes)
    how = max if isinstance(node, Concat) else add  # one after another, or all at once
    found: dict[str, _Use] = {}
    for parent in node.parents:
        for name, use in _uses(parent, run, caches, lanes).items():
            found[name] = found[name].joined(use, how) if name in found else use
    return found


def _uses_of_top(node: Node, run: Run, caches: dict[int, str], lanes: Sequence[Lane]) -> dict[str, _Use]:
    needs = merged([_of_lane(node, run, lane) for lane in lanes])  # lanes go forward in step
    leaving: list[tuple[int, int, Samples, str, int]] = []  # by the place behind their last use
    by_cache: dict[str, _Held] = {}
    by_source: dict[int, _Held] = {}
    for number, need in enumerate(islice(needs, _LOOKED_AT)):
        while leaving and leaving[0][0] <= need.first:
            _, _, source, digest, size = heapq.heappop(leaving)
            by_cache[caches[id(source)]].remove(digest, size)
            by_source[id(source)].remove(digest, size)
        source, shards = need.source, need.source.manifest.shards
        digest, size = shards.digests[need.shard], shards.sizes[need.shard]
        heapq.heappush(leaving, (need.last, number, source, digest, size))
        by_cache.setdefault(caches[id(source)], _Held()).add(digest, size)
        by_source.setdefault(id(source), _Held()).add(digest, size)
    cut = next(needs, None) is not None  # what wasn't looked at may have larger ones
    found: dict[str, _Use] = {}
    for source in sources_of(node):
        held, name = by_source.get(id(source)), caches[id(source)]
        if held or cut:
            largest = _largest(source) if cut else 0
            peak = max(largest, by_cache[name].most_bytes if name in by_cache else 0)
            most = (source, held.most_shards, held.most_bytes) if held else (source, 1, largest)
            found[name] = found.get(name, _Use(0, len(lanes), {})).joined(
                _Use(peak, len(lanes), {id(source): most}), max
            )
    return found
