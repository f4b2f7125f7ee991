"""A training run's fixed shape and where it stands in it: what all loaders have in common, whoever builds the steps."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dload.api.pipeline import NOTHING, OnErrorGiven, Pipeline, a_pipeline, cache_limits, run_seed
from dload.errors import ConfigError, InfeasiblePipelineError
from dload.pipeline.dealing import Deal
from dload.pipeline.failures import OnError, Spared, on_error_given, skipped_before
from dload.pipeline.fallible import with_default
from dload.pipeline.lanes import Grid, Lane
from dload.pipeline.node import Node, Rows, Run, paths_of, whole_number
from dload.pipeline.phases import Phases, before, phased, phases_given
from dload.pipeline.plain import exported
from dload.pipeline.ramp import Cuts, Ramp
from dload.pipeline.state import check_state, make_state
from dload.plan import check
from dload.run.counters import Tally
from dload.run.ranks import nodes_of, rank_and_world
from dload.run.steps import Collate, LaneStates, Step, StepReader

_log = logging.getLogger("dload.api")

Plan = dict[str, Any]
"""B, C, m, H, seed, ends, steps, where they are given ramp and phases: what stays the same in a run, whoever goes on
with it. Of the phases those that come may change."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is left of an epoch, for whoever builds its steps: a rank's rows of steps `step` to `last` - 1."""

    plan: Plan
    rows: range
    epoch: int
    step: int
    last: int | None  # None: it has no end, or nobody knows it
    states: LaneStates
    ahead: int  # shards that each cursor fetches beyond those that are being read

    def reader(
        self,
        top: Node,
        rows: Rows,
        collate: Collate | None = None,
        first: int = 0,
        stride: int = 1,
        tally: Tally | None = None,
    ) -> StepReader:
        """Reads every `stride`th of these steps, from the one with number `first` among them on."""
        run, at = _run(top, self.plan, rows), self.step + first
        if tally is not None:
            run = replace(run, failures=tally.failures)
        return StepReader(_deal(top, self.plan), run, self.rows, self.epoch, at, self.states, stride, collate, tally)


