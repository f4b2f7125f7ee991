from __future__ import annotations

import itertools
import logging
import os
import pickle
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dload.cache import DatasetShare, ShardCache
from dload.cache.inventory import scan, shard_path
from dload.cache.pins import Held, most_pins, own
from dload.errors import CacheFullError, ConfigError, DiskFullError, IntegrityError, NotFoundError
from dload.manifest import Packing, ShardInfo, ShardList, new_manifest
from dload.testing import scans
from dload.testing.sources import LoggedSource

SIZE = 10_000


def ensure(cache: ShardCache, source: LoggedSource, digest: str, size: int = SIZE) -> bytes:
    with cache.ensure(digest, size, source.opener(digest)) as pin:
        return pin.path.read_bytes()


def counted(root: Path) -> int:
    """Every byte below the cache, unfinished downloads at what their names reserve: counted anew, without
    scan().
    """
    total, seen = 0, set()
    for folder, _, files in os.walk(root):
        for name in files:
            status = (Path(folder) / name).stat()
            if status.st_ino not in seen:
                seen.add(status.st_ino)
                reserved = (
                    int(name.rpartition(".")[2]) if Path(folder).name == "partial" and not name.endswith(".err") else 0
                )
                total += max(status.st_size, reserved)
    return total


def test_a_shard_is_fetched_once_and_then_there(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)
    assert not cache.contains(digest)
    assert ensure(cache, source, digest) == source.body(digest)
    assert ensure(cache, source, digest) == source.body(digest)
    assert cache.contains(digest) and len(source.gets()) == 1
    assert cache.used_bytes() == SIZE
    assert [(name, size) for name, size, _ in cache.entries()] == [(digest, SIZE)]


def test_making_one_touches_nothing_and_a_missing_one_is_empty(root: Path) -> None:
    cache = ShardCache(root, "auto")
    assert (cache.used_bytes(), cache.entries(), cache.clear(), cache.pin("0" * 64)) == (0, [], 0, None)
    assert not cache.evict("0" * 64)
    assert cache.status().shards == 0
    assert list(cache.verify()) == []
    assert not root.exists()


def test_the_budget_holds_and_the_oldest_goes(root: Path, source: LoggedSource) -> None:
    digests = [source.make(number, SIZE) for number in range(6)]
    cache = ShardCache(root, 3 * SIZE + 100)
    for digest in digests:
        ensure(cache, source, digest)
        assert counted(root) <= 3 * SIZE + 100
    assert {name for name, _, _ in cache.entries()} == set(digests[3:])


def test_a_next_use_far_ahead_goes_first(root: Path, source: LoggedSource) -> None:
    far, near, new = (source.make(number, SIZE) for number in range(3))
    cache = ShardCache(root, 2 * SIZE + 100)
    for digest, next_use in ((near, 10.0), (far, 1000.0)):
        cache.ensure(digest, SIZE, source.opener(digest), next_use=next_use).release()
    ensure(cache, source, new)
    assert cache.contains(near) and not cache.contains(far)


