"""Functions on threads: the same elements in the same order, so far ahead and no more, and no thread left behind."""

from __future__ import annotations

import gc
import json
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dload
from dload.api import Pipeline
from dload.errors import ConfigError
from dload.pipeline.dealing import Deal
from dload.pipeline.elementwise import Map, MapBatches
from dload.pipeline.failures import OnError
from dload.pipeline.group import Windows
from dload.pipeline.lanes import Grid
from dload.pipeline.node import Node
from dload.pipeline.promises import ClosedError, Lazy, Pool, settled
from dload.pipeline.sources import Sequenced
from dload.run.steps import StepReader
from dload.testing.pipelines import Streamed, elements, made_source, make_run, top_cursor
from dload.testing.waiting import eventually
from tests.pipeline.test_random_pipelines import EVERY, MOST, Recipe, buildable, failing, label, recipes

TIERS: dict[str, Callable[[Node], Node]] = {"index": lambda node: node, "stream": Streamed}


def workers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dload-map")]


@pytest.fixture(autouse=True)
def _no_thread_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    before = request.session.testsfailed
    yield
    gc.collect()
    if request.session.testsfailed == before:  # else what failed may hold some
        eventually(lambda: not workers())


# ---- the same as without threads
def built(recipe: Recipe, threads: int, queue: int, on_error: OnError | None) -> Node:
    """A recipe whose maps are called on so many threads, and may fail."""
    what, *rest = recipe
    if what == "source":
        return made_source(rest[0], f"s{rest[1]}")
    if what == "sequence":
        return Sequenced(range(rest[0]))
    parts = [built(part, threads, queue, on_error) if isinstance(part, tuple) else part for part in rest]
    if what in ("map", "holes of errors", "skips"):
        fn = label if what == "map" else failing
        options = {"workers": threads, "queue": queue} if threads else {}
        return Map(parts[0], fn, on_error=on_error, **options)
    return EVERY[what](*parts)


def outcome(node: Node, state: Any, most: int) -> tuple[list[Any], str | None, Any]:
    """What it gives from a state on, the error that ended it, and the state there."""
    run, _ = make_run(node)
    cursor = top_cursor(node, run, (0,))
    found: list[Any] = []
    error = None
    try:
        cursor.reset(state)
        for item in islice(cursor, most):
            found.append(item)
    except ValueError as caught:
        error = str(caught)
    try:
        return found, error, json.loads(json.dumps(cursor.get_state()))
    finally:
        cursor.close()
        run.workers.close()


POLICIES = st.sampled_from([None, OnError("hole", True), OnError("skip", False), OnError(lambda *_: False, True)])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(
    recipes(streams=True).filter(buildable), st.integers(1, 3), st.integers(1, 9), POLICIES, st.integers(0, MOST)
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*once more")
def test_threads_change_nothing(recipe: Recipe, threads: int, queue: int, on_error: OnError | None, stop: int) -> None:
    """Not the elements, the errors, their places, nor the states, from one of which the other goes on."""

    def plain() -> Node:
        return built(recipe, 0, 0, on_error)

    def threaded() -> Node:
        return built(recipe, threads, queue, on_error)

    expected = outcome(plain(), None, stop)
    found = outcome(threaded(), None, stop)
    assert found[:2] == expected[:2]
    rest = outcome(plain(), expected[2], MOST)[:2]
    assert outcome(threaded(), found[2], MOST)[:2] == rest
    assert outcome(plain(), found[2], MOST)[:2] == rest


# ---- how far ahead
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("threads", [2, 4])
def test_so_many_are_called_at_once(threads: int, tier: str) -> None:
    together = threading.Barrier(threads)

    def meeting(item: int) -> int:
        together.wait()  # for ever, unless so many threads come here
        return item

    assert elements(Map(TIERS[tier](Sequenced(range(8))), meeting, workers=threads)) == list(range(8))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("threads", "queue"), [(1, 1), (2, 2), (2, 5), (3, 17), (1, 40)])
