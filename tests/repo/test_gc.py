"""Collecting garbage: nothing that is needed, or could be in a moment, is deleted."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dload.api import Repository
from dload.cache import ShardCache
from dload.errors import (
    AccessError,
    ConflictError,
    DloadError,
    NotFoundError,
    PackFormatError,
    PreconditionFailedError,
    RemovedError,
)
from dload.pack import Sample
from dload.repo import gc as gc_room
from dload.repo import keys
from dload.repo.commit import CommitOptions, _Writing
from dload.repo.history import History
from dload.repo.leases import Lease, planned
from dload.repo.leftovers import leftovers
from dload.repo.publish import missing_shards
from dload.store import open_store
from dload.store.faulty import Call, Fault, Faulty
from dload.store.local import FolderStore
from dload.store.memory import MemoryStore
from dload.testing.s3_server import S3Server

TARGET = 4_000
DAY = 86_400.0


class Clock:
    """The store's clock, set by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def samples(count: int, seed: int = 0) -> list[Sample]:
    rng = random.Random(seed)
    return [(f"k{i:05d}", {"x": rng.randbytes(50)}) for i in range(count)]


def commit(repo: Repository, data: list[Sample], name: str = "speech") -> str:
    return repo.commit(name, data, target_shard_size=TARGET).version


def intact(repo: Repository) -> None:
    """Every living version of every data set is whole."""
    for name in repo.list_datasets():
        for manifest in repo.versions(name):
            assert not missing_shards(repo.store, manifest.shards), (name, manifest.version)


def shards(repo: Repository) -> int:
    return len(list(repo.store.list("shards/")))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def aged(clock: Clock, tmp_path: Path) -> Repository:
    """A repository whose store's clock is `clock`."""
    return Repository(MemoryStore(clock=clock), ShardCache(tmp_path / "cache"), tmp_path / "dload.lock")


def test_superseded_versions_are_never_garbage(repo: Repository) -> None:
    for i in range(3):
        commit(repo, samples(100 + i, seed=i))
    before = shards(repo)
    report = repo.gc(grace="0s")
    assert tuple(report) == (0, 0)
    assert shards(repo) == before
    intact(repo)


def test_a_removed_version_goes_after_its_time_and_not_before(aged: Repository, clock: Clock) -> None:
    one, two = commit(aged, samples(100)), commit(aged, samples(100, seed=1))
    count = shards(aged)
    aged.delete_dataset("speech", one)
    clock.now += 6.9 * DAY
    report = aged.gc()
    assert tuple(report) == (0, 0)
    [waiting] = [item for item in report.kept if "/manifests/" in item.key]
    assert waiting.reason == "removed"
    assert 0 < waiting.ready_in <= 0.11 * DAY
    clock.now += 0.2 * DAY
    dry = aged.gc(dry_run=True)
    assert len(dry.manifests) == 1
    assert shards(aged) == count
    report = aged.gc()
    assert [item.key for item in report.manifests] == [keys.manifest_key("speech", one)]
    assert report.deleted_shards == len(dry.shards) > 0
    assert shards(aged) == count - report.deleted_shards
    assert report.freed_bytes == sum(item.size for item in dry.shards)
    with pytest.raises(NotFoundError, match=r"(0|no) removed"):
        aged.undelete("speech", two)
    with pytest.raises(NotFoundError, match="collected"):
        aged.undelete("speech", one)
    assert aged.resolve("speech") == two
    intact(aged)


def test_case_c20_a_shard_that_two_data_sets_share_stays(repo: Repository) -> None:
    commit(repo, samples(200), "one")
    two = repo.commit("two", [*samples(200), ("z", {"x": b"1"})], target_shard_size=TARGET)
    repo.delete_dataset("one")
    report = repo.gc(grace="0s")
    assert len(report.manifests) == 1
    assert report.deleted_shards <= 1
    repo.cache.clear()
    assert list(repo.dataset("two").samples()) == [*samples(200), ("z", {"x": b"1"})]
    assert not missing_shards(repo.store, two.shards)


