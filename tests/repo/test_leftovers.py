"""What was cut off is found, goes with the next gc, and nothing of others ever does."""

from __future__ import annotations

import random
import time
from pathlib import Path

import boto3
import pytest

from dload.api import Repository
from dload.cache import ShardCache
from dload.repo import gc as gc_room
from dload.repo import keys
from dload.repo.gc import drop_unfinished
from dload.repo.leases import Lease
from dload.repo.leftovers import leftovers
from dload.store import open_store
from dload.store.base import Store
from dload.store.memory import MemoryStore
from dload.testing.s3_server import S3Server

DAY = 86_400.0
FOREIGN = ["shards/README", "datasets/speech/notes.txt", "leases/readme", "gc/notes", "elsewhere/x", "top.txt"]


class Clock:
    """The store's clock, set by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def filled(store: Store, folder: Path) -> Repository:
    repo = Repository(store, ShardCache(folder / "cache"))
    rng = random.Random(0)
    repo.commit("speech", [(f"k{i}", {"x": rng.randbytes(50)}) for i in range(100)], target_shard_size=2000)
    return repo


def test_a_tidy_store_has_none(store: Store, tmp_path: Path) -> None:
    filled(store, tmp_path)
    found = leftovers(store, deep=True)
    assert (found.writers, found.dead_leases, found.gc, found.uploads) == (0, 0, None, 0)
    assert (found.foreign, found.foreign_count, found.garbage) == ([], 0, (0, 0))


def test_what_others_put_there_is_named_and_stays(store: Store, tmp_path: Path) -> None:
    repo = filled(store, tmp_path)
    for key in FOREIGN:
        store.put(key, b"mine")
    assert leftovers(store).foreign == ["elsewhere/"]
    assert leftovers(store, deep=True).foreign == sorted(FOREIGN)
    repo.delete_dataset("speech")
    repo.gc(grace=0)
    assert not [info for info in store.list("shards/") if keys.is_ours(info.key)]
    for key in FOREIGN:
        assert store.get(key).data == b"mine"


def test_writers_and_gcs_at_work_or_dead(tmp_path: Path) -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    repo = filled(store, tmp_path)
    Lease(store, "speech", None).cover(["ab" * 32])
    gc_room._Lock(store).__enter__()
    store.put(keys.shard_key("ab" * 32), b"left over")
    found = leftovers(store, deep=True)
    assert (found.writers, found.dead_leases, found.gc, found.garbage) == (1, 0, "at work", (1, 9))
    clock.now += 2 * 3600
    found = leftovers(store)
    assert (found.writers, found.dead_leases, found.gc, found.garbage) == (0, 1, "cut off", None)
    clock.now += 8 * DAY
    repo.gc()
    found = leftovers(store, deep=True)
    assert (found.writers, found.dead_leases, found.gc, found.garbage) == (0, 0, None, (0, 0))


def test_uploads_that_never_ended_go_and_those_of_others_stay(s3_bucket: str, s3_server: S3Server) -> None:
    client = boto3.Session().client("s3", endpoint_url=s3_server.endpoint_url)
    ours, theirs = keys.shard_key("ab" * 32), "videos/large.mp4"
    for key in (ours, theirs):
        client.create_multipart_upload(Bucket=s3_bucket, Key=key)
    store = open_store(f"s3://{s3_bucket}", endpoint_url=s3_server.endpoint_url)
    assert leftovers(store).uploads == 0, "younger than a day: they may be at work"
    assert drop_unfinished(store, -60, dry_run=True) == 1
    assert drop_unfinished(store, -60) == 1
    left = client.list_multipart_uploads(Bucket=s3_bucket)["Uploads"]
    assert [upload["Key"] for upload in left] == [theirs]


def test_on_a_real_server_what_was_cut_off_is_found_and_goes_with_the_next_gc(
    s3_bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server lets its clock be set: so the times that count as long ago are now."""
    store = open_store(f"s3://{s3_bucket}/team", endpoint_url=s3_server.endpoint_url)
    repo = filled(store, tmp_path)
    living = {info.key for info in store.list("")}
    rng = random.Random(1)
    other = repo.commit("other", [(f"o{i}", {"x": rng.randbytes(50)}) for i in range(60)], target_shard_size=2000)
    repo.delete_dataset("other")
    records = {info.key for info in store.list("datasets/other/") if "/manifests/" not in info.key}
    # A gc was killed after it had deleted the manifest and a part of the shards.
    store.delete(keys.manifest_key("other", other.version))
    store.delete(keys.shard_key(other.shards[0].digest))
    store.put(keys.GC_LOCK, b'{"id": "dead", "author": "me", "ttl": -1000}')
    store.put(keys.GC_PLAN, b'{"ids": [], "ttl": -1000}')
    store.put("leases/%s/lease" % ("ab" * 16), b'{"dataset": "other", "parent": null, "ttl": -1000}')
    client = boto3.Session().client("s3", endpoint_url=s3_server.endpoint_url)
    ours, theirs = f"team/{keys.shard_key('ab' * 32)}", "team/videos/large.mp4"
    for key in (ours, theirs):
        client.create_multipart_upload(Bucket=s3_bucket, Key=key)
    for key in FOREIGN:
        store.put(key, b"mine")
    begun = store.clock()
    while store.clock() <= begun:
        time.sleep(0.05)
    monkeypatch.setattr("dload.repo.leftovers.UNFINISHED", 0.0)
    monkeypatch.setattr("dload.repo.gc.UNFINISHED", 0.0)
    monkeypatch.setattr("dload.repo.leftovers.TTL", -1000.0)
    found = leftovers(store, deep=True)
    assert (found.writers, found.dead_leases, found.gc, found.uploads) == (0, 1, "cut off", 1)
    assert found.garbage is not None and found.garbage[0] == len(other.shards) - 1
    assert (found.foreign, found.foreign_count) == (sorted(FOREIGN), len(FOREIGN))
    report = repo.gc(grace=0)
    assert (report.unfinished, report.deleted_shards) == (1, len(other.shards) - 1)
    found = leftovers(store, deep=True)
    assert (found.writers, found.dead_leases, found.gc, found.uploads, found.garbage) == (0, 0, None, 0, (0, 0))
    assert {info.key for info in store.list("")} == living | records | set(FOREIGN)
    left = client.list_multipart_uploads(Bucket=s3_bucket)["Uploads"]
    assert [upload["Key"] for upload in left] == [theirs]
    assert repo.verify("speech", read_data=True).sound
