"""The mix: exact weights, shares, counts, lanes and ends, against the model and a row-by-row reading of the rules."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import log
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError
from dload.pipeline import mixing
from dload.pipeline.lanes import Grid, Lane
from dload.pipeline.mixing import (
    STAGE_ROWS,
    Schedule,
    Weave,
    first_within,
    floor_sum,
    until_all,
    until_cycle,
    until_first,
    whole_weights,
)
from tests.models import order as model_file
from tests.models.lanes import Grid as ModelGrid
from tests.models.order import Mix

WEIGHTS = st.lists(st.sampled_from([0, 1, 2, 7, 50, 0.3, 1e-3]), min_size=1, max_size=5).filter(any)


def endless(weights: Any, seed: int = 5) -> Weave:
    return Weave(Schedule(weights, len(weights)), seed)


def pieces(mix: Weave, grid: Grid, i: int, a: int, b: int) -> list[tuple[int, int]]:
    """(start, length) of each lane's piece of child i's rows a to b - 1, counted from a."""
    low, high = mix.positions_of(i, a, b)
    lanes = [Lane(grid, number) for number in range(grid.lanes)]
    return [
        (
            mix.before(lane, i, high) - mix.before(lane, i, low),
            mix.lane_count(lane, i, high) - mix.lane_count(lane, i, low),
        )
        for lane in lanes
    ]


@pytest.fixture
def model_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float], int], Mix]:
    """The model with points of 64 bits, and the real mix's first point."""
    monkeypatch.setattr(model_file, "M", 1 << 64)
    monkeypatch.setattr(model_file, "STEP", 0x9E3779B97F4A7C15)

    def make(weights: list[float], seed: int) -> Mix:
        model = Mix(list(whole_weights(weights)), seed)
        model.start = endless(weights, seed)._b
        return model

    return make


# ---------------------------------------------------------------- golden values: any Python must give these
def test_mixes_are_the_same_everywhere() -> None:
    assert [i for i, _ in endless([0.5, 0.3, 0.2], 7).rows(0, 40)] == [
        1,
        0,
        2,
        0,
        0,
        1,
        0,
        2,
        1,
        0,
        1,
        0,
        0,
        1,
        0,
        2,
        0,
        0,
        1,
        0,
        2,
        1,
        0,
        2,
        0,
        0,
        1,
        0,
        2,
        1,
        0,
        1,
        0,
        2,
        1,
        0,
        2,
        0,
        0,
        1,
    ]
    assert endless([0.5, 0.3, 0.2], 7).count(1, 10**12) == 300000000007
    ends = [until([3, 1.5, 1], [1000, 600, 70], 7).length for until in (until_first, until_cycle, until_all)]
    assert ends == [384, 2195, 1670]


# ---------------------------------------------------------------- weights
def test_weights_are_exact() -> None:
    assert whole_weights([1, 2, 4]) == (1, 2, 4)
    assert whole_weights([2, 4, 0]) == (1, 2, 0)
    assert whole_weights([0.25, Fraction(1, 3), 1]) == (3, 4, 12)
    a, b = whole_weights([0.1, 0.2])
    assert Fraction(a, b) == Fraction(0.1) / Fraction(0.2)
    numpy = pytest.importorskip("numpy")
    assert whole_weights(numpy.array([1, 3])) == (1, 3)
    assert whole_weights(list(numpy.array([0.5, 1.5], dtype=numpy.float32))) == (1, 3)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, float("nan")], "weight 1 of the mix is nan"),
        ([float("inf"), 1], "weight 0 of the mix is inf"),
        ([1, 2, -0.5], "weight 2 of the mix is negative: -0.5"),
        ([0, 0.0], "no weight above 0"),
        ([], "no weight above 0"),
        ([1, "2"], "weight 1 of the mix is '2'"),
        ([1, None], "weight 1 of the mix is None"),
        ([1, 1e-30], "weight 1 of the mix is less than a row in 2[*][*]64: 1e-30"),
        ("12", "the weights of a mix are '12'"),
        (7, "the weights of a mix are 7"),
        ([1, 2, 3], "3 weights for 2 pipelines"),
        ([(0, [1, 1]), (0, [1, 2])], "begin at rows"),
        ([(5, [1, 1])], "begin at rows"),
        ([(0, [1, 1]), 7], "the weights of a mix are"),
        ([(0, [1, 1]), (10, [1, -1])], "weight 1 of the mix from row 10 on is negative"),
        (lambda _: [1, float("nan")], "weight 1 of the mix from row 0 on is nan"),
    ],
)
def test_case_c70_weights_that_make_no_sense_are_refused_at_build(weights: Any, message: str) -> None:
    for until in (until_first, until_cycle, until_all):
        with pytest.raises(ConfigError, match=message):
            until(weights, [10, 10], 0)


