"""How a pipeline's elements become the steps of a run, dealt to lanes, under a policy for an epoch's end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from dload.errors import ConfigError
from dload.pipeline.cursors import PlaceCursor, SteadyCursor
from dload.pipeline.elementwise import Elementwise
from dload.pipeline.lanes import Grid, Lane
from dload.pipeline.node import Node, finite
from dload.pipeline.order import home_starts, left_out
from dload.pipeline.places import LanePlaces, PickedPlaces, Places, places_of
from dload.pipeline.ramp import Cuts, Stage
from dload.pipeline.reorder import Repeat, Shuffle, passes_of
from dload.pipeline.running import Cursor, Epoch, Need, Run
from dload.pipeline.woven import Woven, WovenPlaces

ENDS = ("drop", "pad", "endless", "steps", "agree", "ragged")


class Deal:
    """A pipeline's elements as steps of `grid.B` rows: pure arithmetic, and cursors over lanes.

    `ends` is one of ENDS; with "steps", `steps` is their number in an epoch. With a ramp in `cuts`, steps have several
    times `grid.B` rows, of each column as many times its c. Raises ConfigError, with the ways out,
    where that doesn't go with the pipeline.
    """

    def __init__(self, top: Node, grid: Grid, ends: str, steps: int | None = None, cuts: Cuts | None = None) -> None:
        if ends not in ENDS:
            raise ConfigError(f"ends is {ends!r}, and must be one of {', '.join(ENDS)}")
        if (ends == "steps") != (steps is not None) or (steps is not None and steps < 1):
            raise ConfigError(f"ends={ends!r} and steps={steps!r}", remedy="a number of steps goes with ends='steps'")
        self.top, self.grid, self.ends = top, grid, ends
        top.check_lanes(grid.lanes)
        self.cuts = Cuts(grid.B) if cuts is None else cuts
        if self.cuts.ramp is not None and not (self.continues and grid.m == 1):
            raise ConfigError(
                f"a ramp goes on over epochs and has one turn, got ends={ends!r} and turns={grid.m}",
                remedy="give ends='endless', or steps=, and leave out turns",
            )
        self._steps = steps
        self._length = top.total
        if ends == "pad" and not top.indexed and self._length is not None and self._length % grid.B:
            raise ConfigError(
                f"ends='pad' would repeat rows, and a stream can't: its {self._length:,} rows are no multiple of "
                f"{grid.B}",
                remedy="give a multiple, or ends='drop'",
            )
        if ends in ("drop", "pad") and self._length is None:
            what = "has no end" if top.endless else "ends nobody knows when: a filter, say, leaves out as it goes"
            raise ConfigError(
                f"ends={ends!r} needs a length, and this pipeline {what}",
                remedy="give steps=, or ends='endless' or 'agree'; or keep its length: filter(holes=True); or store "
                "what it keeps: repo.derive(name, pipe, view=True)",
            )
        if self.continues and self._length == 0:
            raise ConfigError("an empty pipeline has no steps", remedy="ends='drop' gives epochs without steps")

    @property
    def continues(self) -> bool:
        """Whether an epoch goes on where the one before ended: it is part of one endless run."""
        return self.ends in ("endless", "steps")

    # ---- steps and rows
    def steps(self, epoch: int) -> int | None:
        """How many whole steps an epoch has; None where that isn't known, or has no end."""
        del epoch  # all are alike
        if self.continues:
            return self._steps
        if self._length is None:
            return None
        return -(-self._length // self.grid.B) if self.ends == "pad" else self._length // self.grid.B

    def first_step(self, epoch: int) -> int:
        """Where an epoch begins among the steps that lanes are counted by: 0, but where it goes on from the last."""
        return epoch * self._steps if self._steps is not None else 0

    def rows(self, rank: int, world: int) -> range:
        """The rows of each global batch that a rank delivers. Raises ConfigError where that isn't even."""
        return self.grid.rows_of_rank(rank, world)

    def stage(self, epoch: int, step: int) -> Stage:
        """The stage of the ramp that a step of an epoch is in."""
        return self.cuts.stage(self.first_step(epoch) + step)

    def columns(self, rows: range, times: int = 1) -> list[tuple[int, range]]:
        """The columns that have some of these rows of a step of `times` global batches, each with which of its own c *
        times rows these are."""
        c = self.grid.c * times
        found = range(rows.start // c, -(-rows.stop // c)) if rows else range(0)
        return [(j, range(max(rows.start - j * c, 0), min(rows.stop - j * c, c))) for j in found]

    def lane(self, column: int, step: int, epoch: int = 0) -> int:
        """The lane that gives a column's rows at a step of an epoch."""
        return column * self.grid.m + (self.first_step(epoch) + step) % self.grid.m

    def padding(self, step: int) -> list[int]:
        """The rows of a step that repeat others, so that the last step is whole."""
        if self.ends != "pad" or self._length is None:
            return []
        return list(range(max(0, min(self.grid.B, self._length - step * self.grid.B)), self.grid.B))

    # ---- lanes
    def lane_cursor(
        self, run: Run, epoch: int, lane: int, rows: range | None = None, first: int = 0, stride: int = 1
    ) -> Cursor:
        """The lane's elements of an epoch, in order.

        In the index tier, of its c elements a turn those at the offsets `rows` (None: all), in every `stride`th of the
        epoch's turns from `first` on; with m = 1 a turn is a step. The state is how many were given: whoever wants to
        go on at the lane's turn t resets to (t - first) / stride * len(rows).

        In the stream tier, all; the state is the nodes'. Where epochs continue one another, the state at the end of one
        is to be handed to the next: without, `reset(None)` goes over all that came before.
        """
        run = replace(run, lane=Lane(self.grid, lane))
        before = self.grid.steps(lane, self.first_step(epoch))
        if not self.top.indexed:
            if not self.continues:
                return SteadyCursor(self.top.cursor(run, (epoch,)))
            cursor = self.top.cursor(run, (0,)) if self.top.endless else passes_of(self.top, run, _alone, None)
            rows_before = self.cuts.row(self.first_step(epoch)) // self.grid.C
            return SteadyCursor(_Onward(cursor, before * self.grid.c if self.cuts.ramp is None else rows_before))
        turns = None if self._steps is None else self.grid.steps(lane, self.first_step(epoch + 1))
        places = self._places(run.lane)
        c = self.grid.c
        if turns is not None or rows not in (None, range(c)) or (first, stride) != (0, 1):
            places = PickedPlaces(places, c, range(c) if rows is None else rows, before + first, stride, turns)
        return PlaceCursor(self._node, run, (0,) if self.continues else (epoch,), places)

    def stage_cursor(
        self, run: Run, epoch: int, lane: int, stage: Stage, rows: range, first: int, stride: int
    ) -> Cursor:
        """As `lane_cursor`, in the index tier, of the steps of one stage, counted from its first."""
        ends = [end for end in (stage.end, self.first_step(epoch + 1) if self._steps else None) if end is not None]
        turns = min(ends) - stage.step if ends else None
        run = replace(run, lane=Lane(self.grid, lane))
        size, begin = stage.batch // self.grid.C, stage.row // self.grid.C
        places = PickedPlaces(self._places(run.lane), size, rows, first, stride, turns, begin)
        return PlaceCursor(self._node, run, (0,), places)

    @cached_property
    def _node(self) -> Node:
        """The pipeline as a node of all the rows that are dealt. Index tier only."""
        if self._length is None:
            return self.top
        if self.continues:
            return _Epochs(self.top, self.grid)
        left_out = self._length % self.grid.B
        return _WholeSteps(self.top, self.grid.B) if self.ends == "drop" and left_out else self.top

    def _places(self, lane: Lane) -> Places:
        steps = self.steps(0)
        if self.ends == "pad" and steps is not None and self._length and self._length % self.grid.B:
            return LanePlaces(self._node, lane, steps * self.grid.B)
        return places_of(self._node, lane)


def _alone(number: int) -> Epoch:
    return (number,)


class _Onward(Cursor):
    """A cursor that begins behind its first `count` elements."""

    def __init__(self, cursor: Cursor, count: int) -> None:
        self.below = (cursor,)
        self._cursor, self._count = cursor, count

    def reset(self, state: Any | None) -> None:
        self._cursor.reset(state)
        for _ in range(self._count if state is None else 0):
            next(self._cursor)

    def __next__(self) -> Any:
        return next(self._cursor)

    def get_state(self) -> Any:
        return self._cursor.get_state()

    def identity(self) -> int:
        return self._cursor.identity()


class _Epochs(Repeat):
    """Epoch after epoch, without end. An epoch may begin and end inside a step, and then lanes have unequal slices of
    it: its homes are what these slices make of it, so that no lane reads of another home."""

    kind = "epochs"

    def __init__(self, parent: Node, grid: Grid) -> None:
        super().__init__(parent)
        self._grid, self._each = grid, finite(parent, "an epoch")

    def below(self, epoch: Epoch, number: int) -> Epoch:
        return (number,)

    def inside(self, run: Run, number: int) -> Run:
        if run.homes == 1:
            return run
        assert isinstance(run.homes, int)
        low, columns = number * self._each, self._grid.C // run.homes
        starts = [self._grid.slice(home * columns, low, low + self._each)[0] - low for home in range(run.homes)]
        return replace(run, homes=(*starts, self._each))

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        if isinstance(places, WovenPlaces):  # all of one epoch
            number, base, _ = self._pass_of(places.begin)
            return self.parents[0].fetch(run, (number,), places.moved(-base))
        return super().fetch(run, epoch, places)

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        if isinstance(places, WovenPlaces):
            number, base, _ = self._pass_of(places.begin)
            return self.parents[0].identities(run, (number,), places.moved(-base))
        return super().identities(run, epoch, places)

    def woven(self, epoch: Epoch, place: int) -> Woven | None:
        number, base, _ = self._pass_of(place)
        woven = self.parents[0].woven((number,), place - base)
        return None if woven is None else woven._replace(begin=base + woven.begin)


class _WholeSteps(Node):
    """An epoch of whole steps: so many places are left out that the rest divides by `batch`. Where the top is a shuffle
    (under element-wise nodes only) each home leaves out some in a row, from a place that is drawn for each epoch; else
    they are the last, and all of the last home."""

    kind = "whole_steps"

    def __init__(self, parent: Node, batch: int) -> None:
        super().__init__(parent)
        self._top, self._each, self._batch = parent, finite(parent, "an epoch of whole steps"), batch
        below = parent
        while isinstance(below, Elementwise):
            below = below.parents[0]
        self._shuffle = below if isinstance(below, Shuffle) else None

    @cached_property
    def length(self) -> int | None:
        return self._each - self._each % self._batch

    def _kept(self, run: Run, epoch: Epoch) -> tuple[list[int], list[int]]:
        """From which places on more of the parent's are left out before; and how many are, up to the first of these,
        between each two, and from the last on."""
        begins, before = [], [0]
        if self._shuffle is not None:
            seed = run.seed_of(self._shuffle)
            for first, count in left_out(seed, epoch, self._each, self._batch, run.homes):
                begins.append(first - before[-1])
                before.append(before[-1] + count)
        return begins, before

    def _below(self, run: Run, epoch: Epoch, places: Sequence[int]) -> Sequence[int]:
        if self._shuffle is None or not places:
            return places
        begins, before = self._kept(run, epoch)
        if isinstance(places, range) and places.step == 1:
            moved = before[bisect_right(begins, places.start)]
            if moved == before[bisect_right(begins, places.stop - 1)]:
                return range(places.start + moved, places.stop + moved)
        return [place + before[bisect_right(begins, place)] for place in places]

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        return self._top.fetch(self._inside(run), epoch, self._below(run, epoch, places))

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        return self._top.identities(self._inside(run), epoch, self._below(run, epoch, places))

    def _inside(self, run: Run) -> Run:
        if self._shuffle is not None or run.homes == 1:
            return run
        assert self.length is not None
        return replace(run, homes=(*home_starts(run.homes, self.length)[:-1], self._each))

    def part(self, place: int) -> tuple[int, int | None]:
        if self._shuffle is not None:
            return 0, self.length
        first, last = self._top.part(place)
        assert self.length is not None
        return first, self.length if last is None else min(last, self.length)

    def woven(self, epoch: Epoch, place: int) -> Woven | None:
        woven = self._top.woven(epoch, place)
        return None if woven is None else woven._replace(rows=self.length)

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        begins, before = self._kept(run, epoch)
        run = self._inside(run)
        assert self.length is not None
        borders = [0, *begins, self.length]
        for (low, high), count in zip(pairwise(borders), before, strict=True):
            first, last = max(low, start), min(high, stop)
            if first < last:
                for need in self._top.demand(run, epoch, first + count, last + count):
                    yield Need(need.first - count, need.last - count, need.source, need.shard)
