"""The stream tier over lanes: each lane restores anywhere, together they give what one gives, and none starves."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError
from dload.pipeline.combine import Concat, Select, Zip
from dload.pipeline.dealing import Deal
from dload.pipeline.elementwise import Enumerate, Map
from dload.pipeline.group import Expand, Filter, Scan, Through, Windows
from dload.pipeline.lanes import Grid, Lane
from dload.pipeline.mix import Mix
from dload.pipeline.node import Node
from dload.pipeline.reorder import Repeat, Shuffle, Skip, Take
from dload.pipeline.sources import Factory, Sequenced
from dload.testing.pipelines import Streamed, elements, made_source, make_run, restores_everywhere
from tests.pipeline.test_random_pipelines import Recipe, build, buildable, recipes

COMMON = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
MOST = 12

GRIDS = st.builds(
    lambda C, c, m: Grid(C * c, C, m), st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 3), st.integers(1, 3)
)
# What gives nothing shows only after several passes for each lane, and again from each state.
SMALL = st.builds(lambda C, c, m: Grid(C * c, C, m), st.sampled_from([1, 2, 3]), st.integers(1, 2), st.integers(1, 2))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*once more", category=UserWarning)
        yield


def lanes(grid: Grid, base: int = 0) -> list[Lane]:
    return [Lane(grid, number, base) for number in range(grid.lanes)]


# ---------------------------------------------------------------- any pipeline
@COMMON
@given(recipes(streams=True).filter(buildable), SMALL, st.data())
def test_each_lane_restores_everywhere(recipe: Recipe, grid: Grid, data: st.DataObject) -> None:
    lane = Lane(grid, data.draw(st.integers(0, grid.lanes - 1)), data.draw(st.integers(0, 30)))
    try:
        restores_everywhere(lambda: build(recipe), most=MOST, state_size=4000, lane=lane)
    except ConfigError as error:
        assert "gave nothing" in str(error)


@COMMON
@given(recipes(streams=True).filter(buildable), st.integers(1, 5))
def test_one_lane_is_the_order_itself(recipe: Recipe, B: int) -> None:
    def make() -> Node:
        return build(recipe)

    assert elements(make(), most=MOST, lane=Lane(Grid(B))) == elements(make(), most=MOST)


ALONE = {"map", "rng", "tap", "holes", "maybe", "prefetch", "fanout", "streamed", "filter", "expand", "shuffle"}
JOINED = {"source", "sequence", "concat"}


def alone(recipe: Recipe) -> bool:
    """Whether each element is made of one of the source's, wherever it is read."""
    parts = [part for part in recipe[1:] if isinstance(part, tuple)]
    return recipe[0] in ALONE | JOINED and all(alone(part) for part in parts)


def only(what: set[str]) -> st.SearchStrategy[Recipe]:
    return recipes(streams=True).filter(alone).filter(buildable)


@COMMON
@given(only(ALONE | JOINED), GRIDS, st.integers(0, 3), st.integers(0, 40))
def test_lanes_together_give_what_one_gives(recipe: Recipe, grid: Grid, epoch: int, base: int) -> None:
    together = [item for lane in lanes(grid, base) for item in elements(build(recipe), epoch, lane=lane)]
    assert Counter(map(repr, together)) == Counter(map(repr, elements(build(recipe), epoch)))


@COMMON
@given(only(ALONE | JOINED), GRIDS, st.integers(1, 3))
def test_passes_of_a_repeat_are_dealt_one_after_the_other(recipe: Recipe, grid: Grid, times: int) -> None:
    node = Repeat(Streamed(build(recipe)) if build(recipe).indexed else build(recipe), times)
    found = [[repr(item) for item in elements(node, lane=lane)] for lane in lanes(grid)]
    whole = list(map(repr, elements(node)))
    assert Counter(item for of in found for item in of) == Counter(whole)


# ---------------------------------------------------------------- a run
def steps_of(make: Callable[[], Node], grid: Grid, ends: str, count: int, begin: list[Any] | None, at: int) -> Any:
    """Steps at, at + 1, ... (count of them) of an endless run or an epoch, and at each the states of all lanes."""
    deal = Deal(make(), grid, ends, 7 if ends == "steps" else None)
    cursors = []
    for lane in range(grid.lanes):
        node = make()
        cursor = Deal(node, grid, ends, 7 if ends == "steps" else None).lane_cursor(make_run(node)[0], 0, lane)
        cursor.reset(None if begin is None else begin[lane])
        cursors.append(cursor)
    steps: list[list[Any]] = []
    states = []
    for step in range(at, at + count):
        states.append(json.dumps([cursor.get_state() for cursor in cursors]))
        batch: list[Any] = []
        for column in range(grid.C):
            batch += islice(cursors[deal.lane(column, step)], grid.c)
        steps.append(batch)
    return steps, states


