"""The indexes that a process keeps."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from dload.manifest import ShardInfo
from dload.pack import ShardIndex, ShardReader
from dload.repo.keys import shard_key
from dload.run.indexes import Indexes, indexes
from dload.store.base import Store
from dload.store.local import FolderStore
from dload.store.memory import MemoryStore
from dload.testing.shards import made_samples, put_shard


def shards(store: Store, count: int, samples: int) -> list[tuple[ShardInfo, ShardIndex]]:
    found = []
    for number in range(count):
        info = put_shard(store, made_samples(number, samples, size=10))
        found.append((info, ShardReader(store.get(shard_key(info.digest)).data).index))
    return found


def test_those_that_were_used_last_are_kept_up_to_so_many_samples() -> None:
    store, kept = MemoryStore(), Indexes(most=30)
    made = shards(store, 5, 10)
    for info, index in made[:3]:
        kept.keep(store, info, index)
        kept.keep(store, info, index)
    assert kept.get(store, made[0][0]) is made[0][1]
    kept.keep(store, *made[3])
    assert [kept.get(store, info) is index for info, index in made] == [True, False, True, True, False]
    large = shards(store, 1, 100)[0]
    kept.keep(store, *large)  # the last is kept however large it is
    assert kept.get(store, large[0]) is large[1] and len(kept) == 1


def test_one_content_in_two_stores_is_two(tmp_path: Path) -> None:
    kept, store, other = Indexes(), FolderStore(tmp_path / "one"), FolderStore(tmp_path / "two")
    ((info, index),) = shards(store, 1, 3)
    kept.keep(store, info, index)
    assert kept.get(other, info) is None


def test_threads_share_it() -> None:
    store, kept = MemoryStore(), Indexes(most=35)
    made = shards(store, 8, 10)

    def use(seed: int) -> None:
        for info, index in Random(seed).choices(made, k=300):
            found = kept.get(store, info)
            assert found is None or found is index
            kept.keep(store, info, index)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    assert len(kept) == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking while threads run
def test_a_forked_child_finds_its_lock_free() -> None:
    store = MemoryStore()
    ((info, index),) = shards(store, 1, 3)
    locked, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with indexes._lock:
            locked.set()
            forked.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait()
    child = os.fork()
    if not child:
        indexes.keep(store, info, index)
        os._exit(0 if indexes.get(store, info) is index else 1)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
