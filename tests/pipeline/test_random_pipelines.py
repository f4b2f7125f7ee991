"""Pipelines that nobody thought of: built at random, in both tiers, and held to the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dload.pipeline.combine import Concat, Select, Zip, choice
from dload.pipeline.elementwise import Enumerate, FilterHoles, Map, MapBatches, Maybe, Prefetch, StarMap, Tap
from dload.pipeline.failures import OnError
from dload.pipeline.group import Expand, Filter, Scan, Through, Windows, unbatch
from dload.pipeline.mix import Mix
from dload.pipeline.node import Node
from dload.pipeline.packing import Pack
from dload.pipeline.reorder import Repeat, Shuffle, Skip, Take
from dload.pipeline.sources import Sequenced
from dload.randomness import hash64
from dload.testing.pipelines import Streamed, elements, made_source, places_hold, restores_everywhere

# A recipe is a tuple (what, arguments..., recipes...): from it the same pipeline is built as often as it is needed.
Recipe = tuple[Any, ...]
MOST = 16  # elements that are looked at


def label(item: Any) -> Any:
    return ("label", item)


def rolled(item: Any, rng: Any) -> Any:
    return item, rng.randrange(1000)


def kept(item: Any) -> bool:
    return hash64(repr(item)) % 4 != 0


def labels(items: list[Any]) -> list[Any]:
    return [label(item) for item in items]


def failing(item: Any) -> Any:
    if hash64("bad", repr(item)) % 4 == 0:
        raise ValueError("bad")
    return "fine", item


def all_failing(items: list[Any]) -> list[Any]:
    return [failing(item) for item in items]


def several_failing(item: Any) -> list[Any]:
    return several(failing(item))


HOLE_IT, SKIP_IT = OnError("hole", True), OnError("skip", False)


def several(item: Any) -> list[Any]:
    return [(child, item) for child in range(hash64(repr(item)) % 3)]


def twice(item: Any) -> Iterator[Any]:
    yield item
    yield "again", item


def folded(state: tuple[int, int], item: Any) -> tuple[int, int]:
    return state[0] + 1, hash64(state[1], repr(item)) % 1000


def through(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        yield "through", item


def first_of(*items: Any) -> Any:
    return items[0]


def tokens(item: Any) -> list[int]:
    name = hash64(repr(item))
    return [name % 1000 + at for at in range(name % 6)]


def packed(parent: Node, **more: Any) -> Node:
    return Map(Pack(Map(parent, tokens), 4, eos_id=0, pad_id=-1, **more), comparable)


def comparable(block: dict[str, Any]) -> dict[str, Any]:
    return {name: value if name == "valid" else value.tolist() for name, value in block.items()}


ONE: dict[str, Callable[..., Node]] = {
    "map": lambda p: Map(p, label),
    "rng": lambda p: Map(p, rolled, rng=True),
    "tap": lambda p: Tap(p, label),
    "star": lambda p: StarMap(Zip(p, Sequenced("abcdefgh")), first_of),
    "holes": lambda p: FilterHoles(p, kept),
    "maybe": lambda p: Maybe(p, label, 0.4),
    "enumerate": Enumerate,
    "prefetch": lambda p: Prefetch(p, 2),
    "fanout": lambda p: Expand(p, twice, 2),
    "unbatch": lambda p: unbatch(Windows(p, 3)),
    "workers": lambda p: Map(p, label, workers=2, queue=3),
    "rng workers": lambda p: Map(p, rolled, rng=True, workers=2),
    "batches": lambda p: MapBatches(p, labels, 3),
    "holes of errors": lambda p: Map(p, failing, on_error=HOLE_IT),
    "workers' holes": lambda p: Map(p, failing, workers=2, on_error=HOLE_IT),
    "batches' holes": lambda p: MapBatches(p, all_failing, 2, workers=1, queue=5, on_error=HOLE_IT),
    "fanout's holes": lambda p: Expand(p, lambda item: twice(failing(item)), 2, on_error=HOLE_IT),
}
SIZED: dict[str, Callable[..., Node]] = {
    "take": Take,
    "skip": Skip,
    "shuffle": Shuffle,
    "batch": Windows,
    "drop": lambda p, n: Windows(p, n, drop_last=True),
    "window": lambda p, n: Windows(p, n, 2),
    "gaps": lambda p, n: Windows(p, 2, n),
    "repeat": lambda p, n: Repeat(p, n % 3),
}
SEVERAL: dict[str, Callable[..., Node]] = {
    "concat": Concat,
    "zip": Zip,
    "zip_with": lambda *p: Zip(*p, fn=first_of),
    "mix": lambda *p: Mix(p, list(range(1, len(p) + 1)), 2, "all"),
    "endless mix": lambda *p: Mix([Repeat(Concat(x, Sequenced("x"))) for x in p], until="cycle"),
    "full": lambda *p: Shuffle(Concat(*p), full=True),
}
STREAM: dict[str, Callable[..., Node]] = {
    "streamed": Streamed,
    "filter": lambda p: Filter(p, kept),
    "expand": lambda p: Expand(p, several),
    "scan": lambda p: Scan(p, folded, (0, 0)),
    "through": lambda p: Through(p, through),
    "packed": packed,
    "bins": lambda p: packed(p, mode="best_fit", seed=3),
    "skips": lambda p: Map(p, failing, on_error=SKIP_IT),
    "workers' skips": lambda p: Map(p, failing, workers=2, queue=4, on_error=SKIP_IT),
    "batches' skips": lambda p: MapBatches(p, all_failing, 3, on_error=SKIP_IT),
    "filter's skips": lambda p: Filter(p, lambda item: kept(failing(item)), on_error=SKIP_IT),
    "filter's holes": lambda p: Filter(p, lambda item: kept(failing(item)), on_error=HOLE_IT),
    "expand's skips": lambda p: Expand(p, several_failing, on_error=SKIP_IT),
    "fanout's skips": lambda p: Expand(p, lambda item: twice(failing(item)), 2, on_error=SKIP_IT),
}
STREAM_SEVERAL: dict[str, Callable[..., Node]] = {
    "select": lambda *p: Select(Sequenced([i % len(p) for i in (0, 1, 1, 2, 0) * 6]), *p),
    "choice": lambda *p: choice(p, [1] * len(p)),
    "cycle": lambda *p: Mix([Concat(x, Sequenced("x")) for x in p], until="cycle"),
}
EVERY = {**ONE, **SIZED, **SEVERAL, **STREAM, **STREAM_SEVERAL}


def build(recipe: Recipe) -> Node:
    what, *rest = recipe
    if what == "source":
        return made_source(rest[0], f"s{rest[1]}")
    if what == "sequence":
        return Sequenced(range(rest[0]))
    return EVERY[what](*[build(part) if isinstance(part, tuple) else part for part in rest])


def recipes(streams: bool) -> st.SearchStrategy[Recipe]:
    leaves: st.SearchStrategy[Recipe] = st.one_of(
        st.tuples(st.just("source"), st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 1)),
        st.tuples(st.just("sequence"), st.integers(0, 7)),
    )
    one, several = ONE | (STREAM if streams else {}), SEVERAL | (STREAM_SEVERAL if streams else {})
    if streams:
        several = {name: make for name, make in several.items() if name != "full"}

    def above(below: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
        parents = st.lists(below, min_size=1, max_size=3)
        return st.one_of(
            st.tuples(st.sampled_from(sorted(one)), below),
            st.tuples(st.sampled_from(sorted(SIZED)), below, st.integers(1, 7)),
            st.tuples(st.sampled_from(sorted(several)), parents).map(lambda pair: (pair[0], *pair[1])),
        )

    return st.recursive(leaves, above, max_leaves=5)


def buildable(recipe: Recipe) -> bool:
    """Whether it makes sense: what has no end can't be repeated, or end a concat."""
    try:
        build(recipe)
    except Exception as error:
        if type(error).__name__ != "ConfigError":
            raise
        return False
    return True


