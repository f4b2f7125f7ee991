"""Commits that are cut off, overtaken or repeated: what is visible is always whole, and nothing is sent twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dload.api import Repository
from dload.cache import ShardCache
from dload.errors import (
    AccessError,
    ConflictError,
    DloadError,
    IntegrityError,
    RemoteError,
    UnavailableError,
    UnsafeStoreError,
)
from dload.pack import Sample
from dload.repo import keys
from dload.repo.commit import CommitOptions, commit
from dload.repo.history import History
from dload.repo.leases import Lease
from dload.repo.publish import missing_shards
from dload.repo.refs import Record, Ref, read_latest
from dload.store import open_store
from dload.store.base import Store
from dload.store.faulty import Call, Fault, Faulty, fail_at
from dload.store.local import FolderStore
from dload.store.memory import MemoryStore
from dload.testing.s3_server import S3Server

TARGET = 4_000
WRITES = {"put", "put_file", "put_if", "delete", "delete_many"}


def samples(count: int, seed: int = 0) -> list[Sample]:
    rng = random.Random(seed)
    return [(f"k{i:05d}", {"x": rng.randbytes(50)}) for i in range(count)]


def run(store: Store, data: list[Sample], **options: object) -> object:
    return commit(History(store), "speech", data, CommitOptions(target=TARGET, **options))


def puts(faulty: Faulty) -> list[str]:
    return [call.key for call in faulty.calls if call.operation in {"put", "put_file", "put_if"}]


def whole(store: Store, name: str = "speech") -> bool:
    """Whether what is visible is all there."""
    ref = read_latest(store, name)
    if ref is None:
        return True
    manifest = History(store).stored_manifest(name, ref.version)
    return not missing_shards(store, manifest.shards)


# ---- cut off
def test_case_c01_a_shard_that_can_not_be_sent_leaves_the_ref_and_is_sent_by_the_next(store: Store) -> None:
    run(store, samples(100, seed=9))
    before = read_latest(store, "speech")
    shards = [0]

    def plan(call: Call) -> DloadError | None:
        if call.operation != "put_file":
            return None
        shards[0] += 1
        return RemoteError("no such luck") if shards[0] == 10 else None

    with pytest.raises(RemoteError, match="no such luck"):
        run(Faulty(store, plan), samples(700))
    assert read_latest(store, "speech") == before
    assert shards[0] >= 10
    retry = Faulty(store)
    outcome = run(retry, samples(700))
    sent = [key for key in puts(retry) if key.startswith("shards/")]
    assert len(sent) == len(outcome.manifest.shards) - (shards[0] - 1)
    assert whole(store)


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_every_call_of_a_commit_may_fail_once(fault: Fault) -> None:
    calls = Faulty(MemoryStore())
    run(calls, samples(200))
    for number in range(1, len(calls.calls) + 1):
        store = MemoryStore()
        run(store, samples(150, seed=1))
        with contextlib.suppress(UnavailableError):
            run(Faulty(store, fail_at(number, fault)), samples(200))
        assert whole(store), f"call {number}"
        outcome = run(store, samples(200))
        assert whole(store)
        assert read_latest(store, "speech").version == outcome.manifest.version
        log = History(store).log("speech")
        assert [record.seq for record in log] == list(range(len(log), 0, -1)), f"call {number}"


def test_case_c03_a_lost_reply_to_the_refs_write_is_one_version_and_no_conflict(store: Store) -> None:
    run(store, samples(50))

    def plan(call: Call) -> Fault | None:
        return Fault.AFTER if call.operation == "put_if" and call.key.endswith("refs/latest") else None

    outcome = run(Faulty(store, plan), samples(60))
    assert [record.seq for record in History(store).log("speech")] == [2, 1]
    assert read_latest(store, "speech").version == outcome.manifest.version


def test_a_lost_reply_is_known_even_when_another_has_replaced_the_ref_since() -> None:
    store = MemoryStore()
    run(store, samples(50))

    class Overtaken(Faulty):
        def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
            result = super().put_if(key, data, etag=etag)
            if key.endswith("refs/latest"):
                run(store, samples(70))
                raise UnavailableError("the reply was lost")
            return result

    outcome = run(Overtaken(store), samples(60))
    assert outcome.record.seq == 2
    assert [record.num_samples for record in History(store).log("speech")] == [70, 60, 50]


# ---- overtaken
def test_case_c04_two_committers_at_a_barrier_lose_nothing_and_the_second_is_told(store: Store) -> None:
    run(store, samples(50))
    barrier = threading.Barrier(2)

    class Held(Faulty):
        def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
            if key.endswith("refs/latest") and not self.passed:
                self.passed = True
                barrier.wait(timeout=60)
            return super().put_if(key, data, etag=etag)

        passed = False

    told: list[str] = []
    outcomes: list[object] = []

    def work(count: int) -> None:
        outcomes.append(run(Held(store), samples(count), tell=told.append))

    threads = [threading.Thread(target=work, args=(count,)) for count in (60, 70)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = History(store).log("speech")
    assert sorted(record.num_samples for record in log) == [50, 60, 70]
    assert [record.seq for record in log] == [3, 2, 1]
    assert log[0].parent == log[1].version
    assert len(outcomes) == 2
    assert len(told) == 1
    assert "moved while you committed by" in told[0]
    assert f"dload diff speech {log[1].version[:12]} latest" in told[0]


def test_an_overtaken_append_goes_behind_the_new_version(memory_repo: Repository) -> None:
    memory_repo.commit("speech", samples(50), target_shard_size=TARGET)

    def slow() -> Iterator[Sample]:
        yield ("mine", {"x": b"1"})
        memory_repo.append("speech", [("theirs", {"x": b"2"})])

    memory_repo.append("speech", slow())
    assert [key for key, _ in memory_repo.dataset("speech").samples()][-2:] == ["theirs", "mine"]


def test_an_overtaken_append_of_the_same_key_is_refused(memory_repo: Repository) -> None:
    memory_repo.commit("speech", samples(50), target_shard_size=TARGET)

    def slow() -> Iterator[Sample]:
        yield ("same", {"x": b"1"})
        memory_repo.append("speech", [("same", {"x": b"2"})])

    with pytest.raises(DloadError, match="have the same key 'same'"):
        memory_repo.append("speech", slow())
    assert len(memory_repo.dataset("speech")) == 51


def test_expect_makes_it_a_conflict(memory_repo: Repository) -> None:
    one = memory_repo.commit("speech", samples(50)).version
    two = memory_repo.commit("speech", samples(60), expect=one[:8]).version
    with pytest.raises(ConflictError, match=f"latest of speech is {two[:12]}, expected {one[:12]}"):
        memory_repo.commit("speech", samples(70), expect=one)

    def overtaken() -> Iterator[Sample]:
        yield from samples(80)
        memory_repo.commit("speech", samples(90))

    with pytest.raises(ConflictError, match="moved by"):
        memory_repo.commit("speech", overtaken(), expect=two)
    assert memory_repo.manifest("speech").num_samples == 90


def test_a_store_without_conditions_is_refused_unless_alone() -> None:
    store = MemoryStore(conditions=False)
    with pytest.raises(UnsafeStoreError, match="ignores conditional writes"):
        run(store, samples(10))
    assert not list(store.list("shards/"))
    run(store, samples(10), unsafe_single_writer=True)
    run(store, samples(11), unsafe_single_writer=True)
    assert [record.num_samples for record in History(store).log("speech")] == [11, 10]


# ---- repeated
@pytest.mark.parametrize("workers", [1, 3])
def test_case_c06_the_same_again_writes_nothing_but_the_lease(store: Store, workers: int) -> None:
    first = run(store, samples(300))
    faulty = Faulty(store)
    again = run(faulty, samples(300), workers=workers)
    assert again.record is None
    assert again.manifest.version == first.manifest.version
    assert [key.partition("/")[0] for key in puts(faulty)] == ["leases"]
    assert not list(store.list("leases/"))


def test_case_c07_one_changed_and_one_inserted_of_ten_thousand_send_two_shards_each() -> None:
    rng = random.Random(7)
    data: list[Sample] = [(f"k{i:05d}", {"x": rng.randbytes(80)}) for i in range(10_000)]
    store = MemoryStore()
    run(store, data)
    for changed in (
        [*data[:5_000], ("k05000", {"x": b"other" * 20}), *data[5_001:]],
        [("a", {"x": b"first" * 20}), *data],
    ):
        faulty = Faulty(store)
        outcome = run(faulty, changed)
        assert outcome.shards_sent <= 2
        kinds = [_kind(key) for key in puts(faulty) if not key.startswith("leases/")]
        assert sorted(kinds) == sorted(["shard"] * outcome.shards_sent + ["manifest", "ref", "log"])
        run(store, data)


def _kind(key: str) -> str:
    for part, kind in (("shards/", "shard"), ("/manifests/", "manifest"), ("/refs/", "ref"), ("/log/", "log")):
        if part in key:
            return kind
    return key


@pytest.mark.parametrize("workers", [1, 4, 8])
def test_case_c17_the_result_does_not_depend_on_the_number_of_workers(store: Store, workers: int) -> None:
    outcome = run(store, samples(600), workers=workers)
    expected = run(MemoryStore(), samples(600))
    assert outcome.manifest == expected.manifest


def test_case_c10_a_store_that_can_not_be_written_is_told_before_anything_is_read() -> None:
    def plan(call: Call) -> DloadError | None:
        return AccessError("no s3:PutObject") if call.operation in WRITES else None

    def untouched() -> Iterator[Sample]:
        pytest.fail("samples were read")
        yield

    with pytest.raises(AccessError):
        commit(History(Faulty(MemoryStore(), plan)), "speech", untouched(), CommitOptions())


def test_case_c10_a_read_only_key(s3_bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environment("reader").items():
        monkeypatch.setenv(name, value)

    def untouched() -> Iterator[Sample]:
        pytest.fail("samples were read")
        yield

    store = open_store(f"s3://{s3_bucket}/p", endpoint_url=s3_server.endpoint_url)
    with pytest.raises(AccessError):
        commit(History(store), "speech", untouched(), CommitOptions())


# ---- real processes, really killed
_COMMIT = """
import os, random, sys, time
from dload.api import Repository
from dload.cache import ShardCache
from dload.store import open_store
from pathlib import Path

