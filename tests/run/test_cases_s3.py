"""Faults on the way from a real S3 server into a cache that real processes share."""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dload
from dload.cache import ShardCache
from dload.errors import CacheFullError, InfeasiblePipelineError, IntegrityError
from dload.importers.folder import Folder
from dload.manifest import Manifest
from dload.pack import Sample
from dload.repo.keys import shard_key
from dload.run.open_shard import open_shard
from dload.store.local import FolderStore
from dload.store.memory import MemoryStore
from dload.store.retrying import Backoff, Retrying
from dload.store.s3 import S3Store
from dload.testing.fault_proxy import Cut, Fault, FaultProxy, Flip, Reset, Short, Slow, Stall, Status
from dload.testing.readers import Readers, Reading, digest_of
from dload.testing.s3_server import S3Server
from dload.testing.shards import made_samples, manifest_of, put_shard

_QUICK = Backoff(patience=60, first=0.01, longest=0.1)
_GET = "GET"
_SHARDS = "/shards/"


class World:
    """A bucket with shards of made-up samples, and what reads it through the proxy."""

    def __init__(self, place: tuple[str, str], proxy: FaultProxy, direct: str, shards: int, samples: int) -> None:
        self.place = place
        self.proxy = proxy
        self.made = [made_samples(number, samples) for number in range(shards)]
        store = S3Store(*place, endpoint_url=direct)
        self.manifest: Manifest = manifest_of([put_shard(store, each) for each in self.made])
        self.size = max(self.manifest.shards.sizes)
        self.expected = digest_of(sample for each in self.made for sample in each)

    def store(self, timeout: float = 5.0) -> Retrying:
        inner = S3Store(*self.place, endpoint_url=self.proxy.url, timeout=timeout, backoff=_QUICK)
        return Retrying(inner, _QUICK)

    def reading(self, cache: Path, budget: int | None = None, **how: Any) -> Reading:
        return Reading(self.store(), ShardCache(cache, budget), self.manifest, **how)

    def gets(self) -> int:
        return self.proxy.count(_GET, _SHARDS)

    def read(self, cache: ShardCache, store: Retrying | None = None) -> str:
        return digest_of(Reading(store or self.store(), cache, self.manifest).samples())


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def world(s3_place: tuple[str, str], proxy: FaultProxy, s3_server: S3Server) -> World:
    return World(s3_place, proxy, s3_server.endpoint_url, shards=8, samples=40)


# ---- the remote
def test_case_c30_slow_downs_and_an_outage_are_survived(world: World, tmp_path: Path) -> None:
    proxy, cache = world.proxy, ShardCache(tmp_path / "cache")
    proxy.add(Status(503), method=_GET, rate=0.2)
    proxy.add(Status(429, "TooManyRequests"), method=_GET, rate=0.2)
    samples = Reading(world.store(), cache, world.manifest, prefetch=2).samples()
    got = [next(samples) for _ in range(50)]
    proxy.clear()
    proxy.add(Status(503))  # all is down
    back = threading.Timer(1.5, proxy.clear)
    back.start()
    got += samples
    back.join()
    assert digest_of(got) == world.expected
    assert world.gets() > 20


@pytest.mark.parametrize(
    "fault", [Short(0), Short(0.5), Cut(0), Cut(0.5), Reset(0), Reset(0.5), Stall(30, 0.5), Stall(30, 0)], ids=repr
)
def test_case_c31_a_body_that_breaks_is_continued(world: World, tmp_path: Path, fault: Fault) -> None:
    times = 2 if fault == Short(0) else 4  # three times nothing at all is an error
    world.proxy.add(fault, method=_GET, key=_SHARDS, rate=0.5, times=times)
    cache = ShardCache(tmp_path / "cache")
    assert world.read(cache, world.store(timeout=0.5)) == world.expected
    assert world.gets() >= 8 + times
    status, counts = cache.status(), cache.counts()
    assert (status.partials, counts.misses, counts.refetches) == (0, 8, 0)
    assert counts.bytes_down == sum(world.manifest.shards.sizes)  # no byte twice


def test_case_c31_bodies_that_are_nearly_always_short_arrive_all_the_same(world: World, tmp_path: Path) -> None:
    world.proxy.add(Short(0.5), method=_GET, key=_SHARDS, rate=0.9)
    cache = ShardCache(tmp_path / "cache")
    assert world.read(cache) == world.expected
    assert cache.counts().bytes_down == sum(world.manifest.shards.sizes)


