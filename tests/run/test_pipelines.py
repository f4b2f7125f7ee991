"""Pipelines over real shards: fetched ahead within the budget, let go behind, resumed in the middle."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dload
from dload.api import Repository
from dload.api.pipeline import Pipeline
from dload.cache import ShardCache
from dload.errors import InfeasiblePipelineError, IntegrityError, RemoteError
from dload.pack import Sample
from dload.pipeline.node import Need
from dload.pipeline.sources import Samples
from dload.run.demand import Outlook
from dload.run.window import ShardWindow
from dload.store.base import Store
from dload.store.faulty import Faulty
from dload.store.local import FolderStore
from dload.testing.waiting import eventually

COUNT = 6_000
SHARD = 10_000


def samples(count: int = COUNT, seed: int = 0) -> list[Sample]:
    rng = random.Random(seed)
    return [(f"k{i:05d}", {"x": rng.randbytes(100)}) for i in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two data sets."""
    where = tmp_path_factory.mktemp("pipelines") / "store"
    repo = Repository(FolderStore(where), ShardCache(where.parent / "cache"))
    repo.commit("speech", samples(), target_shard_size=SHARD)
    repo.commit("noise", samples(300, seed=1), target_shard_size=SHARD)
    return where


def open_repo(folder: Path, cache: Path, budget: int | None = None, store: Store | None = None) -> Repository:
    return Repository(store or FolderStore(folder), ShardCache(cache, budget), cache.parent / "dload.lock")


@pytest.fixture
def repo(folder: Path, tmp_path: Path) -> Repository:
    return open_repo(folder, tmp_path / "cache")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dload-fetch")]


def small_budget(folder: Path, tmp_path: Path) -> int:
    """Room for eight of the largest shards, a quarter of all or less."""
    shards = open_repo(folder, tmp_path / "other").dataset("speech").manifest.shards
    budget = 8 * max(shards.sizes) + 15_000
    assert sum(shards.sizes) > 3 * budget
    return budget


def used(cache: Path) -> int:
    """Bytes below the cache, each inode once, partial files at their reserved size."""
    total, seen = 0, set()
    for path in cache.rglob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if path.is_file() and status.st_ino not in seen:
            seen.add(status.st_ino)
            total += status.st_size
    return total


# ---- what comes out
def test_plain_iteration_is_storage_order_and_each_iter_is_the_next_epoch(repo: Repository) -> None:
    pipe = repo.dataset("speech").samples()
    assert list(pipe) == samples()
    assert list(pipe) == samples()
    shuffled = pipe.shuffle(300, seed=5)
    one, two = list(shuffled), list(shuffled)
    assert one != two
    assert sorted(one) == sorted(two) == sorted(samples())
    again = repo.dataset("speech").samples().shuffle(300, seed=5)
    assert list(again) == one
    assert list(again.iter(epoch=1)) == two
    assert len(shuffled) == COUNT


def test_operators_compose_over_real_shards(repo: Repository) -> None:
    pipe = (
        repo.dataset("speech").samples().shuffle(100, seed=1).map(_key).filter(_even).batch(7, drop_last=True).take(20)
    )
    batches = list(pipe)
    assert len(batches) == 20
    assert all(len(batch) == 7 and all(_even(key) for key in batch) for batch in batches)
    mixed = dload.mix([repo.dataset("speech").samples().map(_key), repo.dataset("noise").samples().map(_key)], [3, 1])
    assert 300 <= len(list(mixed)) <= 1300


def _key(sample: Sample) -> str:
    return sample[0]


def _even(key: str) -> bool:
    return int(key[1:]) % 2 == 0


def test_fields_and_random_draws(repo: Repository) -> None:
    pipe = repo.dataset("noise").samples(fields=["x"]).map(_draw, rng=True)
    draws = dict(pipe.iter(epoch=0, seed=1))
    shuffled = dict(repo.dataset("noise").samples().shuffle(50, seed=3).map(_draw, rng=True).iter(epoch=0, seed=1))
    assert draws == shuffled, "a draw hangs on what the sample is, not on when it comes"
    assert draws != dict(pipe.iter(epoch=1, seed=1))
    assert draws != dict(pipe.iter(epoch=0, seed=2))


def _draw(sample: Sample, rng: random.Random) -> tuple[str, float]:
    return sample[0], rng.random()