store = open_store(sys.argv[1], endpoint_url=sys.argv[2] or None)
repo = Repository(store, ShardCache(Path(sys.argv[3])))
count, pause = int(sys.argv[4]), float(sys.argv[5])

def samples():
    rng = random.Random(0)
    for i in range(count):
        if i == count // 2:
            print("half", flush=True)
            time.sleep(pause)
        yield f"k{i:05d}", {"x": rng.randbytes(5000)}

print(repo.commit("speech", samples(), target_shard_size=200_000, workers=2).version, flush=True)
"""


def _process(url: str, endpoint: str, cache: Path, count: int, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(_COMMIT), url, endpoint, str(cache), str(count), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """(URL, endpoint) of an empty store that several processes can use."""
    if request.param == "folder":
        return str(tmp_path / "store"), ""
    return f"s3://{request.getfixturevalue('s3_bucket')}/p", request.getfixturevalue("s3_server").endpoint_url


def test_case_c09_killed_at_half_the_rerun_sends_the_rest(place: tuple[str, str], tmp_path: Path) -> None:
    url, endpoint = place
    process = _process(url, endpoint, tmp_path / "cache", 1000, 60)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    store = open_store(url, endpoint_url=endpoint or None)
    deadline = time.monotonic() + 30
    while len(there := list(store.list("shards/"))) < 8 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert read_latest(store, "speech") is None
    there = list(store.list("shards/"))
    assert there

    faulty = Faulty(store)
    rng = random.Random(0)
    data = [(f"k{i:05d}", {"x": rng.randbytes(5000)}) for i in range(1000)]
    outcome = commit(History(faulty), "speech", data, CommitOptions(target=200_000))
    assert outcome.shards_sent == len(outcome.manifest.shards) - len(there)
    assert outcome.shards_sent > 0
    repo = Repository(store, ShardCache(tmp_path / "fresh"))
    assert list(repo.dataset("speech").samples()) == data


def test_case_c02_killed_at_any_moment_nothing_short_is_visible(place: tuple[str, str], tmp_path: Path) -> None:
    url, endpoint = place
    store = open_store(url, endpoint_url=endpoint or None)
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2):
        process = _process(url, endpoint, tmp_path / "cache", 600, 0)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        # SeaweedFS now and then keeps an empty object of a request that broke off; sizes tell the next commit.
        assert all(_is_right(store, info.key) or (endpoint and not info.size) for info in store.list("shards/"))
        assert whole(store)
    process = _process(url, endpoint, tmp_path / "cache", 600, 0)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert read_latest(store, "speech").version == out.split()[-1]
    assert whole(store)
    assert all(_is_right(store, info.key) for info in store.list("shards/"))


def _is_right(store: Store, key: str) -> bool:
    return hashlib.sha256(store.get(key).data).hexdigest() == key.rpartition("/")[2]


def test_case_c05_commit_change_commit_in_two_processes(place: tuple[str, str], tmp_path: Path) -> None:
    url, endpoint = place
    versions = []
    for count in (300, 301):
        out, _ = _process(url, endpoint, tmp_path / "cache", count, 0).communicate(timeout=120)
        versions.append(out.split()[-1])
    repo = Repository(open_store(url, endpoint_url=endpoint or None), ShardCache(tmp_path / "cache"))
    assert [m.version for m in repo.versions("speech")] == versions[::-1]


# ---- large samples
def test_case_c08_a_large_sample_beside_small_ones_keeps_memory_bounded(tmp_path: Path) -> None:
    code = """
    import resource, sys
    from pathlib import Path
    from dload.api import Repository
    from dload.cache import ShardCache
    from dload.store.local import FolderStore
    repo = Repository(FolderStore(sys.argv[1]), ShardCache(Path(sys.argv[2])))
    size = 300 << 20
    def samples():
        for i in range(20):
            yield f"small-{i:02d}", {"x": bytes([i]) * 1000}
        yield "sample-large", {"x": b"\\xab" * size}
        for i in range(20):
            yield f"tail-{i:02d}", {"x": bytes([i]) * 1000}
    repo.commit("mixed", samples(), target_shard_size=1 << 20)
    got = 0
    for key, fields in repo.dataset("mixed").samples():
        if key == "sample-large":
            assert fields["x"].count(b"\\xab") == size
        else:
            assert fields["x"] == bytes([int(key[-2:])]) * 1000
        got += 1
    assert got == 41
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "store"), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 3 * 300 + 200, "MiB at most"


