"""Disks that are full or may not be written: told with figures, and nothing bad left behind."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dload.api import Repository
from dload.cache import ShardCache
from dload.errors import AccessError, DiskFullError
from dload.pack import Sample
from dload.repo.refs import read_latest
from dload.store.local import FolderStore
from dload.store.memory import MemoryStore

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk or to be someone else")


def samples(count: int) -> list[Sample]:
    rng = random.Random(0)
    return [(f"k{i:05d}", {"x": rng.randbytes(5000)}) for i in range(count)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB."""
    where = tmp_path / "small"
    where.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", where], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("this machine doesn't let a small disk be mounted")
    yield where
    subprocess.run(["umount", "-l", where], check=True)


@needs_root
def test_case_c11_a_full_disk_in_a_commit_to_a_folder(small_disk: Path, tmp_path: Path) -> None:
    store = FolderStore(small_disk / "store")
    repo = Repository(store, ShardCache(tmp_path / "cache"))
    small = repo.commit("speech", samples(50), target_shard_size=100_000).version
    with pytest.raises(DiskFullError, match=r"needed, .* free"):
        repo.commit("speech", samples(1000), target_shard_size=100_000)
    assert repo.resolve("speech") == small
    assert list(repo.dataset("speech").samples()) == samples(50)
    assert [path.name for path in (small_disk / "store" / "tmp").iterdir()] == ["lock"]
    repo.gc(grace=0)  # what was sent stays for the next try, until it is collected
    assert repo.commit("speech", samples(60), target_shard_size=100_000).num_samples == 60


@needs_root
def test_case_c11_a_full_disk_in_a_commit_to_a_bucket(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    repo = Repository(MemoryStore(), ShardCache(tmp_path / "cache"))
    with pytest.raises(DiskFullError, match=r"needed, .* free"):
        repo.commit("speech", samples(1000), target_shard_size=4_000_000)
    assert read_latest(repo.store, "speech") is None
    assert not list(small_disk.iterdir())


@needs_root
def test_case_c11_a_full_disk_in_a_pull(small_disk: Path, tmp_path: Path) -> None:
    store = MemoryStore()
    Repository(store, ShardCache(tmp_path / "cache")).commit("speech", samples(1000), target_shard_size=200_000)
    repo = Repository(store, ShardCache(small_disk / "cache"))
    with pytest.raises(DiskFullError, match=r"needed, .* free"):
        repo.dataset("speech").fetch(workers=1)
    assert repo.cache.entries() == []
    assert list(repo.dataset("speech").samples()) == samples(1000), "streaming makes room as it goes"


def _as_nobody(work: Callable[[], None]) -> int:
    """Run it in a child that is user 65534; 0 where it went well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            work()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@needs_root
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_case_c10_a_folder_that_may_only_be_read(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path("/tmp"):
            break
        folder.chmod(folder.stat().st_mode | 0o055)
    Repository(FolderStore(tmp_path / "store"), ShardCache(tmp_path / "cache")).commit("speech", samples(20))

    def work() -> None:
        repo = Repository(FolderStore(tmp_path / "store"), ShardCache(tmp_path / "cache"))

        def untouched() -> Iterator[Sample]:
            raise AssertionError("samples were read")
            yield

        with pytest.raises(AccessError):
            repo.commit("speech", untouched())
        assert list(repo.dataset("speech").samples()) == samples(20), "reading works"
        assert repo.list_datasets() == ["speech"]

    assert _as_nobody(work) == 0