@COMMON
@given(recipes(streams=True).filter(buildable), SMALL, st.sampled_from(["endless", "steps", "agree", "ragged"]))
def test_a_run_goes_on_at_any_step(recipe: Recipe, grid: Grid, ends: str) -> None:
    def make() -> Node:
        return build(recipe)

    assume(not make().indexed)
    try:
        whole, states = steps_of(make, grid, ends, 5, None, 0)
    except ConfigError as error:
        assert "gave nothing" in str(error)
        return
    for step, state in enumerate(states):
        assert steps_of(make, grid, ends, 5 - step, json.loads(state), step)[0] == whole[step:]
    if ends in ("endless", "steps"):
        assert all(len(batch) == grid.B for batch in whole)


# ---------------------------------------------------------------- the rules, one by one
def source(length: int) -> Node:
    return Streamed(Sequenced(range(length)))


@settings(deadline=None)
@given(GRIDS, st.integers(0, 50), st.integers(0, 30))
def test_take_and_skip_are_rows_of_each_lane(grid: Grid, length: int, n: int) -> None:
    for lane in lanes(grid):
        whole = elements(source(length), lane=lane)
        share = grid.count(lane.number, n)
        assert elements(Take(source(length), n), lane=lane) == whole[:share]
        assert elements(Skip(source(length), n), lane=lane) == whole[share:]


@settings(deadline=None)
@given(GRIDS, st.integers(0, 50))
def test_enumerate_counts_by_the_rows_of_the_grid(grid: Grid, length: int) -> None:
    found = {}
    for lane in lanes(grid):
        for slot, _ in elements(Enumerate(source(length)), lane=lane):
            found[slot] = grid.where(*divmod(slot, grid.B))[0]
            assert found[slot] == lane.number
    assert sorted(found) == list(range(length))