# ---- leases, refs and records
def test_a_lease_that_is_lost_stops_the_commit() -> None:
    store = MemoryStore()

    def lost() -> Iterator[Sample]:
        yield from samples(10)
        store.delete_many([info.key for info in store.list("leases/")])

    with pytest.raises(ConflictError, match="lease ran out or was removed"):
        commit(History(store), "speech", lost(), CommitOptions())
    assert read_latest(store, "speech") is None


def test_a_lease_that_is_old_by_the_stores_clock_stops_the_commit() -> None:
    now = [1000.0]
    store = MemoryStore(clock=lambda: now[0])

    def slow() -> Iterator[Sample]:
        yield from samples(10)
        now[0] += 3601

    with pytest.raises(ConflictError, match="lease ran out"):
        commit(History(store), "speech", slow(), CommitOptions())
    assert read_latest(store, "speech") is None


def test_a_lease_names_what_it_covers_in_batches_and_goes_whole() -> None:
    store = MemoryStore()
    with Lease(store, "speech", None) as lease:
        lease.note(f"{i:064x}" for i in range(1500))
        lease.cover([f"{9:064x}"])
        lease.cover([f"{9:064x}", f"{1500:064x}"])  # named already, and not
        lists = sorted(info.key for info in store.list(f"leases/{lease.id}/ids-"))
        counts = [len(json.loads(store.get(key).data)) for key in lists]
        assert counts == [1000, 501]
    assert not list(store.list("leases/"))


