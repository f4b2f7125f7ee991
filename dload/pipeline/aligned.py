"""The samples of one version in the order of another's: the side of a join that has to look for its rows."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

from dload.pipeline.node import Node, pieces
from dload.pipeline.running import Epoch, Need, Run
from dload.pipeline.sources import Samples
from dload.randomness import hash64


class Aligned(Node):
    """At place i the source's sample number `rows[i]`; None where that is negative."""

    kind = "aligned"

    def __init__(self, parent: Samples, rows: array[int]) -> None:
        super().__init__(parent)
        self.source = parent
        self.rows = rows

    @cached_property
    def _digest(self) -> str:
        return sha256(self.rows.tobytes()).hexdigest()

    def parameters(self) -> dict[str, Any]:
        return {"rows": self._digest}

    @cached_property
    def length(self) -> int | None:
        return len(self.rows)

    def _below(self, places: Sequence[int]) -> tuple[Sequence[int], list[int] | None]:
        """The source's places, and where they go: None where there is one for each."""
        if isinstance(places, range) and places.step == 1:
            rows = self.rows[places.start : places.stop]
            if rows and rows[0] >= 0 and rows == array("q", range(rows[0], rows[0] + len(rows))):
                return range(rows[0], rows[0] + len(rows)), None  # both have the same order here
        else:
            rows = array("q", map(self.rows.__getitem__, places))
        if min(rows, default=0) >= 0:
            return rows, None
        slots = [slot for slot, row in enumerate(rows) if row >= 0]
        return [rows[slot] for slot in slots], slots

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        below, slots = self._below(places)
        return _put(self.source.fetch(run, epoch, below) if below else [], slots, [None] * len(places))

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        below, slots = self._below(places)
        return _put(self.source.identities(run, epoch, below), slots, [hash64("none", place) for place in places])

    def units(self) -> list[int]:
        return pieces(len(self.rows))

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        needs = self._of_few(start, stop) if stop - start < 4 * len(self._by_shard) else self._of_many(start, stop)
        yield from sorted(needs, key=lambda need: need.first)

    def _of_few(self, start: int, stop: int) -> list[Need]:
        starts, spans = self.source.manifest.starts, dict[int, tuple[int, int]]()
        for place, row in enumerate(self.rows[start:stop], start):
            if row >= 0:
                shard = bisect_right(starts, row) - 1
                spans[shard] = spans.get(shard, (place, 0))[0], place + 1
        return [Need(first, last, self.source, shard) for shard, (first, last) in spans.items()]

    def _of_many(self, start: int, stop: int) -> Iterator[Need]:
        for shard, places in enumerate(self._by_shard):
            low, high = bisect_left(places, start), bisect_left(places, stop)
            if low < high:
                yield Need(places[low], places[high - 1] + 1, self.source, shard)

    @cached_property
    def _by_shard(self) -> list[array[int]]:
        """The places that need each shard, ascending."""
        starts = self.source.manifest.starts
        found = [array("Q") for _ in range(len(starts) - 1)]
        for place, row in enumerate(self.rows):
            if row >= 0:
                found[bisect_right(starts, row) - 1].append(place)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_by_shard"}  # large, and soon made


def _put(items: list[Any], slots: list[int] | None, found: list[Any]) -> list[Any]:
    if slots is None:
        return items
    for slot, item in zip(slots, items, strict=True):
        found[slot] = item
    return found
