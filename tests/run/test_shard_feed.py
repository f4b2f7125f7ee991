from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import dload
from dload.cache import ShardCache
from dload.cache.pins import own
from dload.errors import AccessError, CacheFullError, IntegrityError, NotFoundError, PackFormatError
from dload.manifest import ShardInfo, ShardList
from dload.pack import Sample
from dload.repo.keys import shard_key
from dload.run import ShardFeed, open_shard
from dload.store.faulty import Call
from dload.store.local import FolderStore
from dload.testing.shards import made_samples, manifest_of, put_shard


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what other threads are about to do; the suite's time limit ends a wait in vain."""
    while not condition():
        time.sleep(0.005)


def feed_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("dload-feed")]


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def read_all(feed: ShardFeed) -> list[Sample]:
    return [sample for reader in feed for sample in reader.samples()]


@pytest.mark.parametrize("prefetch", [0, 1, 3, 20])
def test_every_sample_in_order_each_shard_fetched_once(store, cache: ShardCache, made, prefetch: int) -> None:
    feed = ShardFeed(store, cache, made.manifest.shards, prefetch=prefetch)
    assert len(feed) == 8
    assert read_all(feed) == made.all
    assert store.count() == {"stream": 8}
    assert read_all(feed) == made.all
    assert store.count() == {"stream": 8}
    eventually(lambda: not feed_threads() and own() == [])


def test_no_shards_no_threads(store, cache: ShardCache) -> None:
    assert list(ShardFeed(store, cache, ShardList.of([]))) == []
    assert not feed_threads()


def test_case_c84_samples_outlive_their_shard(store, cache: ShardCache, made) -> None:
    kept = []
    for reader in ShardFeed(store, cache, made.manifest.shards):
        kept += reader[2:5]
        kept += list(reader.samples())[5:]
    assert cache.clear() > 0
    for number, shard in enumerate(made.shards):
        with (cache.root / "elsewhere").open("wb") as file:
            file.write(bytes(shard.size))
        assert kept[number * 8 : number * 8 + 8] == made.samples[number][2:]


def test_a_window_of_shards_is_fetched_ahead_and_no_more(store, cache: ShardCache, made) -> None:
    with closing(iter(ShardFeed(store, cache, made.manifest.shards, prefetch=2))) as readers:
        for number in range(5):
            next(readers)
            eventually(lambda: store.count()["stream"] == number + 3)  # noqa: B023
            eventually(lambda: len(own(cache.root)) == 3)
            time.sleep(0.02)
            assert store.count()["stream"] == number + 3


def test_the_first_shard_does_not_wait_for_the_second(store, cache: ShardCache, made) -> None:
    gate = threading.Event()
    second = shard_key(made.shards[1].digest)

    def plan(call: Call) -> None:
        if call.key == second:
            gate.wait()

    store.plan = plan
    with closing(iter(ShardFeed(store, cache, made.manifest.shards))) as readers:
        assert list(next(readers).samples()) == made.samples[0]
        gate.set()
        assert list(next(readers).samples()) == made.samples[1]


@pytest.mark.parametrize("how", ["closed", "forgotten", "broken off"])
def test_an_abandoned_iterator_lets_go(store, cache: ShardCache, made, how: str) -> None:
    gc.collect()
    eventually(lambda: not feed_threads() and own() == [])  # those of the tests before this one
    before = descriptors()
    readers = iter(ShardFeed(store, cache, made.manifest.shards, prefetch=3))
    next(readers)
    next(readers)
    eventually(lambda: len(own(cache.root)) == 4)
    assert feed_threads()
    if how == "closed":
        readers.close()
    elif how == "broken off":
        with pytest.raises(ZeroDivisionError):
            readers.throw(ZeroDivisionError())
    else:
        del readers
        gc.collect()
    eventually(lambda: not feed_threads() and own() == [] and descriptors() == before)
    assert cache.status().pinned == 0