@pytest.mark.parametrize("prefix", ["p", "p/", "p/deeper", "with space", "100%", "p%2Fq"])
def test_case_c21_odd_prefixes_lose_nothing_live(
    prefix: str, s3_bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    other = Repository(open_store(f"s3://{s3_bucket}", endpoint_url=s3_server.endpoint_url), ShardCache(tmp_path / "a"))
    commit(other, samples(20, seed=5), "outside")
    store = open_store(f"s3://{s3_bucket}/{prefix}", endpoint_url=s3_server.endpoint_url)
    repo = Repository(store, ShardCache(tmp_path / "b"))
    commit(repo, samples(100))
    commit(repo, samples(110, seed=1))
    assert tuple(repo.gc(grace="0s")) == (0, 0)
    assert tuple(other.gc(grace="0s")) == (0, 0)
    intact(repo)
    intact(other)


def test_case_c22_only_the_stores_clock_counts(aged: Repository, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: clock.now + 30 * DAY)  # this machine is a month ahead
    commit(aged, samples(100))

    def during() -> Iterator[Sample]:
        yield from samples(100, seed=2)
        report = aged.gc()
        assert tuple(report) == (0, 0)

    aged.commit("speech", during(), target_shard_size=TARGET)
    intact(aged)


def test_nothing_goes_while_a_commit_is_under_way_whatever_the_grace(memory_repo: Repository) -> None:
    def during() -> Iterator[Sample]:
        yield from samples(300)
        report = memory_repo.gc(grace=0)
        assert tuple(report) == (0, 0)
        assert any("is under way" in item.reason for item in report.kept)

    memory_repo.commit("speech", during(), target_shard_size=TARGET)
    intact(memory_repo)


def test_a_lease_that_ran_out_protects_no_more(aged: Repository, clock: Clock) -> None:
    Lease(aged.store, "speech", None)._done.set()  # its writer was killed
    aged.store.put(keys.shard_key("ab" * 32), b"left over")
    clock.now += 8 * DAY
    assert aged.gc().deleted_shards == 1


def test_what_was_never_published_goes_after_the_grace(aged: Repository, clock: Clock) -> None:
    version = commit(aged, samples(100))
    for info in list(aged.store.list("datasets/speech/refs/")) + list(aged.store.list("datasets/speech/log/")):
        aged.store.delete(info.key)
    assert aged.gc().deleted_shards == 0
    clock.now += 8 * DAY
    report = aged.gc()
    assert [item.key for item in report.manifests] == [keys.manifest_key("speech", version)]
    assert shards(aged) == 0


def test_foreign_objects_are_left_alone(aged: Repository, clock: Clock) -> None:
    commit(aged, samples(10))
    for key in ("shards/README", "shards/ab/notes.txt", "shards/00/" + "ab" * 32, "elsewhere/x"):
        aged.store.put(key, b"mine")
    clock.now += 30 * DAY
    assert tuple(aged.gc()) == (0, 0)
    assert aged.store.head("shards/00/" + "ab" * 32) is not None


def test_a_manifest_that_can_not_be_read_stops_everything(aged: Repository, clock: Clock) -> None:
    commit(aged, samples(10))
    aged.store.put(keys.shard_key("ab" * 32), b"garbage")
    aged.store.put(keys.manifest_key("speech", "cd" * 32), b"{}")
    clock.now += 30 * DAY
    with pytest.raises(DloadError, match="datasets/speech/manifests/cdcd"):
        aged.gc()
    assert aged.store.head(keys.shard_key("ab" * 32)) is not None
    assert aged.store.head(keys.GC_LOCK) is None


@pytest.mark.parametrize("key", ["leases/ab/lease", "leases/ab/ids-000000"])
def test_a_lease_that_can_not_be_read_stops_everything(aged: Repository, clock: Clock, key: str) -> None:
    aged.store.put(keys.shard_key("ab" * 32), b"garbage")
    clock.now += 30 * DAY
    aged.store.put("leases/ab/lease", json.dumps({"dataset": "a", "parent": None, "ttl": 3600}).encode())
    aged.store.put(key, b"?")
    with pytest.raises(PackFormatError, match=key):
        aged.gc()
    assert aged.store.head(keys.shard_key("ab" * 32)) is not None


def test_case_c23_killed_midway_then_the_same_data_again(aged: Repository, clock: Clock) -> None:
    data = samples(400)
    commit(aged, data, "other")
    one = commit(aged, data)
    commit(aged, samples(10, seed=4))
    aged.delete_dataset("other")
    aged.delete_dataset("speech", one)
    clock.now += 8 * DAY

    class Killed(BaseException):
        pass

    def plan(call: Call) -> None:
        if call.operation == "delete_many" and "shards/" in call.key:
            half = [info.key for info in aged.store.list("shards/")]
            aged.store.delete_many(half[::2])
            raise Killed

    with pytest.raises(Killed):
        Repository(Faulty(aged.store, plan), aged.cache).gc()
    assert aged.store.head(keys.GC_PLAN) is not None or aged.store.head(keys.GC_LOCK) is not None
    clock.now += 3 * 3600
    assert commit(aged, data) == one
    aged.cache.clear()
    assert list(aged.dataset("speech").samples()) == data
    with pytest.raises(RemovedError):
        aged.dataset("other")


def test_one_gc_at_a_time_and_a_dead_one_is_passed_over(aged: Repository, clock: Clock) -> None:
    with gc_room._Lock(aged.store):
        with pytest.raises(ConflictError, match=r"another gc of .* is running"):
            aged.gc()
        assert aged.gc(dry_run=True).dry_run
        clock.now += 3600 + 900 + 1
        aged.gc()


def test_a_commit_waits_while_gc_is_about_to_delete_what_it_needs(aged: Repository, clock: Clock) -> None:
    data = samples(100)
    commit(aged, data)
    aged.delete_dataset("speech")
    clock.now += 8 * DAY
    told: list[str] = []

    class During(Faulty):
        def delete_many(self, keys: object) -> None:
            names = list(keys)
            if any(name.startswith("shards/") for name in names):
                assert planned(aged.store)
                with pytest.raises(_Waits):
                    Repository(Waiting(aged.store), aged.cache).commit(
                        "again", data, target_shard_size=TARGET, progress=told.append
                    )
            super().delete_many(names)

    class _Waits(Exception):
        pass

    class Waiting(Faulty):
        """Shows that the committer waits: the second look at the plan is one too many here."""

        def get(self, key: str) -> object:
            if key == keys.GC_PLAN and any("waiting for a gc" in line for line in told):
                raise _Waits
            return super().get(key)

    Repository(During(aged.store), aged.cache).gc()
    assert any("waiting for a gc" in line for line in told)
    commit(aged, data, "again")
    intact(aged)


def test_case_c24_a_key_that_vanishes_is_done_and_a_denied_delete_is_told(
    s3_bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"s3://{s3_bucket}/p", endpoint_url=s3_server.endpoint_url)
    repo = Repository(store, ShardCache(tmp_path / "cache"))
    commit(repo, samples(100))
    store.delete_many([keys.shard_key("ab" * 32)])
    repo.delete_dataset("speech")
    for name, value in s3_server.environment("keeper").items():
        monkeypatch.setenv(name, value)
    denied = Repository(open_store(f"s3://{s3_bucket}/p", endpoint_url=s3_server.endpoint_url), repo.cache)
    with pytest.raises(AccessError, match=r"(?i)delete"):
        denied.gc(grace="0s")


def test_a_tag_that_goes_between_its_listing_and_its_reading_is_gone(aged: Repository) -> None:
    version = commit(aged, samples(100))
    other = commit(aged, samples(50, seed=1), "birds")

    def untagged(call: Call) -> None:
        if call.operation == "get" and call.key == keys.tag_key("speech", "b"):
            aged.untag("speech", "b")

    for look in ("gc", "verify", "tags"):
        for tag in ("a", "b"):
            aged.tag("speech", tag, version)
        repo = Repository(Faulty(aged.store, untagged), aged.cache)
        if look == "gc":
            assert tuple(repo.gc(grace="0s")) == (0, 0)
        elif look == "verify":
            assert repo.verify("speech").sound
        else:
            assert repo.tags("speech") == {"a": version}
        assert aged.tags("speech") == {"a": version}
    assert aged.dataset("birds").version == other
    intact(aged)


def test_a_tag_that_is_there_and_can_not_be_read_stops_everything(aged: Repository) -> None:
    version = commit(aged, samples(100))
    aged.tag("speech", "a", version)

    def absent(call: Call) -> DloadError | None:
        wanted = call.operation == "get" and call.key == keys.tag_key("speech", "a")
        return NotFoundError("there is no such object") if wanted else None

    repo = Repository(Faulty(aged.store, absent), aged.cache)
    for look in (lambda: repo.gc(grace="0s"), lambda: repo.tags("speech"), lambda: repo.verify("speech")):
        with pytest.raises(NotFoundError):
            look()


def test_case_c26_a_lock_that_pins_a_removed_version_says_who_and_how_to_undo(repo: Repository) -> None:
    one, _ = commit(repo, samples(10)), commit(repo, samples(11))
    repo.pin("speech", one)
    repo.delete_dataset("speech", one)
    repo.cache.clear()
    with pytest.raises(
        RemovedError, match=rf"version {one[:12]} of speech was removed by \S+ on \S+ — undo with: dload undo"
    ):
        repo.dataset("speech")


def test_gc_leaves_alone_what_another_process_commits_meanwhile(tmp_path: Path) -> None:
    code = """
    import random, sys
    from pathlib import Path
    from dload.api import Repository
    from dload.cache import ShardCache
    from dload.store.local import FolderStore
    repo = Repository(FolderStore(sys.argv[1]), ShardCache(Path(sys.argv[2])))
    for seed in range(8):
        rng = random.Random(seed % 3)
        repo.commit("other", [(f"k{i}", {"x": rng.randbytes(50)}) for i in range(200)], target_shard_size=4000)
    """
    store = FolderStore(tmp_path / "store")
    repo = Repository(store, ShardCache(tmp_path / "cache"))
    commit(repo, samples(10))
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "store"), str(tmp_path / "cache2")]
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            repo.gc(grace="0s")
    assert process.returncode == 0
    intact(repo)
    assert len(repo.versions("other")) == 3