# ---- resuming
@pytest.mark.parametrize("kind", ["plain", "shuffled", "filtered", "batched"])
def test_case_c56_resume_anywhere_each_sample_exactly_once(
    repo: Repository, folder: Path, tmp_path: Path, kind: str
) -> None:
    def make(repo: Repository) -> Pipeline:
        pipe = repo.dataset("speech").samples()
        if kind == "plain":
            return pipe.map(_key)
        pipe = pipe.shuffle(300, seed=9).map(_key)
        return {"shuffled": pipe, "filtered": pipe.filter(_even), "batched": pipe.batch(9)}[kind]

    whole, after = list(make(repo)), list(make(repo).iter(epoch=1))
    for number, stop in enumerate(sorted(random.Random(kind).sample(range(len(whole) + 1), 20))):
        iterator = iter(make(repo).iter(epoch=0))
        head = [next(iterator) for _ in range(stop)]
        state = json.loads(json.dumps(iterator.get_state()))
        assert len(json.dumps(state)) < 1200
        iterator.close()
        other = make(open_repo(folder, tmp_path / f"cache-{number % 3}"))
        rest = list(other.iter(state=state))
        assert head + rest == whole
        if number % 5 == 0:
            assert list(other) == after, "the epoch after is a full one"


def test_a_state_of_something_else_is_refused_naming_both(repo: Repository) -> None:
    pipe = repo.dataset("speech").samples().shuffle(50, seed=1)
    iterator = iter(pipe)
    next(iterator)
    state = iterator.get_state()
    iterator.close()
    with pytest.raises(ValueError, match=r"(?s)of another pipeline: its order is .* shuffle\(size=60\)"):
        repo.dataset("speech").samples().shuffle(60, seed=1).iter(state=state)
    with pytest.raises(ValueError, match="seed"):
        pipe.iter(state=state, seed=4)
    with pytest.raises(ValueError, match="epoch"):
        pipe.iter(state=state, epoch=4)
    with pytest.raises(ValueError, match=r"other data: it has speech@.*, this pipeline reads noise@"):
        repo.dataset("noise").samples().shuffle(50, seed=1).iter(state=state)
    with pytest.raises(ValueError, match="not a state"):
        pipe.iter(state={"dload": 7})
    with pytest.warns(UserWarning, match="functions of this pipeline have other names"):
        renamed = repo.dataset("speech").samples().shuffle(50, seed=1).map(_key)
        other = repo.dataset("speech").samples().shuffle(50, seed=1).map(len).iter()
        next(other)
        renamed.iter(state=other.get_state()).close()
        other.close()


@pytest.mark.parametrize("stop", [0, 1, COUNT])
def test_case_c58_stopping_and_beginning_anew(repo: Repository, stop: int) -> None:
    """One stated rule: each iter() is a whole epoch, the next one, wherever the one before was left."""
    pipe = repo.dataset("speech").samples().shuffle(100, seed=2).map(_key)
    seen = []
    for _ in range(3):
        iterator = iter(pipe)
        head = [next(iterator) for _ in range(stop)]
        iterator.close()
        seen.append(head)
    rest = list(pipe)
    assert rest == list(pipe.iter(epoch=3))
    assert seen == [list(pipe.iter(epoch=e))[:stop] for e in range(3)]


# ---- what is resident
@pytest.mark.parametrize("ahead", [0, 1, 3, 1_000_000])
def test_case_c60_any_prefetch_works(folder: Path, tmp_path: Path, ahead: int) -> None:
    repo = open_repo(folder, tmp_path / "cache")
    pipe = repo.dataset("speech").samples(prefetch=ahead)
    assert list(pipe) == samples()
    assert list(pipe.shuffle(200, seed=1).prefetch(ahead)) != samples()
    eventually(lambda: not threads())


@pytest.mark.parametrize("buffer_size", [1, 150])
def test_an_epoch_streams_through_a_budget_of_a_few_shards(folder: Path, tmp_path: Path, buffer_size: int) -> None:
    budget = small_budget(folder, tmp_path)
    repo = open_repo(folder, tmp_path / "cache", budget)
    pipe = repo.dataset("speech").samples().shuffle(buffer_size, seed=3)
    report = pipe.check()
    assert report.ok, report.message
    assert report.needed <= budget
    most, stop = [0], threading.Event()

    def poll() -> None:
        while not stop.is_set():
            with repo.cache._room.lock():
                most[0] = max(most[0], used(tmp_path / "cache"))

    watcher = threading.Thread(target=poll)
    watcher.start()
    try:
        for _ in range(2):
            assert sorted(pipe) == sorted(samples())
    finally:
        stop.set()
        watcher.join()
    assert 0 < most[0] <= budget


