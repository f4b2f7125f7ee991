"""What can't be built says so at once, and what was built pickles."""

from __future__ import annotations

import json
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from dload.errors import ConfigError
from dload.pipeline.combine import Concat, Select, Zip, choice
from dload.pipeline.elementwise import Enumerate, FilterHoles, Map, Maybe, Prefetch, SelectFields, StarMap, Tap
from dload.pipeline.group import Expand, Filter, Scan, Through, Windows, unbatch
from dload.pipeline.node import Node, walk
from dload.pipeline.reorder import Repeat, Shuffle, Skip, Take
from dload.pipeline.sources import Factory, RandomStream, Samples, Sequenced
from dload.testing.pipelines import Streamed, elements, made_source

ITEMS = Sequenced(range(10))
ENDLESS = Repeat(ITEMS)
STREAM = Filter(ITEMS, bool)

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "map without a function": (lambda: Map(ITEMS, 5), "map needs a function, got 5"),  # type: ignore[arg-type]
    "star_map without a function": (lambda: StarMap(ITEMS, None), "star_map needs a function"),  # type: ignore[arg-type]
    "tap without a function": (lambda: Tap(ITEMS, "x"), "tap needs a function"),  # type: ignore[arg-type]
    "filter without a function": (lambda: Filter(ITEMS, True), "filter needs a function"),  # type: ignore[arg-type]
    "holes without a function": (lambda: FilterHoles(ITEMS, 1), "filter needs a function"),  # type: ignore[arg-type]
    "flat_map without a function": (lambda: Expand(ITEMS, []), "flat_map needs a function"),  # type: ignore[arg-type]
    "scan without a function": (lambda: Scan(ITEMS, 0, 0), "scan needs a function"),  # type: ignore[arg-type]
    "through without a function": (lambda: Through(ITEMS, 0), "through needs a function"),  # type: ignore[arg-type]
    "zip_with without a function": (lambda: Zip(ITEMS, fn=3), "zip_with needs a function"),  # type: ignore[arg-type]
    "collate without a function": (lambda: Windows(ITEMS, 2, collate=3), "collate needs"),  # type: ignore[arg-type]
    "factory without a function": (lambda: Factory([1]), "from_iterable needs"),  # type: ignore[arg-type]
    "maybe without a function": (lambda: Maybe(ITEMS, 1, 0.5), "maybe needs a function"),  # type: ignore[arg-type]
    "maybe more than always": (lambda: Maybe(ITEMS, bool, 1.5), "between 0 and 1.*got 1.5"),
    "maybe not a number": (lambda: Maybe(ITEMS, bool, "0.5"), "got '0.5'"),  # type: ignore[arg-type]
    "maybe nan": (lambda: Maybe(ITEMS, bool, float("nan")), "got nan"),
    "a seed for no rng": (lambda: Map(ITEMS, bool, rng_seed=3), "rng_seed is given"),
    "a seed that is text": (lambda: Shuffle(ITEMS, seed="x"), "a seed must be a whole number, got 'x'"),  # type: ignore[arg-type]
    "a random stream's seed": (lambda: RandomStream(0.5), "a seed must be"),  # type: ignore[arg-type]
    "no fields": (lambda: SelectFields(ITEMS, []), "needs names of fields"),
    "fields that are numbers": (lambda: SelectFields(ITEMS, [1]), "needs names of fields"),  # type: ignore[list-item]
    "fields as a text": (lambda: Samples(made_source([1]).manifest, None, "jpg"), r"pass \['jpg'\]"),
    "shards ahead, negative": (lambda: Samples(made_source([1]).manifest, None, None, -1), "at least 0, got -1"),
    "prefetch negative": (lambda: Prefetch(ITEMS, -1), "prefetch must be a whole number of at least 0"),
    "prefetch a half": (lambda: Prefetch(ITEMS, 0.5), "got 0.5"),  # type: ignore[arg-type]
    "batch of none": (lambda: Windows(ITEMS, 0), "at least 1, got 0"),
    "batch of true": (lambda: Windows(ITEMS, True), "at least 1, got True"),
    "stride of none": (lambda: Windows(ITEMS, 2, 0), "stride.*at least 1"),
    "fanout of none": (lambda: Expand(ITEMS, list, 0), "fanout must be"),
    "shuffle of none": (lambda: Shuffle(ITEMS, 0), "the size of a shuffle"),
    "full shuffle of a stream": (lambda: Shuffle(STREAM, full=True), "holes=True"),
    "full shuffle without end": (lambda: Shuffle(ENDLESS, full=True), r"put a take\(n\) below"),
    "take negative": (lambda: Take(ITEMS, -1), "take must be"),
    "skip negative": (lambda: Skip(ITEMS, -1), "skip must be"),
    "repeat negative": (lambda: Repeat(ITEMS, -1), "repeat must be"),
    "repeat without end of what has none": (lambda: Repeat(ENDLESS), "leave out the repeat"),
    "repeat without end of nothing": (lambda: Repeat(Take(ITEMS, 0)), "would never give an element"),
    "concat of nothing": (Concat, "at least one"),
    "zip of nothing": (Zip, "at least one"),
    "select of nothing": (lambda: Select(ITEMS), "at least one"),
    "choice of nothing": (lambda: choice([], 0.5), "at least one"),
    "choice: one share of three": (lambda: choice([ITEMS] * 3, 0.5), "the first of two pipelines, got 0.5 for 3"),
    "choice: a share above one": (lambda: choice([ITEMS] * 2, 1.5), "got 1.5 for 2"),
    "choice: too few weights": (lambda: choice([ITEMS] * 3, [1, 2]), "each of 3 pipelines, got 2"),
    "choice: a negative weight": (lambda: choice([ITEMS] * 2, [1, -1]), "not negative, got -1"),
    "choice: nan": (lambda: choice([ITEMS] * 2, [1, float("nan")]), "finite number"),
    "choice: all zero": (lambda: choice([ITEMS] * 2, [0, 0]), "nothing to draw from"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_sense_is_refused_when_it_is_built(what: str) -> None:
    make, reason = REFUSED[what]
    with pytest.raises(ConfigError, match=reason):
        make()


def test_what_only_shows_in_the_elements_says_so_there() -> None:
    with pytest.raises(ConfigError, match=r"expected 2 elements .* got 3"):
        elements(Expand(ITEMS, lambda _: [1, 2, 3], 2))
    for number in (2, -1, "x", 0.5):
        with pytest.raises(ConfigError, match="numbers from 0 to 1, got"):
            elements(Select(Sequenced([number]), ITEMS, ITEMS))
    with pytest.raises(ConfigError, match="not negative"):
        elements(choice([ITEMS, ITEMS], Sequenced([[1, -2]])))


def everything() -> Node:
    source = made_source([3, 4, 5])
    parts = [
        Map(StarMap(Enumerate(source), operator.is_not), operator.not_),
        Tap(FilterHoles(Shuffle(source, 3, 1), bool), bool),
        Maybe(Prefetch(SelectFields(source, ["a"]), 2), bool, 0.5, 3),
        Windows(Take(Skip(source, 2), 9), 2),
        unbatch(Map(Windows(Shuffle(source, full=True), 3), list)),
        Scan(Filter(Repeat(source, 2), bool), max, ("", {})),
        Through(Expand(source, list, 2), iter),
        choice([Repeat(source), Streamed(source)], [1, 2], 3),
        Zip(source, Sequenced([1, 2, 3]), RandomStream(4)),
    ]
    return Concat(*parts)


@pytest.mark.filterwarnings("ignore:.*once more")
def test_every_node_pickles_describes_itself_in_json_and_gives_the_same() -> None:
    node = everything()
    before = elements(node)
    copied = pickle.loads(pickle.dumps(node))
    assert elements(copied) == before
    assert len(pickle.dumps(node)) < 20_000
    kinds = [below.kind for _, below in walk(node)]
    assert [below.kind for _, below in walk(copied)] == kinds
    assert len(set(kinds)) >= 22
    described = [json.dumps([below.parameters(), below.seed]) for _, below in walk(node)]
    assert [json.dumps([below.parameters(), below.seed]) for _, below in walk(copied)] == described


def test_what_has_an_end_and_what_reads() -> None:
    source = made_source([3])
    for node in (ENDLESS, Repeat(STREAM), Map(ENDLESS, bool), Zip(ENDLESS, Repeat(STREAM)), Concat(ITEMS, ENDLESS)):
        assert node.endless
    for node in (ITEMS, STREAM, Take(ENDLESS, 5), Take(Repeat(STREAM), 5), Zip(ENDLESS, ITEMS), Factory(list)):
        assert not node.endless
    assert Filter(ENDLESS, bool).endless
    assert not Through(ENDLESS, iter).endless
    assert Zip(ITEMS, Map(source, bool)).reads
    assert not Zip(ITEMS, ENDLESS).reads


def test_a_batch_undone_is_what_it_was_made_of() -> None:
    assert unbatch(Windows(ITEMS, 3)) is ITEMS
    assert unbatch(Windows(ENDLESS, 3, drop_last=True)) is ENDLESS
    assert unbatch(Windows(ITEMS, 3, drop_last=True)).length == 9
    assert not unbatch(Windows(ITEMS, 3, 2)).indexed
    assert not unbatch(Windows(ITEMS, 3, collate=list)).indexed
    assert elements(unbatch(Windows(STREAM, 4, drop_last=True))) == list(range(1, 9))