def test_history_without_a_cache_is_what_gc_trusts(memory_repo: Repository) -> None:
    version = commit(memory_repo, samples(10))
    assert memory_repo.cache.read_manifest(version) is not None
    assert History(memory_repo.store).cache is None


def test_a_store_with_nothing_in_it(repo: Repository) -> None:
    assert tuple(repo.gc()) == (0, 0)


# ---- locks and leases of the frozen and the dead
def test_a_gc_that_lost_its_lock_stops_and_leaves_the_others_lock_and_plan(aged: Repository, clock: Clock) -> None:
    commit(aged, samples(100))
    aged.delete_dataset("speech")
    clock.now += 8 * DAY
    plan = json.dumps({"ids": ["ab" * 32], "ttl": 3600}).encode()

    def frozen(call: Call) -> None:
        if call.operation == "put" and call.key == keys.GC_PLAN:  # another takes over, with a plan of its own
            clock.now += 3600 + 900 + 1
            gc_room._Lock(aged.store).__enter__()
        if call.operation == "list" and call.key == keys.LEASES:
            aged.store.put(keys.GC_PLAN, plan)

    with pytest.raises(ConflictError, match="gc stopped"):
        Repository(Faulty(aged.store, frozen), aged.cache).gc()
    assert planned(aged.store) == {"ab" * 32}
    assert aged.store.head(keys.GC_LOCK) is not None
    assert shards(aged) > 0


