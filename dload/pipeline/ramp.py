"""A global batch that grows: which step has how many rows, and how many come before it.

Lanes are dealt rows by a grid of the largest size of which all steps are multiples. So a ramp changes where steps are
cut, and not which rows come in which order.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import gcd

from dload.errors import ConfigError
from dload.pipeline.node import whole_number


@dataclass(frozen=True, slots=True)
class Ramp:
    """`start` rows a step at first, and `increment` more each time that another equal share of `samples` rows has been
    handed out, up to the global batch; all over all ranks.

    With n increments in all, a step before which there were r rows has start + increment * min(n, r * n // samples).
    Raises ConfigError where a number is below 1.
    """

    start: int
    increment: int
    samples: int

    def __post_init__(self) -> None:
        for name in ("start", "increment", "samples"):
            whole_number(getattr(self, name), f"{name} of a ramp", 1)


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps of one size, `batch` rows: those from `step` on up to `end` (None: all), before which there are `row`
    rows."""

    step: int
    end: int | None
    row: int
    batch: int


class Cuts:
    """Where a run's rows are cut into steps of `batch` rows, in the beginning by `ramp`. Raises ConfigError where the
    ramp doesn't lead to the batch."""

    def __init__(self, batch: int, ramp: Ramp | None = None) -> None:
        self.ramp = ramp
        self.unit = batch
        """All steps are multiples of it."""
        self._stages = [Stage(0, None, 0, batch)]
        if ramp is not None:
            if ramp.start > batch or (batch - ramp.start) % ramp.increment:
                raise ConfigError(
                    f"a ramp from {ramp.start} rows by {ramp.increment} doesn't lead to a global batch of {batch}",
                    remedy="give global_batch = start + a number of increments",
                )
            if ramp.start < batch:
                self.unit = gcd(ramp.start, ramp.increment)
                self._stages = _stages(batch, ramp)
        self._firsts = [stage.step for stage in self._stages]

    def stage(self, step: int) -> Stage:
        """The one that a step is in."""
        return self._stages[bisect_right(self._firsts, step) - 1]

    def row(self, step: int) -> int:
        """How many rows there are before a step."""
        stage = self.stage(step)
        return stage.row + (step - stage.step) * stage.batch


def _stages(batch: int, ramp: Ramp) -> list[Stage]:
    increments = (batch - ramp.start) // ramp.increment
    found, step, row = [], 0, 0
    for number in range(increments):
        size = ramp.start + number * ramp.increment
        border = -(-(number + 1) * ramp.samples // increments)  # from this row on steps are larger
        steps = max(0, -(-(border - row) // size))
        if steps:
            found.append(Stage(step, step + steps, row, size))
        step, row = step + steps, row + steps * size
    return [*found, Stage(step, None, row, batch)]