def test_no_more_than_the_queue_is_ahead(threads: int, queue: int, tier: str) -> None:
    read: list[int] = []
    begun: list[int] = []

    class Noted:
        def __len__(self) -> int:
            return 200

        def __getitem__(self, place: int) -> int:
            read.append(place)
            return place

    node = Map(TIERS[tier](Sequenced(Noted())), lambda item: begun.append(item) or item, workers=threads, queue=queue)
    run, _ = make_run(node)
    cursor = top_cursor(node, run, (0,))
    cursor.reset(None)
    for handed in range(200):
        assert next(cursor) == handed
        chunk = 256 if tier == "stream" else 1  # a source in the stream tier is read in chunks of its own
        assert len(read) <= handed + max(queue, 1) + chunk
        assert len(begun) <= handed + max(queue, 1)
        assert cursor.get_state() == handed + 1
    assert len(begun) == len(read) == 200
    run.workers.close()


def test_work_goes_on_while_the_consumer_is_busy() -> None:
    done: list[int] = []
    for tier in TIERS.values():
        done.clear()
        node = Map(tier(Sequenced(range(100))), lambda item: done.append(item) or item, workers=2, queue=8)
        run, _ = make_run(node)
        cursor = top_cursor(node, run, (0,))
        cursor.reset(None)
        next(cursor)
        eventually(lambda: len(done) >= 4)
        run.workers.close()


def test_batches_above_are_worked_on_ahead_too() -> None:
    done: list[int] = []
    node = Windows(Map(Sequenced(range(100)), lambda item: done.append(item) or item, workers=2, queue=8), 10)
    run, _ = make_run(node)
    cursor = top_cursor(node, run, (0,))
    cursor.reset(None)
    assert next(cursor) == list(range(10))
    eventually(lambda: len(done) == 20)
    assert [next(cursor) for _ in range(9)] == [list(range(first, first + 10)) for first in range(10, 100, 10)]
    run.workers.close()


def test_lanes_share_the_threads() -> None:
    node = Map(Sequenced(range(96)), lambda item: item, workers=2, queue=8)
    run, _ = make_run(node)
    for stream in (False, True):
        top = Streamed(node) if stream else node
        run, _ = make_run(top)
        deal = Deal(top, Grid(8, 8), "endless")
        reader = StepReader(deal, run, range(8), 0)
        rows = [reader.read().item for _ in range(12)]
        assert sorted(row for step in rows for row in step) == list(range(96))
        assert len(workers()) == 2
        reader.close()
        eventually(lambda: not workers())


# ---- errors
@pytest.mark.parametrize("tier", TIERS)
def test_an_error_comes_in_its_place_with_its_traceback(tier: str) -> None:
    def bad_one(item: int) -> int:
        return 10 // (item - 20)

    node = Map(TIERS[tier](Sequenced(range(60))), bad_one, workers=2, queue=16)
    run, _ = make_run(node)
    cursor = top_cursor(node, run, (0,))
    cursor.reset(None)
    found = list(islice(cursor, 20))
    assert found == [10 // (item - 20) for item in range(20)]
    assert cursor.get_state() == 20  # what is known to fail ahead isn't consumed
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            next(cursor)
        assert "bad_one" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert cursor.get_state() == 20
    run.workers.close()


def test_what_the_source_raises_comes_in_its_place() -> None:
    class Broken:
        def __len__(self) -> int:
            return 60

        def __getitem__(self, place: int) -> int:
            return place // (place != 30)

    for tier in TIERS.values():
        for queue in (1, 7, 100):
            node = Map(tier(Sequenced(Broken())), lambda item: item, workers=2, queue=queue)
            run, _ = make_run(node)
            cursor = top_cursor(node, run, (0,))
            cursor.reset(None)
            assert list(islice(cursor, 30)) == list(range(30))
            with pytest.raises(ZeroDivisionError):
                next(cursor)
            assert cursor.get_state() == 30
            run.workers.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"workers": -1}, "workers must be a whole number of at least 0"),
        ({"workers": True}, "workers must be a whole number"),
        ({"workers": 2, "queue": 0}, "queue must be a whole number of at least 1"),
        ({"queue": 5}, "queue is given, and workers isn't"),
    ],
)
def test_arguments_that_make_no_sense(options: dict[str, Any], reason: str) -> None:
    for make in (lambda p, **o: Map(p, label, **o), lambda p, **o: MapBatches(p, list, 2, **o)):
        with pytest.raises(ConfigError, match=reason):
            make(Sequenced(range(3)), **options)
    with pytest.raises(ConfigError, match="the size of a batch must be a whole number of at least 1"):
        MapBatches(Sequenced(range(3)), list, 0)