def test_case_c70_a_weight_of_0_never_draws() -> None:
    for until in (until_first, until_cycle, until_all):
        mix = until([1, 0], [30, 8], 3)
        assert mix.length == 30
        assert mix.rows(0, 30) == [(0, d) for d in range(30)]
        assert mix.draws(1) == 0
        assert mix.row_of(1, 0) is None
        assert mix.positions_of(1, 0, 8) == (0, 0)


# ---------------------------------------------------------------- one set of weights
@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 50), st.integers(0, 200), st.integers(0, 200))
def test_floor_sum(n: int, m: int, a: int, b: int) -> None:
    assert floor_sum(n, m, a, b) == sum((a * i + b) // m for i in range(n))


@given(st.integers(2, 300), st.data())
def test_first_within(m: int, data: st.DataObject) -> None:
    a, low = data.draw(st.integers(1, m - 1)), data.draw(st.integers(0, m - 1))
    high = data.draw(st.integers(low, m - 1))
    found = [k for k in range(m) if low <= a * k % m <= high]
    assume(found)
    assert first_within(a, m, low, high) == found[0]


@settings(max_examples=30, deadline=None)
@given(weights=WEIGHTS, seed=st.integers(0, 1 << 70), start=st.integers(0, 300), far=st.integers(0, 1 << 40))
def test_rows_children_counts_and_places_agree(weights: list[float], seed: int, start: int, far: int) -> None:
    mix = endless(weights, seed)
    rows = mix.rows(0, 400)
    drawn = [0] * len(weights)
    for row, (i, d) in enumerate(rows):
        assert mix.child(row) == i
        assert d == drawn[i]
        if row % 7 == 0:
            assert mix.count(i, row) == d
            assert mix.row_of(i, d) == row
        drawn[i] += 1
    again = endless(weights, seed)
    assert again.rows(start, start + 50) + again.rows(start + 50, start + 90) == rows[start : start + 90]
    for row, (i, d) in enumerate(mix.rows(far, far + 5), far):
        assert mix.count(i, row) == d
        assert mix.row_of(i, d) == row
    assert sum(mix.count(i, far) for i in range(len(weights))) == far


def test_counts_lanes_and_passes_are_the_models(model_of: Callable[[list[float], int], Mix]) -> None:
    rng = random.Random(1)
    for _ in range(12):
        C = rng.choice([1, 2, 4])
        c, m = rng.randint(1, 4), rng.randint(1, 3)
        grid, model_grid = Grid(C * c, C, m), ModelGrid(C * c, C, m)
        weights = [*(rng.choice([0, 1, 2, 7, 50]) for _ in range(rng.randint(1, 4))), 3]
        mix, model = endless(weights, 9), model_of(weights, 9)
        for row in rng.sample(range(3000), 25):
            assert mix.child(row) == model.child(row)
            for i in range(len(weights)):
                assert mix.count(i, row) == model.count(i, row)
                for lane in range(grid.lanes):
                    assert mix.lane_count(Lane(grid, lane), i, row) == model.lane_count(model_grid, lane, i, row)
        for i, weight in enumerate(weights):
            if weight:
                T, e = rng.randint(1, 60), rng.randint(0, 3)
                runs = [model.child_run(model_grid, lane, i, e, T) for lane in range(grid.lanes)]
                assert pieces(mix, grid, i, e * T, (e + 1) * T) == runs
                assert mix.row_of(i, T) == model.row_of(i, T)


@settings(max_examples=60, deadline=None)
@given(
    weights=WEIGHTS,
    seed=st.integers(0, 1 << 64),
    start=st.integers(0, 1 << 34) | st.just(0),
    n=st.integers(1, 10_000) | st.sampled_from([64, 1 << 20]),
)
def test_any_successive_rows_hold_the_shares(weights: list[float], seed: int, start: int, n: int) -> None:
    mix = endless(weights, seed)
    whole = whole_weights(weights)
    for i, weight in enumerate(whole):
        got = mix.count(i, start + n) - mix.count(i, start)
        assert abs(got - Fraction(n * weight, sum(whole))) < 1.01 + 0.42 * log(n)


def test_case_c74_ten_equal_sources_in_batches_of_64() -> None:
    mix = endless([1] * 10)
    for start in range(0, 64_000, 64):
        counts = Counter(i for i, _ in mix.rows(start, start + 64))
        assert all(abs(counts[i] - 6.4) < 2.75 for i in range(10))


# ---------------------------------------------------------------- ends
def by_hand(until: str, weights: list[float], lengths: list[int | None], seed: int) -> tuple[list[int], bool]:
    """Children of all rows, by the rules in words, up to 9,000 rows; whether it ended."""
    counts, children = [0] * len(weights), []
    mix, left = endless(weights, seed), list(weights)
    for row in range(9000):
        ended = [j for j, length in enumerate(lengths) if counts[j] == length and left[j]]
        if until == "all" and ended:
            left = [0 if j in ended else weight for j, weight in enumerate(left)]
            if not any(left):
                return children, True
            mix = endless(left, seed)
        i = mix.child(row)
        if until == "first" and counts[i] == lengths[i]:
            return children, True
        counts[i] += 1
        children.append(i)
        if until == "cycle":
            finite = [j for j, length in enumerate(lengths) if length is not None and weights[j]]
            if finite and all(counts[j] >= (lengths[j] or 0) for j in finite):
                return children, True
    return children, False


@settings(max_examples=40, deadline=None)
@given(data=st.data(), weights=WEIGHTS, seed=st.integers(0, 99))
def test_each_ends_where_its_rule_says(data: st.DataObject, weights: list[float], seed: int) -> None:
    size = st.integers(1, 40)
    lengths = data.draw(st.lists(st.none() | size, min_size=len(weights), max_size=len(weights)))
    weights = [max(weight, 1) if weight else 0 for weight in weights]  # all end within the rows that are read by hand
    for name, until in (("first", until_first), ("cycle", until_cycle), ("all", until_all)):
        mix = until(weights, lengths, seed)
        children, ended = by_hand(name, weights, lengths, seed)
        assert mix.length == (len(children) if ended else None)
        shown = min(len(children), 600)
        assert [i for i, _ in mix.rows(0, shown)] == children[:shown]
        if ended:
            assert [mix.draws(i) for i in range(len(weights))] == [children.count(i) for i in range(len(weights))]
            for row in (len(children), len(children) + 9):
                with pytest.raises(IndexError, match="of a mix"):
                    mix.child(row)
                with pytest.raises(IndexError, match="of a mix"):
                    mix.rows(0, row + 1)


def test_one_endless_child() -> None:
    assert until_first([1, 1], [50, None], 0).length is not None
    assert until_cycle([1, 1], [50, None], 0).length is not None
    assert until_all([1, 1], [50, None], 0).length is None
    assert all(until([1, 1], [None, None], 0).length is None for until in (until_first, until_cycle, until_all))


def test_case_c71_an_empty_source_first_in_the_middle_or_last() -> None:
    for empty in range(3):
        lengths = [20, 20, 20]
        lengths[empty] = 0
        for until in (until_first, until_cycle):
            with pytest.raises(ConfigError, match=f"pipeline {empty} of the mix is empty"):
                until([1, 1, 1], lengths, 0)
        mix = until_all([1, 1, 1], lengths, 0)
        assert mix.length == 40
        rows = mix.rows(0, 40)
        assert sorted(rows) == [(i, d) for i in range(3) if i != empty for d in range(20)]
        weights = [1, 1, 1]
        weights[empty] = 0
        assert until_first(weights, lengths, 0).length is not None
    assert until_all([1, 1], [0, 0], 0).length == 0


def test_all_has_a_stage_for_each_ending_child() -> None:
    mix = until_all([1, 1, 2], [100, 10, 500], 4)
    assert mix.length == 610
    assert len(mix.stages) == 3
    assert [before for _, before in mix.stages][1][1] == 10
    assert [before for _, before in mix.stages][2][:2] == (100, 10)
    assert sorted(mix.rows(0, 610)) == [(i, d) for i, n in enumerate([100, 10, 500]) for d in range(n)]


# ---------------------------------------------------------------- schedules
def test_a_schedule_by_rows() -> None:
    weights = [(0, [1, 0]), (100, [1, 1]), (300, [0, 1])]
    mix = Weave(Schedule(weights, 2), 3)
    rows = mix.rows(0, 1000)
    assert {i for i, _ in rows[:100]} == {0}
    assert {i for i, _ in rows[300:]} == {1}
    assert abs(sum(i for i, _ in rows[100:300]) - 100) < 4
    drawn = [0, 0]
    for row, (i, d) in enumerate(rows):
        assert d == drawn[i]
        assert mix.count(i, row) == d
        assert mix.row_of(i, d) == row
        drawn[i] += 1
    assert mix.row_of(0, drawn[0]) is None
    assert mix.draws(0) == drawn[0]
    assert mix.draws(1) is None
    assert mix.positions_of(0, 0, 10**9) == (0, 1 + max(row for row, (i, _) in enumerate(rows) if i == 0))
    assert mix.rows(250, 350) == rows[250:350]


def test_where_schedules_end() -> None:
    weights = [(0, [1, 0]), (100, [1, 1]), (300, [0, 1])]
    assert until_first(weights, [50, 10], 3).length == 50
    assert until_first(weights, [10_000, None], 3).length is None
    assert until_first(weights, [10_000, 10_000], 3).length == Weave(Schedule(weights, 2), 3).row_of(1, 10_000)
    assert until_cycle(weights, [50, 10], 3).length == 1 + (Weave(Schedule(weights, 2), 3).row_of(1, 9) or 0)
    assert until_cycle(weights, [10_000, 10], 3).length is None  # the first is never read whole
    mix = until_all(weights, [50, 400], 3)  # the first has ended before the second is due: that comes at once
    assert mix.length == 450
    assert [i for i, _ in mix.rows(0, 450)] == [0] * 50 + [1] * 400
    assert until_all([(0, [1, 1]), (20, [1, 0])], [100, 100], 3).length == 100 + sum(
        i for i, _ in endless([1, 1], 3).rows(0, 20)
    )


def test_a_function_is_called_once_a_stage_and_only_for_rows_that_are_reached() -> None:
    calls: list[int] = []

    def weights(stage: int) -> list[float]:
        calls.append(stage)
        return [1, stage]

    mix = until_all(weights, [None, None], 3)
    assert mix.length is None
    assert calls == []
    mix.rows(10, 20)
    assert calls == [0]
    row = 3 * STAGE_ROWS + 5
    assert mix.rows(row, row + 3)[0][1] == mix.count(mix.child(row), row)
    mix.rows(0, 10)
    assert calls == [0, 1, 2, 3]
    ending = until_all(weights, [100, None], 3)  # the first ends in the middle of stage 0, or begins stage 1
    calls.clear()
    ending.rows(0, 2 * STAGE_ROWS)
    assert calls == [0, 1]
    for stage in (1, 3):
        got = mix.count(1, (stage + 1) * STAGE_ROWS) - mix.count(1, stage * STAGE_ROWS)
        assert abs(got - STAGE_ROWS * stage / (stage + 1)) < 6


def test_a_function_that_settles_makes_no_more_stages() -> None:
    mix = until_first(lambda stage: [1, 1] if stage < 2 else [3, 1], [10**7, 10**7], 3)
    assert [first for first, _ in mix.stages] == [0, 2 * STAGE_ROWS]
    assert mix.length is not None
    assert abs(mix.length - (10**7 - STAGE_ROWS) * 4 / 3 - 2 * STAGE_ROWS) < 20
    assert until_cycle(lambda stage: [1, 1] if stage < 2 else [0, 1], [10**7, None], 3).length is None


# ---------------------------------------------------------------- demand and lanes
@settings(max_examples=40, deadline=None)
@given(data=st.data(), weights=WEIGHTS, seed=st.integers(0, 99))
def test_positions_of_hold_exactly_the_draws(data: st.DataObject, weights: list[float], seed: int) -> None:
    lengths = [data.draw(st.integers(1, 60)) for _ in weights]
    mix = until_all(weights, lengths, seed)
    rows = mix.rows(0, mix.length or 0)
    for i, length in enumerate(lengths):
        a = data.draw(st.integers(0, length))
        b = data.draw(st.integers(a, length + 5))
        places = [row for row, (j, d) in enumerate(rows) if j == i and a <= d < b]
        assert mix.positions_of(i, a, b) == ((places[0], places[-1] + 1) if places else (0, 0))


def test_what_was_found_is_kept_within_bounds_and_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, lengths = [3, 1, 2], [50, 40, 30]
    asked = [(i, d) for i, length in enumerate(lengths) for d in range(length)]
    fresh = [until_first(weights, lengths, 5).row_of(i, d) for i, d in asked]
    assert None in fresh and 0 in fresh
    monkeypatch.setattr(mixing, "_FOUND", 16)
    weave = until_first(weights, lengths, 5)
    for step in (1, -1, 1):
        assert [weave.row_of(i, d) for i, d in asked[::step]] == fresh[::step]
        assert len(weave._found) <= 16


@settings(max_examples=25, deadline=None)
@given(data=st.data(), c=st.integers(1, 4), C=st.integers(1, 4), m=st.integers(1, 3), seed=st.integers(0, 99))
def test_lanes_get_their_pieces_over_all_stages(data: st.DataObject, c: int, C: int, m: int, seed: int) -> None:
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=3))
    grid, mix = Grid(C * c, C, m), until_all([1] * len(lengths), lengths, seed)
    counts: Counter[tuple[int, int]] = Counter()
    for row, (i, _) in enumerate(mix.rows(0, mix.length or 0)):
        lane = grid.where(*divmod(row, grid.B))[0]
        if row % 5 == 0:
            assert mix.lane_count(Lane(grid, lane), i, row) == counts[lane, i]
        counts[lane, i] += 1
    for i, length in enumerate(lengths):
        found = pieces(mix, grid, i, 0, length)
        assert [count for _, count in found] == [counts[lane, i] for lane in range(grid.lanes)]
        assert [start for start, _ in found] == [sum(count for _, count in found[:x]) for x in range(grid.lanes)]
