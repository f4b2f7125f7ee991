"""Elements whose function fails: left out by a policy, the same ones again after going on, counted, listed, bounded."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError, TooManyFailuresError
from dload.pipeline.combine import Zip
from dload.pipeline.elementwise import FilterHoles, Map, MapBatches, Maybe, StarMap, Tap
from dload.pipeline.failures import Failures, OnError, Skip, on_error_given, skipped_before
from dload.pipeline.fallible import with_default
from dload.pipeline.group import Expand, Filter, Windows
from dload.pipeline.mix import Mix
from dload.pipeline.node import HOLE, Node
from dload.pipeline.plain import exported
from dload.pipeline.reorder import Repeat, Shuffle
from dload.pipeline.sources import Sequenced
from dload.pipeline.state import functions_digest, order_digest
from dload.testing.pipelines import Streamed, elements, made_source, make_run, restores_everywhere, top_cursor

BAD = frozenset({3, 4, 11, 19})


def policy(how: Any, fail_after: int = 100) -> OnError:
    found = on_error_given(how, fail_after)
    assert found is not None
    return found


def tens(item: int) -> int:
    if item in BAD:
        raise ValueError(f"{item} is bad")
    return item * 10


def all_tens(items: list[int]) -> list[int]:
    return [tens(item) for item in items]


Make = Callable[[Node, OnError | None], Node]
KINDS: dict[str, Make] = {
    "map": lambda p, on: Map(p, tens, on_error=on),
    "map with rng": lambda p, on: Map(p, lambda item, _: tens(item), rng=True, on_error=on),
    "map on threads": lambda p, on: Map(p, tens, workers=2, queue=5, on_error=on),
    "map_batches": lambda p, on: MapBatches(p, all_tens, 4, on_error=on),
    "map_batches on threads": lambda p, on: MapBatches(p, all_tens, 4, workers=2, on_error=on),
    "star_map": lambda p, on: StarMap(Map(p, lambda item: (item,)), tens, on_error=on),
    "maybe": lambda p, on: Maybe(p, tens, 1.0, on_error=on),
    "filter": lambda p, on: Map(Filter(p, lambda item: tens(item) >= 0, on_error=on), tens),
    "filter with holes": lambda p, on: Map(FilterHoles(p, lambda item: tens(item) >= 0, on_error=on), tens),
    "flat_map": lambda p, on: Expand(p, lambda item: [tens(item)], on_error=on),
    "flat_map with fanout": lambda p, on: Expand(p, lambda item: [tens(item)], 1, on_error=on),
}
TIERS: dict[str, Callable[[Node], Node]] = {"index": lambda node: node, "stream": Streamed}
KEPT = [item * 10 for item in range(30) if item not in BAD]
IN_PLACE = [HOLE if item in BAD else item * 10 for item in range(30)]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", KINDS)
def test_elements_that_fail_are_left_out(kind: str, tier: str) -> None:
    make, source = KINDS[kind], TIERS[tier](Sequenced(range(30)))
    for how in ("skip", "warn", lambda error, item: isinstance(error, ValueError) and item is not None):
        node = make(source, policy(how))
        assert not node.indexed
        assert elements(node) == KEPT
    node = make(source, policy("hole"))
    assert [item for item in elements(node) if item is not HOLE] == KEPT
    if kind != "flat_map":
        assert node.holes
        assert elements(node) == IN_PLACE
        assert node.indexed == (tier == "index" and kind != "filter")
    for on in (None, policy("raise")):
        with pytest.raises(ValueError, match="3 is bad"):
            elements(make(source, on))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("how", ["skip", "hole"])
@pytest.mark.parametrize("kind", KINDS)
def test_they_restore_anywhere(kind: str, how: str, tier: str) -> None:
    make = KINDS[kind]
    restores_everywhere(lambda: make(TIERS[tier](Sequenced(range(30))), policy(how)))
    restores_everywhere(lambda: Windows(make(TIERS[tier](Sequenced(range(30))), policy(how)), 4, 3))
    restores_everywhere(lambda: Shuffle(make(TIERS[tier](Sequenced(range(30))), policy(how)), 6))
    restores_everywhere(lambda: Repeat(make(TIERS[tier](Sequenced(range(9))), policy(how)), 3))


# ---- what is skipped stays skipped
class Flaky:
    """Fails for what it is told, and knows what it was asked."""

    def __init__(self, bad: frozenset[int]) -> None:
        self.bad, self.failed = bad, list[int]()

    def __call__(self, item: int) -> int:
        if item in self.bad:
            self.failed.append(item)
            raise ValueError(f"{item} is bad")
        return item


ABOVE: dict[str, Callable[[Node], Node]] = {
    "nothing": lambda p: p,
    "windows": lambda p: Windows(p, 5, 2),
    "shuffle": lambda p: Shuffle(p, 8, seed=1),
    "two": lambda p: Shuffle(Map(p, Flaky(frozenset({7, 22})), on_error=policy("skip")), 8, seed=1),
}


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(ABOVE)), st.frozensets(st.integers(0, 39), max_size=15), st.integers(0, 40), st.booleans()
)
def test_a_run_that_goes_on_skips_the_same_ones(above: str, bad: frozenset[int], step: int, threads: bool) -> None:
    """Also where they wouldn't fail any more: what is read again was read once."""

    def opened(fn: Flaky, state: Any) -> Any:
        node = ABOVE[above](Map(Sequenced(range(40)), fn, workers=2 * threads, on_error=policy("skip")))
        run, _ = make_run(node)
        cursor = top_cursor(node, run, (0,))
        cursor.reset(state)
        return cursor

    first = Flaky(bad)
    cursor = opened(first, None)
    before = list(islice(cursor, step))
    state = json.loads(json.dumps(cursor.get_state()))
    known = frozenset(first.failed)
    if threads:  # threads are ahead of what was decided
        assert list(opened(Flaky(bad), state)) == list(cursor)
    else:
        uninterrupted = opened(Flaky(known), None)
        assert list(islice(uninterrupted, step)) == before
        assert list(opened(Flaky(frozenset()), state)) == list(uninterrupted)


