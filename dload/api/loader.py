"""A pipeline as the steps of a training run: the same global batch on any number of ranks, resumed exactly."""

from __future__ import annotations

import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from dload.api.pipeline import NOTHING, Pipeline, limit_of, run_seed
from dload.errors import ConfigError, InfeasiblePipelineError
from dload.pipeline.dealing import Deal
from dload.pipeline.lanes import Grid, Lane
from dload.pipeline.node import HOLE, Rows, Run, paths_of
from dload.pipeline.state import check_state, make_state
from dload.plan import check
from dload.run.ranks import nodes_of, rank_and_world
from dload.run.steps import LaneStates, StepReader
from dload.run.window import ShardWindow

_AHEAD = 2  # steps that are built before they are asked for

Plan = dict[str, Any]


class Loader:
    """The steps of a training run, each `global_batch` rows over all ranks, of which this rank gets its part in order.

    Put together in the order of ranks, the parts of a step are the same rows in the same order for any number of ranks.
    Each item is `collate(list of rows)`, or the list itself. Each `iter()` is the next epoch, wherever the one before
    was left (under "endless" it goes on), and ends the iterator before. `valid` says of each row of the last item
    whether it counts: False where it fills up a padded step.

    `rank` and `world_size`: see dload.run.ranks; `replicas`: so many ranks in a row get the same rows (tensor or
    sequence parallel). `ends` says how an epoch ends: "drop" (whole steps alone), "pad" (the last step is filled up
    with repeated rows, see `valid`), "endless", "steps" (an epoch is `steps` steps of an endless run), "agree"
    (before each step `agree(1 or 0)` gives the least over all ranks; 0 ends the epoch everywhere), "ragged" (a rank
    ends by itself). `columns`, `turns`, `homes` and `seed` fix what is otherwise chosen at the first run; all of them
    are in the state. `threads=0` builds steps when they are asked for, else a thread builds them ahead.

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
        collate: Callable[[list[Any]], Any] | None = None,
        threads: int | None = None,
    ) -> None:
        self.pipe = pipe
        self._top = pipe.node
        given = rank is not None
        rank, world = rank_and_world(rank, world_size)
        if replicas < 1 or world % replicas:
            raise ConfigError(
                f"{world} ranks can't be {replicas} replicas each", remedy="give a divisor of their number"
            )
        self.rank, self.world_size = rank // replicas, world // replicas
        if (ends == "agree") != (agree is not None):
            raise ConfigError(
                "ends='agree' and agree=fn go together", remedy="agree(flag) gives the least over all ranks"
            )
        if threads not in (None, 0, 1):
            raise ConfigError(f"threads={threads!r}: steps are built by one thread ahead, or with 0 when asked for")
        self._agree, self._collate, self._threads = agree, collate, 1 if threads is None else threads
        self._given: Plan = {
            "B": global_batch, "C": columns, "m": turns, "H": homes, "seed": seed, "ends": ends, "steps": steps,
        }  # fmt: skip
        self._plan = self._chosen(nodes=1 if given else nodes_of(world))
        self._arrange()
        self._epoch, self._step = 0, 0  # of the next step
        self._begun = False  # whether the epoch's first step has been asked for
        self._states: LaneStates = {}
        self._iterator: weakref.ref[LoaderIterator] | None = None
        self.valid: list[bool] = []
        self._counters = {"steps": 0, "consumed_rows": 0, "holes": 0, "wait_time": 0.0}

    # ---- the plan
    def _chosen(self, nodes: int) -> Plan:
        plan, indexed = dict(self._given), self._top.indexed
        batch, world = plan["B"], self.world_size
        if plan["seed"] is None:
            plan["seed"] = run_seed(self.pipe, alone=world == 1)
        if plan["H"] is None:
            plan["H"] = nodes if indexed and batch % nodes == 0 and (plan["C"] or nodes) % nodes == 0 else 1
        if plan["C"] is None:
            plan["C"] = plan["H"] if indexed else _columns(batch, world)
        if plan["m"] is None:
            plan["m"] = 1
        if indexed and plan["m"] != 1:
            raise ConfigError(f"turns={plan['m']}: a pipeline with places has one turn", remedy="leave it out")
        if plan["C"] % plan["H"]:
            raise ConfigError(f"homes={plan['H']} must divide columns={plan['C']}")
        return plan

    def _arrange(self) -> None:
        plan = self._plan
        self._deal = Deal(self._top, Grid(plan["B"], plan["C"], plan["m"]), plan["ends"], plan["steps"])
        self._rows = self._deal.rows(self.rank, self.world_size)

    def __len__(self) -> int:
        """The steps of an epoch. Raises TypeError where that isn't known."""
        steps = self._deal.steps(self._epoch)
        if steps is None:
            raise TypeError("how many steps this loader has isn't known")
        return steps

    # ---- where it stands
    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, as JSON: what was handed out, not what was built ahead. Small; any time."""
        lanes = None
        if not self._top.indexed:
            first, last = self._lanes()
            lanes = [[first, last, [self._states.get(lane) for lane in range(first, last + 1)]]]
        return make_state(self._top, self._plan, self._epoch, self._step, lanes)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken, on any number of ranks. What wasn't given to this loader is taken from it.

        Raises ValueError, naming both values, where something differs; RuntimeError while iterating.
        """
        if self._live is not None:
            raise RuntimeError("this loader is being iterated: load its state before iter(), or close() it first")
        state = check_state(state, self._top, self.pipe.explain)
        names = {"B": "global_batch", "C": "columns", "m": "turns", "H": "homes"}
        for key, value in self._given.items():
            if value is not None and value != state["plan"][key]:
                raise ValueError(
                    f"the state has {names.get(key, key)}={state['plan'][key]!r}, this loader was given {value!r}: "
                    "give the same, or leave it out"
                )
        self._plan = dict(state["plan"])
        self._arrange()
        self._epoch, self._step, self._begun = state["epoch"], state["step"], False
        self._states = self._loaded(state["lanes"])

    get_state = state_dict
    set_state = load_state_dict

    def _lanes(self) -> tuple[int, int]:
        columns = self._deal.columns(self._rows)
        return columns[0][0] * self._plan["m"], (columns[-1][0] + 1) * self._plan["m"] - 1

    def _loaded(self, lanes: Any) -> LaneStates:
        if self._top.indexed:
            return {}
        found = {
            first + number: state
            for first, _, states in lanes or []
            for number, state in enumerate(states)
            if state is not None
        }
        first, last = self._lanes()
        covered = {lane for low, high, _ in lanes or [] for lane in range(low, high + 1)}
        missing = sorted(set(range(first, last + 1)) - covered)
        if missing:
            raise ValueError(f"the state lacks lanes {missing}: merge the states of all ranks (dload.merge_states)")
        return {lane: state for lane, state in found.items() if first <= lane <= last}

    def set_epoch(self, epoch: int) -> None:
        """Begin that epoch at the next `iter()`; where the loader stands inside it already, go on there."""
        if self._live is not None:
            raise RuntimeError("this loader is being iterated: set the epoch before iter(), or close() it first")
        if epoch != self._epoch or self._begun:
            self._epoch, self._step, self._states = epoch, 0, {}
        self._begun = False
        self._fixed = True

    _fixed = False  # whether the next iter() takes the epoch as it is, also where it is at its end

    def skip(self, steps: int = 1) -> None:
        """Step over the next `steps` steps: behind an error, the one that raised it."""
        if steps < 0:
            raise ConfigError(f"can't skip {steps} steps")
        live = self._live
        if live is not None:
            live.stop()
        if self._top.indexed:
            self._step += steps
            return
        window = ShardWindow(0)
        try:
            reader = self._reader(window)
            for _ in range(steps):
                reader.read()
            self._step, self._states = reader.step, reader.states()
        finally:
            window.close()

    # ---- iterating
    @property
    def _live(self) -> LoaderIterator | None:
        """The iterator that hasn't ended and isn't forgotten."""
        iterator = self._iterator() if self._iterator is not None else None
        return None if iterator is None or iterator.ended else iterator

    def __iter__(self) -> LoaderIterator:
        self.close()
        steps = self._deal.steps(self._epoch)
        at_end = steps is not None and self._step >= steps > 0
        if not self._fixed and (self._begun or at_end) and self._plan["ends"] != "endless":
            handed_on = self._states if self._deal.continues and at_end else {}
            self._epoch, self._step, self._states = self._epoch + 1, 0, handed_on
        self._begun, self._fixed = True, False
        iterator = LoaderIterator(self, self._checked())
        self._iterator = weakref.ref(iterator)
        return iterator

    def _checked(self) -> int:
        """How far ahead shards may be fetched. Each lane of this rank holds shards of its own."""
        first, last = self._lanes()
        lanes = [Lane(self._deal.grid, lane) for lane in range(first, last + 1)]
        report = check(self._top, self._run(NOTHING), limit_of, lanes)
        if not report.ok:
            raise InfeasiblePipelineError(report.message)
        return report.prefetch

    def _run(self, rows: Rows) -> Run:
        return Run(self._plan["seed"], rows, self._plan["H"], paths_of(self._top))

    def _reader(self, window: ShardWindow) -> StepReader:
        return StepReader(self._deal, self._run(window), self._rows, self._epoch, self._step, self._states)

    def stats(self) -> dict[str, Any]:
        """Counters since the loader was made: `steps`, `consumed_rows`, `holes` (rows left out in their places) and
        `wait_time` (seconds that the consumer waited)."""
        return dict(self._counters)

    def close(self) -> None:
        """End the iterator, if there is one, with its threads, pins and files. Closing twice is fine."""
        live = self._live
        if live is not None:
            live.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class _Built:
    """A step that was built: its rows, or what went wrong, and where the lanes stand behind it."""

    rows: list[Any]
    states: LaneStates
    error: BaseException | None = None


