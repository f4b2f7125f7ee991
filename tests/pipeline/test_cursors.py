"""Passes: chunks, errors in their place, what is let go of, and states of users' own things."""

from __future__ import annotations

import gc
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest

from dload.errors import ConfigError
from dload.pipeline import cursors
from dload.pipeline.combine import Zip
from dload.pipeline.cursors import PlaceCursor, SteadyCursor, drained
from dload.pipeline.elementwise import FilterHoles, Map
from dload.pipeline.group import Expand, Filter, Scan, Through, Windows
from dload.pipeline.node import Node
from dload.pipeline.plain import LIMIT, frozen, thawed
from dload.pipeline.reorder import Repeat, Shuffle, Skip, Take
from dload.pipeline.sources import Factory, RandomStream, Sequenced
from dload.testing.pipelines import LARGE, Streamed, elements, made_source, make_run, top_cursor


def opened(node: Node, state: Any = None) -> Any:
    run, _ = make_run(node)
    cursor = top_cursor(node, run, (0,))
    cursor.reset(state)
    return cursor


class Clock:
    """A clock that goes on only when a chunk is fetched, by `each` seconds an element."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, each: float) -> None:
        self.now, self.each = 0.0, each
        self.sizes: list[int] = []
        monkeypatch.setattr(cursors, "perf_counter", lambda: self.now)

    def __call__(self, item: Any) -> Any:
        self.now += self.each
        return item


# ---------------------------------------------------------------- chunks
def chunk_sizes(cursor: PlaceCursor) -> list[int]:
    sizes = []
    while chunk := cursor.chunk()[1]:
        sizes.append(len(chunk))
    return sizes


def test_chunks_begin_with_one_and_grow_while_they_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 0)
    doubling = [1, 2, 4, 8, 16, 32, 64, 128]
    assert chunk_sizes(opened(Map(Sequenced(range(5000)), clock))) == [*doubling, *[256] * 18, 137]
    clock = Clock(monkeypatch, 0.0003)
    assert chunk_sizes(opened(Map(Sequenced(range(50)), clock))) == [1, 2, 4, 8, 8, 8, 8, 8, 3]


def test_chunks_shrink_where_they_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 0)
    cursor = opened(Map(Sequenced(range(300)), clock))
    for _ in range(5):
        cursor.chunk()
    clock.each = 0.0004
    assert chunk_sizes(cursor)[:5] == [32, 16, 16, 16, 16]
    clock = Clock(monkeypatch, 1.0)
    assert set(chunk_sizes(opened(Map(Sequenced(range(20)), clock)))) == {1}


def test_chunks_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, 0)
    assert max(chunk_sizes(opened(made_source([100], sample_bytes=1 << 20)))) == 4
    assert max(chunk_sizes(opened(Windows(made_source([100], sample_bytes=1 << 18), 8)))) == 2
    assert max(chunk_sizes(opened(made_source([100], sample_bytes=LARGE)))) == 1


def test_a_chunk_and_single_elements_may_take_turns() -> None:
    cursor = opened(Sequenced(range(4000)))
    found = [next(cursor), next(cursor)]
    while len(found) < 2000:
        place, chunk = cursor.chunk()
        assert place == len(found)
        found += chunk
        assert cursor.get_state() == len(found)
        found.append(next(cursor))
        assert cursor.get_state() == len(found)
    assert found == list(range(len(found)))
    assert list(cursor) == list(range(len(found), 4000))
    assert cursor.chunk() == (4000, [])
    assert next(cursor, None) is None


@pytest.mark.parametrize("state", [-1, 11, True, "3", 2.0, [1]])
def test_a_state_of_another_pipeline_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="no place in this pipeline, of 10 elements"):
        opened(Sequenced(range(10)), state)
    if state == 11:
        assert next(opened(RandomStream(1), state)) is not None


# ---------------------------------------------------------------- errors
class Bad:
    """Raises for one element, as often as it is told."""

    def __init__(self, item: Any, times: float = float("inf"), error: type[BaseException] = ZeroDivisionError) -> None:
        self.item, self.times, self.error = item, times, error

    def __call__(self, item: Any) -> Any:
        if item == self.item and self.times > 0:
            self.times -= 1
            raise self.error
        return item


def test_elements_before_a_bad_one_come_first_and_it_may_be_asked_again() -> None:
    cursor = opened(Map(Sequenced(range(100)), Bad(50)))
    found = []
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            while True:
                found.append(next(cursor))
        assert cursor.get_state() == 50
    assert found == list(range(50))
    cursor.reset(51)
    assert list(cursor) == list(range(51, 100))


def test_a_chunk_that_fails_is_fetched_one_by_one_and_no_element_thrice() -> None:
    calls: Counter[int] = Counter()

    def counted(item: int) -> int:
        calls[item] += 1
        return 1 // (item != 400)

    cursor = opened(Map(Sequenced(range(1000)), counted))
    with pytest.raises(ZeroDivisionError):
        while True:
            next(cursor)
    assert cursor.get_state() == 400
    assert max(calls[item] for item in range(400)) == 2


def collected(cursor: Iterator[Any]) -> tuple[list[Any], int]:
    """All elements, and how many errors came between."""
    found, errors = [], 0
    while True:
        try:
            found.append(next(cursor))
        except StopIteration:
            return found, errors
        except ZeroDivisionError:
            errors += 1


STREAMS: dict[str, Callable[[Node], Node]] = {
    "map": lambda p: p,
    "zip": lambda p: Zip(Sequenced(range(1000)), p, p),
    "batch": lambda p: Windows(p, 7),
    "windows": lambda p: Windows(p, 7, 3),
    "shuffle": lambda p: Shuffle(p, 20),
    "flat_map": lambda p: Expand(p, lambda item: [item] * 3),
    "scan": lambda p: Scan(p, lambda a, b: a + b, 0),
    "skip": lambda p: Skip(p, 80),
    "repeat": lambda p: Repeat(p, 2),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_an_error_leaves_a_stream_in_front_of_the_bad_element(kind: str) -> None:
    make = STREAMS[kind]
    whole = elements(make(Streamed(Sequenced(range(150)))))
    for times in (1, 3):
        found, errors = collected(opened(make(Map(Streamed(Sequenced(range(150))), Bad(77, times)))))
        assert errors == times
        assert found == whole


@pytest.mark.parametrize("kind", STREAMS)
def test_the_state_after_an_error_is_that_before_the_bad_element(kind: str) -> None:
    make = STREAMS[kind]
    whole = elements(make(Streamed(Sequenced(range(150)))))
    cursor = opened(make(Map(Streamed(Sequenced(range(150))), Bad(77))))
    found = []
    with pytest.raises(ZeroDivisionError):
        while True:
            found.append(next(cursor))
    state = json.loads(json.dumps(cursor.get_state()))
    with pytest.raises(ZeroDivisionError):
        next(cursor)
    assert cursor.get_state() == state
    assert found + list(opened(make(Streamed(Sequenced(range(150)))), state)) == whole


def test_an_interrupt_loses_nothing() -> None:
    for parent in (Sequenced(range(100)), Streamed(Sequenced(range(100)))):
        cursor = opened(Map(parent, Bad(60, 1, KeyboardInterrupt)))
        found = []
        with pytest.raises(KeyboardInterrupt):
            while True:
                found.append(next(cursor))
        assert found + list(cursor) == list(range(100))


@pytest.mark.parametrize(
    "make",
    [
        Map,
        FilterHoles,
        lambda p, bad: Windows(p, 1, collate=lambda items: bad(items[0])),
        lambda p, bad: Zip(p, p, fn=lambda a, _: bad(a)),
        Filter,
        lambda p, bad: Expand(p, lambda item: [bad(item)]),
        lambda p, bad: Scan(p, lambda _, item: bad(item), 0),
        lambda _, bad: Factory(lambda: bad(5)),
        lambda p, bad: Through(p, lambda _: bad(5)),
    ],
)
def test_a_stop_iteration_in_a_function_is_an_error_and_no_end(make: Callable[..., Node]) -> None:
    for parent in (Sequenced(range(10)), Streamed(Sequenced(range(10)))):
        with pytest.raises(RuntimeError, match="StopIteration"):
            elements(make(parent, Bad(5, error=StopIteration)))


# ---------------------------------------------------------------- letting go
def test_what_was_given_up_lets_go_of_its_shards() -> None:
    a, b = made_source([5, 5, 5], "a", LARGE), made_source([5, 5, 5], "b", LARGE)
    for node in (
        a,
        Take(Filter(a, bool), 3),
        Zip(Filter(a, bool), b),
        Repeat(Filter(a, bool), 2),
        Through(Filter(a, bool), lambda items: (item for item in items)),
        Shuffle(Filter(a, bool), 3),
    ):
        run, rows = make_run(node)
        cursor = top_cursor(node, run, (0,))
        cursor.reset(None)
        assert rows.feeds
        assert len(list(islice(cursor, 2))) == 2
        cursor.close()
        cursor.close()
        assert not rows.feeds
        cursor.reset(None)
        items = drained(cursor)
        assert next(items)
        assert rows.feeds
        del items
        gc.collect()
        assert not rows.feeds


def test_shards_are_done_with_as_soon_as_their_elements_are_fetched() -> None:
    node = made_source([5, 5, 5], "a", LARGE)
    run, rows = make_run(node)
    cursor = top_cursor(node, run, (0,))
    cursor.reset(None)
    for place in range(1, 16):
        next(cursor)
        assert rows.feeds[0].place == place


def test_what_goes_through_a_function_may_begin_again_in_the_middle() -> None:
    node = Through(Filter(made_source([5, 5, 5], "a", LARGE), bool), lambda items: (item for item in items))
    run, rows = make_run(node)
    cursor = top_cursor(node, run, (0,))
    for _ in range(3):
        cursor.reset(None)
        assert len(list(islice(cursor, 7))) == 7
        assert len(rows.feeds) == 1
    cursor.reset(None)
    assert len(list(cursor)) == 15


def test_a_part_that_has_ended_asks_for_nothing() -> None:
    node = Take(Filter(made_source([5, 5, 5], "a", LARGE), bool), 3)
    run, rows = make_run(node)
    cursor = top_cursor(node, run, (0,))
    cursor.reset(None)
    assert len(list(cursor)) == 3
    assert not rows.feeds


# ---------------------------------------------------------------- what belongs to the user
class Stateful:
    """An iterator with a state of its own, under one pair of names or the other."""

    def __init__(self, items: Iterable[int]) -> None:
        self.items, self.at = list(items), 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == len(self.items):
            raise StopIteration
        self.at += 1
        return self.items[self.at - 1]


class GetSet(Stateful):
    def get_state(self) -> Any:
        return {"at": self.at, "pair": (self.at, None)}

    def set_state(self, state: Any) -> None:
        assert state["pair"] == (state["at"], None)
        self.at = state["at"]


class Torch(Stateful):
    def state_dict(self) -> Any:
        return self.at

    def load_state_dict(self, state: Any) -> None:
        self.at = state


class Container(Torch):
    """The state is the iterable's, not its iterator's."""

    def __iter__(self) -> Iterator[int]:
        while self.at < len(self.items):
            self.at += 1
            yield self.items[self.at - 1]


@pytest.mark.parametrize("kind", [GetSet, Torch, Container])
def test_an_iterator_goes_on_by_its_own_state(kind: type[Stateful]) -> None:
    def make() -> Node:
        return Factory(lambda: kind(range(20)))

    for step in range(21):
        cursor = opened(make())
        assert list(islice(cursor, step)) == list(range(step))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert list(opened(make(), json.loads(json.dumps(cursor.get_state())))) == list(range(step, 20))


class Doubling:
    """Over a stream, with a state: what was read and isn't given yet."""

    def __init__(self, items: Iterator[int]) -> None:
        self.items, self.held = items, None

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.held is not None:
            held, self.held = self.held, None
            return held
        self.held = next(self.items)
        return self.held

    def get_state(self) -> Any:
        return self.held

    def set_state(self, state: Any) -> None:
        self.held = state


