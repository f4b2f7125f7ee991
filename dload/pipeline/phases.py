"""Another mixture from some step of a run on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any

from dload.errors import ConfigError
from dload.pipeline.elementwise import Elementwise
from dload.pipeline.mix import Mix
from dload.pipeline.node import Node, whole_number

Phases = list[list[Any]]
"""[[step, weights], ...]: JSON, steps ascending."""


def phases_given(value: object) -> Phases | None:
    """Phases as users write them, [(step, weights), ...]. Raises ConfigError; the weights are checked by the mix."""
    if value is None:
        return None
    remedy = "give pairs of a step and weights: phases=[(1000, [1, 3]), ...], steps ascending"
    if not isinstance(value, Sequence) or not all(
        isinstance(phase, Sequence) and len(phase) == 2 and isinstance(phase[1], Sequence) for phase in value
    ):
        raise ConfigError(f"phases={value!r}", remedy=remedy)
    if not all(isinstance(weight, Real) for _, weights in value for weight in weights):
        raise ConfigError(f"weights of phases are numbers, got {value!r}", remedy=remedy)
    steps = [whole_number(step, "the step of a phase", 1) for step, _ in value]
    if any(one >= other for one, other in pairwise(steps)):
        raise ConfigError(f"phases begin at steps {steps}", remedy=remedy)
    return [[step, list(map(_plain, weights))] for step, (_, weights) in zip(steps, value, strict=True)]


def _plain(weight: Any) -> int | float:
    return weight if isinstance(weight, int) else float(weight)


def phased(top: Node, phases: Phases, row_of: Callable[[int], int]) -> Node:
    """The pipeline whose mix at the top has other weights from these steps on; `row_of(step)`: rows before a step.

    Raises ConfigError where the top isn't a mix without an end (under element-wise nodes only), with constant weights.
    """
    if isinstance(top, Elementwise):
        found = copy.copy(top)
        found.parents = (phased(top.parents[0], phases, row_of),)
        return found
    if not isinstance(top, Mix) or not top.endless:
        raise ConfigError(
            "phases need a mix without an end at the top of the pipeline, with nothing but maps above it",
            remedy="repeat() what is mixed: dload.mix([a.repeat(), b.repeat()], [1, 1])",
        )
    if not isinstance(top.weights, list) or any(isinstance(weight, Sequence) for weight in top.weights):
        raise ConfigError(
            "phases need a mix with constant weights, and this one has weights that change by themselves",
            remedy="leave the one or the other out",
        )
    schedule = [(0, top.weights), *((row_of(step), weights) for step, weights in phases)]
    return Mix(top.parents, schedule, top.seed, top.until)


def before(phases: Phases | None, step: int) -> Phases:
    """Those that steps below `step` have seen."""
    return [phase for phase in phases or [] if phase[0] < step]