COMMON = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


@COMMON
@given(recipes(streams=False).filter(buildable))
def test_index_tier(recipe: Recipe) -> None:
    if not build(recipe).indexed:
        restores_everywhere(lambda: build(recipe), most=MOST, state_size=4000)
        return
    found = places_hold(lambda: build(recipe), most=MOST)
    assert restores_everywhere(lambda: build(recipe), most=MOST) == found


@COMMON
@given(recipes(streams=True).filter(buildable))
def test_stream_tier(recipe: Recipe) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*once more", category=UserWarning)
        restores_everywhere(lambda: build(recipe), most=MOST, state_size=4000)


def streamed(recipe: Recipe) -> Node:
    """The same with all its sources in the stream tier."""
    if recipe[0] in ("source", "sequence"):
        return Streamed(build(recipe))
    parts = [streamed(part) if isinstance(part, tuple) else part for part in recipe[1:]]
    return EVERY[recipe[0]](*parts)


def same_in_both(recipe: Recipe) -> bool:
    """Whether nothing in it has another order in the other tier."""
    if recipe[0] in ("shuffle", "full", "mix", "endless mix"):
        return False
    return all(same_in_both(part) for part in recipe[1:] if isinstance(part, tuple))


@COMMON
@given(recipes(streams=False).filter(same_in_both).filter(buildable))
def test_both_tiers_give_the_same(recipe: Recipe) -> None:
    node = build(recipe)
    if node.indexed and node.length is not None and node.length < 200:
        assert elements(streamed(recipe)) == elements(node)
