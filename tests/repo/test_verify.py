"""A damaged store is found damaged, mended where good bytes are, and told sample by sample where there are none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dload.api import Repository
from dload.cache import ShardCache
from dload.errors import NotFoundError
from dload.pack import Sample
from dload.repo import keys
from dload.repo.verify import Fault
from dload.store.base import Store
from dload.store.memory import MemoryStore
from dload.testing import invariants
from dload.testing.shards import put_shard


def samples(count: int, seed: int = 0) -> list[Sample]:
    rng = random.Random(seed)
    return [(f"k{i:05d}", {"x": rng.randbytes(50)}) for i in range(count)]


@pytest.fixture
def full(repo: Repository) -> Repository:
    """speech with two versions and a tag, birds with one; the cache is empty."""
    one = repo.commit("speech", samples(200), target_shard_size=4_000).version
    repo.commit("speech", samples(210), target_shard_size=4_000)
    repo.commit("birds", samples(80, seed=1), target_shard_size=4_000)
    repo.tag("speech", "v1", one)
    repo.cache.clear()
    return repo


def flip(store: Store, key: str, at: int = 5) -> None:
    data = bytearray(store.get(key).data)
    data[at] ^= 1
    store.put(key, bytes(data))


def only(repo: Repository, *, kind: str, **options: object) -> Fault:
    """The one fault that is found."""
    report = repo.verify(**options)  # type: ignore[arg-type]
    [fault] = report.faults
    assert fault.kind == kind
    assert report.sound == fault.repaired
    return fault


def shard_of(repo: Repository, name: str, number: int = 0) -> str:
    return keys.shard_key(repo.manifest(name, "latest").shards[number].digest)


def test_a_sound_store_is_sound(full: Repository) -> None:
    report = full.verify(read_data=True)
    assert report.sound
    assert report.faults == []
    assert len(report.manifests) == 3
    assert report.shards == report.shards_read == len(list(full.store.list("shards/")))
    assert report.bytes_read == sum(info.size for info in full.store.list("shards/"))
    assert full.verify("speech", read_data=True).shards < report.shards
    assert len(full.verify("speech", "v1").manifests) == 1


def test_only_what_is_asked_for_is_looked_at(full: Repository) -> None:
    full.pin("speech", "v1")
    flip(full.store, shard_of(full, "birds"))
    full.store.delete(shard_of(full, "birds", 1))
    assert full.verify("speech", read_data=True).sound
    assert full.verify(pinned=True, read_data=True).sound
    assert not full.verify("birds").sound
    assert not full.verify().sound
    with pytest.raises(NotFoundError):
        full.verify("nothing")


def test_what_a_listing_shows_is_found_without_reading(full: Repository) -> None:
    key = shard_of(full, "speech")
    size = full.store.head(key)
    assert size is not None
    full.store.put(key, b"short")
    fault = only(full, kind="shard", name="speech")
    assert fault.what == f"it has 5 bytes, expected {size.size}"
    assert fault.versions == dict.fromkeys([m.version for m in full.versions("speech")], 0)
    assert (fault.lost, fault.lost_samples) == ([], full.manifest("speech").shards[0].num_samples)
    full.store.delete(key)
    assert only(full, kind="shard", name="speech").what == "it is missing"


def test_a_flipped_bit_loses_the_samples_it_is_in_and_no_others(full: Repository) -> None:
    key = shard_of(full, "speech", 1)
    flip(full.store, key, at=60)  # in the second sample
    assert full.verify("speech").sound, "a listing doesn't show it"
    fault = only(full, kind="shard", name="speech", read_data=True)
    first = full.manifest("speech").shards[0].num_samples
    assert "is damaged: expected" in fault.what
    assert fault.lost == [f"k{first + 1:05d}"]
    assert fault.lost_samples == 1


def test_a_share_of_the_shards_is_read(full: Repository) -> None:
    report = full.verify(read_data=True, subset=0.3)
    assert report.shards_read == round(0.3 * report.shards)
    assert full.verify(read_data=True, subset=0.0001).shards_read == 1


@pytest.mark.parametrize("source", ["the cache", "another store"])
def test_repair_from_what_has_it(full: Repository, source: str, tmp_path: Path) -> None:
    other = Repository(MemoryStore(), ShardCache(tmp_path / "other"))
    if source == "the cache":
        full.dataset("speech").fetch()
    else:
        for version in ("v1", "latest"):
            full.copy("speech", to=other, version=version)
    before = invariants.content(full.store, "speech", full.resolve("speech"))
    latest = full.resolve("speech")
    full.store.delete(shard_of(full, "speech", 0))
    flip(full.store, shard_of(full, "speech", 1))
    full.store.put(shard_of(full, "speech", 2), b"short")
    full.store.delete(keys.manifest_key("speech", latest))
    report = full.verify("speech", read_data=True, repair=True, source=other)
    assert sorted(fault.kind for fault in report.faults) == ["manifest", "shard", "shard", "shard"]
    assert report.sound
    assert full.verify("speech", read_data=True).faults == []
    assert invariants.content(full.store, "speech", latest) == before


def test_bad_bytes_are_never_put_in_the_place_of_bad_bytes(full: Repository, tmp_path: Path) -> None:
    other = Repository(MemoryStore(), ShardCache(tmp_path / "other"))
    full.copy("birds", to=other)
    flip(other.store, shard_of(full, "birds"))
    full.store.delete(shard_of(full, "birds"))
    full.store.put(keys.manifest_key("speech", full.resolve("speech", "v1")), b"{}")
    full.cache.clear()
    report = full.verify(repair=True, source=other)
    assert [(fault.kind, fault.repaired) for fault in report.faults] == [("manifest", False), ("shard", False)]
    assert full.store.head(shard_of(full, "birds")) is None


def test_a_lost_ref_comes_back_from_the_log(full: Repository) -> None:
    latest = full.resolve("speech")
    full.store.delete(keys.latest_key("speech"))
    assert only(full, kind="ref").what == "there is no latest version"
    full.store.put(keys.latest_key("speech"), b"garbage")
    assert not full.verify("speech").sound
    assert full.verify("speech", repair=True).sound
    assert full.resolve("speech") == latest
    assert invariants.problems(full.store) == []


def test_gaps_of_the_log_and_bad_refs_are_found(full: Repository) -> None:
    full.store.delete(keys.log_key("speech", 1))
    assert only(full, kind="log").key == keys.log_key("speech", 1)
    full.store.put(keys.log_key("speech", 1), b"{}")
    assert "holds no record" in only(full, kind="log").what
    full.store.put(keys.tag_key("birds", "v9"), b"?")
    assert {fault.kind for fault in full.verify().faults} == {"log", "ref"}


def test_a_version_that_the_log_names_and_nobody_removed_must_be_there(full: Repository) -> None:
    [one] = [m.version for m in full.versions("speech")][1:]
    full.untag("speech", "v1")
    full.store.delete(keys.manifest_key("speech", one))
    assert only(full, kind="manifest").versions == {one: 0}
    full.commit("birds", samples(5))
    full.delete_dataset("birds")
    full.gc(grace=0)
    full.commit("birds", samples(6))
    assert full.verify("birds").sound, "what was removed as a whole may be gone"


def test_a_removed_version_and_a_first_commit_cut_off_are_no_faults(full: Repository) -> None:
    full.untag("speech", "v1")
    one = full.versions("speech")[1].version
    full.delete_dataset("speech", one)
    full.gc(grace=0)
    full.store.put(keys.manifest_key("begun", one), b"x")
    assert full.verify(read_data=True).sound


def test_equal_keys_are_found(memory_repo: Repository) -> None:
    """No dload writes such a version; a program of its own may."""
    from dload.manifest import Packing, ShardList, new_manifest
    from dload.repo.refs import new_record, ref_bytes

    store = memory_repo.store
    shards = ShardList.of([put_shard(store, samples(3)), put_shard(store, [("z", {"x": b"1"}), *samples(1, seed=3)])])
    manifest, data = new_manifest("twice", shards, {}, Packing(), {}, None)
    store.put(keys.manifest_key("twice", manifest.version), data)
    record = new_record(manifest, seq=1, parent=None, op="commit", message=None)
    store.put(keys.latest_key("twice"), ref_bytes(record))
    assert memory_repo.verify().sound
    assert only(memory_repo, kind="keys", read_data=True).what == "samples 0 and 4 have the same key 'k00000'"


def test_a_shard_that_contradicts_its_manifest_is_found(memory_repo: Repository) -> None:
    from dataclasses import replace

    from dload.manifest import Packing, ShardList, new_manifest
    from dload.repo.refs import new_record, ref_bytes

    store = memory_repo.store
    shard = replace(put_shard(store, samples(3)), num_samples=4)
    manifest, data = new_manifest("wrong", ShardList.of([shard]), {}, Packing(), {}, None)
    store.put(keys.manifest_key("wrong", manifest.version), data)
    record = new_record(manifest, seq=1, parent=None, op="commit", message=None)
    store.put(keys.latest_key("wrong"), ref_bytes(record))
    assert only(memory_repo, kind="shard", read_data=True).what == "it has 3 samples, the manifest says 4"


def test_verify_writes_nothing(full: Repository) -> None:
    flip(full.store, shard_of(full, "speech", 1))
    before = {(info.key, info.etag) for info in full.store.list("")}
    full.verify(read_data=True)
    assert {(info.key, info.etag) for info in full.store.list("")} == before