def test_a_gc_whose_machine_slept_deletes_nothing_after_it(aged: Repository, clock: Clock) -> None:
    """Its own clock may not count while it sleeps, and nobody took its lock; but commits pass its plan over by now."""
    commit(aged, samples(100))
    aged.delete_dataset("speech")
    clock.now += 8 * DAY

    def asleep(call: Call) -> None:
        if call.operation == "put" and call.key == keys.GC_PLAN:
            clock.now += 3 * 3600

    with pytest.raises(ConflictError, match="not renewed in time"):
        Repository(Faulty(aged.store, asleep), aged.cache).gc()
    assert aged.store.head(keys.GC_LOCK) is None
    assert aged.gc().deleted_shards > 0


def test_a_version_that_is_named_in_the_middle_of_a_gc_keeps_its_shards(aged: Repository, clock: Clock) -> None:
    """An undo of a data set names all its manifests, and none of their shards."""
    commit(aged, samples(100))
    commit(aged, samples(100, seed=1), "other")
    for name in ("speech", "other"):
        aged.delete_dataset(name)
    clock.now += 8 * DAY
    [version] = History(aged.store).manifest_ids("speech")
    looks = [0]

    def undoing(call: Call) -> None:
        looks[0] += call.operation == "list" and call.key == keys.LEASES
        if looks[0] == 3 and call.operation == "list":  # after the second look, before the first batch
            aged.store.put(
                keys.lease_key("ab" * 16), json.dumps({"dataset": "a", "parent": None, "ttl": 3600}).encode()
            )
            aged.store.put(keys.lease_batch_key("ab" * 16, 0), json.dumps([version]).encode())

    report = Repository(Faulty(aged.store, undoing), aged.cache).gc()
    assert [item.key.split("/")[1] for item in report.manifests] == ["other"]
    assert aged.undelete("speech") == version
    intact(aged)