class Course:
    """A run of a pipeline by steps of `global_batch` rows, as one rank goes through it. Arguments: see `Loader`.

    `epoch` and `step` are those of the next step; `states`, in the stream tier, where this rank's lanes stand. It knows
    nothing of how steps are built, and reads nothing.
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
        workers: int = 1,
        on_error: OnErrorGiven = None,
        fail_after: int = 100,
        ramp: Ramp | None = None,
        phases: Sequence[tuple[int, Sequence[float]]] | None = None,
    ) -> None:
        """`workers`: how many share the steps, for the turns that are chosen where none are given."""
        self.pipe = a_pipeline(pipe)
        policy = on_error_given(on_error, fail_after, in_place=True)
        self._whole = self.top = pipe.node if policy is None else with_default(pipe.node, policy)
        nodes = 1 if rank is not None else None
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
        self.agree = agree
        batch = whole_number(global_batch, "the global batch", 1)
        self._given: Plan = {
            "B": batch, "C": columns, "m": turns, "H": homes, "seed": seed, "ends": ends, "steps": steps,
        }  # fmt: skip
        if ramp is not None:
            self._given["ramp"] = [ramp.start, ramp.increment, ramp.samples]
        if phases is not None:
            self._given["phases"] = phases_given(phases)
        self.plan = self._chosen(nodes_of(world) if nodes is None else nodes, workers)
        self._arrange()
        self.epoch, self.step = 0, 0
        self.states: LaneStates = {}
        self._begun = False  # whether the epoch's first step has been asked for
        self.over = False  # whether the epoch was seen to end, where its steps aren't known
        self._fixed = False  # whether the next `begin` takes the epoch as it is, also where it is at its end
        self._resumed = False  # whether it stands behind a step that was handed out before its state was loaded

    # ---- the plan
    def _chosen(self, nodes: int, workers: int) -> Plan:
        plan, indexed = dict(self._given), self.top.indexed
        batch, world = _cuts(plan).unit, self.world_size
        if plan["seed"] is None:
            plan["seed"] = run_seed(self.pipe, alone=world == 1)
        if plan["H"] is None:
            nodes = 1 if plan.get("phases") else nodes
            plan["H"] = nodes if indexed and batch % nodes == 0 and (plan["C"] or nodes) % nodes == 0 else 1
        if plan["C"] is None:
            plan["C"] = plan["H"] if indexed else _columns(batch, world)
        if plan["m"] is None:
            plan["m"] = 1 if indexed or plan.get("ramp") else min(max(workers, 1), _MOST_TURNS)
        if indexed and plan["m"] != 1:
            raise ConfigError(f"turns={plan['m']}: a pipeline with places has one turn", remedy="leave it out")
        if plan["C"] % plan["H"]:
            raise ConfigError(f"homes={plan['H']} must divide columns={plan['C']}")
        return plan

    def _arrange(self) -> None:
        self.top = self._whole
        if self.plan.get("phases"):
            self.top = phased(self._whole, self.plan["phases"], _cuts(self.plan).row)
            if self.top.indexed and self.plan["C"] != 1:
                raise ConfigError(
                    f"phases go with one column in a pipeline with places, and this run has {self.plan['C']}: which "
                    "rows each of them has would hang on phases that come",
                    remedy="begin the run with columns=1, or give all weights to the mix itself",
                )
        unit, columns = _cuts(self.plan).unit, self.plan["C"]
        if self.plan.get("ramp") and (unit % columns or unit % self.world_size):
            raise ConfigError(
                f"the steps of this ramp are multiples of {unit} rows, which {self.world_size} ranks and {columns} "
                "columns can't share evenly",
                remedy="give the ramp a start and an increment that are multiples of both",
            )
        self._raising = self.top
        self.spare(Spared())
        self.deal = _deal(self.top, self.plan)
        self.rows = self.deal.rows(self.rank, self.world_size)

    def spare(self, spared: Spared) -> None:
        """Errors of these elements leave holes from now on."""
        self.spared = spared
        self.top = self.sparing(spared) if spared.pairs() else self._raising

    def sparing(self, spared: Spared) -> Node:
        """The pipeline where errors of these leave holes."""
        return with_default(self._raising, OnError(spared, in_place=True, fail_after=sys.maxsize), over_raising=True)

    @property
    def steps(self) -> int | None:
        """The steps of this epoch; None where that isn't known, or has no end."""
        return self.deal.steps(self.epoch)

    def lanes(self) -> range:
        """Those that this rank reads."""
        columns, turns = self.deal.columns(self.rows), self.plan["m"]
        return range(columns[0][0] * turns, (columns[-1][0] + 1) * turns)

    # ---- its state
    def state(self) -> dict[str, Any]:
        """Where the run stands, as JSON."""
        lanes = None
        if not self.top.indexed:
            own = self.lanes()
            lanes = exported([[own.start, own.stop - 1, [self.states.get(lane) for lane in own]]])
        state = self._header | {"plan": dict(self.plan), "epoch": self.epoch, "step": self.step, "lanes": lanes}
        state["sources"] = [list(source) for source in state["sources"]]
        if self.over:
            state["over"] = True
        if spared := self.spared.pairs():
            state["spared"] = spared
        return state

    @cached_property
    def _header(self) -> dict[str, Any]:
        """What all states have: to work it out takes longer than the rest."""
        return make_state(self._whole, {}, 0, 0, None)

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken. Raises ValueError, naming both values, where something differs."""
        state = check_state(state, self._whole, self.pipe.explain)
        names = {"B": "global_batch", "C": "columns", "m": "turns", "H": "homes"}
        plan = dict(state["plan"])
        if "phases" in self._given:
            plan["phases"] = self._changed_phases(state)
        for key, value in self._given.items():
            if value is not None and value != plan.get(key):
                raise ValueError(
                    f"the state has {names.get(key, key)}={plan.get(key)!r}, this loader was given {value!r}: "
                    "give the same, or leave it out"
                )
        self.plan = plan
        self._arrange()
        self.epoch, self.step, self._begun = state["epoch"], state["step"], False
        self.over = bool(state.get("over"))
        self._resumed = self.step > 0
        self.states = self._loaded(state["lanes"])
        self.spare(Spared(state.get("spared", ())))

    def _changed_phases(self, state: dict[str, Any]) -> Phases:
        """The phases that were given, if none is another that the state's steps have seen. Raises ValueError."""
        given: Phases = self._given["phases"]
        seen = self.deal.first_step(state["epoch"]) + state["step"]
        past, own = before(state["plan"].get("phases"), seen), before(given, seen)
        if past != own:
            raise ValueError(
                f"the state has the phases {past} before step {seen}, this loader was given {own}: "
                "only those that come may change"
            )
        return given

    def _loaded(self, lanes: Any) -> LaneStates:
        if self.top.indexed:
            return {}
        found = {
            first + number: state
            for first, _, states in lanes or []
            for number, state in enumerate(states)
            if state is not None
        }
        own = self.lanes()
        covered = {lane for low, high, _ in lanes or [] for lane in range(low, high + 1)}
        missing = sorted(set(own) - covered)
        if missing:
            raise ValueError(f"the state lacks lanes {missing}: merge the states of all ranks (dload.merge_states)")
        return {lane: state for lane, state in found.items() if lane in own}

    # ---- going on
    def set_epoch(self, epoch: int) -> None:
        """Take that epoch at the next `begin`; where it stands inside it already, go on there."""
        if epoch != self.epoch or self._begun:
            self._enter(epoch, {})
        self._begun, self._fixed, self._resumed = False, True, False

    def begin(self) -> int:
        """Stand where the next pass begins: in the next epoch, unless this one hasn't begun (or has no end). Says how
        far ahead shards may be fetched; raises InfeasiblePipelineError where they don't fit."""
        steps = self.steps
        at_end = self.over or (steps is not None and self.step >= steps > 0)
        if not self._fixed and (self._begun or at_end) and self.plan["ends"] != "endless":
            self._enter(self.epoch + 1, self.states if self.deal.continues and at_end else {})
            self._resumed = False
        self._begun, self._fixed = True, False
        if steps == 0:
            rows, batch = self.top.total or 0, self.plan["B"]
            _log.warning(
                f"an epoch has no step: {rows:,} rows don't fill a global batch of {batch:,}; choose a smaller one, or "
                f'ends="pad", which fills it up'
            )
        return self._checked()

    def _enter(self, epoch: int, states: LaneStates) -> None:
        """Stand at the beginning of an epoch, the lanes in these states."""
        self.epoch, self.step, self.states, self.over = epoch, 0, states, False
        if not states:
            self.spare(Spared())

    def _checked(self) -> int:
        lanes = [Lane(self.deal.grid, lane) for lane in self.lanes()]  # each holds shards of its own
        report = check(self.top, _run(self.top, self.plan, NOTHING), cache_limits(), lanes)
        if not report.ok:
            raise InfeasiblePipelineError(report.message)
        return report.prefetch

    def ended(self) -> bool:
        """The epoch was seen to end here. Says whether the next one is to be begun at once, since a state was loaded
        that stood behind the last step: where steps aren't counted beforehand that shows only now."""
        self.over = self.steps is None
        return self.over and self._resumed

    def rest(self, ahead: int) -> Assignment:
        """What is left of this epoch."""
        return Assignment(dict(self.plan), self.rows, self.epoch, self.step, self.steps, dict(self.states), ahead)

    def skipped(self) -> int:
        """How many elements this rank's lanes have skipped, as their states say."""
        return sum(map(skipped_before, self.states.values()))

    def commit(self, step: Step) -> None:
        """Stand behind a step."""
        self.step, self._resumed = step.number + 1, False
        self.states.update(step.states)