def test_an_abandoned_download_ends_and_leaves_its_part(store, cache: ShardCache, made) -> None:
    real, slow = store.stream, shard_key(made.shards[1].digest)
    coming = threading.Event()

    def stream(key: str, start: int = 0) -> Iterator[bytes]:
        if key != slow:
            yield from real(key, start)
            return
        data = store.get(key).data[start:]
        yield data[:5000]
        coming.set()
        while True:
            time.sleep(0.001)
            yield b""

    store.stream = stream
    readers = iter(ShardFeed(store, cache, made.manifest.shards[:2]))
    next(readers)
    coming.wait()
    readers.close()
    eventually(lambda: not feed_threads() and own() == [])
    assert cache.status().partials == 1
    starts = []
    store.stream = lambda key, start=0: starts.append(start) or real(key, start)
    assert read_all(ShardFeed(store, cache, made.manifest.shards[:2])) == made.all[:20]
    assert starts == [5000]


def test_an_error_comes_out_where_its_shard_would_have_with_its_traceback(store, cache: ShardCache, made) -> None:
    store.delete(shard_key(made.shards[2].digest))
    got = []
    with pytest.raises(NotFoundError) as caught:
        for reader in ShardFeed(store, cache, made.manifest.shards):
            got += list(reader.samples())
    assert got == made.all[:20]
    assert made.shards[2].digest in str(caught.value)
    frames = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert "fill" in frames and "_fetch" in frames
    eventually(lambda: not feed_threads() and own() == [])


def test_after_an_error_the_feed_can_be_iterated_again(store, cache: ShardCache, made) -> None:
    denied = shard_key(made.shards[1].digest)
    store.plan = lambda call: AccessError("expired") if call.key == denied else None
    feed = ShardFeed(store, cache, made.manifest.shards)
    with pytest.raises(AccessError, match="expired"):
        read_all(feed)
    store.plan = lambda _: None
    assert read_all(feed) == made.all


def overhead(cache: ShardCache) -> int:
    return cache.status().used - cache.used_bytes()


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_small_budget_shrinks_the_window(store, tmp_path: Path, made, shards: int) -> None:
    largest = max(shard.size for shard in made.shards)
    cache = ShardCache(tmp_path / "cache", shards * largest + 100, patience=1e9)
    assert read_all(ShardFeed(store, cache, made.manifest.shards, prefetch=6)) == made.all
    assert cache.used_bytes() <= shards * largest
    eventually(lambda: not feed_threads() and own() == [])


