"""One cache, many processes: real ones, killed for real."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dload.cache import Pin, ShardCache
from dload.cache.inventory import shard_path
from dload.cache.pins import own
from dload.errors import CacheFullError, ConfigError
from dload.files.locks import locked
from dload.testing.sources import LoggedSource

SIZE = 200_000

Python = Callable[..., subprocess.Popen[str]]

READER = """
root, folder, budget, seed, rounds, size = sys.argv[1:7]
digests = sys.argv[7:]
import random
rng = random.Random(int(seed))
cache = ShardCache(Path(root), int(budget))
source = LoggedSource(Path(folder), delay=0.001)
def read(wanted):
    for digest in wanted:
        with cache.ensure(digest, int(size), source.opener(digest)) as pin:
            data = pin.path.read_bytes()
            time.sleep(0.001)
            assert pin.path.exists()
        assert data == source.body(digest)
    finished.append(True)
say("ready")
hear()
finished = []
read(rng.choices(digests, k=int(rounds)))
say("done")
"""

FOUR_THREADS = READER.replace(
    "read(rng.choices(digests, k=int(rounds)))",
    """
import threading
threads = [threading.Thread(target=read, args=(rng.choices(digests, k=int(rounds)),)) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(finished) == 4
""",
)

HOLDER = """
root, folder, digest, size = sys.argv[1:]
source = LoggedSource(Path(folder))
pin = ShardCache(Path(root)).ensure(digest, int(size), source.opener(digest))
say("pinned")
hear()
"""


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], word: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()


def polled(root: Path) -> int:
    """The bytes below the cache, by inode, partials at their reserved size, under the cache's lock."""
    inodes = {}
    with locked(root / "lock"):
        for folder, _, names in os.walk(root):
            for name in names:
                status = (Path(folder) / name).stat()
                reserved = (
                    int(name.rpartition(".")[2]) if folder.endswith("partial") and not name.endswith(".err") else 0
                )
                inodes[status.st_ino] = max(status.st_size, reserved)
    return sum(inodes.values())


def test_case_c43_many_processes_want_one_cold_shard(root: Path, source: LoggedSource, python: Python) -> None:
    digest = source.make(1, SIZE)
    readers = [python(READER, root, source.folder, SIZE + 100, seed, 1, SIZE, digest) for seed in range(8)]
    assert [line(reader) for reader in readers] == ["ready"] * 8
    for reader in readers:
        tell(reader)
    assert [line(reader) for reader in readers] == ["done"] * 8
    assert len(source.gets()) == 1


def test_case_c42_the_budget_holds_while_many_processes_download(
    root: Path, source: LoggedSource, python: Python
) -> None:
    """Eight processes of four threads, over ten times as much as there is room for."""
    digests = [source.make(number, SIZE // 4) for number in range(50)]
    budget = 5 * SIZE // 4 + 1000
    readers = [python(FOUR_THREADS, root, source.folder, budget, seed, 8, SIZE // 4, *digests) for seed in range(8)]
    assert [line(reader) for reader in readers] == ["ready"] * 8
    for reader in readers:
        tell(reader)
    most = 0
    while any(reader.poll() is None for reader in readers):
        most = max(most, polled(root))
        assert most <= budget
        time.sleep(0.005)
    assert [line(reader) for reader in readers] == ["done"] * 8
    assert most > budget - SIZE // 2
    status = ShardCache(root).status()
    assert (status.pinned, status.partials) == (0, 0)


def test_case_c41_more_processes_than_the_budget_has_shards(root: Path, source: LoggedSource, python: Python) -> None:
    digests = [source.make(number, SIZE) for number in range(16)]
    readers = [python(READER, root, source.folder, 2 * SIZE + 100, seed, 6, SIZE, *digests) for seed in range(8)]
    assert [line(reader) for reader in readers] == ["ready"] * 8
    for reader in readers:
        tell(reader)
    assert [line(reader) for reader in readers] == ["done"] * 8
    assert polled(root) <= 2 * SIZE + 100


def test_a_pin_is_seen_by_others_and_gone_with_its_process(root: Path, source: LoggedSource, python: Python) -> None:
    digest = source.make(1, SIZE)
    holder = python(HOLDER, root, source.folder, digest, SIZE)
    assert line(holder) == "pinned"
    cache = ShardCache(root)
    assert not cache.evict(digest) and cache.clear() == 0 and cache.status().pinned == 1
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert cache.status().pinned == 0
    assert cache.evict(digest) and not shard_path(root, digest).exists()


def test_what_others_hold_is_waited_for_then_named(root: Path, source: LoggedSource, python: Python) -> None:
    held, wanted = source.make(1, SIZE), source.make(2, SIZE)
    holder = python(HOLDER, root, source.folder, held, SIZE)
    assert line(holder) == "pinned"
    cache = ShardCache(root, SIZE + 100, patience=0.2)
    with pytest.raises(CacheFullError, match=r"hasn't changed for 0\.2 s") as caught:
        cache.ensure(wanted, SIZE, source.opener(wanted))
    if Path("/proc/locks").exists():
        assert str(holder.pid) in str(caught.value)
    assert polled(root) <= SIZE + 100

    def ends_at_the_second_look(seconds: float) -> None:
        if seconds and (waits.append(seconds) or len(waits) == 2):
            holder.kill()
            holder.wait()

    waits: list[float] = []
    patient = ShardCache(root, SIZE + 100, patience=1e9)
    patient.ensure(wanted, SIZE, source.opener(wanted), pause=ends_at_the_second_look).release()
    assert len(waits) == 2 and not cache.contains(held)


def test_case_c46_a_killed_download_is_counted_and_continued(root: Path, source: LoggedSource, python: Python) -> None:
    digest, other = source.make(1, SIZE), source.make(2, SIZE)
    code = """
root, folder, digest, size = sys.argv[1:]
source = LoggedSource(Path(folder), chunk=10_000)
def stops_half_way(start):
    for number, chunk in enumerate(source.opener(digest)(start)):
        if number == 10:
            say("half")
            hear()
        yield chunk
ShardCache(Path(root)).ensure(digest, int(size), stops_half_way)
"""
    downloader = python(code, root, source.folder, digest, SIZE)
    assert line(downloader) == "half"
    cache = ShardCache(root, SIZE + 100)
    with pytest.raises(CacheFullError):  # under way in another process: it counts whole, and stays
        ShardCache(root, SIZE + 100, patience=0.05).ensure(other, SIZE, source.opener(other))
    downloader.send_signal(signal.SIGKILL)
    downloader.wait()
    assert polled(root) >= SIZE
    with cache.ensure(digest, SIZE, source.opener(digest)) as pin:
        assert pin.path.read_bytes() == source.body(digest)
    assert [get.start for get in source.gets()] == [0, 100_000]
    assert cache.status().partials == 0


def test_who_waits_for_a_download_goes_on_when_its_process_is_killed(
    root: Path, source: LoggedSource, python: Python
) -> None:
    digest = source.make(1, SIZE)
    downloader = python(
        """
root, folder, digest, size = sys.argv[1:]
source = LoggedSource(Path(folder), chunk=10_000)
def stops(start):
    for number, chunk in enumerate(source.opener(digest)(start)):
        if number == 5:
            say("stuck")
            hear()
        yield chunk
ShardCache(Path(root)).ensure(digest, int(size), stops)
""",
        root, source.folder, digest, SIZE,
    )  # fmt: skip
    assert line(downloader) == "stuck"
    waiter = python(READER, root, source.folder, SIZE + 100, 0, 1, SIZE, digest)
    assert line(waiter) == "ready"
    tell(waiter)
    time.sleep(0.1)
    assert waiter.poll() is None
    downloader.kill()
    downloader.wait()
    assert line(waiter) == "done"
    assert [(get.start, get.pid) for get in source.gets()] == [(0, downloader.pid), (50_000, waiter.pid)]


def test_processes_killed_at_any_moment_leave_a_cache_that_works(
    root: Path, source: LoggedSource, python: Python
) -> None:
    digests = [source.make(number, SIZE) for number in range(12)]
    budget = 4 * SIZE + 1000
    for moment in range(6):
        seeds = range(3 * moment, 3 * moment + 3)
        readers = [python(READER, root, source.folder, budget, seed, 500, SIZE, *digests) for seed in seeds]
        for reader in readers:
            assert line(reader) == "ready"
            tell(reader)
        time.sleep(0.02 + 0.03 * moment)
        for reader in readers:
            reader.kill()
            reader.wait()
        assert polled(root) <= budget
    cache = ShardCache(root, budget)
    for digest in digests:
        with cache.ensure(digest, SIZE, source.opener(digest)) as pin:
            assert pin.path.read_bytes() == source.body(digest)
    status = cache.status()
    assert (status.pinned, status.partials) == (0, 0) and polled(root) <= budget


# ---- fork


def _forked(pin: Pin, cache: ShardCache, digest: str, results: multiprocessing.Queue[object]) -> None:
    results.put((own(), cache.evict(digest)))
    pin.release()
    mine = cache.pin(digest)
    results.put(mine is not None)
    if mine is not None:
        mine.release()


def test_a_fork_neither_drops_nor_keeps_its_parents_pin(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)
    pin = cache.ensure(digest, SIZE, source.opener(digest))
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[object] = context.Queue()
    child = context.Process(target=_forked, args=(pin, cache, digest, results))
    child.start()
    assert results.get() == ([], False)
    assert results.get() is True
    child.join()
    assert child.exitcode == 0
    assert not cache.evict(digest)
    pin.release()
    assert cache.evict(digest)


def _waits(begun: multiprocessing.synchronize.Event, event: multiprocessing.synchronize.Event) -> None:
    begun.set()
    event.wait()


def test_a_living_child_does_not_keep_what_its_parent_releases(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root)
    context = multiprocessing.get_context("fork")
    begun, event = context.Event(), context.Event()
    pin = cache.ensure(digest, SIZE, source.opener(digest))
    with locked(root / "lock"):  # a lock that is held at the moment of the fork doesn't stay with the child either
        child = context.Process(target=_waits, args=(begun, event))
        child.start()
    try:
        begun.wait()  # from then on the child has let go
        pin.release()
        assert cache.evict(digest)
    finally:
        event.set()
        child.join()


@pytest.mark.parametrize("umask", [0o002, 0o022])
def test_case_c47_two_users_of_one_group(
    root: Path, source: LoggedSource, python: Python, open_to_all: Callable[[Path], None], umask: int
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become two users")
    digests = [source.make(number, SIZE) for number in range(4)]
    (source.folder / "log").write_bytes(b"")
    (source.folder / "log").chmod(0o666)
    open_to_all(source.folder)
    root.mkdir()
    os.chown(root, 4001, 4000)
    root.chmod(0o2775)
    code = """
user, umask, root, folder, budget, size = sys.argv[1:7]
os.setgroups([]); os.setgid(4000); os.setuid(int(user)); os.umask(int(umask))
cache, source = ShardCache(Path(root), int(budget)), LoggedSource(Path(folder))
for digest in sys.argv[7:]:
    with cache.ensure(digest, int(size), source.opener(digest)) as pin:
        say(pin.path.read_bytes() == source.body(digest))
"""
    first = python(code, 4001, umask, root, source.folder, 2 * SIZE + 100, SIZE, *digests[:2])
    assert first.wait() == 0
    second = python(code, 4002, umask, root, source.folder, 2 * SIZE + 100, SIZE, *digests)
    assert [line(second) for _ in digests] == ["True"] * 4
    assert second.wait() == 0
    there = {name for name, _, _ in ShardCache(root).entries()}
    assert there == set(digests[2:] if umask == 0o002 else digests[:2])
    gets = Counter(get.digest for get in source.gets())
    assert [gets[digest] for digest in digests] == [1, 1, 1, 1]


def test_case_c49_a_store_is_no_cache(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    stored = shard_path(root, digest)
    stored.parent.mkdir(parents=True)
    stored.write_bytes(source.body(digest))
    (root / "datasets").mkdir()
    cache, other = ShardCache(root, 1000), source.make(2, 500)
    for delete in (cache.clear, lambda: cache.evict(digest), lambda: cache.ensure(other, 500, source.opener(other))):
        with pytest.raises(ConfigError, match="is a store"):
            delete()
    assert stored.exists()


def test_case_c49_nothing_outside_of_the_cache_is_deleted(root: Path, source: LoggedSource) -> None:
    digests = [source.make(number, SIZE) for number in range(5)]
    cache = ShardCache(root, 2 * SIZE + 2000)
    root.mkdir()
    (root / "notes.txt").write_text("mine")
    (root / "linked").symlink_to(source.folder)
    for digest in digests:
        cache.ensure(digest, SIZE, source.opener(digest)).release()
        cache.add(digest, source.folder / digest)
    cache.clear()
    assert (root / "notes.txt").read_text() == "mine" and (root / "linked").is_symlink()
    assert all((source.folder / digest).exists() for digest in digests)
