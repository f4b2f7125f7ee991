"""What an element is, whoever reads it in which order: random draws hang on that alone."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from dload.pipeline.combine import Concat, Zip
from dload.pipeline.elementwise import Enumerate, FilterHoles, Map, Maybe
from dload.pipeline.group import Expand, Filter, Windows, unbatch
from dload.pipeline.mix import Mix
from dload.pipeline.node import HOLE, Node, paths_of
from dload.pipeline.reorder import Repeat, Shuffle, Skip, Take
from dload.testing.pipelines import Streamed, elements, made_source


def source(name: str = "made") -> Node:
    return made_source([5, 3, 7], name)


def drawn(item: Any, rng: Random) -> Any:
    return item[0], rng.random(), rng.randrange(10**6)


def dice(node: Node, seed: int | None = None) -> Node:
    return Map(node, drawn, rng=True, rng_seed=seed)


def by_name(items: list[Any]) -> dict[str, Any]:
    found = {item[0]: item[1:] for item in items if item is not HOLE}
    assert len(found) == len([item for item in items if item is not HOLE])
    return found


PLAIN = by_name(elements(dice(source())))

REORDERED: dict[str, Callable[[Node], Node]] = {
    "shuffle": lambda p: Shuffle(p, 4),
    "full shuffle": lambda p: Shuffle(p, full=True),
    "skip": lambda p: Skip(p, 6),
    "take": lambda p: Take(p, 6),
    "filter": lambda p: Filter(p, lambda item: int(item[0][5:]) % 2),
    "holes": lambda p: FilterHoles(p, lambda item: int(item[0][5:]) % 2),
    "there and back": lambda p: unbatch(Windows(p, 4)),
    "stream": Streamed,
    "shuffled stream": lambda p: Shuffle(Streamed(p), 4),
}


@pytest.mark.parametrize("kind", REORDERED)
def test_a_samples_draws_are_its_own_whatever_is_below(kind: str) -> None:
    found = by_name(elements(dice(REORDERED[kind](source()))))
    assert found
    assert found.items() <= PLAIN.items()


def test_draws_differ_between_samples_epochs_passes_and_seeds() -> None:
    assert len(set(PLAIN.values())) == len(PLAIN)
    assert by_name(elements(dice(source()), 1)).items().isdisjoint(PLAIN.items())
    assert by_name(elements(dice(source()), seed=6)).items().isdisjoint(PLAIN.items())
    assert by_name(elements(dice(source(), 6))).items().isdisjoint(PLAIN.items())
    assert elements(dice(source(), 6)) == elements(dice(source(), 6), seed=9)
    passes = elements(dice(Repeat(source(), 2)))
    assert by_name(passes[:15]).items().isdisjoint(by_name(passes[15:]).items())


def test_what_is_put_on_top_changes_no_draw_below() -> None:
    below = dice(Shuffle(source(), 4))
    order = elements(below)
    for node in (Take(below, 100), Map(below, lambda item: item), unbatch(Windows(below, 4)), Skip(below, 0)):
        assert elements(node) == order
    again = elements(Map(dice(Shuffle(source(), 4)), lambda item, _: item, rng=True))
    assert again == order
    assert [item[1] for item in elements(Enumerate(below))] == order


def test_two_in_a_row_and_two_sides_draw_differently() -> None:
    def first(item: Any, rng: Random) -> Any:
        return item[0], rng.random()

    def second(item: Any, rng: Random) -> Any:
        return (*item, rng.random())

    twice = elements(Map(Map(source(), first, rng=True, rng_seed=1), second, rng=True, rng_seed=1))
    assert all(item[1] != item[2] for item in twice)
    for stream in (lambda node: node, Streamed):
        sides = elements(Zip(dice(stream(source())), dice(stream(source()))))
        assert all(left[0] == right[0] and left[1:] != right[1:] for left, right in sides)
        parts = elements(Concat(dice(stream(source())), dice(stream(source()))))
        assert len(set(parts)) == 30
        above = elements(dice(Concat(stream(source()), stream(source()))))
        assert len(set(above)) == 30
        mixed = elements(dice(Mix([stream(source()), stream(source())])))
        assert len(set(mixed)) == len(mixed)


def test_groups_and_children_are_what_they_are_made_of() -> None:
    def group(items: list[Any], rng: Random) -> Any:
        return tuple(item[0] for item in items), rng.random()

    batches = elements(Map(Windows(source(), 4), group, rng=True))
    assert len({draw for _, draw in batches}) == 4
    assert elements(Map(Shuffle(Windows(source(), 4), 2), group, rng=True)) != batches
    assert sorted(elements(Map(Shuffle(Windows(source(), 4), 2), group, rng=True))) == sorted(batches)

    def children(item: Any) -> list[Any]:
        return [(f"{item[0]}.{i}",) for i in range(3)]

    fixed = elements(dice(Expand(source(), children, 3)))
    assert len({item[1] for item in fixed}) == 45
    assert elements(dice(Expand(source(), children))) == fixed
    assert sorted(elements(dice(Shuffle(Expand(source(), children, 3), 9)))) == sorted(fixed)


def test_maybe_chooses_by_what_an_element_is() -> None:
    wide = made_source([400])
    chosen = {item[0] for item in elements(Maybe(wide, lambda _: None, 0.3, 1)) if item}
    assert 0.6 < len(chosen) / 400 < 0.8
    shuffled = {item[0] for item in elements(Maybe(Shuffle(Streamed(wide), 50), lambda _: None, 0.3, 1)) if item}
    assert shuffled == chosen
    assert elements(Maybe(wide, lambda _: None, 0)) == elements(wide)
    assert elements(Maybe(wide, lambda _: None, 1)) == [None] * 400
    halves = Map(wide, lambda item: (item, 0.5))
    given = [item for item in elements(Maybe(halves, lambda _: None, None, 1)) if item]
    assert 0.4 < len(given) / 400 < 0.6
    assert given == [item for item in elements(Maybe(wide, lambda _: None, 0.5, 1)) if item]


def test_the_draws_of_neighbours_have_nothing_in_common() -> None:
    draws = [item[1] for item in elements(dice(made_source([4000])))]
    mean = sum(draws) / 4000
    assert abs(mean - 0.5) < 0.03
    for lag in (1, 2, 64):
        together = sum((a - mean) * (b - mean) for a, b in zip(draws, draws[lag:], strict=False)) / 4000
        assert abs(together * 12) < 0.06
    counts = [sum(low <= draw < low + 0.1 for draw in draws) for low in (0, 0.1, 0.5, 0.9)]
    assert all(abs(count - 400) < 80 for count in counts)


def test_paths_name_each_node_once() -> None:
    shared = dice(source())
    top = Zip(Take(shared, 3), Map(shared, lambda item, _: item, rng=True), dice(source("other")))
    paths = paths_of(top)
    drawing = (shared, top.parents[1], top.parents[2])
    assert len({paths[id(node)] for node in drawing}) == 3
    assert paths[id(shared)] == ".0/map/0"
    assert paths[id(top.parents[1])] == ".1/map/1"
    assert paths[id(top)] == "/zip/0"