def test_what_can_not_fit_is_refused_before_any_request(folder: Path, tmp_path: Path) -> None:
    store = Faulty(FolderStore(folder))
    repo = open_repo(folder, tmp_path / "cache", small_budget(folder, tmp_path), store)
    pipe = repo.dataset("speech").samples().shuffle(full=True, seed=0)
    before = len(store.calls)
    report = pipe.check()
    assert not report.ok
    total = repo.dataset("speech").manifest.total_bytes
    with pytest.raises(InfeasiblePipelineError, match=rf"(?s){total} bytes.*shuffle\(buffer_size=4096\)"):
        iter(pipe)
    with pytest.raises(InfeasiblePipelineError):
        list(repo.dataset("speech").samples().shuffle(100_000, seed=0))
    assert len([call for call in store.calls[before:] if call.key.startswith("shards/")]) == 0
    assert len(list(repo.dataset("speech").samples().shuffle(10, seed=0))) == COUNT


def test_a_full_shuffle_that_fits_is_uniform_over_all(repo: Repository) -> None:
    keys = [int(key[1:]) for key, _ in repo.dataset("speech").samples().shuffle(full=True, seed=1)]
    assert sorted(keys) == list(range(COUNT))
    assert sum(keys[:200]) / 200 == pytest.approx(COUNT / 2, rel=0.2)


def test_the_plan_names_sources_figures_and_demand(repo: Repository) -> None:
    pipe = dload.zip(repo.dataset("speech").samples().shuffle(400, seed=1), repo.dataset("noise").samples()).batch(10)
    report = pipe.check()
    assert report.ok
    assert {resident.source.partition("@")[0] for resident in report.residents} == {"speech", "noise"}
    assert "fetched ahead: the 6 others" in report.message
    text = pipe.explain()
    assert "window(size=10, stride=10, drop_last=False) — index tier, 30 elements" in text
    assert "speech shard" in text


# ---- letting go
@pytest.mark.parametrize("how", ["close", "with", "forget", "exhaust", "raise"])
def test_an_iterator_that_ends_lets_go_of_pins_threads_and_files(
    folder: Path, tmp_path: Path, how: str, open_files: Callable[[], int]
) -> None:
    repo = open_repo(folder, tmp_path / "cache")
    before = open_files()
    pipe = repo.dataset("speech").samples().shuffle(100, seed=1)
    iterator = iter(pipe)
    next(iterator)
    assert threads()
    assert repo.cache.status().pinned
    if how == "close":
        iterator.close()
    elif how == "with":
        with iterator:
            next(iterator)
    elif how == "exhaust":
        assert len(list(iterator)) == COUNT - 1
    elif how == "raise":
        with pytest.raises(ZeroDivisionError):
            for _ in pipe.map(_fail):
                pass
        iterator.close()
    del iterator
    gc.collect()
    eventually(lambda: not threads())
    assert not repo.cache.status().pinned
    assert open_files() <= before + 1


def _fail(sample: Sample) -> None:
    raise ZeroDivisionError


def test_an_iterator_that_was_never_used_holds_nothing(repo: Repository) -> None:
    iterator = iter(repo.dataset("speech").samples())
    assert not threads()
    del iterator


def test_an_error_of_an_element_comes_in_its_place(repo: Repository) -> None:
    def bad(sample: Sample) -> str:
        if sample[0] == "k00777":
            raise ZeroDivisionError("this one")
        return sample[0]

    iterator = iter(repo.dataset("speech").samples().map(bad))
    got = []
    with pytest.raises(ZeroDivisionError, match="this one"):
        for key in iterator:
            got.append(key)
    assert got == [f"k{i:05d}" for i in range(777)]


def test_an_error_of_a_fetch_comes_out_with_its_own_traceback(folder: Path, tmp_path: Path) -> None:
    store = Faulty(
        FolderStore(folder), lambda call: RemoteError("no such luck") if call.operation == "stream" else None
    )
    repo = open_repo(folder, tmp_path / "cache", store=store)
    with pytest.raises(RemoteError, match="no such luck") as caught:
        list(repo.dataset("speech").samples())
    assert "open_shard" in "".join(str(entry) for entry in caught.traceback)
    eventually(lambda: not threads())