class LoaderIterator:
    """One epoch of a loader. An error of a step is raised in its place and leaves the loader in front of it: `next`
    tries again, and `loader.skip(1)` steps over it."""

    def __init__(self, loader: Loader, ahead: int) -> None:
        self._loader = loader
        self._ahead = ahead
        self._builder: _Builder | None = None
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if self.ended:
            raise StopIteration
        steps = loader._deal.steps(loader._epoch)
        begin = time.perf_counter()
        built = _Built([], {}) if steps is not None and loader._step >= steps else self._built()
        loader._counters["wait_time"] += time.perf_counter() - begin
        if built.error is not None:
            self.stop()
            raise built.error
        if not self._goes_on(len(built.rows) == len(loader._rows)):
            self.close()
            raise StopIteration
        return self._handed(built)

    def _goes_on(self, whole: bool) -> bool:
        loader = self._loader
        ends = loader._plan["ends"]
        if ends == "agree":
            assert loader._agree is not None
            return bool(loader._agree(1 if whole else 0))
        if whole:
            return True
        if loader._deal.continues and loader._deal.steps(loader._epoch) is None:
            raise RuntimeError("a pipeline that should go on for ever has ended")
        if ends == "ragged" and loader.world_size > 1:
            warnings.warn(
                f"rank {loader.rank} of {loader.world_size} ends at step {loader._step}: it can't fill it", stacklevel=3
            )
        return False

    def _handed(self, built: _Built) -> Any:
        """Commit the step, and give its item."""
        loader = self._loader
        padding = set(loader._deal.padding(loader._step))
        loader.valid = [
            number not in padding for number, row in zip(loader._rows, built.rows, strict=True) if row is not HOLE
        ]
        rows = [row for row in built.rows if row is not HOLE]
        loader._step += 1
        loader._states = built.states
        loader._counters["steps"] += 1
        loader._counters["consumed_rows"] += len(rows)
        loader._counters["holes"] += len(built.rows) - len(rows)
        return rows if loader._collate is None else loader._collate(rows)

    def _built(self) -> _Built:
        if self._builder is None:
            self._builder = _Builder(self._loader, self._ahead)
        return self._builder.next()

    def stop(self) -> None:
        """Forget what was built ahead."""
        if self._builder is not None:
            self._builder.close()
            self._builder = None

    def close(self) -> None:
        """End this epoch here."""
        self.ended = True
        self.stop()

    def __del__(self) -> None:
        self.close()


