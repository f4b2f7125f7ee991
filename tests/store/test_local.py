"""A folder as a store: processes, permissions, crashes."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dload.errors import (
    AccessError,
    DiskFullError,
    NotFoundError,
    PreconditionFailedError,
    RemoteError,
    UnavailableError,
    UnsafeStoreError,
)
from dload.files.locks import LocksUnsupportedError
from dload.store import local
from dload.store.local import FolderStore
from dload.store.open import open_store

_COUNT_UP = """
import sys
from dload.errors import PreconditionFailedError
from dload.store.local import FolderStore
store = FolderStore(sys.argv[1])
for _ in range(25):
    while True:
        body = store.get("counter")
        try:
            store.put_if("counter", b"%d" % (int(body.data) + 1), etag=body.etag)
            break
        except PreconditionFailedError:
            pass
"""

_PUT_LARGE = """
import sys
from pathlib import Path
from dload.store.local import FolderStore
FolderStore(sys.argv[1]).put_file("large", Path(sys.argv[2]))
"""


def _python(code: str, *arguments: object, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], **options)  # type: ignore[call-overload]


def test_nothing_is_lost_between_processes(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    store.put("counter", b"0")
    processes = [_python(_COUNT_UP, tmp_path / "store") for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert store.get("counter").data == b"100"


def test_case_c02_a_killed_writer_leaves_no_object(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(4 << 30)  # sparse; takes seconds to copy
    store = FolderStore(tmp_path / "store")
    process = _python(_PUT_LARGE, tmp_path / "store", source)
    deadline = time.monotonic() + 30
    while not any(path.stat().st_size for path in (tmp_path / "store").glob("tmp/*.tmp")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(store.list("")) == []
    assert store.head("large") is None
    assert store.abort_unfinished(store.clock() - 3600) == 0  # it may still be at work
    assert store.abort_unfinished(store.clock() + 1) == 1
    store.put("large", b"now")
    assert store.get("large").data == b"now"


def test_etags_never_come_back(tmp_path: Path) -> None:
    """Inodes are used again and clocks tick slowly: the same size over and over must still differ."""
    store = FolderStore(tmp_path)
    assert len({store.put("a", b"%03d" % n) for n in range(300)}) == 300


def test_no_folder_is_made_by_reading(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "not" / "there")
    assert list(store.list("")) == []
    assert list(store.list_folders("a/")) == []
    assert store.head("a") is None
    with pytest.raises(NotFoundError, match="not/there/a"):
        store.get("a")
    store.delete("a")
    store.delete_many(["a", "b"])
    assert store.abort_unfinished(0) == 0
    assert not (tmp_path / "not").exists()


def test_a_folder_goes_with_its_last_object(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("d/one/deep/x", b"x")
    store.put("d/two/x", b"x")
    store.delete("d/one/deep/x")
    assert list(store.list_folders("d/")) == ["two"]
    assert not (tmp_path / "d" / "one").exists()


def test_foreign_hidden_files_are_no_objects(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("d/x", b"x")
    (tmp_path / "d" / ".nfs0001").write_bytes(b"")
    (tmp_path / ".DS_Store").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    assert [found.key for found in store.list("")] == ["d/x"]
    assert list(store.list_folders("")) == ["d"]


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o022, 0o644)])
def test_case_c47_the_umask_decides_who_may_write(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        store = FolderStore(tmp_path / "store")
        store.put("d/put", b"x")
        store.put_if("d/put_if", b"x", etag=None)
        (tmp_path / "file").write_bytes(b"x")
        store.put_file("d/copied", tmp_path / "file")
        assert store.staging is not None
        private = store.staging / "staged"
        private.touch(mode=0o600)
        store.put_file("d/moved", private, move=True)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "store" / "d").iterdir()}
    assert modes == dict.fromkeys(("put", "put_if", "copied", "moved"), mode)
    assert (tmp_path / "store" / "tmp" / "lock").stat().st_mode & 0o777 == mode


_AS_NOBODY = """
import os, sys
from dload.errors import AccessError
from dload.store.local import FolderStore
os.setgid(65534); os.setuid(65534)
store = FolderStore(sys.argv[1])
assert store.get("d/x").data == b"x"
assert [found.key for found in store.list("")] == ["d/x"]
assert store.clock() > 0
from pathlib import Path
for write in (
    lambda: store.put("d/y", b"y"), lambda: store.put_if("d/y", b"y", etag=None), lambda: store.delete("d/x"),
    lambda: store.delete_many(["d/x"]), lambda: store.put_file("d/y", Path("/etc/passwd")),
    lambda: store.conditional(),
    lambda: FolderStore(sys.argv[1] + "/deeper").staging,
):
    try:
        write()
    except AccessError as error:
        assert sys.argv[1] in str(error), error
    else:
        sys.exit("not refused")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_reading_works_without_the_right_to_write(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("read-only")
    FolderStore(folder).put("d/x", b"x")
    above = [path for path in folder.parents if path != Path("/")]
    modes = {path: path.stat().st_mode for path in above}
    for path in [*above, folder]:
        path.chmod(path.stat().st_mode | 0o055)
    try:
        process = _python(_AS_NOBODY, folder, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        assert process.wait(30) == 0
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def test_a_moved_in_object_is_as_young_as_a_written_one(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    assert store.staging is not None
    path = store.staging / "packed"
    path.write_bytes(b"x")
    os.utime(path, (1000, 1000))
    store.put_file("a", path, move=True)
    head = store.head("a")
    assert head is not None and head.modified > store.clock() - 60


def _failing(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(local, "sync", fail)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.EACCES, AccessError),
        (errno.EROFS, AccessError),
        (errno.ESTALE, UnavailableError),
        (errno.EIO, RemoteError),
    ],
)
def test_what_the_disk_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[RemoteError]
) -> None:
    _failing(code, monkeypatch)
    with pytest.raises(expected, match=os.strerror(code)) as caught:
        FolderStore(tmp_path).put("d/x", b"x")
    assert type(caught.value) is expected
    assert str(tmp_path / "d" / "x") in str(caught.value)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_case_c11_a_full_disk_says_how_much_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(errno.ENOSPC, monkeypatch)
    with pytest.raises(DiskFullError, match=r"5 B needed, .* free"):
        FolderStore(tmp_path).put("d/x", b"12345")
    assert list(tmp_path.rglob("*.tmp")) == []


def test_a_disk_without_locks_takes_no_conditional_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise LocksUnsupportedError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(local, "locked", unsupported)
    store = FolderStore(tmp_path)
    store.put("a", b"x")
    assert not store.conditional()
    with pytest.raises(UnsafeStoreError, match="flock"):
        store.put_if("ref", b"x", etag=None)
    store.delete("a")
    assert list(store.list("")) == []


def test_a_lost_race_says_so(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    etag = store.put("refs/latest", b"x")
    store.put("refs/latest", b"y")
    with pytest.raises(PreconditionFailedError, match="changed by someone else first"):
        store.put_if("refs/latest", b"z", etag=etag)


def test_deleting_many_tries_all(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for key in ("a/x", "b", "c"):
        store.put(key, b"x")
    with pytest.raises(RemoteError, match="1 objects were not deleted"):
        store.delete_many(["a", "b", "c"])  # a is a folder
    assert [found.key for found in store.list("")] == ["a/x"]


def test_urls_lead_back(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "with space" / "100%" / "ü")
    store.put("a", b"x")
    for url in (store.url, str(tmp_path / "with space" / "100%" / "ü")):
        assert open_store(url).get("a").data == b"x"
    assert pickle.loads(pickle.dumps(store)).get("a").data == b"x"