@settings(deadline=None)
@given(GRIDS, st.integers(0, 60), st.integers(1, 20))
def test_a_shuffle_holds_its_share_in_each_lane(grid: Grid, length: int, n: int) -> None:
    most = -(-n // grid.lanes)
    for lane in lanes(grid):
        own = elements(source(length), lane=lane)
        found = elements(Shuffle(source(length), n, 1), lane=lane)
        assert sorted(found) == sorted(own)
        places = {item: place for place, item in enumerate(own)}
        assert all(places[item] - place <= most for place, item in enumerate(found))


def test_lanes_of_a_shuffle_draw_for_themselves() -> None:
    grid = Grid(2)
    assert grid.lanes == 1
    grid = Grid(2, 2)
    first, second = [[item % 50 for item in elements(Shuffle(source(100), 60, 1), lane=lane)] for lane in lanes(grid)]
    assert first != second


@settings(deadline=None)
@given(GRIDS, st.integers(1, 40), st.integers(1, 5), st.booleans())
def test_groups_are_made_within_a_lane(grid: Grid, length: int, size: int, drop_last: bool) -> None:
    for lane in lanes(grid):
        own = elements(source(length), lane=lane)
        groups = [own[at : at + size] for at in range(0, len(own), size)]
        if drop_last and groups and len(groups[-1]) < size:
            groups.pop()
        assert elements(Windows(source(length), size, drop_last=drop_last), lane=lane) == groups


@settings(deadline=None)
@given(GRIDS, st.integers(0, 30))
def test_pairs_and_folds_are_made_within_a_lane(grid: Grid, length: int) -> None:
    for lane in lanes(grid):
        own = elements(source(length), lane=lane)
        assert elements(Zip(source(length), Map(source(length), str)), lane=lane) == [(i, str(i)) for i in own]
        assert len(elements(Zip(source(length + 3), source(length)), lane=lane)) == len(own)
        sums = [sum(own[: at + 1]) for at in range(len(own))]
        assert elements(Scan(source(length), lambda total, item: total + item, 0), lane=lane) == sums
        chosen = Select(Sequenced([0] * length), source(length), source(length))
        assert elements(chosen, lane=lane) == own


@settings(deadline=None)
@given(GRIDS, st.lists(st.integers(1, 5), min_size=2, max_size=3), st.integers(0, 9))
def test_a_mix_goes_by_the_rows_of_the_grid(grid: Grid, weights: list[int], seed: int) -> None:
    children = [Repeat(Streamed(Sequenced([number]))) for number in range(len(weights))]
    mix = Mix(children, weights, seed)
    plain = elements(mix, most=grid.B * grid.m * 3)
    for lane in lanes(grid):
        own = [item for row, item in enumerate(plain) if grid.where(*divmod(row, grid.B))[0] == lane.number]
        assert elements(mix, most=len(own), lane=lane) == own


def thirds(item: Any) -> bool:
    return item % 3 == 0


def never(item: Any) -> bool:
    return item < 0


@settings(deadline=None, max_examples=30)
@given(GRIDS, st.integers(1, 12))
def test_no_lane_starves_however_few_rows_there_are(grid: Grid, length: int) -> None:
    """Passes go on where the last one ended among the lanes; any lane has its share after enough of them."""
    shuffled = Streamed(Shuffle(Sequenced(range(length)), 50, 3))
    for node in (Repeat(source(length)), Repeat(Take(source(length + 3), length)), Repeat(Filter(shuffled, thirds))):
        for lane in lanes(grid):
            assert len(elements(node, most=5, lane=lane)) == 5


@settings(deadline=None, max_examples=30)
@given(SMALL, st.integers(1, 12))
def test_no_lane_starves_of_a_child_of_a_mix_that_goes_round(grid: Grid, length: int) -> None:
    mix = Mix([Map(source(length), str), Take(Repeat(source(3)), 10**9)], until="cycle")
    for lane in lanes(grid):
        assert any(isinstance(item, str) for item in elements(mix, most=40, lane=lane))


@settings(deadline=None, max_examples=20)
@given(GRIDS, st.integers(1, 30))
def test_what_gives_nothing_in_any_lane_is_an_error(grid: Grid, length: int) -> None:
    empty = Filter(source(length), never)
    for lane in lanes(grid):
        with pytest.raises(ConfigError, match="gave nothing"):
            elements(Repeat(empty), lane=lane)
        with pytest.raises(ConfigError, match="gave nothing"):
            elements(Mix([empty, Take(Repeat(source(3)), 10**9)], until="cycle"), most=10**6, lane=lane)


def numbers() -> Iterator[int]:
    yield from range(23)


@settings(deadline=None)
@given(GRIDS)
def test_a_function_gives_each_lane_all_or_its_rows(grid: Grid) -> None:
    for lane in lanes(grid):
        assert elements(Factory(numbers), lane=lane) == list(range(23))
        own = [row for row in range(23) if grid.where(*divmod(row, grid.B))[0] == lane.number]
        assert elements(Factory(numbers, shard=True), lane=lane) == own
        restores_everywhere(lambda: Factory(numbers, shard=True), lane=lane)


def onward(items: Iterator[Any]) -> Iterator[Any]:
    yield from items


def rolled(item: Any, rng: Any) -> float:
    return float(rng.random())


@settings(deadline=None)
@given(GRIDS)
def test_what_comes_through_a_function_draws_for_itself_in_each_lane(grid: Grid) -> None:
    for node in (
        Map(Through(source(20), onward), rolled, rng=True),
        Map(Factory(numbers, shard=True), rolled, rng=True),
    ):
        draws = [draw for lane in lanes(grid) for draw in elements(node, lane=lane)]
        assert len(set(draws)) == len(draws)
    dealt = Map(Factory(numbers, shard=True), rolled, rng=True)
    assert sorted(draws) == sorted(elements(dealt))


def test_state_of_a_lane_is_small() -> None:
    """Under 64 bytes for each node that has one."""
    node = Windows(Expand(Filter(Streamed(made_source([500_000] * 4)), bool), lambda item: [item] * 3), 8)
    run, _ = make_run(node, lane=Lane(Grid(64, 8, 4), 17))
    cursor = node.cursor(run, (0,))
    cursor.reset(None)
    for _ in range(300):
        next(cursor)
    assert len(json.dumps(cursor.get_state())) < 3 * 64


def test_parts_of_a_concat_follow_each_other_among_the_lanes() -> None:
    grid = Grid(8, 8)
    node = Concat(*(source(3) for _ in range(8)))
    assert [len(elements(node, lane=lane)) for lane in lanes(grid)] == [3] * 8
