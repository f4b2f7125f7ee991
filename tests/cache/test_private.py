"""A file system without flock: a process keeps to itself, and cleans up after those that couldn't."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dload.cache import private
from dload.files import locks
from dload.files.locks import LockFile, lock_within_process, try_lock, wait_lock
from dload.testing.sources import LoggedSource

SIZE = 20_000

Python = Callable[..., subprocess.Popen[str]]

# What such a file system answers, in a real process: ENOLCK, or what one says that locks only files open for writing.
WITHOUT = """
import errno, fcntl, logging
real = fcntl.flock
def flock(descriptor, how):
    if os.environ.get("ANSWER") == "EBADF" and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
        return real(descriptor, how)
    raise OSError(getattr(errno, os.environ.get("ANSWER", "ENOLCK")), "no locks")
fcntl.flock = flock
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
root, folder, size = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
digests = [word for word in sys.argv[4:] if word != "wait"]
cache, source = ShardCache(root, 3 * size + 200), LoggedSource(folder)
"""

READS = """
import threading
def read(number):
    for digest in digests[number:] + digests[:number]:
        with ShardCache(root, 3 * size + 200).ensure(digest, size, source.opener(digest)) as pin:
            assert pin.path.read_bytes() == source.body(digest) and pin.path.exists()
            assert not cache.evict(digest)
threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
say(cache.status().used <= 3 * size + 200, cache.status().pinned, len(cache.entries()))
cache.write_manifest("a" * 64, b"m")
say(cache.read_manifest("a" * 64), len(list((root / "private").iterdir())))
if len(sys.argv) > 8:
    hear()
"""


@pytest.mark.parametrize("answer", ["ENOLCK", "ENOSYS", "EBADF"])
def test_without_locks_a_process_uses_a_folder_of_its_own_and_says_so_once(
    root: Path, source: LoggedSource, python: Python, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setenv("ANSWER", answer)
    digests = [source.make(number, SIZE) for number in range(4)]
    process = python(WITHOUT + READS, root, source.folder, SIZE, *digests)
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    assert process.wait() == 0
    assert lines[0].startswith(f"WARNING the file system of the cache {root} has no file locks")
    assert lines[1:] == ["True 0 3", "b'm' 1"]
    assert list((root / "private").iterdir()) == []  # gone with the process


def test_the_folder_of_a_killed_process_is_swept_by_the_next(root: Path, source: LoggedSource, python: Python) -> None:
    digests = [source.make(number, SIZE) for number in range(4)]
    killed, living = (python(WITHOUT + READS, root, source.folder, SIZE, *digests, "wait") for _ in range(2))
    for process in (killed, living):
        assert process.stdout is not None
        assert "WARNING" in process.stdout.readline()
        assert process.stdout.readline().split()[1:] == ["0", "3"]
        assert process.stdout.readline().split()[0] == "b'm'"
    assert len(list((root / "private").iterdir())) == 2
    killed.kill()
    killed.wait()
    (root / "private" / f"elsewhere-1.{os.getpid()}.5").mkdir()
    old = root / "private" / "elsewhere-1.7.5"
    old.mkdir()
    os.utime(old, (1e9, 1e9))
    third = python(WITHOUT + READS, root, source.folder, SIZE, *digests)
    assert third.wait() == 0
    names = [folder.name for folder in (root / "private").iterdir()]
    assert len(names) == 2 and f"elsewhere-1.{os.getpid()}.5" in names
    assert any(f".{living.pid}." in name for name in names)


def test_a_forked_child_has_a_folder_of_its_own(root: Path, source: LoggedSource, python: Python) -> None:
    digests = [source.make(number, SIZE) for number in range(2)]
    code = """
cache.ensure(digests[0], size, source.opener(digests[0])).release()
pid = os.fork()
if not pid:
    cache.ensure(digests[1], size, source.opener(digests[1])).release()
    say([name for name, _, _ in cache.entries()] == [digests[1]])
    os._exit(0)
os.waitpid(pid, 0)
say([name for name, _, _ in cache.entries()] == [digests[0]], len(list((root / "private").iterdir())))
"""
    process = python(WITHOUT + code, root, source.folder, SIZE, *digests)
    assert process.stdout is not None
    lines = [line for line in process.stdout.read().splitlines() if "WARNING" not in line]
    assert lines == ["True", "True 2"]


def test_names_are_of_one_process_only() -> None:
    mine = private._name(os.getpid())
    assert mine == private._name(os.getpid()) and f".{os.getpid()}." in mine
    assert private._name(os.getppid()) != mine
    done = subprocess.Popen(["true"])
    done.wait()
    assert private._began(done.pid) == ""


# ---- locks within a process


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(locks, "_own_folders", set())
    lock_within_process(tmp_path)
    return tmp_path


def test_locks_within_a_process_are_shared_or_exclusive(folder: Path) -> None:
    path = folder / "file"
    with LockFile(path, os.O_RDWR | os.O_CREAT) as one, LockFile(path) as two, LockFile(path) as three:
        assert try_lock(one.descriptor, shared=True) and try_lock(two.descriptor, shared=True)
        assert not try_lock(three.descriptor)
        assert not try_lock(one.descriptor)  # another shares it
        two.close()
        assert try_lock(one.descriptor) and try_lock(one.descriptor)
        assert not try_lock(three.descriptor, shared=True)
        one.close()
        assert try_lock(three.descriptor)
    with LockFile(path) as again:
        assert try_lock(again.descriptor)


def test_who_waits_goes_on_when_the_lock_is_given_up(folder: Path) -> None:
    path, got = folder / "file", []
    with LockFile(path, os.O_RDWR | os.O_CREAT) as first:
        assert try_lock(first.descriptor)

        def want() -> None:
            with LockFile(path) as lock:
                wait_lock(lock.descriptor, shared=True)
                got.append(True)

        threads = [threading.Thread(target=want) for _ in range(4)]
        for thread in threads:
            thread.start()
        threads[0].join(0.1)
        assert not got
    for thread in threads:
        thread.join()
    assert got == [True] * 4
