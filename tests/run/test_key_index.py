from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.cache import ShardCache
from dload.manifest import ShardList
from dload.run import key_index as build
from dload.run.key_index import KeyIndex, key_hash
from dload.testing.shards import made_samples, manifest_of, put_shard


def test_every_key_is_found_at_its_number(store, cache: ShardCache, made) -> None:
    index = build(store, cache, made.manifest)
    for ordinal, (key, _) in enumerate(made.all):
        assert index.ordinals(key) == [ordinal]
    assert index.ordinals("another") == []
    assert index.num_samples == 80
    assert store.count() == {"get_range": 8}


def test_it_is_kept_and_taken_from_the_cache(store, cache: ShardCache, made) -> None:
    build(store, cache, made.manifest)
    assert cache.keys_path(made.manifest.version).exists()
    store.calls.clear()
    index = build(store, cache, made.manifest)
    assert index.ordinals(made.all[33][0]) == [33]
    assert store.calls == []
    assert cache.status().key_index_bytes == 32 + 8 * 40 + 80 * 16


def test_a_new_version_reads_only_the_new_shards(store, cache: ShardCache, made) -> None:
    build(store, cache, made.manifest)
    new = made_samples(99, 7)
    store.calls.clear()
    manifest = manifest_of([made.shards[5], put_shard(store, new), *made.shards[:3]])
    index = build(store, cache, manifest)
    assert store.count()["get_range"] == 1
    expected = made.samples[5] + new + made.all[:30]
    assert [index.ordinals(key) for key, _ in expected] == [[ordinal] for ordinal in range(47)]
    assert index.ordinals(made.all[40][0]) == []


def test_the_same_shard_twice_gives_both_numbers(store, cache: ShardCache, made) -> None:
    index = build(store, cache, manifest_of([made.shards[0], made.shards[0]]))
    assert index.ordinals(made.all[4][0]) == [4, 14]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "of other shards"])
def test_a_damaged_file_is_made_anew(store, cache: ShardCache, made, damage: str) -> None:
    build(store, cache, made.manifest)
    path = cache.keys_path(made.manifest.version)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
    elif damage == "of other shards":
        other = manifest_of(made.shards[:2])
        build(store, cache, other)
        data = bytearray(cache.keys_path(other.version).read_bytes())
    path.write_bytes(data[: {"cut": -1, "empty": 0}.get(damage, len(data))])
    assert build(store, cache, made.manifest).ordinals(made.all[70][0]) == [70]
    assert KeyIndex(path.read_bytes()).sound()


def test_without_numpy_it_is_the_same(store, tmp_path: Path, made, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ShardCache(tmp_path / "first"), ShardCache(tmp_path / "second")
    build(store, first, made.manifest)
    monkeypatch.setitem(sys.modules, "numpy", None)
    build(store, second, made.manifest)
    version = made.manifest.version
    assert first.keys_path(version).read_bytes() == second.keys_path(version).read_bytes()


def test_no_samples_no_keys(store, cache: ShardCache, made) -> None:
    index = build(store, cache, manifest_of([]))
    assert index.ordinals("x") == [] and index.is_of(ShardList.of([]))


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_any_bytes_are_refused_or_work(data: bytes) -> None:
    for whole in (data, b"DLOADKY1" + data):
        try:
            index = KeyIndex(whole)
        except ValueError:
            continue
        index.sound()
        index.ordinals("key")


def test_the_hash_is_the_one_that_the_format_names() -> None:
    assert key_hash("a") == int.from_bytes(bytes.fromhex("40f89e395b66422f"), "little")  # printf a | b2sum -l 64
