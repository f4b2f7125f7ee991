"""A loader whose steps are built by worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from dload.api.course import Assignment, Course
from dload.api.loader import Builder, StepLoader
from dload.api.pipeline import OnErrorGiven, Pipeline
from dload.errors import ConfigError
from dload.pipeline.ramp import Ramp
from dload.run.steps import Collate
from dload.torch.collate import collate as default_collate
from dload.torch.workers import Fleet

_MOST_AHEAD = 1024  # torch asks for all of them before the first step


class StreamLoader(StepLoader):
    """`dload.Loader` of `pipe` with worker processes: the same steps, row for row, on any number of them, and the same
    states.

    Each step is built whole, collate and all, in one worker of a `torch.utils.data.DataLoader`, and crosses to this
    process in memory that both have. The state says what was handed out, not what workers have built ahead; it goes on
    on any number of ranks and workers, and in `dload.Loader`. Where a worker fails, its error is raised in its step's
    place, its traceback in a note, and the loader stands in front of that step; a worker that is killed is an error
    within seconds.

    Each item is `collate(list of this rank's rows)`; `collate=list` gives the rows themselves, None means
    `dload.torch.collate`. `num_workers=0` builds steps in this process. A pipeline in the stream tier (with a filter,
    say) can use a number of workers that divides its `turns`, which are chosen so at the first run; where it was begun
    on another number, or has a `ramp` and so one turn, fewer may work, which is said.

    `prefetch_factor` (items that each worker builds ahead, of a step or of several quick ones; at most 1,024),
    `persistent_workers`, `pin_memory` and `multiprocessing_context` are the DataLoader's; `in_order=False` is refused,
    since a state couldn't say what was handed out. Everything else, and what is raised, is as in `dload.Loader`.

    It has what others look for in a loader: `len`, `set_epoch`, `state_dict` and `load_state_dict`. A Lightning Trainer
    saves and loads its state; where it has no length, Lightning takes each step one early, and what it saves is one
    step ahead: give it a length by `steps`.
    """

    def __init__(
        self,
        pipe: Pipeline,
        global_batch: int,
        *,
        num_workers: int = 0,
        collate: Collate | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        replicas: int = 1,
        ends: str = "drop",
        steps: int | None = None,
        agree: Callable[[int], int] | None = None,
        columns: int | None = None,
        turns: int | None = None,
        homes: int | None = None,
        seed: int | None = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        pin_memory: bool = False,
        multiprocessing_context: Any = None,
        in_order: bool = True,
        on_error: OnErrorGiven = None,
        fail_after: int = 100,
        ramp: Ramp | None = None,
        phases: Sequence[tuple[int, Sequence[float]]] | None = None,
    ) -> None:
        if num_workers < 0 or prefetch_factor < 1:
            raise ConfigError(f"num_workers={num_workers} and prefetch_factor={prefetch_factor}: at least 0 and 1")
        if not in_order:
            raise ConfigError(
                "in_order=False would hand out steps in an order that nobody knows, so no state could resume it",
                remedy="leave it out",
            )
        super().__init__(
            Course(
                pipe, global_batch, rank=rank, world_size=world_size, replicas=replicas, ends=ends, steps=steps,
                agree=agree, columns=columns, turns=turns, homes=homes, seed=seed, workers=num_workers,
                on_error=on_error, fail_after=fail_after, ramp=ramp, phases=phases,
            ),
            max(1, num_workers),
        )  # fmt: skip
        self.num_workers = num_workers
        self._collate = default_collate if collate is None else collate
        self._options = {
            "prefetch_factor": min(prefetch_factor, _MOST_AHEAD), "persistent": persistent_workers,
            "pin_memory": pin_memory, "context": multiprocessing_context,
        }  # fmt: skip
        self._fleet: Fleet | None = None

    def _builder(self, assignment: Assignment) -> Builder:
        workers = self._workers(assignment.plan["m"])
        fleet = self._fleet
        if fleet is None or not fleet.lasts or fleet.workers != workers or fleet.top is not self._course.top:
            if fleet is not None:
                fleet.end()
            fleet = self._fleet = Fleet(
                self._course.top, self._collate, self._counted.counters, workers, **self._options
            )  # fmt: skip
        fleet.begin(assignment)
        return fleet

    _told = False

    def _workers(self, turns: int) -> int:
        """How many can work: in the stream tier, where each lane belongs to one of them, a divisor of the turns."""
        if self._course.top.indexed or not self.num_workers:
            return self.num_workers
        most = next(count for count in range(min(self.num_workers, turns), 0, -1) if turns % count == 0)
        if most != self.num_workers and not self._told:
            self._told = True
            ways_out = f"begin a run with turns={self.num_workers} to use all"
            if self._course.plan.get("ramp"):
                ways_out = "with a ramp it has one"
            warnings.warn(
                f"{most} of {self.num_workers} workers work: in this pipeline their number must divide turns={turns}; "
                + ways_out,
                stacklevel=5,
            )
        return most

    def close(self) -> None:
        """End the iterator, if there is one, and all workers, also those that persist. Closing twice is fine."""
        super().close()
        if self._fleet is not None:
            self._fleet.end()
            self._fleet = None
