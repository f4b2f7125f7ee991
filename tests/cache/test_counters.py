"""What a cache counts, and over which processes."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dload.cache import Counts, ShardCache
from dload.errors import IntegrityError, NotFoundError
from dload.testing.sources import LoggedSource

SIZE = 20_000


def read(cache: ShardCache, folder: Path, digests: list[str]) -> None:
    source = LoggedSource(folder)
    for digest in digests:
        cache.ensure(digest, SIZE, source.opener(digest)).release()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_parent_reads_what_its_workers_counted(root: Path, source: LoggedSource, method: str) -> None:
    digests = [source.make(number, SIZE) for number in range(6)]
    cache = ShardCache(root)
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=read, args=(cache, source.folder, digests)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    counts = cache.counts()
    assert (counts.hits, counts.misses, counts.bytes_down) == (6, 6, 6 * SIZE)
    assert (counts.evictions, counts.refetches) == (0, 0)


def test_each_thing_is_counted(root: Path, source: LoggedSource) -> None:
    first, second = source.make(1, SIZE), source.make(2, SIZE)
    cache = ShardCache(root, SIZE + 100)
    assert cache.counts() == Counts()
    read(cache, source.folder, [first, first])
    assert cache.counts() == Counts(hits=1, misses=1, bytes_down=SIZE)
    read(cache, source.folder, [second])
    assert cache.counts() == Counts(hits=1, misses=2, bytes_down=2 * SIZE, evictions=1)
    read(cache, source.folder, [first])
    assert cache.counts() == Counts(hits=1, misses=3, bytes_down=3 * SIZE, evictions=2, refetches=1)
    with (root / "shards" / first[:2] / first).open("r+b") as file:
        file.truncate(10)
    read(cache, source.folder, [first])
    assert cache.counts() == Counts(hits=1, misses=4, bytes_down=4 * SIZE, evictions=2, refetches=2)


def test_bad_bodies_are_refetches_and_what_came_of_a_broken_one_counts(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)
    with pytest.raises(IntegrityError):
        cache.ensure(digest, SIZE, lambda _: iter([bytes(SIZE)]))
    assert cache.counts() == Counts(misses=1, bytes_down=3 * SIZE, refetches=3)

    def broken(start: int) -> Iterator[bytes]:
        yield source.body(digest)[:1000]
        raise NotFoundError("gone")

    with pytest.raises(NotFoundError):
        cache.ensure(digest, SIZE, broken)
    read(cache, source.folder, [digest])
    assert cache.counts().bytes_down == 3 * SIZE + SIZE


def test_threads_lose_no_count(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)
    threads = [threading.Thread(target=read, args=(cache, source.folder, [digest] * 50)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = cache.counts()
    assert (counts.hits, counts.misses) == (399, 1)
    assert 0 <= counts.waits <= 7


def test_who_waits_for_another_download_counts_it(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)
    started, go_on = threading.Event(), threading.Event()

    def slow(start: int) -> Iterator[bytes]:
        started.set()
        go_on.wait()
        yield source.body(digest)[start:]

    thread = threading.Thread(target=lambda: cache.ensure(digest, SIZE, slow).release())
    thread.start()
    started.wait()
    waiter = threading.Thread(target=read, args=(cache, source.folder, [digest]))
    waiter.start()
    waiter.join(0.2)
    go_on.set()
    thread.join()
    waiter.join()
    assert cache.counts() == Counts(hits=1, misses=1, bytes_down=SIZE, waits=1)


def test_a_copy_that_is_pickled_for_something_else_counts_for_itself(root: Path, source: LoggedSource) -> None:
    cache = ShardCache(root)
    twin = pickle.loads(pickle.dumps(cache))
    read(twin, source.folder, [source.make(1, SIZE)])
    assert twin.counts().misses == 1 and cache.counts() == Counts()


def test_the_counts_cost_one_descriptor_and_none_when_they_are_gone(root: Path, open_files: Callable[[], int]) -> None:
    before = open_files()
    caches = [ShardCache(root) for _ in range(5)]
    assert open_files() == before + 5
    del caches
    assert open_files() == before


def test_a_rate_holds_over_all_processes_together(root: Path, source: LoggedSource) -> None:
    """Two processes, ten shards of 20 KB each, 400 KB a second in all: at least what that takes, less one chunk."""
    digests = [source.make(number, SIZE) for number in range(20)]
    cache = ShardCache(root, rate=400_000)
    begin = time.monotonic()
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=read, args=(cache, source.folder, part)) for part in (digests[:10], digests[10:])]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert time.monotonic() - begin >= 19 * SIZE / 400_000
    assert cache.counts().misses == 20


def test_jobs_limit_what_runs_side_by_side(root: Path) -> None:
    assert ShardCache(root).downloads(8) == 8
    assert ShardCache(root, jobs=2).downloads(8) == 2
    assert ShardCache(root, jobs=2).downloads(1) == 1