def test_through_goes_on_by_its_own_state_and_its_parents() -> None:
    source = Filter(Sequenced(range(12)), lambda i: i % 3)
    expected = [item for i in range(12) if i % 3 for item in (i, i)]
    for step in range(17):
        cursor = opened(Through(source, Doubling))
        assert list(islice(cursor, step)) == expected[:step]
        state = json.loads(json.dumps(cursor.get_state()))
        assert list(opened(Through(source, Doubling), state)) == expected[step:]


def test_a_state_that_no_iterator_here_can_take_is_refused() -> None:
    cursor = opened(Factory(lambda: Torch(range(9))))
    next(cursor)
    with pytest.raises(ValueError, match="this one has none"):
        opened(Factory(lambda: range(9)), cursor.get_state())


class Opaque:
    def __repr__(self) -> str:
        return "opaque"


@pytest.mark.parametrize(
    ("fold", "reason"),
    [
        (lambda _, __: Opaque(), "has a Opaque in it"),
        (lambda _, item: {item: 1}, "keys aren't all text"),
        (lambda _, __: "x" * (LIMIT + 1), "larger than 65,536"),
        (lambda _, item: [item] * LIMIT, "larger than 65,536"),
        (lambda _, __: b"samples", "has a bytes in it"),
    ],
)
def test_a_fold_without_a_state_says_so_when_it_is_asked_and_only_then(fold: Any, reason: str) -> None:
    node = Windows(Scan(Sequenced(range(200)), fold, 0), 2)
    cursor = opened(node)
    assert len(list(islice(cursor, 90))) == 90
    with pytest.raises(ConfigError, match=reason):
        cursor.get_state()
    assert len(list(cursor)) == 10