def test_a_damaged_store_is_told_and_not_decoded(folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    victim = sorted((copy / "shards").rglob("*/*"))[0]
    data = bytearray(victim.read_bytes())
    data[10] ^= 1
    victim.write_bytes(data)
    repo = open_repo(copy, tmp_path / "cache")
    with pytest.raises(IntegrityError, match=victim.name):
        list(dload.concat([repo.dataset("speech").samples(), repo.dataset("noise").samples()]))


# ---- everything else
def test_pipelines_pickle_and_count_epochs_anew(repo: Repository) -> None:
    pipe = repo.dataset("speech").samples().shuffle(100, seed=1).map(_key)
    first = list(pipe)
    copy = pickle.loads(pickle.dumps(pipe))
    assert list(copy) == first


def test_without_a_seed_one_is_drawn_and_kept(repo: Repository) -> None:
    pipe = repo.dataset("noise").samples().shuffle(100).map(_key)
    one = list(pipe.iter(epoch=0))
    assert list(pipe.iter(epoch=0)) == one
    iterator = pipe.iter(epoch=0)
    head = [next(iterator) for _ in range(10)]
    fresh = repo.dataset("noise").samples().shuffle(100).map(_key)
    assert head + list(fresh.iter(state=iterator.get_state())) == one
    iterator.close()


def test_after_a_fork_a_child_iterates_for_itself(repo: Repository) -> None:
    pipe = repo.dataset("speech").samples().map(_key)
    iterator = iter(pipe)
    next(iterator)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if list(pipe.iter(epoch=0)) == [key for key, _ in samples()]:
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(iterator)) == COUNT - 1


def test_batches_kept_past_eviction_stay_what_they_were(folder: Path, tmp_path: Path) -> None:
    repo = open_repo(folder, tmp_path / "cache", small_budget(folder, tmp_path))
    kept = list(repo.dataset("speech").samples().batch(50))
    assert [sample for batch in kept for sample in batch] == samples()


# ---- several repositories with one cache
def test_a_plan_looks_once_into_the_cache_of_several_repositories(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []
    module = sys.modules["dload.cache.cache"]
    scan = module.scan
    monkeypatch.setattr(module, "scan", lambda root: looks.append(root) or scan(root))

    def looks_of(repos: list[Repository]) -> int:
        mix = dload.mix([repo.dataset("noise").samples().shuffle(50, seed=1) for repo in repos], seed=1)
        looks.clear()
        assert mix.check().ok
        return len(looks)

    one = open_repo(folder, tmp_path / "cache", 10_000_000)
    assert 0 < looks_of([one]) == looks_of([open_repo(folder, tmp_path / "cache", 10_000_000) for _ in range(5)])
    assert looks_of([open_repo(folder, tmp_path / str(number), 10_000_000) for number in range(2)]) == 2
    assert looks_of([open_repo(folder, tmp_path / "cache")]) == 0, "without a budget there is nothing to look for"


@pytest.mark.parametrize("nearer", [0, 1])
def test_of_two_uses_by_repositories_of_one_cache_the_nearer_counts(folder: Path, tmp_path: Path, nearer: int) -> None:
    repos = [open_repo(folder, tmp_path / "cache") for _ in range(2)]
    list(repos[0].dataset("noise").samples())
    sources = [repo.dataset("noise").samples().node for repo in repos]
    assert isinstance(sources[0], Samples) and isinstance(sources[1], Samples)
    needs = [Need(100, 101, sources[nearer], 0), Need(50_000, 50_001, sources[1 - nearer], 0)]
    needs.sort(key=lambda need: need.source is sources[1])
    outlook = Outlook(lambda _: iter(needs))
    while outlook.look():
        pass
    outlook.tell(0, 1.0)
    wanted = sources[0].manifest.shards.digests[0]
    (mtime,) = (mtime for digest, _, mtime in repos[0].cache.entries() if digest == wanted)
    assert abs(mtime - time.time() - 100) < 10_000


def test_what_is_there_already_is_opened_by_one_thread(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed() -> Pipeline:
        return dload.mix([repo.dataset("speech").samples().skip(100 * n).shuffle(500, seed=n) for n in range(20)])

    found = list(mixed())
    monkeypatch.setattr(ShardWindow, "_hint", lambda *_: None)  # while one tells a hint, another may start to open
    started: list[str] = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: started.append(self.name) or start(self))
    assert list(mixed()) == found
    assert started == ["dload-fetch-1"]