def test_a_lease_is_renewed_while_it_is_held() -> None:
    store = MemoryStore()
    with Lease(store, "speech", None, ttl=0.4) as lease:
        time.sleep(1.0)
        assert lease.remaining() > 0


def test_a_ref_that_landed_after_the_lease_and_lost_a_shard_is_moved_back() -> None:
    now = [1000.0]
    store = MemoryStore(clock=lambda: now[0])
    first = run(store, samples(50))

    class Frozen(Faulty):
        def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
            if key.endswith("refs/latest") and b'"op":"commit"' in data:
                now[0] += 8000  # asleep for longer than the lease; a gc takes a shard meanwhile
                mine = {i.key for i in store.list("shards/")} - theirs
                store.delete(min(mine))
            return super().put_if(key, data, etag=etag)

    theirs = {info.key for info in store.list("shards/")}
    with pytest.raises(ConflictError, match="latest was moved back"):
        run(Frozen(store), samples(80, seed=3))
    ref = read_latest(store, "speech")
    assert ref is not None
    assert ref.version == first.manifest.version
    assert [record.op for record in History(store).log("speech")] == ["revert", "commit", "commit"]
    assert whole(store)


def test_what_is_not_a_ref_or_record_is_refused_by_name() -> None:
    store = MemoryStore()
    outcome = run(store, samples(10))
    key = keys.latest_key("speech")
    good = store.get(key).data
    for bad in (
        b"",
        b"latest",
        b"ab" * 32 + b"\n" + good.split(b"\n")[1],
        good + b"{}",
        good.replace(b'"seq":1', b'"seq":"1"'),
    ):
        store.put(key, bad)
        with pytest.raises(DloadError, match=r"datasets/speech/refs/latest"):
            read_latest(store, "speech")
    record = outcome.record
    assert Record.decode(record.encode(), "here") == record
    assert Record.decode(replace(record, message="ü\n\"'").encode(), "here").message == "ü\n\"'"
    assert Ref(record.version, None, "").seq == 0


def test_a_shard_that_vanishes_during_the_commit_is_noticed() -> None:
    store = MemoryStore()

    def thief() -> Iterator[Sample]:
        yield from samples(300)
        store.delete(next(iter(store.list("shards/"))).key)

    with pytest.raises(IntegrityError, match="1 shards of this commit are not in"):
        commit(History(store), "speech", thief(), CommitOptions(target=TARGET))
    assert read_latest(store, "speech") is None


def test_an_interrupted_commit_leaves_no_files_of_its_own(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")

    def interrupted() -> Iterator[Sample]:
        yield from samples(2000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        commit(History(store), "speech", interrupted(), CommitOptions(target=20_000, workers=4))
    assert [path.name for path in (tmp_path / "store" / "tmp").iterdir()] == ["lock"]
    assert read_latest(store, "speech") is None