def test_case_c40_too_small_a_budget_names_the_least_that_does(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    with pytest.raises(CacheFullError) as caught:
        ensure(ShardCache(root, SIZE // 10), source, digest)
    least = caught.value.details["least"]
    assert str(least) in str(caught.value)
    assert source.gets() == []
    with pytest.raises(CacheFullError):
        ensure(ShardCache(root, least - 1), source, digest)
    assert ensure(ShardCache(root, least), source, digest) == source.body(digest)


def test_own_pins_in_the_way_are_an_error_at_once(root: Path, source: LoggedSource) -> None:
    first, second = source.make(1, SIZE), source.make(2, SIZE)
    cache = ShardCache(root, SIZE + 100, patience=1e9)
    with cache.ensure(first, SIZE, source.opener(first)) as pin:
        with pytest.raises(CacheFullError) as caught:
            ensure(cache, source, second)
        assert pin.path.exists()
        assert ensure(ShardCache(root, caught.value.details["least"]), source, second) == source.body(second)
    assert caught.value.details["least"] >= 2 * SIZE


def test_a_pin_of_the_same_shard_twice_counts_once(root: Path, source: LoggedSource) -> None:
    first, second = source.make(1, SIZE), source.make(2, SIZE)
    cache = ShardCache(root, 2 * SIZE + 100)
    with cache.ensure(first, SIZE, source.opener(first)), cache.ensure(first, SIZE, source.opener(first)):
        assert ensure(cache, source, second) == source.body(second)


def test_a_pinned_shard_is_never_deleted(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)
    pin = cache.ensure(digest, SIZE, source.opener(digest))
    again = cache.pin(digest)
    assert again is not None
    assert not cache.evict(digest) and cache.clear() == 0
    pin.release()
    pin.release()
    assert not cache.evict(digest) and cache.clear() == 0
    del again  # forgotten, not released
    assert cache.evict(digest) and not cache.contains(digest)


def test_case_c25_clear_leaves_what_is_in_use(root: Path, source: LoggedSource) -> None:
    used, unused = source.make(1, SIZE), source.make(2, SIZE)
    cache = ShardCache(root)
    ensure(cache, source, unused)
    cache.write_manifest("a" * 64, b"{}")
    with cache.ensure(used, SIZE, source.opener(used)) as pin:
        assert cache.clear() == SIZE + 2
        assert pin.path.read_bytes() == source.body(used)
    assert cache.clear() == SIZE


def test_case_c25_clear_while_a_download_is_under_way(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)

    def open_stream(start: int) -> Iterator[bytes]:
        for chunk in source.opener(digest)(start):
            assert cache.clear() == 0
            yield chunk

    with cache.ensure(digest, SIZE, open_stream) as pin:
        assert pin.path.read_bytes() == source.body(digest)


def test_used_and_pinned_and_partial_are_told(root: Path, source: LoggedSource) -> None:
    pinned, free, broken = (source.make(number, SIZE) for number in range(3))
    cache = ShardCache(root, 100_000)
    ensure(cache, source, free)
    cache.write_manifest("a" * 64, b"{}")
    cache.write_keys("a" * 64, 5, [b"12", b"345"])
    with pytest.raises(ZeroDivisionError):
        cache.ensure(broken, SIZE, lambda start: iter([b"y" * (1 // start)]))
    assert scan(root) and not [entry for entry in scan(root) if entry.kind == "partial"]  # nothing had come
    with cache.ensure(pinned, SIZE, source.opener(pinned)):
        status = cache.status()
    assert (status.shards, status.shard_bytes, status.pinned, status.pinned_bytes) == (2, 2 * SIZE, 1, SIZE)
    assert (status.manifests, status.manifest_bytes) == (1, 2)
    assert (status.key_indexes, status.key_index_bytes) == (1, 5)
    assert status.used == counted(root) and status.budget == 100_000


def test_what_a_broken_download_left_counts_whole_and_is_continued(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root, SIZE + 100)

    def broken(start: int) -> Iterator[bytes]:
        yield source.body(digest)[:4000]
        raise NotFoundError("gone")

    with pytest.raises(NotFoundError):
        cache.ensure(digest, SIZE, broken)
    assert cache.status().partial_bytes == SIZE and counted(root) >= SIZE
    assert ensure(cache, source, digest) == source.body(digest)
    assert [get.start for get in source.gets()] == [4000]
    assert cache.status().partials == 0


def test_a_leftover_partial_is_the_first_victim(root: Path, source: LoggedSource) -> None:
    kept, broken, new = (source.make(number, SIZE) for number in range(3))
    cache = ShardCache(root, 2 * SIZE + 100)
    ensure(cache, source, kept)

    def breaks(start: int) -> Iterator[bytes]:
        yield b"half"
        raise NotFoundError("gone")

    with pytest.raises(NotFoundError):
        cache.ensure(broken, SIZE, breaks)
    ensure(cache, source, new)
    assert cache.contains(kept) and cache.contains(new) and cache.status().partials == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_case_c45_damage_in_the_cache_is_found_and_fetched_again(
    root: Path, source: LoggedSource, python: Callable[..., subprocess.Popen[str]], damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    digest = source.make(1, SIZE)
    process = python(
        "s = LoggedSource(Path(sys.argv[2])); ShardCache(Path(sys.argv[1]))"
        ".ensure(sys.argv[3], int(sys.argv[4]), s.opener(sys.argv[3]))",
        root, source.folder, digest, SIZE,
    )  # fmt: skip
    assert process.wait() == 0
    path = shard_path(root, digest)
    with path.open("r+b") as file:
        if damage == "flip":
            file.seek(5000)
            file.write(bytes([source.body(digest)[5000] ^ 1]))
        file.truncate({"flip": SIZE, "cut": SIZE - 1, "empty": 0}[damage])
    with caplog.at_level(logging.INFO, "dload.cache"):
        assert ensure(ShardCache(root), source, digest) == source.body(digest)
    assert len(source.gets()) == 2
    assert digest in caplog.text


def test_case_c45_a_bad_body_leaves_nothing_behind(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)
    with pytest.raises(IntegrityError, match=f"s3://b/{digest}.*{digest}"):
        cache.ensure(digest, SIZE, lambda start: iter([bytes(SIZE - start)]), name=f"s3://b/{digest}")
    assert not cache.contains(digest) and cache.status().partials == 0
    assert ensure(cache, source, digest) == source.body(digest)


def test_verify_drops_what_is_damaged(root: Path, source: LoggedSource) -> None:
    sound, damaged = source.make(1, SIZE), source.make(2, SIZE)
    cache = ShardCache(root)
    for digest in (sound, damaged):
        ensure(cache, source, digest)
    shard_path(root, damaged).write_bytes(b"?" * SIZE)
    before = cache.entries()
    assert dict(cache.verify()) == {sound: True, damaged: False}
    assert cache.entries() == [entry for entry in before if entry[0] == sound]
    assert ensure(cache, source, damaged) == source.body(damaged)


def test_a_dropped_shard_is_fetched_again_and_its_readers_go_on(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)
    pin = cache.ensure(digest, SIZE, source.opener(digest))
    with pin.path.open("rb") as file:
        assert cache.drop(pin) and not cache.drop(pin)
        assert ensure(cache, source, digest) == source.body(digest)
        assert file.read() == source.body(digest)
    pin.release()
    assert len(source.gets()) == 2 and cache.contains(digest)


def test_who_drops_a_damaged_shard_spares_the_one_that_has_come_since(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)
    damaged = cache.ensure(digest, SIZE, source.opener(digest))
    with cache.ensure(digest, SIZE, source.opener(digest)) as seen_by_another:
        assert cache.drop(seen_by_another)
    assert ensure(cache, source, digest) == source.body(digest)
    assert not cache.drop(damaged) and cache.contains(digest)
    damaged.release()


def test_many_pins_cost_no_more_each(root: Path, source: LoggedSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held is counted one by one only near the limit of open files."""
    digests = [source.make(number, 10) for number in range(30)]
    cache = ShardCache(root)
    for digest in digests:
        ensure(cache, source, digest, 10)
    counts = 0

    def counted_own(root: Path | None = None) -> list[Held]:
        nonlocal counts
        counts += 1
        return own(root)

    monkeypatch.setattr("dload.cache.pins.own", counted_own)
    held = [cache.pin(digest) for digest in digests]
    assert counts == 0 and all(held)
    monkeypatch.setattr("dload.cache.pins.most_pins", lambda: len(digests))
    with pytest.raises(CacheFullError, match=f"holds {len(digests)} shards open"):
        cache.pin(digests[0])
    held[0].release()  # type: ignore[union-attr]
    assert cache.pin(digests[0]) is not None, "what is released counts no more, though it isn't forgotten"


def test_many_threads_want_one_shard(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, 300_000)
    slow = LoggedSource(source.folder, delay=0.002, chunk=10_000)
    cache = ShardCache(root)
    results = []

    def want() -> None:
        results.append(ensure(cache, slow, digest, 300_000))

    threads = [threading.Thread(target=want) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [source.body(digest)] * 16
    assert len(source.gets()) == 1


def test_who_waits_for_a_download_does_not_wait_for_its_readers(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, 300_000)
    slow = LoggedSource(source.folder, delay=0.002, chunk=10_000)
    pins = []

    def want() -> None:
        pins.append(ShardCache(root).ensure(digest, 300_000, slow.opener(digest)))

    threads = [threading.Thread(target=want) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # nobody lets go
    assert len(pins) == 16 and len(source.gets()) == 1


def test_manifests_and_key_indexes_are_kept_within_the_budget(root: Path, source: LoggedSource) -> None:
    digest, version = source.make(1, SIZE), "b" * 64
    cache = ShardCache(root, SIZE + 1000)
    assert cache.read_manifest(version) is None
    assert cache.write_manifest(version, b"m" * 500)
    assert cache.write_manifest(version, b"m" * 500)
    assert cache.write_keys(version, 300, [b"k" * 100] * 3)
    assert cache.keys_path(version).read_bytes() == b"k" * 300
    ensure(cache, source, digest)
    assert cache.read_manifest(version) == b"m" * 500
    assert not cache.write_manifest("c" * 64, b"m" * 2 * SIZE)
    with cache.ensure(digest, SIZE, source.opener(digest)):
        assert not cache.write_manifest("c" * 64, b"m" * 990)
        assert cache.read_manifest(version) == b"m" * 500
    cache.drop_manifest(version)
    assert cache.read_manifest(version) is None
    assert counted(root) <= SIZE + 1000


def test_a_key_index_of_another_length_than_announced_is_not_kept(root: Path) -> None:
    cache = ShardCache(root)
    assert not cache.write_keys("b" * 64, 10, [b"short"])
    assert not cache.write_keys("b" * 64, 10, [b"long", b" and longer"])
    assert not cache.keys_path("b" * 64).exists()
    assert cache.status().partials == 0


def test_add_copies_only_where_there_is_room(root: Path, source: LoggedSource) -> None:
    first, second = source.make(1, SIZE), source.make(2, SIZE)
    cache = ShardCache(root, SIZE + 100)
    assert cache.add(first, source.folder / first)
    assert cache.add(first, source.folder / first)
    assert not cache.add(second, source.folder / second)
    assert cache.contains(first) and not cache.contains(second)
    assert ensure(cache, source, first) == source.body(first) and source.gets() == []
    assert (source.folder / first).exists()


def test_auto_is_half_of_what_the_disk_could_give(root: Path, source: LoggedSource) -> None:
    cache = ShardCache(root, "auto")
    ensure(cache, source, source.make(1, SIZE))
    status = cache.status()
    assert status.budget == pytest.approx((status.free_disk + status.used) / 2, rel=0.05)
    assert cache.budget == pytest.approx(status.budget, rel=0.05)
    assert ShardCache(root).budget is None and ShardCache(root, 5).budget == 5


def test_it_pickles(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root, SIZE + 100)
    with cache.ensure(digest, SIZE, source.opener(digest)):
        twin = pickle.loads(pickle.dumps(cache))
        assert twin.contains(digest) and twin.budget == SIZE + 100
        assert not twin.evict(digest)


@pytest.mark.parametrize("bad", ["", "abc", "../" * 20 + "a", "A" * 64, "0" * 63 + "\n"])
def test_what_is_no_identity_never_reaches_the_disk(root: Path, bad: str) -> None:
    cache = ShardCache(root)
    for call in (cache.contains, cache.evict, cache.pin, cache.read_manifest, cache.keys_path):
        with pytest.raises(ConfigError):
            call(bad)
    assert not root.exists()


def test_a_pinned_shard_costs_one_descriptor(root: Path, source: LoggedSource, open_files: Callable[[], int]) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)
    before = open_files()
    pins = [cache.ensure(digest, SIZE, source.opener(digest)) for _ in range(5)]
    assert open_files() == before + 5
    for pin in pins:
        pin.release()
    assert open_files() == before
    assert own(root) == []


def test_case_c83_few_files_may_be_open(
    root: Path, source: LoggedSource, python: Callable[..., subprocess.Popen[str]]
) -> None:
    digest = source.make(1, SIZE)
    process = python(
        """
import resource
from dload.errors import CacheFullError
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
root, folder, digest, size = sys.argv[1:]
cache, source, pins = ShardCache(Path(root)), LoggedSource(Path(folder)), []
try:
    while True:
        pins.append(cache.ensure(digest, int(size), source.opener(digest)))
except CacheFullError as error:
    say(len(pins), "ulimit -n" in str(error))
pins.pop().release()
cache.ensure(digest, int(size), source.opener(digest)).release()
cache.write_manifest("a" * 64, b"m")
""",
        root, source.folder, digest, SIZE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().split() == ["16", "True"]
    assert process.wait() == 0
    assert most_pins() > 16


def test_a_released_time_hint_is_lost_quietly_where_it_is_refused(
    root: Path, source: LoggedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)
    real = os.utime
    path = shard_path(root, digest)

    def utime(target: int, times: tuple[float, float] | None = None) -> None:
        if times is not None:
            raise PermissionError("only the owner sets times")
        real(target)

    ensure(cache, source, digest)
    real(path, (1000, 1000))
    monkeypatch.setattr(os, "utime", utime)
    with cache.ensure(digest, SIZE, source.opener(digest), next_use=1e6):
        assert abs(path.stat().st_mtime - time.time()) < 60
    assert abs(path.stat().st_mtime - time.time()) < 60


def test_a_smaller_budget_holds_from_the_next_use_on(root: Path, source: LoggedSource) -> None:
    digests = [source.make(number, SIZE) for number in range(4)]
    for digest in digests:
        ensure(ShardCache(root), source, digest)
    with ShardCache(root).ensure(digests[0], SIZE, source.opener(digests[0])):
        ensure(ShardCache(root, 2 * SIZE + 100), source, digests[3])  # it is there: nothing is downloaded
        assert counted(root) <= 2 * SIZE + 100
        assert {name for name, _, _ in ShardCache(root).entries()} == {digests[0], digests[3]}
    ShardCache(root, SIZE + 200).write_manifest("a" * 64, b"m")
    assert counted(root) <= SIZE + 200
    assert len(source.gets()) == 4


def test_a_plan_that_starts_says_what_it_needs_when(root: Path, source: LoggedSource) -> None:
    soon, late, unknown, missing, new = (source.make(number, SIZE) for number in range(5))
    cache = ShardCache(root, 3 * SIZE + 100)
    for digest in (soon, unknown, late):
        ensure(cache, source, digest)
    cache.expect([(soon, 5.0), (missing, 1.0), (late, 900.0), (soon, 800.0), (late, 1000.0)])
    times = {name: mtime - time.time() for name, _, mtime in cache.entries()}
    assert 5 < times[soon] <= 7.5 and 900 < times[late] <= 1350 and abs(times[unknown]) < 60
    ensure(cache, source, new)
    assert not cache.contains(late) and cache.contains(soon) and not cache.contains(missing)
    with cache.ensure(soon, SIZE, source.opener(soon)):
        assert abs({name: mtime for name, _, mtime in cache.entries()}[soon] - time.time()) < 5


def test_a_release_keeps_the_nearer_stamp_of_another_job(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)
    with cache.ensure(digest, SIZE, source.opener(digest), next_use=1000.0):
        ShardCache(root).ensure(digest, SIZE, source.opener(digest), next_use=10.0).release()
    assert 10 < cache.entries()[0][2] - time.time() <= 15


def test_what_there_is_of_each_data_set(root: Path, source: LoggedSource) -> None:
    digests = [source.make(number, SIZE) for number in range(5)]
    cache = ShardCache(root)
    common, mine, yours, nobodys, coming = digests

    def keep(name: str, shards: list[str]) -> None:
        listed = ShardList.of([ShardInfo(digest, SIZE, 1, 10) for digest in shards])
        manifest, data = new_manifest(name, listed, {}, Packing(), {}, None)
        cache.write_manifest(manifest.version, data)

    keep("b", [common, mine, "f" * 64])
    keep("b", [common, mine, coming])
    keep("a", [common, yours])
    cache.write_manifest("e" * 64, b"no manifest")
    for digest in (common, mine, yours, nobodys):
        ensure(cache, source, digest)

    def broken(start: int) -> Iterator[bytes]:
        yield b"x" * (1 + start)
        raise NotFoundError("gone")

    with pytest.raises(NotFoundError):
        cache.ensure(coming, SIZE, broken)
    with cache.ensure(mine, SIZE, source.opener(mine)):
        shares = cache.by_dataset()
    assert shares == [
        DatasetShare("a", 1, 2, 2 * SIZE, 0, 0, 0, 0),
        DatasetShare("b", 2, 2, 2 * SIZE, 1, SIZE, 1, SIZE),
        DatasetShare(None, 0, 1, SIZE, 0, 0, 0, 0),
    ]
    assert ShardCache(root / "nothing").by_dataset() == []


def test_a_download_in_progress_is_told(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)

    def looked_at(start: int) -> Iterator[bytes]:
        status = cache.status()
        assert (status.partials, status.coming, status.partial_bytes) == (1, 1, SIZE)
        yield source.body(digest)[start:]

    cache.ensure(digest, SIZE, looked_at).release()
    assert cache.status().coming == 0


@pytest.mark.parametrize("shuffled", [False, True], ids=["fixed", "shuffled"])
def test_case_c44_cyclic_scans_through_the_real_cache(
    root: Path, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by a second whenever it is looked at: this machine may stall at any moment."""
    now = itertools.count(1_700_000_000.0).__next__
    monkeypatch.setattr(time, "time", now)
    epochs = scans.orders(100, 10, shuffled=shuffled)
    best = scans.optimum(epochs, 60)
    assert best == 460
    assert scans.scan(ShardCache(root, 60 * 2000 + 200), epochs, 2000, informed=True, clock=now) <= 1.1 * best


# ---- disks that are full, disks that can't be written


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 KB."""
    mount = tmp_path / "tiny"
    mount.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", mount]
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip("mounting a file system is not permitted")
    yield mount
    subprocess.run(["umount", "-l", mount], check=True)


def test_a_full_disk_evicts_then_says_what_is_needed(tiny_disk: Path, source: LoggedSource) -> None:
    first, second, third = (source.make(number, 200_000) for number in range(3))
    cache = ShardCache(tiny_disk / "cache")
    ensure(cache, source, first, 200_000)
    # The budget allows both, the disk doesn't.
    assert ensure(cache, source, second, 200_000) == source.body(second)
    assert not cache.contains(first)
    with cache.ensure(second, 200_000, source.opener(second)):
        with pytest.raises(DiskFullError, match=r"needed, .* free"):
            ensure(cache, source, third, 200_000)
        assert cache.contains(second) and not cache.contains(third) and cache.status().partials == 0
    assert ensure(cache, source, third, 200_000) == source.body(third)
    assert not cache.write_manifest("a" * 64, bytes(400_000))


def test_auto_follows_the_disk(tiny_disk: Path, source: LoggedSource) -> None:
    digests = [source.make(number, 40_000) for number in range(6)]
    cache = ShardCache(tiny_disk / "cache", "auto")
    for digest in digests:
        ensure(cache, source, digest, 40_000)
    assert len(cache.entries()) == 3
    (tiny_disk / "others").write_bytes(bytes(120_000))
    ensure(cache, source, digests[0], 40_000)
    assert len(cache.entries()) == 2


def test_case_c47_a_cache_that_can_only_be_read(
    root: Path,
    source: LoggedSource,
    python: Callable[..., subprocess.Popen[str]],
    open_to_all: Callable[[Path], None],
) -> None:
    there, missing, damaged = source.make(1, SIZE), source.make(2, SIZE), source.make(3, SIZE)
    for digest in (there, damaged):
        ensure(ShardCache(root), source, digest)
    shard_path(root, damaged).write_bytes(bytes(SIZE))
    ShardCache(root).write_manifest("a" * 64, b"m")
    for folder in (root, *root.rglob("*")):
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    open_to_all(source.folder)
    (source.folder / "log").write_bytes(b"")
    (source.folder / "log").chmod(0o666)
    process = python(
        """
root, folder, there, missing, damaged, size = sys.argv[1:]
if os.geteuid() == 0:
    os.seteuid(65534)
cache, source = ShardCache(Path(root), 25_000), LoggedSource(Path(folder))
for digest in (there, missing, missing, damaged):
    with cache.ensure(digest, int(size), source.opener(digest)) as pin:
        say(pin.path.read_bytes() == source.body(digest))
say(cache.read_manifest("a" * 64) == b"m", cache.write_manifest("b" * 64, b"m"))
say(len(os.listdir("/dev/fd")))
""",
        root, source.folder, there, missing, damaged, SIZE,
    )  # fmt: skip
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    assert lines[:5] == ["True", "True", "True", "True", "True False"]
    assert process.wait() == 0
    for folder in (root, *root.rglob("*")):
        folder.chmod(0o755)
    assert [get.digest for get in source.gets()] == [missing, missing, damaged]
    assert sorted(name for name, _, _ in ShardCache(root).entries()) == sorted([there, damaged])
