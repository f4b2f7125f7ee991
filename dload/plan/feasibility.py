"""Whether a pipeline fits into the caches, how far ahead it may fetch, and what to change where it doesn't."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from dload.pipeline.combine import Zip
from dload.pipeline.elementwise import Prefetch
from dload.pipeline.lanes import Lane
from dload.pipeline.node import Node, Run
from dload.pipeline.sources import Samples
from dload.plan.residency import Use, largest_of, of_lane, uses
from dload.plan.tops import index_tops, sources_of
from dload.sizes import format_size

_ENDLESS = 1 << 62
_MOST_AHEAD, _BYTES_AHEAD = 32, 2 << 30  # fetched ahead of what is being read, where the user doesn't say


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
    """The verdict of `Pipeline.check`, with its figures. `ok`: it fits; `lines` say what is needed, and what to change
    where it doesn't; `residents`: what each source needs; `needed`: bytes that must be resident at once, in all caches
    together; `prefetch`: how many shards each cursor fetches beyond those that are being read."""

    ok: bool
    lines: list[str] = field(default_factory=list)
    residents: list[Resident] = field(default_factory=list)
    needed: int = 0
    prefetch: int = 0

    @property
    def message(self) -> str:
        """The lines as one text, for people."""
        return "\n".join(self.lines)


def check(top: Node, run: Run, limit_of: Callable[[Samples], CacheLimit], lanes: Sequence[Lane] = ()) -> PlanReport:
    """Whether the pipeline can run: the shards that must be in each cache at the same time, against its room. `lanes`:
    those that run on this machine, each of which holds shards of its own; what several hold counts once.

    Reads no storage. Needs the more time the more shards a window spans. Epoch 0 is looked at, of a long one some
    stretches, so that no later epoch is refused. Where another stretch or epoch needs more for a moment, the window
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
    needed = uses(top, run, caches, lanes or [run.lane])
    found = [_Verdict(limits[name], use, asked) for name, use in needed.items()]
    if not found:
        return PlanReport(True, ["fits: no data set is read"])
    ok, prefetch = all(verdict.fits for verdict in found), min(verdict.depth for verdict in found)
    further = _further(top, run, lanes or [run.lane], max(verdict.depth for verdict in found)) if ok else 0
    lines = [line for verdict in found for line in verdict.lines(top, further)] + _lane_lines(top, run, lanes)
    residents = [resident for verdict in found for resident in verdict.residents()]
    return PlanReport(ok, lines, residents, sum(use.bytes for use in needed.values()), prefetch)


def _narrower(one: CacheLimit, other: CacheLimit) -> CacheLimit:
    """Of two limits of one cache, the one that holds."""
    return min(one, other, key=lambda limit: _ENDLESS if limit.budget is None else limit.budget)


class _Verdict:
    """On one cache."""

    def __init__(self, limit: CacheLimit, use: Use, asked: int | None) -> None:
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
        largest = max(largest_of(source) for source, _, _ in self._sources)
        return max(0, min(self._asked, self._spare // (self.use.feeds * largest))) if largest else self._asked

    def residents(self) -> list[Resident]:
        return [Resident(_title(source), shards, size, largest_of(source)) for source, shards, size in self._sources]

    def lines(self, top: Node, further: int) -> list[str]:
        """`further`: how many shards a cursor has to fetch beyond those that it begins with, if they are few."""
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
        if further < self.depth:
            others = "the other one" if further == 1 else f"the {further} others" if further else "none, all are in use"
            return [*lines, f"  fetched ahead: {others}"]
        asked = "" if self.depth == self._asked else f" ({self._asked} asked for)"
        return [*lines, f"  fetched ahead: up to {self.depth} shards{asked}"]


def _further(top: Node, run: Run, lanes: Sequence[Lane], most: int) -> int:
    """How many shards a cursor has to fetch beyond those that its first element needs; counted up to `most`."""
    enough = most + sum(
        len(source.manifest.shards) for source in sources_of(top)
    )  # needs without end are the same ones
    found = 0
    for node in index_tops(top):
        for lane in lanes:
            first, others = set(), set()
            for need in islice(of_lane(node, run, lane), enough):
                shard = id(need.source), need.shard
                if need.first <= 0:
                    first.add(shard)
                elif shard not in first:
                    others.add(shard)
                    if len(others) >= most:
                        return most
            found = max(found, len(others))
    return found


def _ahead(source: Samples) -> int:
    """How many shards to fetch ahead of those that are being read: as the user said, else about two gigabytes."""
    if source.prefetch is not None:
        return max(0, source.prefetch - 1)
    shards = source.manifest.shards
    return max(2, min(_MOST_AHEAD, _BYTES_AHEAD * len(shards) // max(1, sum(shards.sizes))))


def _title(source: Samples) -> str:
    return f"{source.manifest.name}@{source.manifest.version[:12]}"


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
            for need in of_lane(node, run, lane):
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