def test_a_state_lists_only_what_may_be_read_again_and_one_total() -> None:
    bad = frozenset(range(0, 3000, 3))
    node = Shuffle(Map(Streamed(Sequenced(range(3000))), Flaky(bad), on_error=policy("skip", 3000)), 10, seed=1)
    run, _ = make_run(node)
    cursor = top_cursor(node, run, (0,))
    cursor.reset(None)
    for _ in islice(cursor, 1900):
        state = cursor.get_state()
        assert len(json.dumps(state)) < 400
    total, known, position = state[0]["total"], state[0]["skipped"], state[0]["at"]
    assert state[0]["below"] == position
    assert total == len([item for item in bad if item < position])
    assert known == sorted(item for item in bad if position <= item <= run.failures.rows * 3 - 3)
    assert 0 < len(known) < 45
    state = json.loads(json.dumps(exported(state)))
    assert run.failures.rows == skipped_before(state) == total + len(known)
    going_on, _ = make_run(node)
    cursor = top_cursor(node, going_on, (0,))
    cursor.reset(state)
    rest = list(cursor)
    assert len(rest) == 100
    assert going_on.failures.rows == 1000 - total - len(known)  # the others are no news


def test_totals_are_found_in_any_state() -> None:
    one = {"below": 3, "at": 5, "total": 2, "skipped": [7]}
    two = {"below": one, "at": 5, "total": 10, "skipped": []}
    assert skipped_before([[two, 0], [one, {"dict": {"total": 5}}], None, "x"]) == 16


def test_what_was_read_again_is_counted_and_listed_once() -> None:
    node = Map(Windows(Map(Streamed(Sequenced(range(30))), tens, on_error=policy("skip")), 3), Flaky(frozenset()))
    node.fn = lambda items: items if 120 not in items else 1 / 0
    run, _ = make_run(node)
    cursor = top_cursor(node, run, (0,))
    cursor.reset(None)
    for _ in range(4):
        with pytest.raises(ZeroDivisionError):
            list(cursor)
    assert run.failures.rows == len(run.failures.listed) == 3


