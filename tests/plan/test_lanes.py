"""What a plan says of several lanes."""

from __future__ import annotations

from dload.pipeline.combine import Zip
from dload.pipeline.group import Filter
from dload.pipeline.lanes import Grid, Lane
from dload.pipeline.node import Node
from dload.pipeline.reorder import Shuffle
from dload.pipeline.sources import Samples
from dload.plan import CacheLimit, PlanReport, check
from dload.testing.pipelines import made_source, make_run

SIZES = [10] * 16  # of 100 bytes each: a shard has 1,000


def unlimited(_: Samples) -> CacheLimit:
    return CacheLimit("the cache", None)


def report(node: Node, grid: Grid) -> PlanReport:
    run, _ = make_run(node)
    return check(node, run, unlimited, [Lane(grid, number) for number in range(grid.lanes)])


def test_each_lane_holds_shards_of_its_own() -> None:
    assert report(made_source(SIZES), Grid(8)).needed == 1000
    assert report(made_source(SIZES), Grid(8, 4)).needed == 4000
    assert report(Filter(made_source(SIZES), bool), Grid(8, 4, 2)).needed == 8000


def test_a_shard_that_several_lanes_hold_counts_once() -> None:
    assert report(made_source([160]), Grid(8, 4)).needed == 16_000
    assert report(made_source([40] * 4), Grid(16, 16)).needed == 16_000


def test_a_shuffle_needs_its_window_in_each_lane() -> None:
    one, four = (report(Shuffle(made_source([10] * 64), 10, 1), Grid(8, C)).needed for C in (1, 4))
    assert one < four <= 4 * one


def test_lanes_and_what_the_first_batch_needs_are_told() -> None:
    message = report(made_source(SIZES), Grid(8, 4)).message
    assert "over 4 lanes, each with shards of its own: the first batch needs 4 shards, 3.9 KiB" in message
    turns = report(Filter(made_source(SIZES), bool), Grid(8, 4, 2)).message
    assert "over 8 lanes, each with shards of its own: the first batch needs 4 shards" in turns
    assert "zip" not in turns


def test_pairs_within_a_lane_are_told() -> None:
    node = Zip(Filter(made_source(SIZES, "a"), bool), made_source(SIZES, "b"))
    assert "zip pairs the elements of each lane among themselves" in report(node, Grid(8, 4)).message
    assert "zip pairs" not in report(node, Grid(8)).message