def test_of_two_gcs_that_pass_over_a_dead_one_one_goes_on(aged: Repository, clock: Clock) -> None:
    gc_room._Lock(aged.store).__enter__()
    clock.now += 3600 + 900 + 1
    second = gc_room._Lock(aged.store)

    def overtaken(call: Call) -> None:
        if call.operation == "put_if" and call.key == keys.GC_LOCK:
            second.__enter__()

    with pytest.raises(ConflictError, match="another gc took the lock"):
        Repository(Faulty(aged.store, overtaken), aged.cache).gc()
    assert second.owned()


def test_a_lost_reply_to_the_locks_write_is_no_lock_left_behind(aged: Repository) -> None:
    def lost(call: Call) -> Fault | None:
        return Fault.AFTER if call.operation == "put_if" and call.key == keys.GC_LOCK else None

    Repository(Faulty(aged.store, lost), aged.cache).gc()
    aged.gc()


def test_the_leases_of_the_dead_go_in_time(aged: Repository, clock: Clock) -> None:
    Lease(aged.store, "speech", None).cover(["ab" * 32])  # its writer was killed
    aged.store.put(keys.lease_batch_key("cd" * 16, 0), b"[]")  # of a lease that is gone
    aged.store.put("leases/notes.txt", b"mine")
    clock.now += 3600 + 800
    aged.gc()
    assert len(list(aged.store.list("leases/"))) == 4, "they count for a while beyond their end"
    clock.now += 200
    aged.gc(dry_run=True)
    assert len(list(aged.store.list("leases/"))) == 4
    aged.gc()
    assert [info.key for info in aged.store.list("leases/")] == ["leases/notes.txt"]


def test_a_key_that_may_not_delete_leaves_no_lease_in_the_way(aged: Repository, clock: Clock) -> None:
    def denied(call: Call) -> AccessError | None:
        return AccessError("forbidden") if call.operation in ("delete", "delete_many") else None

    commit(aged, samples(100))
    keeper = Repository(Faulty(aged.store, denied), aged.cache)
    commit(keeper, samples(300))
    commit(keeper, samples(500))
    left = [info.key.rpartition("/")[2] for info in aged.store.list("leases/")]
    assert left.count("lease") == 2 and "ids-000000" in left
    found = leftovers(aged.store)
    assert (found.writers, found.dead_leases) == (0, 2)
    gone = aged.versions("speech")[1].version
    aged.delete_dataset("speech", gone)
    assert [item.key for item in aged.gc(grace=0).manifests] == [keys.manifest_key("speech", gone)]
    assert not list(aged.store.list("leases/"))
    intact(aged)


def test_a_lease_that_gc_took_for_dead_can_not_be_renewed(aged: Repository, clock: Clock) -> None:
    lease = Lease(aged.store, "speech", None)
    clock.now += 3000
    lease._write_again()
    clock.now += 3000
    lease.check()
    lease.store = _Thaws(aged.store, clock)
    with pytest.raises(PreconditionFailedError):
        lease._write_again()
    with pytest.raises(ConflictError, match="lease ran out or was removed"):
        lease.check()
    assert not list(aged.store.list("leases/"))