def test_holes_of_a_chunk_that_fails_otherwise_are_counted_once() -> None:
    node = Map(Map(Sequenced(range(30)), tens, on_error=policy("hole")), lambda item: 1 // (item - 250))
    run, _ = make_run(node)
    cursor = top_cursor(node, run, (0,))
    cursor.reset(None)
    with pytest.raises(ZeroDivisionError):
        list(cursor)
    assert run.failures.rows == len(run.failures.listed) == len(BAD)


def test_the_chain_of_skips() -> None:
    skip = first = Skip.chain([3, 8])
    skip = skip.add(1)
    assert first.value() == [1, 3, 8]
    assert skip.value() == [3, 8]
    assert skip.next is not None
    skip.next.add(5)
    assert first.value() == [1, 3, 5, 8]


# ---- what is caught, and who decides
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("tier", TIERS)
def test_only_exceptions_are_caught(error: type[BaseException], threads: int, tier: str) -> None:
    def raising(item: int) -> int:
        if item == 5:
            raise error
        return item

    for how in ("skip", "hole", lambda *_: True):
        with pytest.raises(error):
            elements(Map(TIERS[tier](Sequenced(range(9))), raising, workers=threads, on_error=policy(how)))


def test_a_function_decides_each_time() -> None:
    seen: list[tuple[str, int]] = []

    def decide(error: Exception, item: int) -> bool:
        seen.append((str(error), item))
        return item < 11

    found = []
    run, _ = make_run(node := Map(Sequenced(range(30)), tens, on_error=policy(decide)))
    cursor = top_cursor(node, run, (0,))
    cursor.reset(None)
    with pytest.raises(ValueError, match="11 is bad"):
        for item in cursor:
            found.append(item)
    assert found == [item * 10 for item in range(11) if item not in BAD]
    assert seen == [(f"{item} is bad", item) for item in (3, 4, 11)]
    assert cursor.get_state()["at"] == 11  # it stands before the one that was raised


@pytest.mark.parametrize("how", ["ignore", 1, True, b"skip", ["skip"]])
def test_other_values_are_refused_and_shown_the_right_ones(how: Any) -> None:
    with pytest.raises(ConfigError, match=r'"raise", "skip", "warn", "hole", or a function') as caught:
        on_error_given(how, 100)
    assert repr(how) in str(caught.value)
    for number in (0, -1, 1.5, True, "many"):
        with pytest.raises(ConfigError, match="fail_after is a number of failures in a row"):
            on_error_given("skip", number)


def test_a_policy_is_part_of_the_order_only_where_it_changes_it() -> None:
    def digest(on: OnError | None) -> tuple[str, str]:
        node = Map(Sequenced(range(9)), tens, on_error=on)
        return order_digest(node), functions_digest(node)

    assert digest(None) == digest(policy("raise")) == digest(policy("hole"))
    assert digest(policy("skip")) == digest(policy("warn")) != digest(None)
    assert digest(policy(lambda *_: True))[0] == digest(policy("skip"))[0]


def test_a_default_holds_where_nothing_was_said() -> None:
    shared = Map(Sequenced(range(30)), tens)
    node = Windows(Filter(shared, lambda item: 1 // (item - 50) < 9), 2)
    with pytest.raises(ValueError, match="3 is bad"):
        elements(node)
    changed = with_default(node, OnError("skip", True))
    flat = [item for items in elements(changed) for item in items]
    assert flat == [item for item in KEPT if item != 50]
    assert order_digest(changed) == order_digest(node)
    assert shared.on_error is None
    assert changed.parents[0].parents[0].parents[0] is shared.parents[0]
    two = with_default(Zip(shared, shared), OnError("skip", True))
    assert two.parents[0] is two.parents[1] is not shared
    own = Map(Sequenced(range(30)), tens, on_error=policy("raise"))
    with pytest.raises(ValueError, match="3 is bad"):
        elements(with_default(own, OnError("hole", True)))


# ---- what is said
def test_one_line_for_a_failing_batch(caplog: pytest.LogCaptureFixture) -> None:
    def bad(items: list[Any]) -> list[Any]:
        if any(key in ("speech/5", "speech/6", "speech/9") for key, _ in items):
            raise ValueError("two\nlines")
        return items

    source = made_source([8, 8], "speech")
    with caplog.at_level(logging.WARNING, "dload"):
        node = MapBatches(source, bad, 4, on_error=policy("warn"))
        assert len(elements(node)) == 13
    assert [record.getMessage() for record in caplog.records] == [
        f"map_batches(test_one_line_for_a_failing_batch.<locals>.bad): {count} of 4 elements failed and are left out; "
        f"the first: ValueError: two lines (key speech/{key}, data set speech@{source.manifest.version[:12]})"
        for count, key in ((2, 5), (1, 9))
    ]
    caplog.clear()
    for how in ("skip", "hole"):
        elements(MapBatches(source, bad, 4, on_error=policy(how)))
    assert not caplog.records
    elements(Map(Sequenced(range(9)), tens, on_error=policy("warn")))
    assert [record.getMessage() for record in caplog.records] == [
        f"map(tens): 1 of 1 elements failed and are left out; the first: ValueError: {item} is bad (key {item}, "
        "data set none)"
        for item in (3, 4)
    ]


def test_a_chunk_of_a_loaders_policy_is_one_batch(caplog: pytest.LogCaptureFixture) -> None:
    node = with_default(Map(Sequenced(range(200)), lambda item: 1 // (item % 50)), OnError("warn", True))
    with caplog.at_level(logging.WARNING, "dload"):
        assert elements(node).count(HOLE) == 4
    assert 1 <= len(caplog.records) <= 4
    assert sum(int(record.getMessage().split(": ")[1].split()[0]) for record in caplog.records) == 4


def test_what_is_left_out_is_listed_up_to_a_bound() -> None:
    node = Map(made_source([500], "speech"), lambda item: len(item) // 0, on_error=policy("skip", 1000))
    run, _ = make_run(node)
    cursor = top_cursor(node, run, (0,))
    cursor.reset(None)
    assert list(cursor) == []
    failures = run.failures
    assert failures.rows == 500
    assert len(failures.listed) == 100
    assert failures.listed[7] == {
        "node": "map(test_what_is_left_out_is_listed_up_to_a_bound.<locals>.<lambda>)",
        "data": f"speech@{node.parents[0].manifest.version[:12]}",  # type: ignore[attr-defined]
        "key": "speech/7",
        "error": "ZeroDivisionError: integer division or modulo by zero",
    }


# ---- too many
@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"filter", "filter with holes"}))
@pytest.mark.parametrize("how", ["skip", "hole", "warn"])
@pytest.mark.parametrize("tier", TIERS)
def test_too_many_in_a_row_stop_the_run(kind: str, how: str, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "BAD", frozenset(range(10, 20)))
    source = TIERS[tier](Sequenced(range(30)))
    assert len([item for item in elements(KINDS[kind](source, policy(how, 11))) if item is not HOLE]) == 20
    found = []
    run, _ = make_run(node := KINDS[kind](source, policy(how, 10)))
    cursor = top_cursor(node, run, (0,))
    cursor.reset(None)
    with pytest.raises(TooManyFailuresError, match=r"10 elements in a row failed, the last .*19.* is bad") as caught:
        for item in cursor:
            found.append(item)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "mend the function" in str(caught.value)
    assert [item for item in found if item is not HOLE] == [item * 10 for item in range(10)]
    run.workers.close()


def test_a_success_between_begins_the_count_anew() -> None:
    node = Map(Sequenced(range(300)), lambda item: 1 // (item % 10 == 0), on_error=policy("hole", 10))
    assert elements(node).count(HOLE) == 270
    with pytest.raises(TooManyFailuresError):
        elements(Map(Sequenced(range(300)), lambda item: 1 // (item % 10 == 0), on_error=policy("hole", 9)))


def test_it_is_not_left_out_by_a_policy_above() -> None:
    below = Map(Sequenced(range(30)), lambda item: item // 0, on_error=policy("skip", 5))
    with pytest.raises(TooManyFailuresError):
        elements(Tap(Map(below, lambda item: item, on_error=policy("skip")), print))


# ---- functions of lists
def test_a_function_of_a_list_gets_at_most_its_size_and_only_failing_rows_go() -> None:
    for tier in TIERS.values():
        asked: list[list[int]] = []

        def fn(items: list[int], asked: list[list[int]] = asked) -> list[int]:
            asked.append(items)
            return all_tens(items)

        assert elements(MapBatches(tier(Sequenced(range(30))), fn, 8, on_error=policy("skip"))) == KEPT
        whole = [items for items in asked if len(items) > 1]
        assert whole == [list(range(first, min(30, first + 8))) for first in range(0, 30, 8)]
        assert len(asked) - len(whole) == 24  # all but the last list has a bad one


@pytest.mark.parametrize("how", [None, "raise", "skip", "warn", "hole", lambda *_: True])
@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("found", [lambda items: items[1:], lambda items: [*items, 1], lambda items: items[:0]])
def test_another_number_of_results_is_an_error_under_every_policy(
    how: Any, threads: int, tier: str, found: Callable[[list[int]], list[int]]
) -> None:
    node = MapBatches(TIERS[tier](Sequenced(range(9))), found, 4, workers=threads, on_error=on_error_given(how, 100))
    with pytest.raises(ConfigError, match=r"one result for each of [14] elements of .*, got"):
        elements(node)


def test_another_number_of_children_is_an_error_under_every_policy() -> None:
    for tier in TIERS.values():
        node = Expand(tier(Sequenced(range(9))), lambda item: [item] * item, 1, on_error=policy("skip"))
        with pytest.raises(ConfigError, match="expected 1 elements"):
            elements(node)


def test_a_stop_iteration_is_a_failure_and_no_end() -> None:
    for threads in (0, 2):
        for tier in TIERS.values():
            node = Map(tier(Sequenced([[1], [], [2]])), lambda item: next(iter(item)), workers=threads)
            with pytest.raises(RuntimeError, match="StopIteration"):
                elements(node)
            node.on_error = policy("skip")
            assert elements(node) == [1, 2]


def test_what_a_pass_has_left_out_is_news_once() -> None:
    failures = Failures()
    assert failures.passed("a", 5)
    assert not failures.passed("a", 5)
    assert not failures.passed("a", 0)
    assert failures.passed("b", 0)
    assert failures.passed("a", 6)


@pytest.mark.parametrize("how", ["warn", "hole"])
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("top", [lambda p: p, lambda p: Tap(p, len), lambda p: Repeat(p, 2)])
def test_in_a_mix_the_data_set_is_the_one_that_the_element_is_from(
    how: str, threads: int, batches: bool, top: Callable[[Node], Node]
) -> None:
    def bad(sample: Any) -> Any:
        return len(sample) // (sample[0][-1] not in "37")

    mixed = top(Mix([made_source([9, 9], "speech"), made_source([9, 9], "noise")], [1, 1], 2))
    options: dict[str, Any] = {"workers": threads, "on_error": policy(how)}
    if batches:
        node: Node = MapBatches(mixed, lambda items: [bad(item) for item in items], 4, **options)
    else:
        node = Map(mixed, bad, **options)
    run, _ = make_run(node)
    cursor = top_cursor(node, run, (0,))
    cursor.reset(None)
    list(cursor)
    run.workers.close()
    listed = run.failures.listed
    assert len(listed) >= 4
    assert len({entry["data"] for entry in listed}) == 2
    for entry in listed:
        assert entry["data"].split("@")[0] == entry["key"].split("/")[0]