# ---- the cache
def test_case_c25_clearing_while_others_read_and_commit(world: World, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache")
    repo = dload.Repository(world.store(), cache)
    cleared = 0

    def committed() -> Iterator[Sample]:
        for sample in made_samples(99, 30):
            cache.clear()
            yield sample

    world.proxy.add(Slow(0.01), method=_GET, key=_SHARDS)
    with Readers([world.reading(cache.root)] * 2) as readers:
        while readers.running():
            cleared += cache.clear()
            for digest in world.manifest.shards.digests:
                cleared += cache.evict(digest)
            time.sleep(0.005)
        assert readers.answers() == [[world.expected]] * 2
    repo.commit("other", committed())
    assert cleared > 0
    assert digest_of(repo.dataset("other").samples()) == digest_of(made_samples(99, 30))


def test_case_c40_a_budget_under_one_shard_is_an_error_at_once(world: World, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache", world.size // 10, patience=1e9)
    with pytest.raises(InfeasiblePipelineError):
        world.read(cache)
    with pytest.raises(CacheFullError, match="at least") as caught:
        open_shard(world.store(), cache, world.manifest.shards[0])
    assert world.gets() == 0
    enough = ShardCache(tmp_path / "cache", max(world.manifest.shards.sizes) + caught.value.details["least"])
    assert world.read(enough) == world.expected


def test_case_c41_eight_processes_with_room_for_two_shards(world: World, tmp_path: Path) -> None:
    cache, budget = ShardCache(tmp_path / "cache"), 2 * world.size + 1000
    with Readers([world.reading(cache.root, budget)] * 8) as readers:
        while readers.running():
            assert cache.status().used <= budget
            time.sleep(0.02)
        assert readers.answers() == [[world.expected]] * 8
    assert cache.status().pinned == 0


def test_case_c43_eight_processes_over_a_cold_data_set_ask_once_for_each_shard(world: World, tmp_path: Path) -> None:
    world.proxy.add(Slow(0.005), method=_GET, key=_SHARDS)
    with Readers([world.reading(tmp_path / "cache")] * 8) as readers:
        assert readers.answers() == [[world.expected]] * 8
    assert world.gets() == 8


def test_case_c45_a_bit_that_flips_on_the_way(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world.proxy.add(Flip(0.3), method=_GET, key=_SHARDS, times=2)
    cache = ShardCache(tmp_path / "cache")
    with caplog.at_level(logging.INFO, "dload.cache"):
        assert world.read(cache) == world.expected
    assert caplog.text.count("came damaged: fetched again") == cache.counts().refetches == 2
    assert world.gets() == 10


def test_case_c45_damage_in_the_bucket_names_key_expected_and_got(
    world: World, tmp_path: Path, s3_server: S3Server
) -> None:
    key = shard_key(world.manifest.shards[2].digest)
    store = S3Store(*world.place, endpoint_url=s3_server.endpoint_url)
    data = bytearray(store.get(key).data)
    data[1000] ^= 1
    store.put(key, bytes(data))
    cache = ShardCache(tmp_path / "cache")
    with pytest.raises(IntegrityError) as caught:
        world.read(cache)
    for part in (key, world.manifest.shards[2].digest, hashlib.sha256(data).hexdigest()):
        assert part in str(caught.value)
    assert not cache.contains(world.manifest.shards[2].digest)


def test_case_c46_killed_again_and_again_while_bodies_are_cut(world: World, tmp_path: Path) -> None:
    cache, budget = ShardCache(tmp_path / "cache"), 4 * world.size + 1000
    world.proxy.add(Cut(0.5), method=_GET, key=_SHARDS, rate=0.2)
    world.proxy.add(Slow(0.02), method=_GET, key=_SHARDS)
    for moment in range(5):
        with Readers([world.reading(cache.root, budget)] * 2):
            time.sleep(0.02 + 0.04 * moment)
        status = cache.status()
        assert (status.pinned, status.coming) == (0, 0) and status.used <= budget
    with Readers([world.reading(cache.root, budget)]) as readers:
        assert readers.answers() == [[world.expected]]
    status = cache.status()
    assert (status.pinned, status.partials) == (0, 0) and status.used <= budget


def test_case_c48_two_jobs_that_train_and_validate_fetch_each_object_once(world: World, tmp_path: Path) -> None:
    with Readers([world.reading(tmp_path / "cache", threads=2)] * 2) as jobs:
        assert jobs.answers() == [[world.expected] * 2] * 2
    assert world.gets() == 8


def test_case_c83_few_files_may_be_open(world: World, tmp_path: Path) -> None:
    reading = world.reading(tmp_path / "cache", prefetch=64, most_files=64, fetch_jobs=64)
    with Readers([reading]) as readers:
        assert readers.answers() == [[world.expected]]
    assert len(reading.cache.entries()) == 8


def test_case_c84_what_was_read_outlives_its_shard(world: World, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache", 2 * world.size + 1000)
    kept = list(Reading(world.store(), cache, world.manifest).samples())
    assert cache.counts().evictions >= 5
    cache.clear()
    assert digest_of(kept) == world.expected


def test_case_c49_what_is_read_from_is_never_deleted(tmp_path: Path) -> None:
    """A local store, the folder that a data set came from, and a cache with room for one shard."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    for number in range(60):
        (inputs / f"{number:02}.bin").write_bytes(bytes([number]) * 2000)
    store = FolderStore(tmp_path / "store")
    cache = ShardCache(tmp_path / "cache", 40_000)
    repo = dload.Repository(store, cache)
    repo.commit("bins", Folder(inputs), target_shard_size=20_000)
    before = {
        path: path.read_bytes() for path in (*inputs.iterdir(), *(tmp_path / "store").rglob("*")) if path.is_file()
    }
    for _ in range(2):
        assert len(list(repo.dataset("bins").samples())) == 60
    assert cache.counts().evictions > 0
    cache.clear()
    assert {path: path.read_bytes() for path in before} == before


# ---- one shard over several connections
def test_a_large_shard_that_someone_waits_for_comes_in_ranges(
    world: World, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["dload.run.open_shard"], "_LEAST_PIECE", 1 << 20)
    monkeypatch.setattr(sys.modules["dload.run.open_shard"], "_MOST_PIECE", 1 << 20)
    direct = S3Store(*world.place, endpoint_url=s3_server.endpoint_url)
    large, small = (put_shard(direct, made_samples(50 + size, size, 1 << 20)) for size in (17, 15))
    store, cache = world.store(), ShardCache(tmp_path / "cache")
    for shard, urgent, gets in ((large, True, 18), (small, True, 1), (large, False, 1)):
        cache.clear()
        world.proxy.forget()
        world.proxy.clear()
        world.proxy.add(Cut(0.5), method=_GET, key=_SHARDS, times=1)
        with open_shard(store, cache, shard, hasten=lambda: urgent).pin as pin:  # noqa: B023
            assert hashlib.sha256(pin.path.read_bytes()).hexdigest() == shard.digest
        assert world.gets() == gets + 1


def test_a_large_shard_that_someone_comes_to_wait_for_goes_on_in_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not its end, for which it isn't worth it."""
    monkeypatch.setattr(sys.modules["dload.run.open_shard"], "_LEAST_PIECE", 1 << 20)
    monkeypatch.setattr(sys.modules["dload.run.open_shard"], "_MOST_PIECE", 1 << 20)
    asked: list[tuple[int, int | None]] = []

    class Asked(MemoryStore):
        staging = None

        def get_range(self, key: str, start: int, length: int) -> bytes:
            asked.append((start, length))
            return super().get_range(key, start, length)

        def stream(self, key: str, start: int = 0) -> Iterator[bytes]:
            asked.append((start, None))
            data = self.get(key).data
            for at in range(start, len(data), 1 << 20):
                came.append(at)
                yield data[at : at + (1 << 20)]

    store = Asked()
    large, small = (put_shard(store, made_samples(size, size, 1 << 20)) for size in (17, 15))
    for shard, begins_to_wait, ranges in ((large, 5, 12), (large, 16, 0), (small, 5, 0)):
        asked.clear()
        came: list[int] = []
        cache = ShardCache(tmp_path / f"cache-{begins_to_wait}-{shard.num_samples}")
        with open_shard(store, cache, shard, hasten=lambda: len(came) >= begins_to_wait).pin as pin:  # noqa: B023
            assert hashlib.sha256(pin.path.read_bytes()).hexdigest() == shard.digest
        assert asked[0] == (0, None) and len(asked) == 1 + ranges + bool(ranges)
        assert not ranges or sorted(start for start, length in asked[1:]) == list(range(5 << 20, shard.size, 1 << 20))


def test_who_gives_up_a_large_shard_does_not_wait_for_its_ranges(tmp_path: Path) -> None:
    gate = threading.Event()

    class OnlyTheFirst(MemoryStore):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            if start > 0:
                gate.wait()
            return super().get_range(key, start, length)

    class NotWantedError(Exception):
        pass

    def pieces() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("dload-piece")]

    def pause(_: float) -> None:
        if pieces():
            raise NotWantedError

    store = OnlyTheFirst()
    shard = put_shard(store, made_samples(1, 17, 1 << 20))
    with pytest.raises(NotWantedError):
        open_shard(store, ShardCache(tmp_path / "cache"), shard, pause=pause, hasten=lambda: True)
    left = pieces()
    assert left and all(thread.daemon for thread in left)
    gate.set()
    for thread in left:
        thread.join()
