"""Steps of a run built in the worker processes of a torch DataLoader."""

from __future__ import annotations

import pickle
import struct
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
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
from dload.torch.slots import Slots, pickled

# What the processes share: how many steps a worker sends at once, the length of the assignment; the assignment.
_HEAD = struct.Struct("<qq")

# Torch's loader takes about a quarter of a millisecond for each item that it gets from a worker, on both sides
# together. Where steps come and go faster than that can be neglected, several are sent as one item.
_QUICK = 0.002  # seconds a step
_LOOK = 16  # rounds after which it is looked whether they do
_MOST, _MOST_BYTES = 8, 1 << 20


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
        self.top, self.workers = top, workers
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

    def begin(self, assignment: Assignment) -> None:
        """Have its steps built, the first by worker 0, the next by worker 1, and so on."""
        self._steps.assign(assignment)
        seed = hash64(assignment.plan["seed"], assignment.epoch, assignment.step)
        self._generator.manual_seed(seed >> 1)
        self._first = self._number = assignment.step
        self._last = assignment.last
        self._ready: dict[int, Step] = {}
        self._items, self._many = 0, 1
        self._coming = iter(self._loader)
        self._since = time.monotonic()

    def next(self) -> Step:
        """The next step; one that isn't whole where no worker has it. What is raised here ends the fleet."""
        try:
            while self._number not in self._ready:
                for step in next(self._coming).steps:
                    self._ready[step.number] = step
                self._items += 1
                if self._many == 1 and self._items % (_LOOK * max(1, self.workers)) == 0:
                    self._look()
        except StopIteration:
            if self._ready or self._last is not None:
                self.end()
                raise RuntimeError(f"no worker has built step {self._number}") from None
            return Step(self._number)
        except BaseException:
            self.end()
            raise
        self._number += 1
        return self._ready.pop(self._number - 1)

    def _look(self) -> None:
        """Where steps are quick, have several sent as one item. Not all workers begin with that in the same round: what
        comes early for that waits in `_ready`."""
        now, steps = time.monotonic(), self._number - self._first
        if self.workers and now - self._since < _QUICK * steps:
            self._many = self._steps.send_many()

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
        if self._steps.share is not None:
            self._steps.share.close()


class _Steps(torch.utils.data.IterableDataset[Any]):
    """What the workers iterate over. What they are to build is in memory that all share, since those that persist were
    made long before."""

    def __init__(self, top: Node, collate: Collate, counters: Counters, slots: list[Slots]) -> None:
        self.top, self.collate, self.counters, self.slots = top, collate, counters, slots
        self._shared = SharedBytes(_HEAD.size)
        self._many = 1
        self.share: _Share | None = None  # of this process, where it has no workers

    def assign(self, assignment: Assignment) -> None:
        data = pickle.dumps(assignment)
        size = max(1, int(self.top.mean_bytes * len(assignment.rows)))
        self._many = max(1, min(_MOST, _MOST_BYTES // size))
        with self._shared.alone():
            self._shared.write(_HEAD.pack(1, len(data)) + data)

    def send_many(self) -> int:
        """Have workers send several steps as one item; says how many."""
        with self._shared.alone():
            _, size = _HEAD.unpack(self._shared.read(_HEAD.size))
            self._shared.write(_HEAD.pack(self._many, size))
        return self._many

    def many(self) -> int:
        """How many steps a worker sends at once."""
        with self._shared.alone():
            many, _ = _HEAD.unpack(self._shared.read(_HEAD.size))
        return int(many)

    def _assigned(self) -> Assignment:
        with self._shared.alone():
            _, size = _HEAD.unpack(self._shared.read(_HEAD.size))
            assignment: Assignment = pickle.loads(self._shared.read(size, _HEAD.size))
        return assignment

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        if info is None:
            self.share = _Share(self, self._assigned(), 0, 1, None)
            return self.share
        return _Share(self, self._assigned(), info.id, info.num_workers, self.slots[info.id])


class _Share:
    """One worker's steps of an assignment, as they are sent. An error is the last of them; a generator would be one
    that has ended by itself then."""

    def __init__(self, steps: _Steps, assignment: Assignment, worker: int, workers: int, slots: Slots | None) -> None:
        tally = steps.counters.tally(worker)
        self._window = ShardWindow(assignment.ahead, tally)
        self._reader = assignment.reader(steps.top, self._window, steps.collate, worker, workers, tally)
        self._steps, self._slots = steps, slots
        self._last = assignment.last

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        found: list[Step] = []
        many = self._steps.many()
        while len(found) < many and (self._last is None or self._reader.step < self._last):
            step = self._reader.built()
            if step.error is not None or not step.whole:
                self._last = 0
            found.append(step)
        if not found:
            self.close()
            raise StopIteration
        return _Carried(found) if self._slots is None else _sent(found, self._slots)

    def close(self) -> None:
        self._window.close()
        self._reader.close()

    def __del__(self) -> None:
        self.close()


class _Carried:
    """Steps on their way through torch's loader, which pins what says how."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps

    def pin_memory(self, *device: Any) -> _Carried:
        for step in self.steps:
            step.item = pin_memory(step.item, *device)  # type: ignore[no-untyped-call]
        return self


def _sent(steps: list[Step], slots: Slots) -> Any:
    """Steps as they go into the queue."""
    steps = [step if step.error is None else replace(step, error=_portable(step.error)) for step in steps]
    try:
        return slots.put(_Carried(steps)) or _Carried(steps)
    except Exception:
        sendable = list(_sendable(steps))
        return slots.put(_Carried(sendable)) or _Carried(sendable)


def _sendable(steps: list[Step]) -> Iterator[Step]:
    """These steps up to one that can't be pickled: of that, why."""
    for step in steps:
        try:
            pickled(step, BytesIO())
        except Exception as error:
            reason = RuntimeError(f"step {step.number} can't be sent by its worker: {type(error).__name__}: {error}")
            yield Step(step.number, error=reason)
            return
        yield step


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