def test_a_state_is_a_copy_and_comes_back_as_it_was() -> None:
    def appended(state: list[int], item: int) -> list[int]:
        state.append(item)
        return state

    cursor = opened(Map(Scan(Sequenced(range(6)), appended, []), list))
    states = [cursor.get_state()]
    found = []
    for item in cursor:
        found.append(item)
        states.append(cursor.get_state())
    assert found == [list(range(count + 1)) for count in range(6)]
    node = Map(Scan(Sequenced(range(6)), appended, []), list)
    assert elements(node) == elements(node, 1) == found
    for step, state in enumerate(states):
        assert list(opened(Map(Scan(Sequenced(range(6)), appended, []), list), state)) == found[step:]
    for value in (None, True, 1, 1.5, "a", [1, (2, [])], {"tuple": [1], "dict": {"a": ((), {})}}, {}, ()):
        assert thawed(json.loads(json.dumps(frozen(value, "it")))) == value
    with pytest.raises(ValueError, match="not a saved value"):
        thawed({"set": []})


def test_a_pass_of_nothing_without_end_is_an_error() -> None:
    for node in (
        Repeat(Filter(Sequenced(range(5)), lambda i: i > 9)),
        Repeat(FilterHoles(Streamed(Sequenced(range(5))), lambda i: i > 9)),
    ):
        with pytest.raises(ConfigError, match="gave nothing"):
            elements(node)
    assert elements(Repeat(Filter(Sequenced(range(5)), lambda i: i > 9), 3)) == []
    # A state from the end of a pass remembers that it gave something.
    node = Repeat(Filter(Sequenced(range(5)), lambda i: i == 0))
    cursor = opened(node)
    next(cursor)
    assert next(opened(node, cursor.get_state())) == 0


def test_a_steady_cursor_keeps_its_identities() -> None:
    node = Map(Streamed(Sequenced(range(9))), lambda i: i)
    run, _ = make_run(node)
    cursor = SteadyCursor(node.cursor(run, (0,)))
    cursor.keep_identities()
    cursor.reset(None)
    found = [(item, cursor.identity()) for item in cursor]
    assert [name for _, name in found] == Sequenced(range(9)).identities(run, (0,), range(9))