_MOST_TURNS = 8


def _cuts(plan: Plan) -> Cuts:
    return Cuts(plan["B"], Ramp(*plan["ramp"]) if plan.get("ramp") else None)


def _deal(top: Node, plan: Plan) -> Deal:
    cuts = _cuts(plan)
    return Deal(top, Grid(cuts.unit, plan["C"], plan["m"]), plan["ends"], plan["steps"], cuts)


def _run(top: Node, plan: Plan, rows: Rows) -> Run:
    return Run(plan["seed"], rows, plan["H"], paths_of(top))


def _columns(batch: int, world: int) -> int:
    """The least divisor of the batch that is a multiple of the ranks."""
    if batch % world:
        raise ConfigError(
            f"a global batch of {batch} rows can't be shared evenly by {world} ranks",
            remedy="give global_batch a multiple of the number of ranks",
        )
    return next(columns for columns in range(world, batch + 1, world) if batch % columns == 0)


def merge_states(states: list[dict[str, Any]]) -> dict[str, Any]:
    """One state of `states`, those of all ranks, taken at the same step. Raises ValueError, naming the entry or the
    missing lanes, where they don't fit together."""
    if not states:
        raise ValueError("no states to merge")
    first = states[0]
    for other in states[1:]:
        for key in ("dload", "plan", "sources", "order", "functions", "epoch", "step", "over"):
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
    merged = {**first, "lanes": [[0, count - 1, [found[lane] for lane in range(count)]]]}
    spared = Spared(pair for state in states for pair in state.get("spared", ())).pairs()
    return {**merged, "spared": spared} if spared else merged
