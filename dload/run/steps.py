"""The steps of a run, one rank's part of each, in order."""

from __future__ import annotations

from typing import Any

from dload.pipeline.dealing import Deal
from dload.pipeline.running import Cursor, Run

LaneStates = dict[int, Any]
"""Lane -> its cursor's state; a lane that hasn't begun isn't in it. Stream tier only."""


class StepReader:
    """One rank's rows of each step of an epoch, from step `step` on; in the stream tier from the lanes' states there.

    HOLEs are rows like others here. `read` gives fewer rows than a whole step where lanes run dry; what a rank reads of
    a column that it shares with another rank, and isn't its own, it leaves out.
    """

    def __init__(
        self, deal: Deal, run: Run, rows: range, epoch: int, step: int = 0, states: LaneStates | None = None
    ) -> None:
        self._deal, self._run, self._epoch = deal, run, epoch
        self._columns = deal.columns(rows)
        self._indexed = deal.top.indexed
        self._states = dict(states or {})
        self._cursors: dict[int, Cursor] = {}
        self.step = step

    def read(self) -> list[Any]:
        """The rows of the next step, and stands behind it."""
        rows: list[Any] = []
        for column, offsets in self._columns:
            lane = self._deal.lane(column, self.step, self._epoch)
            cursor = self._cursors.get(lane)
            if cursor is None:
                cursor = self._cursors[lane] = self._open(lane, offsets)
            if self._indexed:
                rows += _some(cursor, len(offsets))
            else:
                rows += _some(cursor, self._deal.grid.c)[offsets.start : offsets.stop]
        self.step += 1
        return rows

    def _open(self, lane: int, offsets: range) -> Cursor:
        if self._indexed:
            cursor = self._deal.lane_cursor(self._run, self._epoch, lane, offsets)
            cursor.reset(self.step * len(offsets))
        else:
            cursor = self._deal.lane_cursor(self._run, self._epoch, lane)
            cursor.reset(self._states.get(lane))
        return cursor

    def states(self) -> LaneStates:
        """Where the lanes that were touched stand now."""
        return self._states | {lane: cursor.get_state() for lane, cursor in self._cursors.items()}

    def close(self) -> None:
        """Let go of what was fetched ahead."""
        for cursor in self._cursors.values():
            cursor.close()


def _some(cursor: Cursor, count: int) -> list[Any]:
    """The next `count` elements, fewer at the end."""
    found: list[Any] = []
    while len(found) < count:
        try:
            found.append(next(cursor))
        except StopIteration:
            break
    return found
