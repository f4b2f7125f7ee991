"""Several pipelines interleaved by weight."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

from dload.errors import ConfigError
from dload.pipeline.joins import MixCursor
from dload.pipeline.mixing import Schedule, Weave, until_all, until_cycle, until_first, whole_weights
from dload.pipeline.node import Node, assembled, merged, pieces, seed_given, some
from dload.pipeline.running import Cursor, Epoch, Need, Run
from dload.pipeline.woven import Woven, WovenPlaces
from dload.randomness import hash64

_UNTIL = {"first": until_first, "cycle": until_cycle, "all": until_all}
_BLOCK = 1024
_BLOCKS = 64  # of rows, kept for scattered places


class Mix(Node):
    """Rows of the parents, interleaved so evenly that any stretch holds each one's share within a few rows: see
    `Weave`.

    `weights`: a number for each parent (None: all alike), a list of (first row, numbers), a function of row //
    65,536, or a pipeline of numbers for each row, which puts the mix in the stream tier. `until`: "first" ends when a
    parent that has ended is due, "cycle" when all have been read once, those that end before beginning again, "all"
    when all have ended, the others sharing the rows of one that has. In the stream tier an end shows only when the
    parent is due again.

    Without a seed it weaves by seed 0, so that a mix has one length. A mix directly in a mix that ends alike ("first"
    or "cycle") becomes one with it, weights multiplied.
    """

    kind = "mix"
    alternatives = True

    def __init__(
        self, parents: Sequence[Node], weights: Any = None, seed: int | None = None, until: str = "first"
    ) -> None:
        self.until = "first" if until == "any" else until
        if self.until not in _UNTIL:
            raise ConfigError(f'until is {until!r}, and must be "first", "cycle" or "all"')
        self.seed = seed_given(seed)
        self.count = len(some(parents, "mix"))
        self.weights: Any = None
        if isinstance(weights, Node):
            super().__init__(*parents, weights)
            return
        self.weights = [1] * len(parents) if weights is None else weights
        schedule = Schedule(self.weights, len(parents))  # checked before anything else is done with them
        if not callable(self.weights) and schedule.at(0)[1] is None:
            parents, self.weights = self._flattened(parents, schedule.at(0)[0])
            self.count = len(parents)
        super().__init__(*parents)
        self._blocks: dict[int, list[tuple[int, int]]] = {}
        if self.indexed:
            _ = self.weave  # raises what is wrong with it here and now

    def _flattened(self, parents: Sequence[Node], weights: Sequence[int]) -> tuple[list[Node], list[int]]:
        found: list[Node] = []
        shares: list[Fraction] = []
        for parent, weight in zip(parents, weights, strict=True):
            if isinstance(parent, Mix) and self._joins(parent):
                found += parent.parents
                shares += [Fraction(weight * inner, sum(parent.weights)) for inner in parent.weights]
            else:
                found.append(parent)
                shares.append(Fraction(weight))
        return found, list(whole_weights(shares))

    def _joins(self, inner: Mix) -> bool:
        """Whether a mix directly below gives the same shares as a part of this one."""
        constant = isinstance(inner.weights, list) and all(isinstance(weight, int) for weight in inner.weights)
        return constant and inner.until == self.until != "all" and inner.seed in (None, self.seed)

    def parameters(self) -> dict[str, Any]:
        return {"weights": None if callable(self.weights) else self.weights, "until": self.until}

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.weights,) if callable(self.weights) else ()

    @property
    def indexed(self) -> bool:
        return self.weights is not None and super().indexed

    @property
    def endless(self) -> bool:
        ends = [parent.endless for parent in self.parents]
        return any(ends) if self.until == "all" else all(ends)

    @cached_property
    def sources(self) -> int:
        return sum(parent.sources for parent in self.parents)

    @cached_property
    def weave(self) -> Weave:
        """Which parent each row comes from. Index tier only."""
        return _UNTIL[self.until](self.weights, [parent.length for parent in self.parents], self.seed or 0)

    @cached_property
    def length(self) -> int | None:
        return self.weave.length

    def units(self) -> list[int]:
        assert self.length is not None
        return pieces(self.length)

    # ---- places
    def _rows(self, places: Sequence[int]) -> list[tuple[int, int]]:
        """(parent, which of its rows over all its passes) of each place."""
        if isinstance(places, WovenPlaces):
            return places.rows
        if isinstance(places, range) and places.step == 1:
            return self.weave.rows(places.start, max(places.start, places.stop))
        return [self._block(place // _BLOCK)[place % _BLOCK] for place in places]

    def _block(self, number: int) -> list[tuple[int, int]]:
        block = self._blocks.get(number)
        if block is None:
            stop = (number + 1) * _BLOCK
            block = self.weave.rows(number * _BLOCK, stop if self.length is None else min(self.length, stop))
            while len(self._blocks) >= _BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = block
        return block

    def _pass_of(self, parent: int, row: int) -> tuple[int, int, int]:
        """(pass, its first row, its last + 1) of a parent's row."""
        length = self.parents[parent].length
        if length is None:
            return 0, 0, sys.maxsize
        number = row // length  # 0 unless the mix goes round
        return number, number * length, (number + 1) * length

    def part_of(self, parent: int, row: int) -> tuple[int, int | None]:
        """The part that a parent's row is in, by its rows over all its passes."""
        _, base, _ = self._pass_of(parent, row)
        first, last = self.parents[parent].part(row - base)
        return base + first, None if last is None else base + last

    def _epoch(self, epoch: Epoch, number: int) -> Epoch:
        return (*epoch, number) if self.until == "cycle" else epoch

    def _gathered(self, places: Sequence[int], get: Callable[[int, int, Sequence[int]], list[Any]]) -> list[Any]:
        """What `get(parent, pass, places of the parent)` gives for each place."""
        groups: dict[int, tuple[list[int], list[int]]] = {}  # parent -> where its elements go, its rows
        for slot, (parent, row) in enumerate(self._rows(places)):
            slots, rows = groups.setdefault(parent, ([], []))
            slots.append(slot)
            rows.append(row)
        found: list[Any] = [None] * len(places)
        for parent, (slots, rows) in groups.items():
            # In order a parent's rows have no gaps, and few in a lane.
            ascending = isinstance(places, WovenPlaces) or (isinstance(places, range) and places.step == 1)
            items = assembled(
                range(rows[0], rows[-1] + 1) if ascending and rows[-1] - rows[0] == len(rows) - 1 else rows,
                lambda row, parent=parent: self._pass_of(parent, row),  # type: ignore[misc]
                lambda number, below, parent=parent: get(parent, number, below),  # type: ignore[misc]
            )
            for slot, item in zip(slots, items, strict=True):
                found[slot] = item
        return found

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        def get(parent: int, number: int, below: Sequence[int]) -> list[Any]:
            return self.parents[parent].fetch(run, self._epoch(epoch, number), below)

        return self._gathered(places, get)

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        def get(parent: int, number: int, below: Sequence[int]) -> list[int]:
            names = self.parents[parent].identities(run, self._epoch(epoch, number), below)
            return [hash64(parent, name) for name in names]

        return self._gathered(places, get)

    # ---- lanes
    def part(self, place: int) -> tuple[int, int | None]:
        return self.weave.stage_of(place)

    def woven(self, epoch: Epoch, place: int) -> Woven | None:
        return Woven(self, epoch, 0, self.length)

    @cached_property
    def span(self) -> int | None:
        spans = [parent.span for parent in self.parents[: self.count]]
        return self.length if self.indexed else sum(span for span in spans if span is not None) or None

    # ---- demand
    def child_demand(self, run: Run, epoch: Epoch, parent: int, start: int, stop: int | None) -> Iterator[Need]:
        """What rows [start, stop) of a parent need, all of one pass, by its rows over all its passes."""
        number, base, _ = self._pass_of(parent, start)
        end = sys.maxsize if stop is None else stop - base
        for need in self.parents[parent].demand(run, self._epoch(epoch, number), start - base, end):
            yield Need(base + need.first, base + need.last, need.source, need.shard)

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        return merged(self._demand_of(parent, run, epoch, start, stop) for parent in range(self.count))

    def _demand_of(self, parent: int, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        """What the rows of one parent need, as rows of the mix."""
        node = self.parents[parent]
        if start >= stop or not node.reads:
            return
        row = self.weave.count(parent, start)
        while (comes := self.weave.row_of(parent, row)) is not None and comes < stop:
            _, _, end = self._pass_of(parent, row)
            for need in self.child_demand(run, epoch, parent, row, end):
                first, last = self.weave.positions_of(parent, need.first, need.last)
                if first >= last or first >= stop:
                    return
                yield Need(max(start, first), min(stop, last), need.source, need.shard)
            row = end

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        def make(parent: int, number: int) -> Cursor:
            node = self.parents[parent]
            return node.cursor(node.after(run, number), self._epoch(epoch, number))

        def fruitless(parent: int, first: int, last: int) -> bool:
            return run.lane.saw_all(self.parents[parent].span or run.lane.grid.c, first, last)

        ends = [not parent.endless for parent in self.parents[: self.count]]
        if isinstance(self.weights, list) and not any(isinstance(weight, Sequence) for weight in self.weights):
            ends = [end and weight > 0 for end, weight in zip(ends, self.weights, strict=True)]
        weights = self.parents[-1].cursor(run, epoch) if self.weights is None else Schedule(self.weights, self.count)
        return MixCursor(make, ends, weights, self.seed or 0, self.until, run.lane, fruitless)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "weave"} | {"_blocks": {}}