def test_a_lease_that_ran_out_is_not_renewed(aged: Repository, clock: Clock) -> None:
    lease = Lease(aged.store, "speech", None)
    clock.now += 3601
    lease._write_again()
    assert lease.remaining() == 0


class _Thaws(Faulty):
    """Time passes, and a gc, between the look at a lease and the write that renews it."""

    def __init__(self, inner: MemoryStore, clock: Clock) -> None:
        super().__init__(inner)
        self.clock_ = clock

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        self.clock_.now += 3600 + 900 + 1
        Repository(self.inner, ShardCache(Path("/nonexistent"))).gc()
        return super().put_if(key, data, etag=etag)


def test_a_tombstone_that_a_race_left_on_the_latest_hides_and_deletes_nothing(aged: Repository, clock: Clock) -> None:
    version = commit(aged, samples(50))
    aged.tag("speech", "v1", version)
    aged.store.put(keys.removed_key("speech", version), b"{}")
    clock.now += 8 * DAY
    assert tuple(aged.gc()) == (0, 0)
    assert aged.resolve("speech", version) == version
    assert list(aged.dataset("speech").samples()) == samples(50)
    commit(aged, samples(60))
    assert aged.removed("speech") == [], "what replaces it sees to it"
    assert len(aged.versions("speech")) == 2


def test_what_a_frozen_commit_left_torn_never_looks_alive(aged: Repository, clock: Clock) -> None:
    """Its version was published once, removed with the data set and collected; an old record still names it."""
    data = samples(100)
    version = commit(aged, data)
    aged.delete_dataset("speech")
    clock.now += 8 * DAY
    aged.gc()

    def frozen(call: Call) -> None:
        if call.operation == "put_if" and "/manifests/" in call.key:
            clock.now += 2 * 3600
            assert aged.gc(grace=0).deleted_shards > 0

    with pytest.raises(ConflictError, match="lease ran out"):
        commit(Repository(Faulty(aged.store, frozen), aged.cache), data)
    assert aged.store.head(keys.manifest_key("speech", version)) is not None
    other = commit(aged, samples(20, seed=9))
    assert [manifest.version for manifest in aged.versions("speech")] == [other]
    assert commit(aged, data) == version
    intact(aged)


