"""A bucket that dload-ml 0.3 left opens as it stands, and takes new commits."""

from __future__ import annotations

import pytest

from dload.api import Repository
from dload.errors import ConfigError, DuplicateKeyError
from dload.repo import keys
from dload.repo.publish import missing_shards
from tests.repo.format1_bucket import OldBucket, OldVersion, write_bucket, write_version

EXTRA = ("k9", {"wav": b"new", "json": b"{}"})


@pytest.fixture
def old(repo: Repository) -> OldBucket:
    return write_bucket(repo.store.put)


def test_it_opens_lists_and_streams(repo: Repository, old: OldBucket) -> None:
    assert repo.list_datasets() == ["speech"]
    [info] = repo.overview()
    assert (info.version, info.num_samples, info.num_shards, info.time) == (old.newer.version, 5, 2, old.newer.created)
    assert [m.version for m in repo.versions("speech")] == [old.newer.version, old.older.version]
    manifest = repo.manifest("speech", old.older.version[:8])
    assert (manifest.created, manifest.meta, manifest.recipe) == (old.older.created, old.older.meta, old.older.recipe)
    dataset = repo.dataset("speech")
    assert list(dataset.samples()) == old.newer.samples
    assert dataset[3] == old.newer.samples[3]
    assert dataset["k4"] == old.newer.samples[4][1]
    assert dataset[1:5:2] == old.newer.samples[1:5:2]
    assert repo.log("speech") == []
    diff = repo.diff("speech", old.older.version, "latest")
    assert (diff.added, diff.removed, diff.changed) == (["k3", "k4"], [], [])


def test_a_commit_on_top_keeps_the_old_versions_and_says_so_once(repo: Repository, old: OldBucket) -> None:
    told: list[str] = []
    data = [*old.newer.samples[1:], EXTRA]
    new = repo.commit("speech", data, progress=told.append)
    assert new.format == 2
    assert sum("programs older than dload 0.4" in line for line in told) == 1
    told.clear()
    again = repo.commit("speech", [*data, ("z", {"x": b""})], progress=told.append)
    assert not any("programs older" in line for line in told)
    assert [(r.seq, r.version, r.author is None) for r in repo.log("speech")] == [
        (2, again.version, False), (1, new.version, False), (0, old.newer.version, True),
    ]  # fmt: skip
    assert repo.log("speech")[2].time == old.newer.created
    assert repo.log("speech")[1].parent == old.newer.version
    versions = [again.version, new.version, old.newer.version, old.older.version]
    assert [m.version for m in repo.versions("speech")] == versions
    assert list(repo.dataset("speech", old.older.version).samples()) == old.older.samples
    assert list(repo.dataset("speech", new.version).samples()) == data
    diff = repo.diff("speech", old.newer.version, new.version)
    assert (diff.added, diff.removed, diff.changed) == (["k9"], ["k0"], [])


def test_an_append_on_top_keeps_the_old_shards(repo: Repository, old: OldBucket) -> None:
    new = repo.append("speech", [EXTRA])
    assert new.format == 2
    assert list(new.shards.digests)[:2] == old.newer.shards
    assert new.fields["wav"].count == 6
    assert new.fields["wav"].bytes == sum(len(fields["wav"]) for _, fields in [*old.newer.samples, EXTRA])
    assert list(repo.dataset("speech").samples()) == [*old.newer.samples, EXTRA]
    assert repo.dataset("speech")["k2"] == old.newer.samples[2][1]
    with pytest.raises(DuplicateKeyError, match="k2"):
        repo.append("speech", [old.newer.samples[2]])


def test_gc_keeps_what_no_record_names(repo: Repository, old: OldBucket) -> None:
    repo.commit("speech", [EXTRA])
    assert tuple(repo.gc(grace="0s")) == (0, 0)
    for manifest in repo.versions("speech"):
        assert not missing_shards(repo.store, manifest.shards)
    repo.delete_dataset("speech", old.older.version)
    report = repo.gc(grace="0s")
    assert [item.key for item in report.manifests] == [f"datasets/speech/manifests/{old.older.version}.json"]
    assert report.deleted_shards == 0, "the newer version has its shard"


def test_tags_reverts_pins_and_copies(repo: Repository, memory_repo: Repository, old: OldBucket) -> None:
    repo.tag("speech", "v1", old.older.version)
    assert list(repo.dataset("speech", "v1").samples()) == old.older.samples
    assert repo.revert("speech", old.older.version).seq == 1
    assert repo.resolve("speech") == old.older.version
    assert repo.pin("speech", old.newer.version) == old.newer.version
    assert list(repo.dataset("speech").samples()) == old.newer.samples
    memory_repo.cache.clear()
    assert repo.copy("speech", to=memory_repo, version="v1").version == old.older.version
    assert list(memory_repo.dataset("speech", "latest").samples()) == old.older.samples


ODD_NAMES = ["a b", "ü", "-x", "a%b", "x" * 120]  # dload-ml 0.3 took them


@pytest.fixture(params=ODD_NAMES, ids=lambda name: name[:5])
def odd(request: pytest.FixtureRequest, repo: Repository) -> OldVersion:
    samples = [(f"k{i}", {"x": bytes([i]) * 9}) for i in range(4)]
    version = write_version(repo.store.put, request.param, [samples], "2026-01-29T13:18:11Z")
    repo.store.put(keys.latest_key(request.param), version.version.encode())
    return version


def test_names_that_are_no_longer_allowed_are_read_and_copied(
    repo: Repository, memory_repo: Repository, odd: OldVersion
) -> None:
    [name] = repo.list_datasets()
    assert name in ODD_NAMES
    for found in (repo, memory_repo):
        if found is memory_repo:
            memory_repo.cache.clear()
            assert repo.copy(name, to=memory_repo).version == odd.version
        assert list(found.dataset(name).samples()) == odd.samples
        assert found.dataset(name)["k2"] == odd.samples[2][1]
        assert [manifest.version for manifest in found.versions(name)] == [odd.version]
        assert found.verify(read_data=True).sound and name in {m.name for m in found.verify().manifests.values()}
        assert [key for key in (info.key for info in found.store.list("")) if not keys.is_ours(key)] == []
    assert repo.pin(name) == odd.version == repo.resolve(name)
    repo.unpin(name)
    repo.delete_dataset(name)
    assert repo.undelete(name) == odd.version
    repo.delete_dataset(name)
    assert [item.key for item in repo.gc(grace=0).manifests] == [keys.manifest_key(name, odd.version)]
    assert not [*repo.store.list(keys.SHARDS)]


def test_writing_under_such_a_name_says_what_to_do(repo: Repository, odd: OldVersion) -> None:
    [name] = repo.list_datasets()
    for write in (repo.commit, repo.append):
        with pytest.raises(ConfigError) as caught:
            write(name, [EXTRA])
        assert f"dload pull {name!r} --to DIR, then dload commit NEW --from DIR" in str(caught.value)
    with pytest.raises(ConfigError, match="choose one of 1 to 100 letters"):
        repo.commit(f"{name} new", [EXTRA])
    assert list(repo.dataset(name).samples()) == odd.samples


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "a/b", "../x", "a\0b", 3])
def test_names_that_no_store_can_have_are_refused(memory_repo: Repository, name: str) -> None:
    for read in (memory_repo.dataset, memory_repo.log, memory_repo.tags, memory_repo.pin, memory_repo.undelete):
        with pytest.raises(ConfigError, match="invalid data set name"):
            read(name)
