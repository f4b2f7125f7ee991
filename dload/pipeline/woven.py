"""What a lane gets of a mix at the top: of each pass of a child one contiguous piece, in global time exactly."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

from dload.pipeline.lanes import Lane
from dload.pipeline.running import Epoch, Need, Run

if TYPE_CHECKING:
    from dload.pipeline.mix import Mix

_IDLE = 1000
_LOOKED_AT = 256  # elements that are looked at one by one


class Woven(NamedTuple):
    """A mix with only element-wise nodes above it, in a node's places: from place `begin` on, `rows` of its rows."""

    mix: Mix
    epoch: Epoch
    begin: int
    rows: int | None


class WovenPlaces(Sequence[int]):
    """Places of a mix (moved by `begin`) that are known as rows of its children: a place is computed only for who
    looks at it."""

    def __init__(self, mix: Mix, rows: list[tuple[int, int]], begin: int = 0) -> None:
        self.mix, self.rows, self.begin = mix, rows, begin

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> WovenPlaces: ...
    def __getitem__(self, at: int | slice) -> int | WovenPlaces:
        if isinstance(at, slice):
            return WovenPlaces(self.mix, self.rows[at], self.begin)
        row = self.mix.weave.row_of(*self.rows[at])
        assert row is not None
        return self.begin + row

    def followed(self, parts: Iterable[WovenPlaces]) -> WovenPlaces:
        """Those of several parts, of the same pass over the mix."""
        return WovenPlaces(self.mix, [row for part in parts for row in part.rows], self.begin)

    def moved(self, rows: int) -> WovenPlaces:
        """The same, in places of a node where the mix begins so many rows later."""
        return WovenPlaces(self.mix, self.rows, self.begin + rows)


class _Slice(NamedTuple):
    """The lane's piece of a child's part: elements number `first` to `last` - 1 that the lane gets of this child are
    the child's rows from `row` on (None: those that the order itself has there). The part ends before row `stop` of the
    mix."""

    first: int
    last: int | None
    row: int | None
    stop: int | None


class WovenLane:
    """The lane's elements of the first `rows` rows of a mix, as rows of its children. For one thread at a time.

    The lane's element is the row of the mix that it would be anyhow, so shares hold for any prefix; but which row of
    the child it is goes by how many of the lane's rows come from that child.
    """

    def __init__(self, mix: Mix, lane: Lane, rows: int | None) -> None:
        self._mix, self._weave, self._lane, self._rows = mix, mix.weave, lane, rows
        self._next = -1  # the element that `_counts` and `_slices` are about
        self._counts: list[int] = []
        self._slices: list[_Slice | None] = []

    def _count(self, child: int, row: int) -> int:
        return self._weave.lane_count(self._lane, child, row)

    def places(self, start: int, stop: int) -> WovenPlaces:
        """The lane's elements start to stop - 1, which must be there."""
        lane, weave = self._lane, self._weave
        if start != self._next:
            self._counts = [self._count(child, lane.row(start)) for child in range(weave.children)]
            self._slices = [None] * weave.children
        counts, slices, found = self._counts, self._slices, []
        for element in range(start, stop):
            row = lane.row(element)
            child = weave.child(row)
            count = counts[child]
            piece = slices[child]
            if piece is None or (piece.last is not None and count >= piece.last):
                piece = slices[child] = self._slice(child, row)
            taken = weave.count(child, row) if piece.row is None else piece.row + count - piece.first
            found.append((child, taken))
            counts[child] = count + 1
        self._next = stop
        return WovenPlaces(self._mix, found)

    def _slice(self, child: int, row: int) -> _Slice:
        """Of the part that the child's first row at or after a row of the mix is in."""
        weave = self._weave
        first, last = self._mix.part_of(child, weave.count(child, row))
        if last is None:
            return _Slice(0, None, None, None)
        low, high = weave.positions_of(child, first, last)
        if self._rows is not None:
            high = min(high, self._rows)
        lane = self._lane
        before = weave.before(lane, child, high) - weave.before(lane, child, low)
        return _Slice(self._count(child, low), self._count(child, high), first + before, high)

    # ---- demand
    def demand(self, run: Run, epoch: Epoch, start: int) -> Iterator[Need]:
        """What the lane's elements from `start` on need."""
        children = (self._demand_of(run, epoch, child, start) for child in range(self._weave.children))
        return heapq.merge(*children, key=lambda need: need.first)

    def _demand_of(self, run: Run, epoch: Epoch, child: int, start: int) -> Iterator[Need]:
        node, row, idle = self._mix.parents[child], self._lane.row(start), 0
        while node.reads and idle < _IDLE and (self._rows is None or row < self._rows):
            at = self._weave.row_of(child, self._weave.count(child, row))
            if at is None or (self._rows is not None and at >= self._rows):
                return
            piece = self._slice(child, at)
            idle += 1
            for need in self._needs(run, epoch, child, at, piece):
                yield Need(max(start, need.first), need.last, need.source, need.shard)
                idle = 0
            if piece.stop is None:
                return
            row = piece.stop

    def _needs(self, run: Run, epoch: Epoch, child: int, row: int, piece: _Slice) -> Iterator[Need]:
        """Those of one piece from a row of the mix on, by elements of the lane."""
        lane, weave = self._lane, self._weave
        if piece.row is None or piece.last is None:
            for need in self._mix.child_demand(run, epoch, child, weave.count(child, row), None):
                low, high = weave.positions_of(child, need.first, need.last)
                high = high if self._rows is None else min(high, self._rows)
                if low >= high:
                    return
                first, last = lane.count(low), lane.count(high)
                if first < last:
                    yield Need(first, last, need.source, need.shard)
            return
        count = self._count(child, row)
        shift = piece.row - piece.first
        assert piece.stop is not None
        begin, end = (lane.count(row), count), (lane.count(piece.stop), piece.last)
        for need in self._mix.child_demand(run, epoch, child, shift + count, shift + piece.last):
            first = self._element(child, need.first - shift, begin, end)
            last = self._element(child, need.last - 1 - shift, (first, need.first - shift), end) + 1
            yield Need(first, last, need.source, need.shard)

    def _element(self, child: int, number: int, begin: tuple[int, int], end: tuple[int, int]) -> int:
        """Which of the lane's elements is the one of this number that comes from the child. `begin` and `end` are
        elements between which it is, each with how many before it come from the child.

        Counting costs a lot and looking at an element little: so it guesses by the share, and goes on from there.
        """
        lane, weave = self._lane, self._weave
        (low, before), (high, after) = begin, end
        narrow = False
        while high - low > _LOOKED_AT:
            guess = low + (number - before) * (high - low) // max(1, after - before) - _LOOKED_AT // 4
            middle = (low + high) // 2 if narrow else min(max(guess, low + 1), high - 1)
            count = self._count(child, lane.row(middle))
            if count > number:
                high, after = middle, count
            else:
                low, before = middle, count
                if (number - count) * (high - low) <= (after - before) * _LOOKED_AT // 2:
                    break
            narrow = not narrow
        for element in range(low, high):
            if weave.child(lane.row(element)) == child:
                if before == number:
                    return element
                before += 1
        raise AssertionError("the lane has fewer elements of the child than its count says")
