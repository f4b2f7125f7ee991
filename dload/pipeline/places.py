"""Which places of an index-tier node a cursor reads, in which order: all of them, or those of one lane."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile
from typing import TYPE_CHECKING, cast

from dload.pipeline.lanes import Lane
from dload.pipeline.running import Epoch, Need, Run
from dload.pipeline.woven import Woven, WovenLane, WovenPlaces

if TYPE_CHECKING:
    from dload.pipeline.node import Node

_IDLE = 1000  # parts without any need: whoever looks for the next one must not look for ever


class Places(ABC):
    """The elements of a cursor, 0, 1, ..., as places of its node."""

    length: int | None

    @abstractmethod
    def at(self, epoch: Epoch, start: int, stop: int) -> Sequence[int]:
        """The places of elements from `start` on, at least one and at most up to `stop`. They must be there."""

    @abstractmethod
    def demand(self, run: Run, epoch: Epoch, start: int) -> Iterator[Need]:
        """What elements from `start` on need, by elements."""


class AllPlaces(Places):
    """Every place, in order."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.length = node.length

    def at(self, epoch: Epoch, start: int, stop: int) -> Sequence[int]:
        return range(start, stop)

    def demand(self, run: Run, epoch: Epoch, start: int) -> Iterator[Need]:
        return self._node.demand(run, epoch, start, sys.maxsize if self.length is None else self.length)


class LanePlaces(Places):
    """A lane's elements: of each part of the node one contiguous slice, and of a mix at the top one of each child's.

    Where a part has no end, row G is place G. With `padded`, so many rows are dealt: those behind the node's last
    repeat the row a whole step before (or, where a step is longer than the node, the rows from its first on).
    """

    def __init__(self, node: Node, lane: Lane, padded: int | None = None) -> None:
        self._node, self._lane = node, lane
        self._rows = node.length
        self._own = None if self._rows is None else lane.count(self._rows)
        self.length = self._own if padded is None else lane.count(padded)
        self._weaves: tuple[Woven, WovenLane] | None = None

    def at(self, epoch: Epoch, start: int, stop: int) -> Sequence[int]:
        if self._own is not None:
            if start >= self._own:
                return [self._repeated(epoch, element) for element in range(start, stop)]
            stop = min(stop, self._own)
        node, lane = self._node, self._lane
        row = lane.row(start)
        woven = node.woven(epoch, row)
        if woven is not None:
            before = lane.count(woven.begin)
            if woven.rows is not None:
                stop = min(stop, lane.count(woven.begin + woven.rows))
            return self._weave(woven).places(start - before, stop - before).moved(woven.begin)
        low, high = node.part(row)
        if high is None:
            return [lane.row(element) for element in range(start, stop)]
        first, count = lane.slice(low, high)
        offset = start - lane.count(low)
        return range(first + offset, first + min(count, offset + stop - start))

    def _weave(self, woven: Woven) -> WovenLane:
        if self._weaves is None or self._weaves[0] != woven:
            self._weaves = woven, WovenLane(woven.mix, self._lane.later(woven.begin), woven.rows)
        return self._weaves[1]

    def _repeated(self, epoch: Epoch, element: int) -> int:
        """The place that an element behind the node's last repeats."""
        grid, row = self._lane.grid, self._lane.row(element)
        assert self._rows is not None
        row = row - grid.B if self._rows >= grid.B else row % self._rows
        number, element = grid.where(*divmod(row, grid.B))
        return LanePlaces(self._node, Lane(grid, number)).at(epoch, element, element + 1)[0]

    # ---- demand
    def demand(self, run: Run, epoch: Epoch, start: int) -> Iterator[Need]:
        if not self._node.reads:
            return
        idle, own = 0, self._own
        while idle < _IDLE and (own is None or start < own):
            idle += 1
            needs, stop = self._needs(run, epoch, start)
            for need in needs:
                yield need
                idle = 0
            if stop is None:
                return
            start = stop
        for element in range(start, self.length or 0):
            place = self._repeated(epoch, element)
            for need in self._node.demand(run, epoch, place, place + 1):
                yield Need(element, element + 1, need.source, need.shard)

    def _needs(self, run: Run, epoch: Epoch, start: int) -> tuple[Iterator[Need], int | None]:
        """What elements from `start` on need, up to an element behind it (None: without end)."""
        node, lane = self._node, self._lane
        row = lane.row(start)
        woven = node.woven(epoch, row)
        if woven is not None:
            before = lane.count(woven.begin)
            needs = _moved(self._weave(woven).demand(run, woven.epoch, start - before), before)
            return needs, None if woven.rows is None else lane.count(woven.begin + woven.rows)
        low, high = node.part(row)
        if high is None:
            return self._scattered(node.demand(run, epoch, row, sys.maxsize)), None
        first, count = lane.slice(low, high)
        offset = start - lane.count(low)
        return _moved(node.demand(run, epoch, first + offset, first + count), start - first - offset), (
            start + count - offset
        )

    def _scattered(self, needs: Iterator[Need]) -> Iterator[Need]:
        """Needs of rows, of which the lane has some."""
        for need in needs:
            first, last = self._lane.count(need.first), self._lane.count(need.last)
            if first < last:
                yield Need(first, last, need.source, need.shard)


