from __future__ import annotations

import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from dload.cache import ShardCache
from dload.errors import CacheFullError, NotFoundError
from dload.repo.keys import shard_key
from dload.run import fetch_shards
from dload.store.memory import MemoryStore
from dload.testing.shards import made_samples, manifest_of, put_shard


def test_every_shard_is_brought_and_reported_in_order(store, cache: ShardCache, made) -> None:
    seen = []
    fetch_shards(store, cache, manifest_of([*made.shards, made.shards[0]]), 4, seen.append)
    assert [(one.number, one.total, one.shard, one.downloaded) for one in seen] == [
        (number, 8, shard, True) for number, shard in enumerate(made.shards, 1)
    ]
    fetch_shards(store, cache, made.manifest, 4, seen.append)
    assert [one.downloaded for one in seen[8:]] == [False] * 8
    assert store.count() == {"stream": 8}
    assert cache.status().pinned == 0


def test_what_can_not_be_resident_as_a_whole_is_refused_before_any_byte_moves(store, tmp_path: Path, made) -> None:
    needed = sum(shard.size for shard in made.shards)
    cache = ShardCache(tmp_path / "cache", needed + 1000)
    cache.write_manifest(made.manifest.version, bytes(2000))
    with pytest.raises(CacheFullError, match=str(needed)) as caught:
        fetch_shards(store, cache, made.manifest, 4, None)
    assert store.calls == []
    enough = ShardCache(cache.root, needed + 1000 + needed - caught.value.details["room"])
    fetch_shards(store, enough, made.manifest, 4, None)
    assert {name for name, _, _ in enough.entries()} == set(made.manifest.shards.digests)


def test_no_more_at_a_time_than_the_cache_allows(made, tmp_path: Path) -> None:
    class Watched(MemoryStore):
        now, most = 0, 0

        def stream(self, key: str, start: int = 0) -> Generator[bytes, None, None]:
            with guard:
                Watched.now += 1
                Watched.most = max(Watched.most, Watched.now)
            time.sleep(0.005)
            yield from super().stream(key, start)
            with guard:
                Watched.now -= 1

    guard, store = threading.Lock(), Watched()
    manifest = manifest_of([put_shard(store, made_samples(number, 5)) for number in range(12)])
    fetch_shards(store, ShardCache(tmp_path / "cache", jobs=2), manifest, 8, None)
    assert Watched.most == 2


def test_the_error_of_a_shard_comes_out(store, cache: ShardCache, made) -> None:
    store.delete(shard_key(made.shards[3].digest))
    with pytest.raises(NotFoundError):
        fetch_shards(store, cache, made.manifest, 4, None)


@pytest.mark.parametrize("window", [1, 2, 9])
def test_a_stream_of_samples(store, cache: ShardCache, made, streamed, window: int) -> None:
    stream = streamed(store, cache, made.manifest, window, ["label"])
    assert len(stream) == 80
    for _ in range(2):
        assert list(stream) == [(key, {"label": fields["label"]}) for key, fields in made.all]
    assert store.count() == {"stream": 8}
