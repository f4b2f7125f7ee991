"""What must be in a cache at once, counted by hand."""

from __future__ import annotations

import pytest

from dload.pipeline.combine import Concat, Zip
from dload.pipeline.group import Filter, Windows
from dload.pipeline.node import Node, Run, paths_of
from dload.pipeline.reorder import Repeat, Shuffle, Skip, Take
from dload.pipeline.sources import Samples
from dload.plan import CacheLimit, PlanReport, check
from dload.testing.pipelines import MemoryRows, made_source

SAMPLE = 100  # bytes


def planned(top: Node, budget: int | None = None) -> PlanReport:
    return check(top, Run(5, MemoryRows(), paths=paths_of(top)), lambda _: CacheLimit("the cache", budget))


def kept(_: object) -> bool:
    return True


A, B = made_source([10] * 8, "a"), made_source([30, 5, 20], "b")


@pytest.mark.parametrize(
    ("top", "samples"),
    [
        (A, 10),
        (B, 30),
        (Take(B, 30), 30),
        (Skip(B, 30), 20),
        (Skip(B, 35), 20),
        (Take(Skip(B, 30), 5), 5),
        (Windows(A, 10), 10),
        (Windows(A, 7), 20),
        (Windows(A, 25), 30),
        (Shuffle(A, 1000, full=True), 80),
        (Concat(A, B), 30),  # one after the other
        (Concat(Shuffle(A, 1, full=True), Shuffle(B, 1, full=True)), 80),
        (Zip(A, B), 40),  # a shard of each
        (Zip(A, Take(A, 10)), 10),  # the same one
        (Filter(A, kept), 10),
        (Concat(Filter(A, kept), Filter(B, kept)), 30),
        (Zip(Filter(A, kept), Filter(B, kept)), 40),
        (Zip(Filter(A, kept), Filter(A, kept)), 20),  # two cursors, that may be anywhere
        (made_source([]), 0),
    ],
)
def test_bytes_at_once(top: Node, samples: int) -> None:
    assert planned(top).needed == samples * SAMPLE


def test_the_same_shard_in_two_data_sets_counts_once() -> None:
    other = Samples(A.manifest, None)
    report = planned(Zip(A, other))
    assert report.needed == 10 * SAMPLE
    assert [(resident.shards, resident.bytes) for resident in report.residents] == [(1, 1000), (1, 1000)]


def test_a_shuffle_needs_no_more_than_its_windows() -> None:
    """The figure by looking at each place: what a row may come from is there."""
    source = made_source([3, 17, 8, 40, 2, 11, 29, 5, 13, 21, 7, 34], "uneven")
    top = Shuffle(source, 20, seed=3)
    run = Run(5, MemoryRows(), paths=paths_of(top))
    needs = list(top.demand(run, (0,), 0, 190))
    sizes = source.manifest.shards.sizes
    most = max(sum(sizes[need.shard] for need in needs if need.first <= at < need.last) for at in range(190))
    assert planned(top).needed == most < source.manifest.total_bytes


# ---- long epochs
def test_a_window_that_spans_very_many_shards_counts_whole() -> None:
    source = made_source([2] * 5000, "many")
    assert planned(Shuffle(source, 1, full=True)).needed == 10_000 * SAMPLE


def test_what_comes_late_is_looked_at() -> None:
    many = made_source([2] * 5000, "many")
    late = Concat(many, Shuffle(made_source([3] * 5000, "late"), 1, full=True))
    assert planned(late).needed == 15_000 * SAMPLE


@pytest.mark.parametrize("where", [0, 1, 2345, 4999])
def test_the_largest_shard_fits_wherever_it_is(where: int) -> None:
    sizes = [2] * 5000
    sizes[where] = 777
    assert planned(made_source(sizes, "many")).needed == 777 * SAMPLE


def test_a_source_that_comes_late_is_named() -> None:
    late = Concat(made_source([2] * 5000, "many"), made_source([9], "late"))
    assert [resident.source.partition("@")[0] for resident in planned(late).residents] == ["many", "late"]


# ---- the verdict
def test_of_two_limits_of_one_cache_the_smaller_holds() -> None:
    top = Zip(A, B)
    limits = {id(A): CacheLimit("the cache", 5000), id(B): CacheLimit("the cache", 3999, 76)}
    run = Run(5, MemoryRows(), paths=paths_of(top))
    report = check(top, run, lambda source: limits[id(source)])
    assert not report.ok
    assert "(4000 bytes) must be in the cache at once" in report.message
    assert "a budget of at least 4076 bytes" in report.message


@pytest.mark.parametrize(
    ("top", "said"),
    [
        (made_source([50], "one"), "none, all are in use"),
        (Repeat(made_source([50], "one")), "none, all are in use"),
        (made_source([50] * 4, "four"), "the 3 others"),
        (Shuffle(made_source([50] * 4, "four"), 1000), "none, all are in use"),
        (made_source([50] * 33, "thirty-three"), "up to 32 shards"),
        (Take(made_source([50] * 100, "many"), 120), "the 2 others"),
        (Take(made_source([50] * 100, "many"), 20), "none, all are in use"),
        (Repeat(made_source([50] * 100, "many")), "up to 32 shards"),
        (Concat(made_source([50], "one"), made_source([50], "another")), "the other one"),
        (Filter(made_source([50] * 3, "three"), kept), "the 2 others"),
    ],
)
def test_it_says_what_will_be_fetched_ahead(top: Node, said: str) -> None:
    assert f"fetched ahead: {said}" in planned(top).lines[-1]


@pytest.mark.parametrize(("spare", "ahead"), [(0, 0), (19, 0), (20, 1), (59, 2), (60, 3), (1000, 3)])
def test_how_far_ahead_is_shared_among_cursors(spare: int, ahead: int) -> None:
    a, b = (Samples(A.manifest, None, None, 4) for _ in range(2))
    report = planned(Zip(Filter(a, kept), Filter(b, kept)), (20 + spare) * SAMPLE)
    assert (report.ok, report.prefetch) == (True, ahead)