# ---- threads end
PIPES: dict[str, Callable[[], Pipeline]] = {
    "map": lambda: dload.from_iterable(range(200)).map(lambda item: item, workers=3),
    "stream": lambda: dload.from_iterable(range(200)).filter(lambda _: True).map(lambda item: item, workers=3),
    "skip": lambda: dload.from_iterable(range(200)).map(lambda item: item, workers=3, on_error="skip"),
    "batched": lambda: dload.from_iterable(range(800)).map(lambda item: item, workers=3).batch(4),
    "lists": lambda: dload.from_iterable(range(200)).map_batches(list, 8, workers=3),
}


@pytest.mark.parametrize("pipe", PIPES)
def test_threads_end_with_the_iterator(pipe: str) -> None:
    kept = []
    for end in ("read", "closed", "abandoned", "left by an error"):
        iterator = PIPES[pipe]().iter(epoch=0)
        first = list(islice(iterator, 5))
        assert first
        assert len(workers()) == 3
        if end == "read":
            kept.append(iterator)
            assert len(first) + len(list(iterator)) == 200
        elif end == "closed":
            kept.append(iterator)
            iterator.close()
        elif end == "left by an error":
            with pytest.raises(KeyError), iterator:
                raise KeyError
        del iterator
        gc.collect()
        eventually(lambda: not workers())


@pytest.mark.parametrize("pipe", PIPES)
@pytest.mark.parametrize("threads", [0, 1])
def test_threads_end_with_the_loader(pipe: str, threads: int) -> None:
    for end in ("read", "closed", "abandoned"):
        loader = dload.Loader(PIPES[pipe](), 4, ends="ragged", threads=threads)
        iterator = iter(loader)
        next(iterator)
        if end == "read":
            assert sum(1 for _ in iterator) == 49
        elif end == "closed":
            loader.close()
        else:
            del iterator, loader
            gc.collect()
        eventually(lambda: not workers())


def went_through(iterator: Iterator[Any], errors: list[BaseException]) -> None:
    try:
        list(iterator)
    except BaseException as error:
        errors.append(error)


def test_closing_ends_a_wait() -> None:
    go_on = threading.Event()

    def stuck(item: int) -> int:
        go_on.wait()
        return item

    for on_error in (None, "skip", "hole"):
        go_on.clear()
        iterator = iter(dload.from_iterable(range(50)).map(stuck, workers=1, queue=9, on_error=on_error))
        errors: list[BaseException] = []
        waiting = threading.Thread(target=went_through, args=(iterator, errors))
        waiting.start()
        eventually(lambda: len(workers()) == 1)
        try:
            iterator.close()
        finally:
            go_on.set()
            waiting.join()
        assert [type(error) for error in errors] == [ClosedError]


# ---- pools
def test_a_pool() -> None:
    pool = Pool(2, "map")
    go_on = threading.Event()
    running = [pool.submit(go_on.wait) for _ in range(2)]
    eventually(lambda: len(workers()) == 2)
    time.sleep(0)
    waiting = pool.submit(int, "3")
    pool.close()
    pool.close()
    with pytest.raises(ClosedError, match="closed while it was waiting"):
        waiting.result()
    go_on.set()
    assert all(task.result() or task.cancelled() for task in running if not task.cancelled())
    with pytest.raises(ClosedError, match="closed"):
        pool.submit(int, "4")
    pool.closed = False
    assert pool.submit(int, "4").result() == 4  # begun anew
    with pytest.raises(ValueError, match="invalid literal"):
        pool.submit(int, "x").result()
    lazy = Lazy(lambda *items: sum(items), pool.submit(int, "1"), 2)
    assert settled([1, lazy, lazy]) == [1, 3, 3]
    del pool
