"""A pipeline as the steps of a training run: the same global batch on any number of ranks, resumed exactly."""

from __future__ import annotations

import queue
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from dload.api.counted import Counted
from dload.api.course import Assignment, Course, merge_states
from dload.api.pipeline import OnErrorGiven, Pipeline
from dload.errors import ConfigError
from dload.pipeline.failures import Spared
from dload.pipeline.node import Node
from dload.pipeline.ramp import Ramp
from dload.run.at_exit import close_at_exit
from dload.run.counters import Tally
from dload.run.stats import Stats
from dload.run.steps import Collate, Step
from dload.run.window import ShardWindow

__all__ = ["Loader", "StepLoader", "merge_states"]

_AHEAD = 2  # steps that are built before they are asked for


class Builder(Protocol):
    """Builds the steps of an assignment."""

    def next(self) -> Step:
        """The next one, in order; its error is in it. What is raised here is the builder's own: it is of no more use,
        nor is it after a step with an error."""
        ...

    def close(self) -> None:
        """Give up what was built ahead. Closing twice is fine."""
        ...


class StepLoader(ABC):
    """What all loaders have in common: the run's course, its iterators, state and counters. They differ in who builds
    the steps: `_builder`."""

    valid: list[bool]
    """Whether each row of the last item counts: not where it fills up a padded step."""

    def __init__(self, course: Course, builders: int = 1) -> None:
        """`builders`: how many processes build steps."""
        self.pipe = course.pipe
        self.rank, self.world_size = course.rank, course.world_size
        self.valid = []
        self._course = course
        self._iterator: weakref.ref[StepIterator] | None = None
        self._counted = Counted(course, builders)

    @abstractmethod
    def _builder(self, assignment: Assignment) -> Builder:
        """Who builds these steps."""

    def __len__(self) -> int:
        """The steps of an epoch. Raises TypeError where that isn't known."""
        steps = self._course.steps
        if steps is None:
            raise TypeError("how many steps this loader has isn't known")
        return steps

    # ---- where it stands
    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, as JSON: what was handed out, not what was built ahead. Small; any time."""
        return self._course.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken, on any number of ranks and workers, by any loader. What wasn't given to this
        one is taken from it.

        A state behind an epoch's last step goes on with the next epoch, whether or not anybody had asked for a further
        step; after `set_epoch` of that epoch nothing is left of it.

        Raises ValueError, naming both values, where something differs; RuntimeError while iterating.
        """
        if self._live is not None:
            raise RuntimeError("this loader is being iterated: load its state before iter(), or close() it first")
        self._course.load(state)
        self._counted.loaded()

    def get_state(self) -> dict[str, Any]:
        """`state_dict`, by its other name."""
        return self.state_dict()

    def set_state(self, state: dict[str, Any]) -> None:
        """`load_state_dict(state)`, by its other name."""
        self.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Begin that epoch at the next `iter()`; where the loader stands inside it already, go on there."""
        if self._live is not None:
            raise RuntimeError("this loader is being iterated: set the epoch before iter(), or close() it first")
        self._course.set_epoch(epoch)

    def skip(self, steps: int = 1) -> None:
        """Step over the next `steps` steps: behind an error, the one that raised it.

        A pipeline in the stream tier is read for that, and whatever fails in its functions meanwhile leaves a hole,
        also where it is met again: a shuffle above a filter, say, holds an element over several steps. The state says
        so, and a run that goes on leaves the same holes. Raises what zip_with, scan, through and the store raise there.
        """
        if steps < 0:
            raise ConfigError(f"can't skip {steps} steps")
        live = self._live
        if live is not None:
            live.stop()
        course = self._course
        if course.top.indexed:
            course.step += steps
            return
        window, spared = ShardWindow(0), Spared(course.spared.pairs(), learning=True)
        reader = course.rest(0).reader(course.sparing(spared), window)
        try:
            for _ in range(steps):
                step = reader.read()
                if not step.whole:
                    break
                course.commit(step)
        finally:
            window.close()
            reader.close()
            course.spare(Spared(spared.pairs()))

    # ---- iterating
    @property
    def _live(self) -> StepIterator | None:
        """The iterator that hasn't ended and isn't forgotten."""
        iterator = self._iterator() if self._iterator is not None else None
        return None if iterator is None or iterator.ended else iterator

    def __iter__(self) -> StepIterator:
        self._end_iterator()
        iterator = StepIterator(self, self._course.begin())
        self._iterator = weakref.ref(iterator)
        return iterator

    def _end_iterator(self) -> None:
        live = self._live
        if live is not None:
            live.close()

    def stats(self) -> Stats:
        """What went on since the loader was made, in all processes that build its steps; printed, it is a table that
        says what the bottleneck is. Times are seconds, and those of several processes are added up.

        Handed out: `steps`, `consumed_rows`, `holes` (rows left out in their places), `rows_left` (of steps that
        weren't whole, where an epoch ended); `unscanned_rows` of this epoch are still to come (None: nobody knows).
        On their way: `raw_queue_depth` (samples that are here and weren't read) and `prefetch_queue_depth` (rows that
        are ready). Left out by on_error: `rows_skipped` (with those before the state that was loaded) and `skipped`,
        the first of them, each once, with its node, data set, key and error.
        Time: `wait_time` (the consumer waited), `consumer_time` (it did something else), `fetch_time` (builders stood
        still for shards), `transform_time` (they did something else). Read: `bytes_loaded`, about, and `sources`, by
        data set. The caches: `cache_hits`, `cache_misses`, `evictions`, `downloads` and `bytes_downloaded`.
        """
        return self._counted.stats()

    def close(self) -> None:
        """End the iterator, if there is one, with its threads, processes, pins and files. Closing twice is fine."""
        self._end_iterator()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StepIterator:
    """One epoch of a loader. An error of a step is raised in its place and leaves the loader in front of it: `next`
    tries again, and `loader.skip(1)` steps over it."""

    def __init__(self, loader: StepLoader, ahead: int) -> None:
        self._loader = loader
        self._ahead = ahead
        self._builder: Builder | None = None
        self.ended = False
        close_at_exit(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        course = self._loader._course
        while not self.ended:
            at_end = course.steps is not None and course.step >= course.steps
            step = Step(course.step) if at_end else self._built()
            if step.error is not None:
                self.stop()
                raise step.error
            if self._goes_on(step.whole):
                return self._handed(step)
            self._loader._counted.left(step)
            if course.ended():
                self.stop()
                self._ahead = course.begin()
            else:
                self.close()
        raise StopIteration

    def _built(self) -> Step:
        loader = self._loader
        with loader._counted.waiting():
            try:
                if self._builder is None:
                    loader._counted.begin()
                    self._builder = loader._builder(loader._course.rest(self._ahead))
                return self._builder.next()
            except BaseException:
                self.stop()
                raise

    def _goes_on(self, whole: bool) -> bool:
        course = self._loader._course
        if course.agree is not None:
            return bool(course.agree(1 if whole else 0))
        if whole:
            return True
        if course.deal.continues and course.steps is None:
            raise RuntimeError("a pipeline that should go on for ever has ended")
        if course.plan["ends"] == "ragged" and course.world_size > 1:
            warnings.warn(
                f"rank {course.rank} of {course.world_size} ends at step {course.step}: it can't fill it", stacklevel=3
            )
        return False

    def _handed(self, step: Step) -> Any:
        """Commit the step, and give its item."""
        loader = self._loader
        loader._course.commit(step)
        loader.valid = step.valid
        loader._counted.handed(step)
        return step.item

    def stop(self) -> None:
        """Forget what was built ahead."""
        builder, self._builder = self._builder, None
        if builder is not None:
            builder.close()

    def close(self) -> None:
        """End this epoch here."""
        self.ended = True
        self.stop()

    def __del__(self) -> None:
        self.close()


class Loader(StepLoader):
    """The steps of a training run over `pipe`, each `global_batch` rows over all ranks, of which this rank gets its
    part in order.

    Put together in the order of ranks, the parts of a step are the same rows in the same order for any number of ranks.
    Each item is `collate(list of rows)`, or the list itself. Each `iter()` is the next epoch, wherever the one before
    was left (under "endless" it goes on), and ends the iterator before. `valid` says of each row of the last item
    whether it counts: False where it fills up a padded step.

    `rank` and `world_size`: see `dload.run.ranks.rank_and_world`; `replicas`: so many ranks in a row get the same rows
    (tensor or sequence parallel). `ends` says how an epoch ends: "drop" (whole steps alone), "pad" (the last step is
    filled up with repeated rows, see `valid`), "endless", "steps" (an epoch is `steps` steps of an endless run),
    "agree" (before each step `agree(1 or 0)` gives the least over all ranks; 0 ends the epoch everywhere), "ragged" (a
    rank ends by itself). `columns`, `turns`, `homes` and `seed` fix what is otherwise chosen at the first run; all of
    them are in the state. `threads=0` builds steps when they are asked for, else a thread builds them ahead, collate
    and all.

    `on_error` and `fail_after` (see `Pipeline`) hold for all functions of the pipeline that get one element and were
    given no `on_error` of their own; "skip", "warn" and a function leave a hole here, so that every rank still has its
    rows in the same places. Functions of several elements (any collate, those of zip_with, scan and through) raise
    always, in their step: which of the elements to leave out nobody could say.

    `ramp` (with "endless" or "steps"): steps begin small and grow to `global_batch`; see `Ramp`. `phases`, pairs of a
    step (of the whole run) and weights: from that step on an endless `mix` at the top has these weights; its pipelines
    go on where they are. Both are in the state. When a run goes on, phases that its steps have seen must be the same,
    and those that come may be others.

    Raises ConfigError where these don't go together or with the pipeline, ValueError where a state doesn't fit.
    Touches no storage before `iter()`, which raises InfeasiblePipelineError where the pipeline doesn't fit.
    """

    def __init__(
        self,
        pipe: Pipeline,
        global_batch: int,
        *,
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
        collate: Collate | None = None,
        threads: int | None = None,
        on_error: OnErrorGiven = None,
        fail_after: int = 100,
        ramp: Ramp | None = None,
        phases: Sequence[tuple[int, Sequence[float]]] | None = None,
    ) -> None:
        if threads not in (None, 0, 1):
            raise ConfigError(f"threads={threads!r}: steps are built by one thread ahead, or with 0 when asked for")
        super().__init__(
            Course(
                pipe, global_batch, rank=rank, world_size=world_size, replicas=replicas, ends=ends, steps=steps,
                agree=agree, columns=columns, turns=turns, homes=homes, seed=seed, on_error=on_error,
                fail_after=fail_after, ramp=ramp, phases=phases,
            )
        )  # fmt: skip
        self._tally = self._counted.counters.tally(0)
        self._collate, self._threads = collate, 1 if threads is None else threads

    def _builder(self, assignment: Assignment) -> Builder:
        built = _Inline(self._course.top, assignment, self._collate, self._tally)
        return _Ahead(built, assignment.last) if self._threads else built


class _Inline:
    """Builds steps when they are asked for."""

    def __init__(self, top: Node, assignment: Assignment, collate: Collate | None, tally: Tally) -> None:
        self._window = ShardWindow(assignment.ahead, tally)
        self._reader = assignment.reader(top, self._window, collate, tally=tally)

    def next(self) -> Step:
        return self._reader.built()

    def stop(self) -> None:
        """End a wait for a shard or a function, from another thread."""
        self._window.close()
        self._reader.stop()

    def close(self) -> None:
        self.stop()
        self._reader.close()


class _Ahead:
    """Has steps built on a thread, before they are asked for."""

    def __init__(self, inline: _Inline, last: int | None) -> None:
        self._inline, self._last = inline, last
        self._queue: queue.Queue[Step] = queue.Queue(_AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="dload-steps", daemon=True)
        self._thread.start()

    def next(self) -> Step:
        return self._queue.get()

    def _work(self) -> None:
        going_on = True
        while going_on and not self._closed.is_set():
            step = self._inline.next()
            going_on = step.error is None and (self._last is None or step.number + 1 < self._last)
            while not self._closed.is_set():
                try:
                    self._queue.put(step, timeout=0.1)
                    break
                except queue.Full:
                    continue

    def close(self) -> None:
        self._closed.set()
        self._inline.stop()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._inline.close()
