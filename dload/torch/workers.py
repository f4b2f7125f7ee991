"""Steps of a run built in the worker processes of a torch DataLoader."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.utils.data
from torch.utils.data._utils.pin_memory import pin_memory

from dload.api.course import Assignment
from dload.files.shared import SharedBytes
from dload.pipeline.node import Node
from dload.randomness import hash64
from dload.run.counters import Counters
from dload.run.steps import Collate, Step
from dload.run.window import ShardWindow
from dload.torch.slots import Slots

_LENGTH = 8


class Fleet:
    """Worker processes, and what they share with this one. If they persist, for one assignment after another, one at
    a time.

    Without workers, steps are built in this process when they are asked for.
    """

    def __init__(
        self,
        top: Node,
        collate: Collate,
        counters: Counters,
        workers: int,
        *,
        prefetch_factor: int,
        persistent: bool,
        pin_memory: bool,
        context: Any,
    ) -> None:
        self.workers = workers
        self.lasts = persistent and workers > 0
        """Whether another assignment may be given to it."""
        self._steps = _Steps(top, collate, counters, [Slots(prefetch_factor + 1) for _ in range(workers)])
        self._generator = torch.Generator()  # where the loader would draw from torch's own, training would depend on it
        self._loader = torch.utils.data.DataLoader(
            self._steps, batch_size=None, num_workers=workers, collate_fn=_as_it_is, pin_memory=pin_memory,
            prefetch_factor=prefetch_factor if workers else None, persistent_workers=self.lasts,
            multiprocessing_context=context if workers else None, generator=self._generator,
        )  # fmt: skip
        self._coming: Any = None
        self._number = 0

    def begin(self, assignment: Assignment) -> None:
        """Have its steps built, the first by worker 0, the next by worker 1, and so on."""
        self._steps.assign(assignment)
        seed = hash64(assignment.plan["seed"], assignment.epoch, assignment.step)
        self._generator.manual_seed(seed >> 1)
        self._number = assignment.step
        self._coming = iter(self._loader)

    def next(self) -> Step:
        """The next step. What is raised here ends the fleet."""
        try:
            step: Step = next(self._coming).step
        except StopIteration:
            return Step(self._number)  # no worker has it
        except BaseException:
            self.end()
            raise
        if step.number != self._number:
            self.end()
            raise RuntimeError(f"a worker gave step {step.number} where step {self._number} was expected")
        self._number += 1
        return step

    def close(self) -> None:
        """Give up the present assignment."""
        if not self.lasts:
            self.end()

    def end(self) -> None:
        """End the workers. Twice is fine."""
        self.lasts = False
        coming, self._coming = self._coming, None
        if hasattr(coming, "_shutdown_workers"):  # else the workers live as long as an error's traceback has it
            coming._shutdown_workers()


class _Steps(torch.utils.data.IterableDataset[Any]):
    """What the workers iterate over. What they are to build is in memory that all share, since those that persist were
    made long before."""

    def __init__(self, top: Node, collate: Collate, counters: Counters, slots: list[Slots]) -> None:
        self.top, self.collate, self.counters, self.slots = top, collate, counters, slots
        self._shared = SharedBytes(_LENGTH)

    def assign(self, assignment: Assignment) -> None:
        data = pickle.dumps(assignment)
        with self._shared.alone():
            self._shared.write(len(data).to_bytes(_LENGTH, "little") + data)

    def _assigned(self) -> Assignment:
        with self._shared.alone():
            size = int.from_bytes(self._shared.read(_LENGTH), "little")
            assignment: Assignment = pickle.loads(self._shared.read(size, _LENGTH))
        return assignment

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        if info is None:
            return _Share(self, self._assigned(), 0, 1, None)
        return _Share(self, self._assigned(), info.id, info.num_workers, self.slots[info.id])


class _Share:
    """One worker's steps of an assignment, as they are sent. An error is the last of them; a generator would be one
    that has ended by itself then."""

    def __init__(self, steps: _Steps, assignment: Assignment, worker: int, workers: int, slots: Slots | None) -> None:
        tally = steps.counters.tally(worker)
        self._window = ShardWindow(assignment.ahead, tally)
        self._reader = assignment.reader(steps.top, self._window, steps.collate, worker, workers, tally)
        self._last = assignment.last
        self._slots = slots

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._last is not None and self._reader.step >= self._last:
            self.close()
            raise StopIteration
        step = self._reader.built()
        if step.error is not None or not step.whole:
            self._last = 0
        return _Carried(step) if self._slots is None else _sent(step, self._slots)

    def close(self) -> None:
        self._window.close()
        self._reader.close()

    def __del__(self) -> None:
        self.close()


class _Carried:
    """A step on its way through torch's loader, which pins what says how."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def pin_memory(self, *device: Any) -> _Carried:
        self.step.item = pin_memory(self.step.item, *device)  # type: ignore[no-untyped-call]
        return self


def _sent(step: Step, slots: Slots) -> Any:
    """A step as it goes into the queue."""
    if step.error is not None:
        step = replace(step, error=_portable(step.error))
    try:
        return slots.put(_Carried(step)) or _Carried(step)
    except Exception as error:
        reason = RuntimeError(f"step {step.number} can't be sent by its worker: {type(error).__name__}: {error}")
        return _sent(Step(step.number, error=reason), slots)


class _Told(Exception):
    """An error with what its traceback was in the worker. Unpickled, it is that error, with a note."""

    def __init__(self, error: BaseException, text: str) -> None:
        super().__init__(error, text)

    def __reduce__(self) -> tuple[Any, ...]:
        return _noted, self.args


def _portable(error: BaseException) -> BaseException:
    text = f"In its worker process:\n{''.join(traceback.format_exception(error)).rstrip()}"
    try:
        if type(pickle.loads(pickle.dumps(error))) is not type(error):
            raise TypeError
    except Exception:  # some are pickled and can't be unpickled
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return _Told(error, text)


def _noted(error: BaseException, text: str) -> BaseException:
    error.add_note(text)
    return error


def _as_it_is(item: Any) -> Any:
    return item
