"""Sources that hold some rows of their shards, and sources that are read in another's order: any pipeline over them has
places, demand and states as it should."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dload.manifest import Manifest, chosen
from dload.pipeline.aligned import Aligned
from dload.pipeline.combine import Zip
from dload.pipeline.elementwise import FilterHoles
from dload.pipeline.group import Filter, Windows
from dload.pipeline.mix import Mix
from dload.pipeline.node import Node
from dload.pipeline.reorder import Repeat, Shuffle, Skip
from dload.pipeline.sources import Samples
from dload.testing.pipelines import elements, made_source, places_hold, restores_everywhere

SIZES = (3, 1, 6, 2)
COMMON = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FLAGS = st.lists(st.integers(0, 1), min_size=sum(SIZES), max_size=sum(SIZES)).map(bytes).filter(any)
ROWS = st.lists(st.integers(-1, sum(SIZES) - 1), min_size=1, max_size=20)


def view(flags: bytes) -> Samples:
    manifest = made_source(SIZES).manifest
    shards, rows = chosen(manifest.shards, None, flags)
    return Samples(Manifest("made", manifest.version, shards, rows=rows), None)


def kept(item: object) -> bool:
    return sum(map(ord, repr(item))) % 3 != 0


ABOVE = {
    "itself": lambda source: source,
    "shuffled": lambda source: Shuffle(source, 3, seed=1),
    "full": lambda source: Shuffle(source, full=True, seed=1),
    "batched": lambda source: Windows(Shuffle(source, 2, seed=1), 3),
    "mixed": lambda source: Mix([source, Shuffle(made_source((2, 2), "other"), 2, seed=2)], [2, 1], 3, "all"),
    "holes": lambda source: FilterHoles(source, kept),
    "repeated": lambda source: Repeat(Skip(source, 1), 2),
    "filtered": lambda source: Filter(source, kept),
}


@pytest.mark.parametrize("kind", ABOVE)
@COMMON
@given(FLAGS)
def test_pipelines_over_a_view(kind: str, flags: bytes) -> None:
    def make() -> Node:
        return ABOVE[kind](view(flags))

    found = restores_everywhere(make, most=16)
    if make().indexed:
        assert places_hold(make, most=16) == found
    if kind == "itself":
        assert [key for key, _ in found] == [f"made/{ordinal}" for ordinal in range(sum(flags))]


@pytest.mark.parametrize("kind", ABOVE)
@COMMON
@given(ROWS)
def test_pipelines_over_a_source_in_anothers_order(kind: str, rows: list[int]) -> None:
    def make() -> Node:
        return ABOVE[kind](Zip(made_source((len(rows),), "left"), Aligned(made_source(SIZES), array("q", rows))))

    found = restores_everywhere(make, most=16)
    if make().indexed:
        assert places_hold(make, most=16) == found
    if kind == "itself":
        assert [right and right[0] for _, right in found] == [f"made/{row}" if row >= 0 else None for row in rows][:16]


@pytest.mark.parametrize("count", [3, 300])
def test_the_demand_of_an_order_is_what_it_says(count: int) -> None:
    """In both ways that it is found: place by place for few places, shard by shard for many."""
    source = made_source((10,) * 30)
    aligned = Aligned(source, array("q", [(7 * place) % 300 for place in range(300)]))
    needs = list(aligned.demand(None, (0,), 20, 20 + min(count, 270)))  # type: ignore[arg-type]
    expected: dict[int, tuple[int, int]] = {}
    for place in range(20, 20 + min(count, 270)):
        shard = aligned.rows[place] // 10
        expected[shard] = expected.get(shard, (place, 0))[0], place + 1
    assert {need.shard: (need.first, need.last) for need in needs} == expected
    assert elements(aligned, most=5) == [(f"made/{7 * place}", {}) for place in range(5)]
