"""The grid: every row to one lane, every part exactly its own elements."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError
from dload.pipeline.lanes import Grid, Lane
from tests.models.lanes import Grid as Model
from tests.models.order import part_run

SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))  # c, C, m
BORDERS = st.lists(st.integers(0, 40), min_size=1, max_size=6).map(lambda sizes: [sum(sizes[:i]) for i in range(7)])


@settings(deadline=None)
@given(SHAPES, st.integers(0, 400))
def test_counts_and_places_are_the_models(shape: tuple[int, int, int], rows: int) -> None:
    c, C, m = shape
    grid, model = Grid(C * c, C, m), Model(C * c, C, m)
    assert grid.lanes == model.lanes
    assert grid.c == c
    step, row = divmod(rows, grid.B)
    assert grid.where(step, row) == model.where(step, row)
    counts = [grid.count(lane, rows) for lane in range(grid.lanes)]
    assert counts == [model.count(lane, rows) for lane in range(grid.lanes)]
    assert sum(counts) == rows
    lane, element = grid.where(step, row)
    assert counts[lane] == element


@settings(deadline=None)
@given(SHAPES, BORDERS)
def test_parts_are_exactly_their_rows_in_time(shape: tuple[int, int, int], borders: list[int]) -> None:
    c, C, m = shape
    grid, model = Grid(C * c, C, m), Model(C * c, C, m)
    for part, (low, high) in enumerate(pairwise(borders)):
        slices = [grid.slice(lane, low, high) for lane in range(grid.lanes)]
        assert slices == [part_run(model, lane, borders, part) for lane in range(grid.lanes)]
        seen = []
        for row in range(low, high):
            lane, element = grid.where(*divmod(row, grid.B))
            seen.append(slices[lane][0] + element - grid.count(lane, low))
        assert sorted(seen) == list(range(low, high))


@settings(deadline=None)
@given(SHAPES, st.integers(1, 90), st.integers(0, 300))
def test_equal_parts_are_the_models(shape: tuple[int, int, int], T: int, element: int) -> None:
    c, C, m = shape
    grid, model = Grid(C * c, C, m), Model(C * c, C, m)
    for lane in range(grid.lanes):
        row = grid.row_of(lane, element)
        assert grid.where(*divmod(row, grid.B)) == (lane, element)
        part = row // T
        assert (part, element - grid.count(lane, part * T)) == model.locate(lane, element, T)
        start, length = model.run(lane, part, T)
        assert grid.slice(lane, part * T, (part + 1) * T) == (part * T + start, length)


@settings(deadline=None)
@given(SHAPES, st.integers(0, 200), st.integers(0, 60), st.integers(0, 60))
def test_a_lane_counts_rows_from_where_its_pass_begins(
    shape: tuple[int, int, int], base: int, low: int, high: int
) -> None:
    c, C, m = shape
    grid = Grid(C * c, C, m)
    rows = [grid.where(*divmod(row, grid.B))[0] for row in range(base, base + 60)]
    for number in range(grid.lanes):
        lane = Lane(grid, number, base)
        own = [row for row, of in enumerate(rows) if of == number]
        assert [lane.row(element) for element in range(len(own))] == own
        assert [lane.count(row) for row in range(60)] == [sum(x < row for x in own) for row in range(60)]
        first, count = lane.slice(*sorted((low, high)))
        assert first == min(low, high) + sum(of < number for of in rows[min(low, high) : max(low, high)])
        assert count == rows[min(low, high) : max(low, high)].count(number)
        assert lane.later(7) == Lane(grid, number, base + 7)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 12])
def test_ranks_put_together_are_the_batch(world: int) -> None:
    grid = Grid(12, 4)
    assert [row for rank in range(world) for row in grid.rows_of_rank(rank, world)] == list(range(12))
    assert list(grid.rows_of_rank(world - 1, world)) == list(Model(12, 4).rows_of_rank(world - 1, world))


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="5 columns don't divide a global batch of 12"):
        Grid(12, 5)
    with pytest.raises(ConfigError, match="turns must be at least 1, got 0"):
        Grid(12, 4, 0)
    with pytest.raises(ConfigError, match="12 rows can't be shared evenly by 5 ranks"):
        Grid(12, 4).rows_of_rank(0, 5)
    with pytest.raises(ConfigError, match="rank 3 is not one of 3"):
        Grid(12, 4).rows_of_rank(3, 3)
