"""Whether a pipeline fits into the caches, how far ahead it may fetch, and what to change where it doesn't."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from dload.pipeline.node import Need, Node, Run
from dload.pipeline.sources import Samples
from dload.plan.tops import index_tops, sources_of
from dload.sizes import format_size

_ENDLESS = 1 << 62
_LOOKED_AT = 20_000  # needs of one top that are looked at: windows further on are like those before


@dataclass(frozen=True, slots=True)
class CacheLimit:
    """A cache that sources share: its name for people, and its budget in bytes (None: unlimited)."""

    name: str
    budget: int | None


@dataclass(frozen=True, slots=True)
class Resident:
    """What one source needs in its cache at the same time, at most, while the pipeline runs."""

    source: str
    shards: int
    bytes: int
    largest: int


@dataclass(frozen=True)
class PlanReport:
    """The verdict, with its figures. `prefetch`: how many shards are fetched beyond those that are being read."""

    ok: bool
    lines: list[str] = field(default_factory=list)
    residents: list[Resident] = field(default_factory=list)
    needed: int = 0
    prefetch: int = 0

    @property
    def message(self) -> str:
        return "\n".join(self.lines)


def check(top: Node, run: Run, epoch: int, limit_of: Callable[[Samples], CacheLimit]) -> PlanReport:
    """Whether the pipeline can run: the shards that must be in each cache at the same time, against its budget.

    Reads no storage. Needs the more time the more shards a window spans; of a long epoch only the beginning is looked
    at.
    """
    peaks = [peak for node in index_tops(top) for peak in _peaks(node, run, epoch)]
    by_cache: dict[CacheLimit, list[tuple[Samples, int, int]]] = {}
    for source, shards, size in peaks:
        by_cache.setdefault(limit_of(source), []).append((source, shards, size))
    if not by_cache:
        return PlanReport(True, ["fits: no data set is read"])
    ok, lines, residents, needed, prefetch = True, [], [], 0, _ENDLESS
    for limit, entries in by_cache.items():
        required = sum(size for _, _, size in entries)
        largest = max(max(source.manifest.shards.sizes, default=0) for source, _, _ in entries)
        spare = _ENDLESS if limit.budget is None else limit.budget - required
        asked = max(0, max(source.prefetch for source, _, _ in entries) - 1)
        depth = asked if not largest else max(0, min(asked, spare // largest))
        fits = spare >= 0
        ok, needed, prefetch = ok and fits, needed + required, min(prefetch, depth)
        lines.append(
            f"{'fits' if fits else 'does not fit'}: {format_size(required)} must be in {limit.name} at once, "
            f"its budget is {format_size(limit.budget)}"
        )
        for source, shards, size in entries:
            name = f"{source.manifest.name}@{source.manifest.version[:12]}"
            lines.append(f"  {name}: {shards} of {len(source.manifest.shards)} shards, {format_size(size)}")
            residents.append(Resident(name, shards, size, max(source.manifest.shards.sizes, default=0)))
        if fits:
            lines.append(f"  fetched ahead: {depth} shards" + ("" if depth == asked else f" ({asked} asked for)"))
        else:
            lines += _remedies(top, required)
    return PlanReport(ok, lines, residents, needed, prefetch)


def _remedies(top: Node, required: int) -> list[str]:
    lines = [
        f"  set a budget of at least {required} bytes ({format_size(required)}): DLOAD_CACHE_BUDGET, or cache_budget="
    ]
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


def _peaks(node: Node, run: Run, epoch: int) -> list[tuple[Samples, int, int]]:
    """Per source: how many shards of it are needed at once at most, and their bytes."""
    stop = _ENDLESS if node.length is None else node.length
    needs = islice(node.demand(run, (epoch,), 0, stop), _LOOKED_AT)
    held: list[tuple[int, int, Need]] = []  # by the place behind their last use
    shards: Counter[tuple[int, str]] = Counter()
    sizes: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    peaks: dict[int, tuple[Samples, int, int]] = {}
    for number, need in enumerate(needs):
        while held and held[0][0] <= need.first:
            _release(heapq.heappop(held)[2], shards, sizes, counts)
        heapq.heappush(held, (need.last, number, need))
        key, info = (id(need.source), need.source.manifest.shards.digests[need.shard]), id(need.source)
        if not shards[key]:
            sizes[info] += need.source.manifest.shards.sizes[need.shard]
            counts[info] += 1
        shards[key] += 1
        _, most, size = peaks.get(info, (need.source, 0, 0))
        peaks[info] = need.source, max(most, counts[info]), max(size, sizes[info])
    return list(peaks.values())


def _release(need: Need, shards: Counter[tuple[int, str]], sizes: Counter[int], counts: Counter[int]) -> None:
    key, info = (id(need.source), need.source.manifest.shards.digests[need.shard]), id(need.source)
    shards[key] -= 1
    if not shards[key]:
        sizes[info] -= need.source.manifest.shards.sizes[need.shard]
        counts[info] -= 1
