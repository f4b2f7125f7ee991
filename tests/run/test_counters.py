"""Counters: right over threads, forked and spawned processes; what they say of a loader; and that they cost nothing."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

import dload
from dload.api import Pipeline, Repository
from dload.pack import Sample
from dload.run.counters import Counters, Tally
from dload.run.stats import Stats

COUNT, NOISE, SIZE = 200, 50, 300


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    folder = tmp_path_factory.mktemp("counters")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        repo = Repository.open(str(folder / "store"), cache_dir=folder / "cache")
        rng = random.Random(0)
        for name, count in (("speech", COUNT), ("noise", NOISE)):
            samples = [(f"{name}-{i:04d}", {"x": rng.randbytes(SIZE)}) for i in range(count)]
            repo.commit(name, samples, target_shard_size=5000)
        yield repo


def mixed(repo: Repository) -> Pipeline:
    speech, noise = repo.dataset("speech").samples(), repo.dataset("noise").samples()
    return dload.mix([speech.shuffle(30, seed=1), noise.shuffle(30, seed=1)], [4, 1], seed=2).map(decoded)


def decoded(sample: Sample) -> str:
    if sample[0].endswith("7"):
        raise ValueError("no sevens")
    return sample[0]


# ---- rows of figures
def counting(counters: Counters, builder: int, times: int) -> None:
    tally = counters.tally(builder)
    for number in range(times):
        tally.read("speech", 3, 10.5)
        tally.read("noise", 1, 2)
        tally.fetch_time += 0.25
        tally.at_hand = lambda: 7
        tally.failures.add("map(f)", "speech", f"k{builder}.{number}", ValueError("bad"))
        tally.built(4, 0.5)


EXPECTED = {
    "rows_built": 80, "rows_skipped": 20, "bytes_loaded": 670, "fetch_time": 5.0, "build_time": 10.0,
    "raw_queue_depth": 14,
    "sources": {"noise": {"rows_read": 20, "bytes_loaded": 40}, "speech": {"rows_read": 60, "bytes_loaded": 630}},
}  # fmt: skip


@pytest.mark.parametrize("method", [None, "fork", "spawn"])
def test_the_parent_sees_what_its_processes_count(method: str | None) -> None:
    """Also those of builders that came one after the other."""
    counters = Counters(2, ["noise", "speech"])
    for _ in range(2):
        if method is None:
            counting(counters, 0, 5)
            counting(counters, 1, 5)
            continue
        context = multiprocessing.get_context(method)
        processes = [context.Process(target=counting, args=(counters, builder, 5)) for builder in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
    found = counters.read()
    keys = sorted(entry["key"] for entry in found.pop("skipped"))
    assert keys == sorted([f"k{builder}.{number}" for builder in range(2) for number in range(5)])
    assert found == EXPECTED


def test_a_copy_for_anything_else_counts_for_itself() -> None:
    counters = Counters(1, ["speech"])
    counting(pickle.loads(pickle.dumps(counters)), 0, 3)
    assert counters.read()["rows_built"] == 0


def test_what_is_listed_has_room() -> None:
    counters = Counters(1, [])
    tally = counters.tally(0)
    for number in range(100):
        tally.failures.add("map(f)", "speech", f"{number}" + "x" * 2000, ValueError("bad"))
    tally.built(1, 0.0)
    found = counters.read()
    assert found["rows_skipped"] == 100
    assert 5 <= len(found["skipped"]) < 100
    assert found["skipped"][0]["key"].startswith("0x")


# ---- of loaders
def stream_loader(pipe: Pipeline, method: str | None) -> Any:
    from dload.torch import StreamLoader  # not above: spawned processes import this module, too

    return StreamLoader(
        pipe, 10, collate=list, on_error="skip", num_workers=2 if method else 0, multiprocessing_context=method,
        persistent_workers=method == "spawn",
    )  # fmt: skip


LOADERS: dict[str, Callable[[Pipeline], Any]] = {
    "inline": lambda pipe: dload.Loader(pipe, 10, threads=0, on_error="skip"),
    "thread": lambda pipe: dload.Loader(pipe, 10, on_error="skip"),
    "no workers": lambda pipe: stream_loader(pipe, None),
    "fork": lambda pipe: stream_loader(pipe, "fork"),
    "spawn": lambda pipe: stream_loader(pipe, "spawn"),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_loader_counts_what_it_does(repo: Repository, kind: str) -> None:
    repo.cache.clear()
    loader = LOADERS[kind](mixed(repo))
    steps = len(loader)
    assert loader.stats()["steps"] == 0
    assert "nothing was handed out yet" in str(loader.stats())
    handed = 0
    for epoch in (1, 2):
        handed += sum(len(step) for step in loader)
        stats = loader.stats()
        assert stats["consumed_rows"] == handed
        assert stats["steps"] == epoch * steps
        rows = epoch * steps * 10
        assert stats["consumed_rows"] + stats["holes"] == rows
        assert stats["rows_skipped"] == stats["holes"] > 0
        assert {entry["error"] for entry in stats["skipped"]} == {"ValueError: no sevens"}
        listed = [tuple(entry.values()) for entry in stats["skipped"]]
        assert listed
        assert len({*listed}) == len(listed) <= stats["rows_skipped"], "what an epoch repeats is listed once"
        read = {name: figures["rows_read"] for name, figures in stats["sources"].items()}
        assert rows <= sum(read.values()) <= rows + epoch * 40
        assert read["speech"] > 3 * read["noise"]
        assert stats["bytes_loaded"] == pytest.approx(sum(read.values()) * SIZE, rel=0.2)
        assert stats["unscanned_rows"] == 0
        assert stats["prefetch_queue_depth"] == 0
        assert stats["cache_misses"] == stats["downloads"] > 0
        assert stats["bytes_downloaded"] > steps * 10 * SIZE * 0.8
        assert min(stats["wait_time"], stats["consumer_time"], stats["transform_time"]) > 0
    loader.close()


def test_gauges_while_it_runs(repo: Repository) -> None:
    loader = dload.Loader(repo.dataset("speech").samples(), 10)
    iterator = iter(loader)
    next(iterator)
    while loader.stats()["prefetch_queue_depth"] < 20:  # two steps are built ahead, and perhaps a third one
        time.sleep(0.001)
    stats = loader.stats()
    assert stats["unscanned_rows"] == COUNT - 10
    assert stats["prefetch_queue_depth"] in (20, 30)
    assert 0 < stats["raw_queue_depth"] <= COUNT
    loader.close()
    list(loader)
    assert loader.stats()["consumed_rows"] == 10 + COUNT
    assert loader.stats()["prefetch_queue_depth"] == 0  # what was ahead when it was closed is forgotten


def test_what_is_here_and_was_not_read(repo: Repository) -> None:
    loader = dload.Loader(repo.dataset("noise").samples(), 10, threads=0)
    next(iterator := iter(loader))
    left = NOISE - loader.stats()["sources"]["noise"]["rows_read"]
    assert 0 < left <= NOISE - 10
    while loader._tally.at_hand() < left:  # until all shards are here
        time.sleep(0.001)
    assert loader._tally.at_hand() == left
    next(iterator)
    assert loader.stats()["raw_queue_depth"] < left
    loader.close()


def test_an_endless_run_has_no_rest(repo: Repository) -> None:
    loader = dload.Loader(repo.dataset("speech").samples(), 10, ends="endless", threads=0)
    list(islice(loader, 3))
    assert loader.stats()["unscanned_rows"] is None
    assert "unscanned_rows        unknown" in str(loader.stats())


# ---- what it says
FIGURES = {
    "steps": 3, "consumed_rows": 30_000, "wait_time": 5.0, "consumer_time": 5.0, "fetch_time": 1.0,
    "transform_time": 4.0, "bytes_loaded": 3 << 20, "skipped": [], "sources": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "bottleneck"),
    [
        ({}, "transform"),
        ({"fetch_time": 4.5}, "fetch"),
        ({"wait_time": 0.5}, "consumer"),
        ({"wait_time": 0.6}, "transform"),
        ({"steps": 0}, None),
    ],
)
def test_the_table_names_the_bottleneck(change: dict[str, float], bottleneck: str | None) -> None:
    stats = Stats(FIGURES | change)
    assert stats.bottleneck == bottleneck
    last = str(stats).splitlines()[-1]
    assert last.startswith(f"bottleneck      {bottleneck or 'nothing'}") or bottleneck == "consumer"


def test_the_table() -> None:
    entry = {"node": "map(f)", "data": "speech@1", "key": "k7", "error": "ValueError: bad"}
    figures = FIGURES | {
        "skipped": [entry] * 5,
        "sources": {"speech": {"rows_read": 1234, "bytes_loaded": 5000}},
    }
    assert str(Stats(figures)).splitlines() == [
        "steps           3",
        "consumed_rows   30,000",
        "wait_time       5.000 s",
        "consumer_time   5.000 s",
        "fetch_time      1.000 s",
        "transform_time  4.000 s",
        "bytes_loaded    3.0 MiB",
        "  skipped       k7 of speech@1 by map(f): ValueError: bad",
        "  skipped       k7 of speech@1 by map(f): ValueError: bad",
        "  skipped       k7 of speech@1 by map(f): ValueError: bad",
        "  skipped       ... 2 more are listed",
        "  speech        1,234 rows, 4.9 KiB",
        "bottleneck      transform: functions take the time; map(workers=), map_batches, or more worker processes "
        "would help",
    ]


# ---- what it costs
def test_counting_is_by_the_chunk_and_not_by_the_element(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    class Noted(Tally):
        def read(self, name: str, rows: int, mean_bytes: float) -> None:
            nonlocal calls
            calls += 1
            super().read(name, rows, mean_bytes)

    monkeypatch.setattr("dload.run.window.Tally", Noted)
    assert len(list(repo.dataset("speech").samples())) == COUNT
    assert 1 <= calls < 30
