"""Every kind of node, in both tiers: it restores at every step, and its places are what they seem."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest

from dload.pipeline.combine import Concat, Select, Zip, choice
from dload.pipeline.elementwise import (
    Enumerate,
    FilterHoles,
    Map,
    Maybe,
    Prefetch,
    SelectFields,
    StarMap,
    Tap,
)
from dload.pipeline.endless import EndlessOrder
from dload.pipeline.group import Expand, Filter, Scan, Through, Windows, unbatch
from dload.pipeline.mix import Mix
from dload.pipeline.node import HOLE, Node
from dload.pipeline.reorder import Repeat, Shuffle, Skip, Take
from dload.pipeline.sources import Factory, RandomStream, Sequenced
from dload.testing.pipelines import (
    LARGE,
    Streamed,
    elements,
    made_source,
    make_run,
    places_hold,
    restores_everywhere,
    top_cursor,
)

SIZES = [5, 3, 0, 7, 4]
TOTAL = sum(SIZES)


def source(name: str = "made") -> Node:
    return made_source(SIZES, name, LARGE)


def marked(item: Any) -> Any:
    return ("marked", item)


def joined(*items: Any) -> Any:
    return ("joined", *items)


def rolled(item: Any, rng: Any) -> Any:
    return item, rng.random(), rng.randrange(100)


def number(item: Any) -> int:
    """Of a sample `(name/ordinal, {})`."""
    return int(item[0].rpartition("/")[2])


def third(item: Any) -> bool:
    return number(item) % 3 == 0


def some(item: Any) -> list[Any]:
    return [(item[0], child) for child in range(number(item) % 4)]


def both(item: Any) -> Iterable[Any]:
    yield item[0], "first"
    yield item[0], "second"


def folded(state: tuple[int, list[str]], item: Any) -> tuple[int, list[str]]:
    count, latest = state
    return count + 1, [*latest, item[0]][-3:]


def pairs(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        yield "pair", item, next(items, None)


# kind -> (the node over its parent, how many samples going on may read again in the stream tier)
ONE_PARENT: dict[str, tuple[Callable[[Node], Node], int]] = {
    "source": (lambda p: p, 0),
    "map": (lambda p: Map(p, marked), 0),
    "map with rng": (lambda p: Map(p, rolled, rng=True), 0),
    "star_map": (lambda p: StarMap(p, joined), 0),
    "tap": (lambda p: Tap(p, number), 0),
    "select_fields": (lambda p: SelectFields(p, ["a"]), 0),
    "filter with holes": (lambda p: FilterHoles(p, third), 0),
    "map over holes": (lambda p: Map(FilterHoles(p, third), marked), 0),
    "enumerate over holes": (lambda p: Enumerate(FilterHoles(p, third)), 0),
    "batch over holes": (lambda p: Windows(FilterHoles(p, third), 2), 0),
    "windows over holes": (lambda p: Windows(FilterHoles(p, third), 3, 2), 3),
    "flat_map over holes": (lambda p: Expand(FilterHoles(p, third), both, 2), 1),
    "enumerate": (Enumerate, 0),
    "maybe": (lambda p: Maybe(p, marked, 0.5, 7), 0),
    "maybe by function": (lambda p: Maybe(p, marked, lambda item: number(item) / 19), 0),
    "prefetch": (lambda p: Prefetch(p, 3), 0),
    "take": (lambda p: Take(p, 11), 0),
    "take nothing": (lambda p: Take(p, 0), 0),
    "take more than there is": (lambda p: Take(p, 100), 0),
    "skip": (lambda p: Skip(p, 6), 0),
    "skip more than there is": (lambda p: Skip(p, 100), 0),
    "repeat": (lambda p: Repeat(p, 2), 0),
    "repeat never": (lambda p: Repeat(p, 0), 0),
    "repeat without end": (Repeat, 0),
    "repeat of repeat": (lambda p: Repeat(Repeat(Take(p, 4), 2), 3), 0),
    "batch": (lambda p: Windows(p, 4), 0),
    "batch, drop last": (lambda p: Windows(p, 4, drop_last=True), 0),
    "batch of more than there is": (lambda p: Windows(p, 50), 0),
    "batch with collate": (lambda p: Windows(p, 4, collate=len), 0),
    "windows that overlap": (lambda p: Windows(p, 5, 2), 5),
    "windows one apart": (lambda p: Windows(p, 3, 1), 3),
    "windows with gaps": (lambda p: Windows(p, 2, 5), 0),
    "windows, fewer than one": (lambda p: Windows(Take(p, 2), 3, 1), 3),
    "batch without end": (lambda p: Windows(Repeat(p), 4), 0),
    "flat_map with fanout": (lambda p: Expand(p, both, 2), 1),
    "zip": (lambda p: Zip(p, Skip(source("other"), 2)), 1),
    "zip with its own": (lambda p: Zip(Map(p, marked), source("other"), fn=joined), 0),
    "zip with no end": (lambda p: Zip(p, RandomStream(3)), 0),
    "concat": (lambda p: Concat(Take(p, 3), source("other"), Take(source("third"), 2)), 0),
    "concat of empty ones": (lambda p: Concat(Take(p, 0), Take(source("other"), 3), Take(p, 0)), 0),
    "unbatch": (lambda p: unbatch(Windows(p, 4)), 0),
    "unbatch, drop last": (lambda p: unbatch(Windows(p, 4, drop_last=True)), 4),
}
SHUFFLES: dict[str, Callable[[Node], Node]] = {
    "shuffle": lambda p: Shuffle(p, 6, 1),
    "shuffle of one": lambda p: Shuffle(p, 1),
    "shuffle of more than there is": lambda p: Shuffle(p, 1000, 1),
    "shuffle without end": lambda p: Shuffle(Repeat(p), 6, 1),
    "shuffle twice": lambda p: Shuffle(Shuffle(p, 3, 1), 4, 2),
    "repeat of shuffle": lambda p: Repeat(Shuffle(p, 6, 1)),
    "shuffle of batches": lambda p: Shuffle(Windows(p, 3), 2),
    "batches of a shuffle": lambda p: Windows(Shuffle(p, 6), 4),
}
FULL: dict[str, Callable[[Node], Node]] = {
    "full shuffle": lambda p: Shuffle(p, full=True, seed=4),
    "full shuffle of a repeat": lambda p: Shuffle(Repeat(p, 2), full=True),
}


@pytest.mark.parametrize("kind", ONE_PARENT)
def test_index_tier(kind: str) -> None:
    make, _ = ONE_PARENT[kind]
    assert places_hold(lambda: make(source())) == restores_everywhere(lambda: make(source()), again=0)


@pytest.mark.parametrize("homes", [1, 3])
@pytest.mark.parametrize("kind", [*SHUFFLES, *FULL])
def test_index_tier_shuffled(kind: str, homes: int) -> None:
    make = {**SHUFFLES, **FULL}[kind]
    places_hold(lambda: make(source()), homes=homes)
    if homes == 1:
        restores_everywhere(lambda: make(source()), again=0)


@pytest.mark.parametrize("kind", ONE_PARENT)
def test_stream_tier_gives_the_same(kind: str) -> None:
    make, again = ONE_PARENT[kind]
    found = restores_everywhere(lambda: make(Streamed(source())), again=again)
    assert found == elements(make(source()), most=60)


@pytest.mark.parametrize("kind", SHUFFLES)
def test_stream_tier_shuffled(kind: str) -> None:
    make = SHUFFLES[kind]
    found = restores_everywhere(lambda: make(Streamed(source())), again=1000 + 64)
    if len(found) < 60:
        assert sorted(map(str, found)) == sorted(map(str, elements(make(source())))) or "batches" in kind


def test_a_window_in_the_stream_tier_reads_at_most_itself_again() -> None:
    def make() -> Node:
        return Shuffle(Streamed(made_source([100, 150, 50], sample_bytes=LARGE)), 30, 1)

    found = restores_everywhere(make, most=300, again=30 + 64)
    assert sorted(map(number, found)) == list(range(300))
    assert found != elements(make(), 1)
    moved = [place - number(item) for place, item in enumerate(found)]
    assert max(map(abs, moved)) <= 30
    assert max(moved) > 15


STREAM_ONLY: dict[str, tuple[Callable[[], Node], int]] = {
    "filter": (lambda: Filter(source(), third), 0),
    "filter over holes": (lambda: Filter(FilterHoles(source(), third), third), 0),
    "filter, nothing left": (lambda: Filter(source(), lambda _: False), 0),
    "flat_map": (lambda: Expand(source(), some), 1),
    "flat_map, nothing left": (lambda: Expand(source(), lambda _: ()), 1),
    "flat_map of flat_map": (lambda: Expand(Expand(source(), some), lambda item: [item] * 2), 3),
    "unbatch of a list": (lambda: unbatch(Map(Windows(source(), 4), list)), 8),
    "unbatch of windows": (lambda: unbatch(Windows(source(), 4, 3)), 8),
    "scan": (lambda: Scan(source(), folded, (0, [])), 0),
    "scan over holes": (lambda: Scan(FilterHoles(source(), third), folded, (0, [])), 0),
    "scan of filter of windows": (lambda: Windows(Scan(Filter(source(), third), folded, (0, [])), 3, 1), 12),
    "select": (
        lambda: Select(Sequenced([0, 1, 1, 0, 2] * 12), source(), Take(source("other"), 7), Repeat(source("third"))),
        0,
    ),
    "select over holes": (lambda: Select(FilterHoles(Sequenced([0, 1] * 9), bool), source(), source("other")), 0),
    "choice": (lambda: choice([source(), source("other")], 0.3, 5), 0),
    "choice by weights": (lambda: choice([source(), source("other"), source("third")], [1, 0, 2]), 0),
    "choice by a pipeline": (
        lambda: choice([source(), source("other")], Repeat(Sequenced([0.0, 1.0, [1, 3]]))),
        0,
    ),
    "repeat of filter": (lambda: Repeat(Filter(source(), third)), 0),
    "concat without end": (lambda: Concat(source(), Repeat(source("other"))), 0),
    "rng above filter, batch, shuffle": (
        lambda: Map(Windows(Shuffle(Filter(source(), third), 4), 2), rolled, rng=True),
        20,
    ),
    "rng above flat_map and zip": (
        lambda: Map(Zip(Expand(source(), some), Enumerate(Filter(source("b"), third))), rolled, rng=True),
        1,
    ),
    "rng above select": (
        lambda: Map(Select(Sequenced([0, 1, 0]), source(), Concat(Streamed(source("b")))), rolled, rng=True),
        0,
    ),
    "rng above repeat of scan": (
        lambda: Map(Repeat(Skip(Take(Scan(source(), folded, (0, [])), 7), 2)), rolled, rng=True),
        0,
    ),
    "rng above windows of repeat": (lambda: Map(Windows(Repeat(Streamed(source())), 3, 2), rolled, rng=True), 3),
}


@pytest.mark.parametrize("kind", STREAM_ONLY)
def test_stream_tier_alone(kind: str) -> None:
    make, again = STREAM_ONLY[kind]
    restores_everywhere(make, again=again, state_size=900)


@pytest.mark.parametrize("kind", ["factory", "through", "rng above through"])
def test_counted_replay_says_so(kind: str) -> None:
    make: dict[str, Callable[[], Node]] = {
        "factory": lambda: Factory(lambda: iter(range(12))),
        "through": lambda: Through(FilterHoles(source(), third), pairs),
        "rng above through": lambda: Map(Through(source(), pairs), rolled, rng=True),
    }
    with pytest.warns(UserWarning, match="once more"):
        assert restores_everywhere(make[kind], again=TOTAL)


def test_what_the_kinds_give() -> None:
    names = [f"made/{i}" for i in range(TOTAL)]
    assert elements(source()) == [(name, {}) for name in names]
    assert elements(Map(Take(source(), 1), marked)) == [("marked", ("made/0", {}))]
    assert elements(StarMap(Take(source(), 1), joined)) == [("joined", "made/0", {})]
    assert elements(FilterHoles(Take(source(), 4), third)) == [("made/0", {}), HOLE, HOLE, ("made/3", {})]
    assert elements(Enumerate(FilterHoles(Take(source(), 4), third))) == [
        (0, ("made/0", {})),
        HOLE,
        HOLE,
        (3, ("made/3", {})),
    ]
    numbers = Sequenced(range(7))
    assert elements(Windows(numbers, 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert elements(Windows(numbers, 3, drop_last=True)) == [[0, 1, 2], [3, 4, 5]]
    assert elements(Windows(numbers, 3, 2)) == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    assert elements(Windows(numbers, 4, 2)) == [[0, 1, 2, 3], [2, 3, 4, 5]]
    assert elements(Windows(numbers, 2, 3)) == [[0, 1], [3, 4], [6]]
    assert elements(Windows(numbers, 8, 1)) == [[0, 1, 2, 3, 4, 5, 6]]
    assert elements(Windows(numbers, 8, 1, drop_last=True)) == []
    assert elements(Windows(FilterHoles(numbers, lambda i: i > 3), 2)) == [HOLE, HOLE, [4, 5], [6]]
    assert elements(unbatch(Windows(numbers, 3, drop_last=True))) == [0, 1, 2, 3, 4, 5]
    assert elements(unbatch(Windows(Repeat(numbers), 3, drop_last=True)), most=9) == [*range(7), 0, 1]
    assert elements(Expand(numbers, lambda i: [i] * (i % 3))) == [1, 2, 2, 4, 5, 5]
    assert elements(Scan(numbers, lambda a, b: a + b, 10)) == [10, 11, 13, 16, 20, 25, 31]
    assert elements(Filter(numbers, lambda i: i % 2)) == [1, 3, 5]
    assert elements(Zip(numbers, Skip(numbers, 5))) == [(0, 5), (1, 6)]
    assert elements(Concat(Take(numbers, 2), Skip(numbers, 6))) == [0, 1, 6]
    assert elements(Select(Sequenced([1, 1, 0, 1]), numbers, Repeat(Skip(numbers, 5)))) == [5, 6, 0, 5]
    assert elements(Select(Sequenced([0] * 9), Take(numbers, 2))) == [0, 1]
    assert elements(Repeat(numbers, 2)) == [*range(7), *range(7)]
    assert elements(Through(Take(numbers, 3), pairs)) == [("pair", 0, 1), ("pair", 2, None)]
    assert elements(Factory(lambda: [1, 2])) == [1, 2]
    halves = elements(RandomStream(1), most=200)
    assert all(0 <= draw < 1 for draw in halves)
    assert 0.4 < sum(halves) / 200 < 0.6
    assert halves != elements(RandomStream(1), 1, most=200) != elements(RandomStream(2), most=200)


def test_arrays_pass_whatever_they_say_about_equality() -> None:
    np = pytest.importorskip("numpy")
    arrays = Sequenced([np.arange(3), np.arange(3) + 1])
    kept = FilterHoles(arrays, lambda a: a[0] > 0)
    for node in (Zip(kept, arrays), Windows(kept, 2), Zip(Streamed(kept), arrays), Windows(Streamed(kept), 2)):
        assert [item is HOLE for item in elements(node)] in ([True, False], [False])


def test_shuffles_change_every_epoch_and_are_the_same_again() -> None:
    for node in (Shuffle(source(), 6), Shuffle(Streamed(source()), 6), Shuffle(source(), full=True)):
        first, second = elements(node, 0), elements(node, 1)
        assert first != second
        assert sorted(map(number, first)) == sorted(map(number, second)) == list(range(TOTAL))
        assert elements(node, 0) == first
        assert elements(node, 0, seed=6) != first
    passes = elements(Repeat(Shuffle(source(), 6), 2))
    assert passes[:TOTAL] != passes[TOTAL:]
    assert sorted(map(number, passes[TOTAL:])) == list(range(TOTAL))


def test_passes_overlap_within_n_in_a_shuffle_without_end() -> None:
    shuffled = [number(item) for item in elements(Shuffle(Repeat(source()), 5, 3), most=10 * TOTAL)]
    seen = dict.fromkeys(range(TOTAL), 0)
    for position, i in enumerate(shuffled):
        assert abs(seen[i] * TOTAL + i - position) <= 5
        seen[i] += 1
    assert shuffled[:TOTAL] != shuffled[TOTAL : 2 * TOTAL]
    far = Take(Skip(Shuffle(Repeat(Sequenced(range(7))), 2000), 10**12), 2000)
    assert set(elements(far)) == set(range(7))


def test_an_order_without_end_is_that_of_the_keys() -> None:
    order = EndlessOrder(3, (1,), 1500)
    whole = order.places(0, 15000)
    assert len(set(whole)) == 15000
    assert set(range(13500)) <= set(whole)
    assert max(abs(place - at) for at, place in enumerate(whole)) <= 1500
    assert statistics.pstdev(place - at for at, place in enumerate(whole)) > 400
    fresh = EndlessOrder(3, (1,), 1500)
    for start, stop in ((14000, 14010), (5400, 7100), (0, 1), (5, 5)):
        assert fresh.places(start, stop) == whole[start:stop]
    assert fresh.at([14999, 0, 6500]) == [whole[14999], whole[0], whole[6500]]
    assert EndlessOrder(3, (2,), 1500).places(0, 9) != whole[:9] != EndlessOrder(4, (1,), 1500).places(0, 9)


def test_the_demand_of_a_pass_is_that_passs_own() -> None:
    def many() -> Node:
        return Shuffle(made_source([2] * 60), 2, 1)

    places_hold(lambda: Repeat(many()), most=300)
    places_hold(lambda: Mix([many(), made_source([2] * 150, "other")], until="cycle"), most=300)
    node = Repeat(many())
    run, _ = make_run(node)
    assert len(list(node.demand(run, (0,), 120, 130))) < 30


# ---------------------------------------------------------------- cases
def test_case_c52_a_length_is_the_number_of_elements() -> None:
    for make, _ in ONE_PARENT.values():
        node = make(source())
        assert node.indexed
        assert node.length is None or node.length == len(elements(node))


def test_case_c56_a_shuffle_resumed_anywhere_gives_each_sample_once() -> None:
    rng = random.Random(5)
    for make in (
        lambda p: Shuffle(p, 40, 1),
        lambda p: Shuffle(p, full=True, seed=1),
        lambda p: Shuffle(Streamed(p), 40),
    ):
        node = make(made_source([90, 10, 1, 60, 80, 59]))
        for _ in range(20):
            run, _ = make_run(node)
            cursor = top_cursor(node, run, (3,))
            cursor.reset(None)
            before = list(islice(cursor, rng.randrange(300)))
            again = top_cursor(node, run, (3,))
            again.reset(cursor.get_state())
            assert sorted(map(number, [*before, *again])) == list(range(300))