def joined(parts: list[Sequence[int]]) -> Sequence[int]:
    """Places one after the other. Of a mix only as far as they are of one pass over it."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, WovenPlaces):
        alike = takewhile(lambda part: isinstance(part, WovenPlaces) and part.begin == first.begin, parts)
        return first.followed(cast("Iterable[WovenPlaces]", alike))
    return list(chain.from_iterable(takewhile(lambda part: not isinstance(part, WovenPlaces), parts)))


def _moved(needs: Iterator[Need], by: int) -> Iterator[Need]:
    for need in needs:
        yield Need(need.first + by, need.last + by, need.source, need.shard)


class PickedPlaces(Places):
    """Of a lane's elements those at the offsets `rows` in every `stride`th turn of the lane from `first` on; a turn has
    `size` elements, and the first begins at element `begin`. With `turns`, the lane ends before that turn."""

    def __init__(
        self, lane: Places, size: int, rows: range, first: int, stride: int, turns: int | None, begin: int = 0
    ) -> None:
        self._lane, self._size, self._rows, self._first, self._stride = lane, size, rows, first, stride
        self._begin = begin
        stop = None if turns is None else begin + turns * size
        if lane.length is not None:
            stop = lane.length if stop is None else min(stop, lane.length)
        self.length = None if stop is None else self._before(stop)

    def _before(self, element: int) -> int:
        """How many of the lane's first elements are among these."""
        turn, offset = divmod(element - self._begin, self._size)
        whole, rest = divmod(turn - self._first, self._stride)
        if turn < self._first:
            return 0
        rows = self._rows
        part = len(rows) if rest else len(range(rows.start, max(rows.start, min(offset, rows.stop)), rows.step))
        return whole * len(self._rows) + part

    def _element(self, number: int) -> int:
        turn, offset = divmod(number, len(self._rows))
        return self._begin + (self._first + turn * self._stride) * self._size + self._rows[offset]

    def at(self, epoch: Epoch, start: int, stop: int) -> Sequence[int]:
        wide, found = len(self._rows) if self._rows.step == 1 else 1, []  # how many follow one another in the lane
        while start < stop:
            element = self._element(start)
            found.append(self._lane.at(epoch, element, element + min(stop - start, wide - start % wide)))
            start += len(found[-1])
        return joined(found)

    def demand(self, run: Run, epoch: Epoch, start: int) -> Iterator[Need]:
        if self.length is not None and start >= self.length:
            return
        for need in self._lane.demand(run, epoch, self._element(start)):
            first, last = max(start, self._before(need.first)), self._before(need.last)
            if self.length is not None:
                if first >= self.length:
                    return
                last = min(last, self.length)
            if first < last:
                yield Need(first, last, need.source, need.shard)


def places_of(node: Node, lane: Lane) -> Places:
    """What a lane reads of a node."""
    return AllPlaces(node) if lane.grid.lanes == 1 else LanePlaces(node, lane)
