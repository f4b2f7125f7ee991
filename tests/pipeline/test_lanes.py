"""The grid: every row to one lane, every part exactly its own elements."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError
from dload.pipeline.lanes import Grid
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
    for part in range(len(borders) - 1):
        slices = [grid.slice(lane, borders, part) for lane in range(grid.lanes)]
        assert slices == [part_run(model, lane, borders, part) for lane in range(grid.lanes)]
        seen = []
        for row in range(borders[part], borders[part + 1]):
            lane, element = grid.where(*divmod(row, grid.B))
            found, offset = grid.locate(lane, element, borders)
            assert found == part
            seen.append(slices[lane][0] + offset)
        assert sorted(seen) == list(range(borders[part], borders[part + 1]))


@settings(deadline=None)
@given(SHAPES, st.integers(1, 90), st.integers(0, 300))
def test_equal_parts_need_no_list(shape: tuple[int, int, int], T: int, element: int) -> None:
    c, C, m = shape
    grid, model = Grid(C * c, C, m), Model(C * c, C, m)
    for lane in range(grid.lanes):
        part, offset = grid.locate(lane, element, range(0, T << 40, T))
        assert (part, offset) == model.locate(lane, element, T)
        start, length = model.run(lane, part, T)
        assert grid.slice(lane, range(0, T << 40, T), part) == (part * T + start, length)


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