def test_case_c40_a_budget_under_one_shard_is_an_error_at_once(store, tmp_path: Path, made) -> None:
    cache = ShardCache(tmp_path / "cache", made.shards[0].size // 10, patience=1e9)
    with pytest.raises(CacheFullError, match="at least") as caught:
        read_all(ShardFeed(store, cache, made.manifest.shards))
    assert store.count() == {}
    enough = ShardCache(tmp_path / "cache", caught.value.details["least"], patience=1e9)
    assert read_all(ShardFeed(store, enough, made.manifest.shards[:1])) == made.samples[0]


def test_shards_of_very_different_sizes_in_a_tight_budget(store, tmp_path: Path) -> None:
    samples = [made_samples(number, 1 + 30 * (number % 3 == 0)) for number in range(12)]
    manifest = manifest_of([put_shard(store, one) for one in samples])
    cache = ShardCache(tmp_path / "cache", max(shard.size for shard in manifest.shards) + 100, patience=1e9)
    assert read_all(ShardFeed(store, cache, manifest.shards, prefetch=5)) == [it for one in samples for it in one]


def test_case_c48_two_feeds_share_what_is_fetched(store, cache: ShardCache, made) -> None:
    train = iter(ShardFeed(store, cache, made.manifest.shards))
    validation = iter(ShardFeed(store, ShardCache(cache.root), made.manifest.shards))
    for one, other, samples in zip(train, validation, made.samples, strict=True):
        assert list(one.samples()) == list(other.samples()) == samples
    assert store.count() == {"stream": 8}


def test_the_same_shard_many_times(store, cache: ShardCache, made) -> None:
    shards = ShardList.of([made.shards[0]] * 5)
    assert read_all(ShardFeed(store, cache, shards)) == made.samples[0] * 5
    assert store.count() == {"stream": 1}


def test_memory_stays_bounded(store, cache: ShardCache) -> None:
    manifest = manifest_of([put_shard(store, made_samples(number, 2, size=500_000)) for number in range(20)])
    read_all_of = ShardFeed(store, cache, manifest.shards, prefetch=3)
    tracemalloc.start()
    try:
        for reader in read_all_of:
            for sample in reader.samples():
                assert sample
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12_000_000  # of 20 MB; a chunk of one shard for each thread that fetches, and one sample


def test_damage_in_the_store_is_an_error_and_the_cache_stays_clean(store, cache: ShardCache, made) -> None:
    key = shard_key(made.shards[1].digest)
    data = bytearray(store.get(key).data)
    data[100] ^= 1
    store.put(key, bytes(data))
    with pytest.raises(IntegrityError) as caught:
        read_all(ShardFeed(store, cache, made.manifest.shards))
    assert key in str(caught.value) and made.shards[1].digest in str(caught.value)
    assert not cache.contains(made.shards[1].digest)


def test_case_c45_damage_after_the_first_use_is_found_at_the_next(store, cache: ShardCache, made) -> None:
    assert read_all(ShardFeed(store, cache, made.manifest.shards)) == made.all
    with (cache.root / "shards" / made.shards[3].digest[:2] / made.shards[3].digest).open("r+b") as file:
        file.seek(-30, os.SEEK_END)  # in the index; this process has hashed the shard already
        file.write(b"damage")
    assert read_all(ShardFeed(store, cache, made.manifest.shards)) == made.all
    assert store.count() == {"stream": 9}


def test_a_manifest_that_counts_other_samples(store, cache: ShardCache, made) -> None:
    shard = made.shards[0]
    lying = ShardInfo(shard.digest, shard.size, shard.num_samples + 1, shard.index_size)
    with pytest.raises(PackFormatError, match="has 10 samples, its manifest says 11"):
        open_shard(store, cache, lying)
    assert own(cache.root) == []


def _child(readers: Iterator, before: list[Sample], queue: multiprocessing.Queue) -> None:
    queue.put(before + [sample for reader in readers for sample in reader.samples()])


@pytest.mark.parametrize("moment", range(5))
def test_an_iterator_goes_on_in_a_forked_child_and_in_its_parent(tmp_path: Path, moment: int) -> None:
    store, cache = FolderStore(tmp_path / "store"), ShardCache(tmp_path / "cache")
    samples = [made_samples(number, 10) for number in range(8)]
    manifest = manifest_of([put_shard(store, one) for one in samples])
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    readers = iter(ShardFeed(store, cache, manifest.shards))
    first = list(next(readers).samples())
    second = next(readers)
    time.sleep(0.001 * moment)  # the threads are at any point of their work
    child = context.Process(target=_child, args=(readers, first, queue))
    child.start()
    assert queue.get() == samples[0] + [sample for one in samples[2:] for sample in one]
    child.join()
    assert child.exitcode == 0
    assert list(second.samples()) == samples[1]
    assert cache.status().pinned >= 1
    assert [sample for reader in readers for sample in reader.samples()] == [it for one in samples[2:] for it in one]


def test_case_c83_few_files_may_be_open(store, tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from dload.cache import ShardCache
from dload.run import ShardFeed, fetch_shards
from dload.store.memory import MemoryStore
from dload.testing.shards import made_samples, manifest_of, put_shard
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
store = MemoryStore()
manifest = manifest_of([put_shard(store, made_samples(number, 2)) for number in range(100)])
feed = ShardFeed(store, ShardCache(Path(sys.argv[1])), manifest.shards, prefetch=64)
print(sum(len(list(reader.samples())) for reader in feed))
fetch_shards(store, ShardCache(Path(sys.argv[2])), manifest, 64, None)
print(len(ShardCache(Path(sys.argv[2])).entries()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "streamed", tmp_path / "fetched"],
        cwd=Path(dload.__file__).parent.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (["200", "100"], "")