def test_an_undone_data_set_loses_nothing_any_more(
    aged: Repository, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gc that has begun before the undo, and has other versions in its plan, is waited for."""
    one, two = commit(aged, samples(100)), commit(aged, samples(100, seed=1))
    aged.delete_dataset("speech")
    clock.now += 8 * DAY

    def waits(_seconds: float) -> None:
        raise _WaitsError

    def undoing(call: Call) -> None:
        if call.operation == "put" and call.key == keys.GC_PLAN:
            aged.store.put(keys.lease_key("ab" * 16), _lease_of("speech", two))  # the undo has begun
        if call.operation == "delete_many" and "/manifests/" in call.key:
            plan = json.dumps({"ids": [one], "ttl": 3600}).encode()  # without what its second look has spared
            aged.store.put(keys.GC_PLAN, plan)
            with pytest.raises(_WaitsError):
                aged.undelete("speech")

    monkeypatch.setattr("dload.repo.leases.time", SimpleNamespace(sleep=waits, monotonic=time.monotonic))
    Repository(Faulty(aged.store, undoing), aged.cache).gc()
    assert aged.undelete("speech") == two
    assert [manifest.version for manifest in aged.versions("speech")] == [two]
    assert aged.store.head(keys.manifest_key("speech", one)) is None
    intact(aged)


def test_a_commit_whose_parent_was_removed_names_the_shards_that_it_took_from_it(
    aged: Repository, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were covered as its parent's, which is the latest no more; and a gc has them in its plan."""
    data = samples(100)
    commit(aged, samples(50, seed=1))
    parent = commit(aged, data)
    more = [*data, ("z", {"x": b"1"})]
    writing = _Writing(History(aged.store), "speech", CommitOptions(target=TARGET))  # it has read the ref
    aged.delete_dataset("speech", parent)
    clock.now += 1

    def waits(_seconds: float) -> None:
        raise _WaitsError

    def committing(call: Call) -> None:
        if call.operation == "delete_many" and "/manifests/" in call.key:
            with pytest.raises(_WaitsError):
                writing.commit(more)

    monkeypatch.setattr("dload.repo.leases.time", SimpleNamespace(sleep=waits, monotonic=time.monotonic))
    assert Repository(Faulty(aged.store, committing), aged.cache).gc(grace=0).deleted_shards > 0
    intact(aged)
    commit(aged, more)
    intact(aged)


class _WaitsError(Exception):
    pass


def _lease_of(name: str, parent: str) -> bytes:
    return json.dumps({"dataset": name, "parent": parent, "ttl": 3600}).encode()


# ---- reasons
def test_retention_gives_each_version_its_reason(aged: Repository, clock: Clock) -> None:
    versions = []
    for number in range(5):
        versions.append(commit(aged, samples(20 + number)))
        clock.now += 10 * DAY
    aged.tag("speech", "paper", versions[1])

    def reasons(**rule: float) -> list[tuple[int, bool, str]]:
        plan = aged.retain("speech", dry_run=True, **rule)  # type: ignore[arg-type]
        return [(versions.index(one.version), one.kept, one.reason) for one in plan]

    none = "no rule keeps it"
    assert reasons(keep_last=2) == [
        (4, True, "is latest, is one of the last 2"), (3, True, "is one of the last 2"), (2, False, none),
        (1, True, "is tagged paper"), (0, False, none),
    ]  # fmt: skip
    assert reasons(keep_within=25 * DAY) == [
        (4, True, "is latest, is 10.0 days old"), (3, True, "is 20.0 days old"), (2, False, none),
        (1, True, "is tagged paper"), (0, False, none),
    ]  # fmt: skip
    assert reasons(keep_last=1, keep_within=35 * DAY) == [
        (4, True, "is latest, is one of the last 1, is 10.0 days old"), (3, True, "is 20.0 days old"),
        (2, True, "is 30.0 days old"), (1, True, "is tagged paper"), (0, False, none),
    ]  # fmt: skip
    assert [place for place, kept, _ in reasons() if kept] == [4, 1], "--keep-tag: tagged ones and the latest"
    assert aged.removed("speech") == [], "so far it was only looked"
    aged.retain("speech")
    assert {removal.version for removal in aged.removed("speech")} == {versions[0], versions[2], versions[3]}
    intact(aged)


def test_a_dry_run_gives_each_object_its_reason(aged: Repository, clock: Clock) -> None:
    gone, _ = commit(aged, samples(100)), commit(aged, samples(100, seed=1))
    orphan, young = "ab" * 32, "cd" * 32
    aged.store.put(keys.shard_key(orphan), b"left by a commit that was cut off")
    aged.store.put("elsewhere/x", b"mine")
    aged.delete_dataset("speech", gone)
    clock.now += 8 * DAY
    aged.store.put(keys.shard_key(young), b"as before, a moment ago")
    before = {info.key for info in aged.store.list("")}
    report = aged.gc(dry_run=True)
    assert {item.key: item.reason for item in report.manifests} == {keys.manifest_key("speech", gone): "removed"}
    assert {item.reason for item in report.shards} == {"no version needs it"}
    assert keys.shard_key(orphan) in {item.key for item in report.shards}
    assert [(item.key, item.reason, item.ready_in) for item in report.kept] == [
        (keys.shard_key(young), "too young", 7 * DAY)
    ]
    with Lease(aged.store, "speech", None) as lease:
        lease.cover([orphan])
        report = aged.gc(dry_run=True)
        assert (report.manifests, report.shards) == ([], [])
        kept = {item.key: item.reason for item in report.kept}
        assert kept[keys.shard_key(orphan)] == "a commit under way relies on it"
        assert kept[keys.manifest_key("speech", gone)].startswith("a commit by ")
    assert {info.key for info in aged.store.list("")} == before, "it only looks"
    assert aged.gc().deleted_shards > 0
    intact(aged)
