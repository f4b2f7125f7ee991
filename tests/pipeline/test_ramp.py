"""A batch that grows: its steps are those of a plain reading of the rule, and its rows those without it."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError
from dload.pipeline.dealing import Deal
from dload.pipeline.group import Filter
from dload.pipeline.lanes import Grid
from dload.pipeline.node import Node
from dload.pipeline.ramp import Cuts, Ramp
from dload.pipeline.reorder import Repeat, Shuffle
from dload.pipeline.sources import Sequenced
from dload.run.steps import StepReader
from dload.testing.pipelines import LARGE, made_source, make_run

COMMON = settings(max_examples=60, deadline=None)


@st.composite
def ramps(draw: st.DrawFn, multiple: int = 1) -> tuple[int, Ramp]:
    """The global batch that it leads to, and the ramp."""
    start, increment = multiple * draw(st.integers(1, 5)), multiple * draw(st.integers(1, 5))
    return start + increment * draw(st.integers(0, 6)), Ramp(start, increment, draw(st.integers(1, 200)))


def sizes(batch: int, ramp: Ramp, steps: int) -> list[int]:
    """The rule, step after step."""
    found, rows = [], 0
    increments = (batch - ramp.start) // ramp.increment
    for _ in range(steps):
        found.append(ramp.start + ramp.increment * min(increments, rows * increments // ramp.samples))
        rows += found[-1]
    return found


@COMMON
@given(ramps())
def test_stages_are_the_rule_step_after_step(made: tuple[int, Ramp]) -> None:
    batch, ramp = made
    cuts, expected, rows = Cuts(batch, ramp), sizes(batch, ramp, 250), 0
    for step, size in enumerate(expected):
        stage = cuts.stage(step)
        assert (stage.batch, cuts.row(step)) == (size, rows), step
        assert stage.step <= step and (stage.end is None or step < stage.end)
        assert size % cuts.unit == 0
        rows += size
    assert cuts.stage(10**9).batch == batch and cuts.stage(10**9).end is None


def test_a_ramp_that_says_nothing_else() -> None:
    cuts = Cuts(256, Ramp(64, 64, 3000))
    assert [cuts.stage(step).batch for step in (0, 15, 16, 23, 24, 28, 29)] == [64, 64, 128, 128, 192, 192, 256]
    assert [cuts.row(step) for step in (16, 24, 29)] == [1024, 2048, 3008] and cuts.unit == 64
    assert Cuts(8, Ramp(8, 3, 10)).stage(0).batch == 8  # begins where it leads to


def test_a_ramp_that_leads_nowhere_is_refused() -> None:
    for batch, ramp in ((10, Ramp(4, 4, 10)), (4, Ramp(8, 4, 10))):
        with pytest.raises(ConfigError, match=f"doesn't lead to a global batch of {batch}"):
            Cuts(batch, ramp)
    for numbers in ((0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1.5)):
        with pytest.raises(ConfigError, match="must be a whole number of at least 1"):
            Ramp(*numbers)  # type: ignore[arg-type]


# ---- steps
KINDS = ["repeated", "epochs", "samples", "streamed"]


def endless(kind: str) -> Node:
    """Numbers without end, by the run's epochs or by their own."""
    if kind == "samples":  # which nobody may read that no cursor's demand holds
        return Repeat(Shuffle(made_source([9, 4, 17, 1, 22], sample_bytes=LARGE), 9, 1))
    numbers = Shuffle(Sequenced(range(1, 54)), 9, 1)
    return {"epochs": numbers, "repeated": Repeat(numbers), "streamed": Filter(Repeat(numbers), bool)}[kind]


def read(deal: Deal, rank: int, world: int, epoch: int, step: int, count: int, states: Any = None) -> list[list[Any]]:
    run, _ = make_run(deal.top)
    reader = StepReader(deal, run, deal.rows(rank, world), epoch, step, states)
    steps = [reader.read() for _ in range(count)]
    reader.close()
    assert all(built.whole for built in steps)
    return [built.item for built in steps]


@COMMON
@given(
    st.data(),
    st.sampled_from(["repeated", "epochs", "samples", "streamed"]),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
)
def test_steps_on_ranks_are_the_lanes_cut(data: st.DataObject, kind: str, columns: int, world: int) -> None:
    """Each step of B rows has of each column the lane's next B / C elements, whatever the sizes before it."""
    batch, ramp = data.draw(ramps(multiple=4 * columns))
    cuts, count = Cuts(batch, ramp), 12
    expected_sizes = sizes(batch, ramp, count)
    assume(sum(expected_sizes) < 2000)
    deal = Deal(endless(kind), Grid(cuts.unit, columns), "endless", cuts=cuts)
    expected = []
    run, _ = make_run(deal.top)
    plain = Deal(deal.top, Grid(cuts.unit, columns), "endless")
    cursors = [plain.lane_cursor(run, 0, lane) for lane in range(columns)]
    for cursor in cursors:
        cursor.reset(None)
    for size in expected_sizes:
        expected.append([item for cursor in cursors for item in islice(cursor, size // columns)])
    parts = [read(deal, rank, world, 0, 0, count) for rank in range(world)]
    assert [[row for part in step for row in part] for step in zip(*parts, strict=True)] == expected
    if deal.top.indexed:
        begin = data.draw(st.integers(0, count - 1))
        assert read(deal, 0, 1, 0, begin, count - begin) == expected[begin:]


@COMMON
@given(st.data(), st.sampled_from(["repeated", "streamed"]), st.integers(1, 5))
def test_epochs_of_so_many_steps_are_the_endless_run(data: st.DataObject, kind: str, each: int) -> None:
    batch, ramp = data.draw(ramps(multiple=2))
    cuts = Cuts(batch, ramp)
    expected = read(Deal(endless(kind), Grid(cuts.unit, 2), "endless", cuts=cuts), 0, 1, 0, 0, 3 * each)
    deal = Deal(endless(kind), Grid(cuts.unit, 2), "steps", each, cuts)
    assert [step for epoch in range(3) for step in read(deal, 0, 1, epoch, 0, each)] == expected


@pytest.mark.parametrize("ends", ["drop", "pad", "agree", "ragged"])
def test_a_ramp_needs_a_run_that_goes_on(ends: str) -> None:
    with pytest.raises(ConfigError, match="a ramp goes on over epochs"):
        Deal(endless("epochs"), Grid(4), ends, cuts=Cuts(8, Ramp(4, 4, 10)))
    with pytest.raises(ConfigError, match="has one turn"):
        Deal(endless("streamed"), Grid(4, 1, 2), "endless", cuts=Cuts(8, Ramp(4, 4, 10)))