class _Builder:
    """Builds steps, on a thread ahead of who asks for them or when asked."""

    def __init__(self, loader: Loader, ahead: int) -> None:
        self._window = ShardWindow(ahead)
        self._reader = loader._reader(self._window)
        self._indexed = loader._top.indexed
        steps = loader._deal.steps(loader._epoch)
        self._stop = None if steps is None else steps
        self._queue: queue.Queue[_Built] | None = None
        self._closed = threading.Event()
        if loader._threads:
            self._queue = queue.Queue(_AHEAD)
            self._thread = threading.Thread(target=self._work, name="dload-steps", daemon=True)
            self._thread.start()

    def next(self) -> _Built:
        return self._build() if self._queue is None else self._queue.get()

    def _build(self) -> _Built:
        try:
            rows = self._reader.read()
            return _Built(rows, {} if self._indexed else self._reader.states())
        except BaseException as error:
            return _Built([], {}, error)

    def _work(self) -> None:
        assert self._queue is not None
        while not self._closed.is_set() and (self._stop is None or self._reader.step < self._stop):
            built = self._build()
            while not self._closed.is_set():
                try:
                    self._queue.put(built, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if built.error is not None:
                return

    def close(self) -> None:
        self._closed.set()
        self._window.close()  # ends a wait for a shard, too
        if self._queue is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._reader.close()


def merge_states(states: list[dict[str, Any]]) -> dict[str, Any]:
    """One state of those of all ranks, taken at the same step. Raises ValueError, naming the entry or the missing
    lanes, where they don't fit together."""
    if not states:
        raise ValueError("no states to merge")
    first = states[0]
    for other in states[1:]:
        for key in ("dload", "plan", "sources", "order", "functions", "epoch", "step"):
            if other.get(key) != first.get(key):
                raise ValueError(f"the states differ in {key!r}: {first.get(key)!r} and {other.get(key)!r}")
    if first["lanes"] is None:
        return first
    found: dict[int, Any] = {}
    for state in states:
        for low, _, lanes in state["lanes"]:
            for lane, value in enumerate(lanes, low):
                if lane in found and found[lane] != value:
                    raise ValueError(f"the states differ in lane {lane}")
                found[lane] = value
    count = first["plan"]["C"] * first["plan"]["m"]
    missing = sorted(set(range(count)) - found.keys())
    if missing:
        raise ValueError(f"no state has lanes {missing}")
    return {**first, "lanes": [[0, count - 1, [found[lane] for lane in range(count)]]]}


def _columns(batch: int, world: int) -> int:
    """The least divisor of the batch that is a multiple of the ranks."""
    if batch % world:
        raise ConfigError(
            f"a global batch of {batch} rows can't be shared evenly by {world} ranks",
            remedy="give global_batch a multiple of the number of ranks",
        )
    return next(columns for columns in range(world, batch + 1, world) if batch % columns == 0)
