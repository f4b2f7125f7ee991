"""The mix as a node: it restores and seeks, keeps its shares, and ends as it says."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dload.errors import ConfigError
from dload.pipeline.elementwise import FilterHoles, Map
from dload.pipeline.group import Filter, Windows
from dload.pipeline.mix import Mix
from dload.pipeline.node import Node
from dload.pipeline.reorder import Repeat, Shuffle, Take
from dload.pipeline.sources import RandomStream, Sequenced
from dload.testing.pipelines import (
    LARGE,
    Streamed,
    elements,
    made_source,
    make_run,
    places_hold,
    restores_everywhere,
)


def source(name: str, *sizes: int) -> Node:
    return made_source(sizes, name, LARGE)


def three(stream: bool = False) -> list[Node]:
    found = [source("a", 3, 4), source("b", 6, 5, 2), Shuffle(source("c", 4), 2, 1)]
    return [Streamed(node) for node in found] if stream else found


def rolled(item: Any, rng: Any) -> Any:
    return item, rng.random()


def by_block(block: int) -> list[int]:
    return [1, block % 2, 1]


def names(items: list[Any]) -> list[str]:
    return [item[0] for item in items]


def origins(items: list[Any]) -> Counter[str]:
    return Counter(name.partition("/")[0] for name in names(items))


KINDS: dict[str, Callable[[bool], Node]] = {
    "alike": lambda stream: Mix(three(stream)),
    "weights": lambda stream: Mix(three(stream), [0.7, 0.2, 0.1], 3),
    "one of weight 0": lambda stream: Mix(three(stream), [1, 0, 2]),
    "cycle": lambda stream: Mix(three(stream), [3, 1, 2], until="cycle"),
    "all": lambda stream: Mix(three(stream), [3, 1, 2], until="all"),
    "with one that has no end": lambda stream: Mix(
        [*three(stream)[:2], Repeat(source("d", 2))], [1, 1, 3], until="all"
    ),
    "cycle with one that has no end": lambda stream: Mix([*three(stream)[:2], Repeat(source("d", 2))], until="cycle"),
    "first with one that has no end": lambda stream: Mix([*three(stream)[:2], RandomStream()], [1, 2, 2]),
    "schedule": lambda stream: Mix(three(stream), [(0, [1, 0, 1]), (5, [0, 1, 0]), (9, [1, 1, 1])], until="all"),
    "function": lambda stream: Mix(three(stream), by_block),
    "function without end": lambda stream: Mix([Repeat(node) for node in three(stream)], by_block, until="cycle"),
    "over holes": lambda stream: Mix([FilterHoles(node, lambda item: item[0] > "b/4") for node in three(stream)]),
    "rng above": lambda stream: Map(Mix(three(stream), until="cycle"), rolled, rng=True),
    "batches of a shuffle": lambda stream: Windows(Shuffle(Mix(three(stream), until="all"), 8), 3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_index_tier(kind: str) -> None:
    assert places_hold(lambda: KINDS[kind](False)) == restores_everywhere(lambda: KINDS[kind](False), again=0)


@pytest.mark.parametrize("kind", KINDS)
def test_stream_tier(kind: str) -> None:
    found = restores_everywhere(lambda: KINDS[kind](True), again=100 if "shuffle" in kind else 3, state_size=900)
    expected = elements(KINDS[kind](False), most=60)
    if "shuffle" not in kind and "all" not in kind and "schedule" not in kind and "has no end" not in kind:
        assert found[: len(expected)] == expected


def test_weights_from_a_pipeline() -> None:
    def make() -> Node:
        weights = Repeat(Sequenced([[1, 0, 0], [0, 1, 0], [0.5, 0.25, 0.25]]))
        return Mix([Repeat(node) for node in three()], weights)

    found = restores_everywhere(make, again=0, state_size=900)
    assert not make().indexed
    assert [names(found)[i][0] for i in range(0, 60, 3)] == ["a"] * 20
    assert [names(found)[i][0] for i in range(1, 60, 3)] == ["b"] * 20
    restores_everywhere(lambda: Mix(three(), Repeat(Sequenced([[1, 0, 0], [0, 1, 0]]))), again=0)
    ending = Mix(three(), Sequenced([[1, 1, 1]] * 4))
    assert len(elements(ending)) == 4
    with pytest.raises(ConfigError, match="3 pipelines was given"):
        elements(Mix(three(), Sequenced([[1, 1]])))


def test_first_ends_when_one_that_has_ended_is_due() -> None:
    found = elements(Mix(three(), [1, 1, 1], 3))
    assert origins(found)["c"] == 4
    longer = elements(Mix([*three()[:2], source("c", 50)], [1, 1, 1], 3))
    assert [name[0] for name in names(longer)[: len(found)]] == [name[0] for name in names(found)]
    assert names(longer)[len(found)].startswith("c")


def test_cycle_ends_when_all_have_been_read_once() -> None:
    found = elements(Mix(three(), until="cycle"))
    counts = origins(found)
    assert counts["b"] == 13
    assert names(found)[-1].startswith("b")
    assert counts["a"] > 7
    passes = [name for name in names(found) if name.startswith("c")]
    assert sorted(passes[:4]) == sorted(passes[4:8]) != passes[4:8]
    assert passes[:4] != passes[4:8]


def test_all_reads_each_once() -> None:
    for stream in (False, True):
        found = elements(Mix(three(stream), [5, 1, 1], until="all"))
        assert sorted(names(found)) == sorted(name for node in three() for name in names(elements(node)))


def test_any_prefix_holds_each_share_within_three_rows() -> None:
    weights = [7, 2, 1]
    found = elements(Mix([Repeat(node) for node in three()], weights, 11), most=2000)
    counts = Counter[str]()
    for row, name in enumerate(names(found), 1):
        counts[name[0]] += 1
        for origin, weight in zip("abc", weights, strict=True):
            assert abs(counts[origin] - row * weight / 10) <= 3


def test_a_mix_in_a_mix_is_one() -> None:
    a, b, c = three()
    inner = Mix([a, b], [1, 2])
    flat = Mix([inner, c], [3, 1])
    assert flat.parents == (a, b, c)
    assert flat.weights == [1, 2, 1]
    assert elements(flat) == elements(Mix([a, b, c], [1, 2, 1]))
    for kept in (Mix([Mix([a, b], until="all"), c], until="all"), Mix([Mix([a, b], until="cycle"), c])):
        assert kept.parents[0].kind == "mix"
    assert Mix([Mix([a, b], seed=1), c], seed=2).parents[0].kind == "mix"
    assert Mix([Mix([a, b], [(0, [1, 1]), (4, [2, 1])]), c]).parents[0].kind == "mix"


def test_a_mix_pickles_and_gives_the_same() -> None:
    node = Mix(three(), [3, 1, 2], 5, "cycle")
    before = elements(node)
    assert elements(pickle.loads(pickle.dumps(node))) == before
    assert elements(pickle.loads(pickle.dumps(Mix(three(), by_block)))) == elements(Mix(three(), by_block))


def test_far_places_of_a_mix_without_end_come_at_once() -> None:
    node = Mix([Repeat(node) for node in three()], [1, 1, 2])
    run, rows = make_run(node)
    rows.checking = False
    far = node.fetch(run, (0,), range(10**12, 10**12 + 4))
    assert len(far) == 4
    assert next(node.demand(run, (0,), 10**12, 10**15)).first == 10**12


# ---------------------------------------------------------------- cases
@pytest.mark.parametrize("until", ["first", "cycle", "all"])
def test_case_c70_weights_that_make_no_sense_are_refused_and_zero_never_draws(until: str) -> None:
    bad: list[Any] = [[1, float("nan")], [1, -1], [0, 0], [1, float("inf")], [1], [1, 1, 1], [1, "1"], [], 5, "ab"]
    for weights in bad:
        with pytest.raises(ConfigError):
            Mix(three()[:2], weights, until=until)
        with pytest.raises(ConfigError):
            Mix(three(True)[:2], weights, until=until)
    for stream in (False, True):
        assert origins(elements(Mix(three(stream)[:2], [1, 0], until=until))) == {"a": 7}
    with pytest.raises(ConfigError, match="until"):
        Mix(three(), until="never")
    with pytest.raises(ConfigError, match="at least one"):
        Mix([])


@pytest.mark.parametrize("where", [0, 1, 2])
def test_case_c71_an_empty_source_adds_nothing_and_fails_no_later_than_at_build(where: int) -> None:
    parts = three()[:2]
    parts.insert(where, Take(source("e", 3), 0))
    found = elements(Mix(parts, until="all"))
    assert origins(found) == {"a": 7, "b": 13}
    for until in ("first", "cycle"):
        with pytest.raises(ConfigError, match=f"pipeline {where} of the mix is empty"):
            Mix(parts, until=until)
        weights = [0 if i == where else 1 for i in range(3)]
        assert elements(Mix(parts, weights, until=until)) != []
    streamed = [Filter(node, lambda _: True) for node in parts]
    assert origins(elements(Mix(streamed, until="all"))) == {"a": 7, "b": 13}
    with pytest.raises(ConfigError, match="gave nothing"):
        elements(Mix(streamed, until="cycle"))


def test_case_c72_shuffle_then_mix_and_mix_then_shuffle_are_complete_and_reshuffled() -> None:
    everything = sorted(f"{name}/{i}" for name, count in (("a", 7), ("b", 13)) for i in range(count))
    a, b = source("a", 3, 4), source("b", 6, 5, 2)
    for make in (
        lambda: Mix([Shuffle(a, 5, 1), Shuffle(b, 5, 1)], until="all"),
        lambda: Shuffle(Mix([a, b], until="all"), 5, 1),
        lambda: Shuffle(Mix([Streamed(a), Streamed(b)], until="all"), 5, 1),
    ):
        epochs = [names(elements(make(), epoch)) for epoch in range(2)]
        assert [sorted(epoch) for epoch in epochs] == [everything, everything]
        assert epochs[0] != epochs[1]


def test_case_c73_three_samples_in_batches_of_eight() -> None:
    a, b = source("a", 3), source("b", 50)
    assert [len(batch) for batch in elements(Windows(Mix([a, b], until="all"), 8))] == [8] * 6 + [5]
    assert [len(batch) for batch in elements(Windows(Mix([a, b], [1, 4]), 8))] in ([8, 8, n] for n in range(1, 9))
    assert sum(len(batch) for batch in elements(Windows(Mix([a, b], until="cycle"), 8))) >= 99
    assert [len(batch) for batch in elements(Windows(Mix([Repeat(a), Repeat(b)]), 8), most=20)] == [8] * 20


def test_case_c74_every_batch_holds_each_source_within_its_bound() -> None:
    sources = [Repeat(source(f"s{i}", 5, 7)) for i in range(10)]
    for seed in range(3):
        for batch in elements(Windows(Mix(sources, seed=seed), 64), most=60):
            counts = origins(batch)
            assert all(abs(counts[f"s{i}"] - 6.4) <= 3 for i in range(10))
