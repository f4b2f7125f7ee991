"""The steps of a run, one rank's part of each, in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from dload.pipeline.cursors import applied
from dload.pipeline.dealing import Deal
from dload.pipeline.ramp import Stage
from dload.pipeline.running import HOLE, Cursor, Run
from dload.run.counters import Tally

LaneStates = dict[int, Any]
"""Lane -> its cursor's state; a lane that hasn't begun isn't in it. Stream tier only."""

Collate = Callable[[list[Any]], Any]


@dataclass(slots=True)
class Step:
    """One rank's part of a step, as it was built, or what went wrong with it."""

    number: int
    item: Any = None
    """Its rows, without HOLEs, or what collate made of them."""
    whole: bool = False
    """Whether it has all its rows. Collate gets no others."""
    valid: list[bool] = field(default_factory=list)
    """Of each row, whether it counts: not where it fills up a padded step."""
    holes: int = 0
    states: LaneStates = field(default_factory=dict)
    """Behind it, of the lanes that it touched."""
    error: BaseException | None = None


class StepReader:
    """One rank's part of every `stride`th step of an epoch, from step `step` on; in the stream tier from the lanes'
    states at their next turns, and `stride` divides the turns then.

    What it reads of a column that it shares with another rank, and isn't its own, it leaves out. A step of which
    nothing but HOLEs is left is an empty list. After an error it is of no more use.
    """

    def __init__(
        self,
        deal: Deal,
        run: Run,
        rows: range,
        epoch: int,
        step: int = 0,
        states: LaneStates | None = None,
        stride: int = 1,
        collate: Collate | None = None,
        tally: Tally | None = None,
    ) -> None:
        self._tally = tally or Tally()
        self._deal, self._run, self._rows, self._epoch, self._stride = deal, run, rows, epoch, stride
        self._stage: Stage | None = None  # of the ramp
        self._own, self._columns = rows, deal.columns(rows)  # in that stage
        self._indexed = deal.top.indexed
        self._collate = collate
        self._states = states or {}
        self._cursors: dict[int, Cursor] = {}
        self.step = step  # the next one

    def read(self) -> Step:
        """The next step; it isn't whole where lanes run dry."""
        begin, built = time.perf_counter(), 0
        try:
            step = self._read()
            built = len(step.valid)
            return step
        finally:
            self._tally.built(built, time.perf_counter() - begin)

    def _read(self) -> Step:
        number = self.step
        rows: list[Any] = []
        states: LaneStates = {}
        times = self._enter(self._deal.stage(self._epoch, number))
        for column, offsets in self._columns:
            lane = self._deal.lane(column, number, self._epoch)
            cursor = self._cursors.get(lane)
            if cursor is None:
                cursor = self._cursors[lane] = self._open(lane, offsets)
            if self._indexed:
                rows += islice(cursor, len(offsets))
            else:
                rows += list(islice(cursor, self._deal.grid.c * times))[offsets.start : offsets.stop]
                states[lane] = cursor.standing()
        self.step += self._stride
        return self._made(number, rows, states)

    def _enter(self, stage: Stage) -> int:
        """Stand in a stage of the ramp. How many times `grid.B` rows its steps have."""
        times = stage.batch // self._deal.grid.B
        if stage is not self._stage:
            self._own = range(self._rows.start * times, self._rows.stop * times)
            self._columns = self._deal.columns(self._own, times)
            if self._indexed:
                self._end_cursors()  # they are cut by the stage before
            self._stage = stage
        return times

    def _end_cursors(self) -> None:
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors = {}

    def built(self) -> Step:
        """The next step, its error in it where there is one."""
        number = self.step
        try:
            return self.read()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Step(number, error=error)

    def _made(self, number: int, rows: list[Any], states: LaneStates) -> Step:
        whole = len(rows) == len(self._own)
        kept = [row for row in rows if row is not HOLE]
        padding = set(self._deal.padding(number))
        valid = [True] * len(kept)
        if padding:
            valid = [at not in padding for at, row in zip(self._rows, rows, strict=False) if row is not HOLE]
        item = applied(self._collate, kept) if self._collate is not None and whole and kept else kept
        return Step(number, item, whole, valid, len(rows) - len(kept), states)

    def _open(self, lane: int, offsets: range) -> Cursor:
        deal = self._deal
        if self._indexed and deal.cuts.ramp is not None:
            assert self._stage is not None
            step = deal.first_step(self._epoch) + self.step - self._stage.step
            turns, first = divmod(step, self._stride)
            cursor = deal.stage_cursor(self._run, self._epoch, lane, self._stage, offsets, first, self._stride)
            cursor.reset(turns * len(offsets))
        elif self._indexed:
            turns, first = divmod(self.step, self._stride)
            cursor = deal.lane_cursor(self._run, self._epoch, lane, offsets, first, self._stride)
            cursor.reset(turns * len(offsets))
        else:
            cursor = deal.lane_cursor(self._run, self._epoch, lane)
            cursor.reset(self._states.get(lane))
        return cursor

    def stop(self) -> None:
        """End a wait for the threads of functions, from another thread."""
        self._run.workers.close()

    def close(self) -> None:
        """Let go of what was fetched ahead, and of threads."""
        self.stop()
        self._end_cursors()
