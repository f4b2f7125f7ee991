"""A folder as a store: a lab's shared disk, a laptop. Many processes on one machine or network disk may use
it at once.

Objects are files below the root. Whatever is unfinished lies in `<root>/tmp`, on the same disk, and comes to
its place by a rename; whatever replaces or deletes an object does so under one lock, `<root>/tmp/lock`, held
for the moment of the rename. An object's ETag is (inode, mtime, size), and a replacement is always younger
than what it replaces.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dload.errors import (
    AccessError,
    IntegrityError,
    NotFoundError,
    PreconditionFailedError,
    RemoteError,
    UnavailableError,
    UnsafeStoreError,
)
from dload.files.atomic import disk_full, sync, sync_folder
from dload.files.locks import LocksUnsupportedError, locked
from dload.store.base import Body, ObjectInfo, check_key, check_prefix

_CHUNK = 1 << 20
_NEVER = "never"  # no object's ETag
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
# What network disks answer while their server is away.
_PASSING = {
    errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.ENETDOWN, errno.ENOTCONN,
}  # fmt: skip


class FolderStore:
    """The store in the folder `root`, which the first write makes. Works under any umask that lets a group
    write."""

    def __init__(self, root: Path | str) -> None:
        self._root = Path(root).expanduser().absolute()
        self._temporary = self._root / "tmp"
        self._url = self._root.as_uri()  # asked for with each sample that is read by itself

    def __repr__(self) -> str:
        return f"FolderStore({str(self._root)!r})"

    @property
    def url(self) -> str:
        return self._url

    @property
    def staging(self) -> Path | None:
        """`<root>/tmp`, made if it is missing. Raises AccessError where it can't be."""
        with self._errors("write", "tmp"):
            self._temporary.mkdir(parents=True, exist_ok=True)
        return self._temporary

    # ---- reading
    def get(self, key: str) -> Body:
        with self._errors("read", key), self._path(key).open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read()
        return Body(data, _etag(found), found.st_mtime)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._errors("read", key), self._path(key).open("rb") as file:
            file.seek(start)
            data = file.read(length)
            size = os.fstat(file.fileno()).st_size
        if len(data) < length:
            raise IntegrityError(
                f"{self._name(key)} is too short: {start + length:,} bytes expected, {size:,} found",
                key=key, expected=start + length, got=size,
            )  # fmt: skip
        return data

    def stream(self, key: str, start: int = 0) -> Generator[bytes, None, None]:
        with self._errors("read", key), self._path(key).open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if start > size:
                what = f"{size:,} bytes; asked for those from {start:,} on"
                raise IntegrityError(f"{self._name(key)} has {what}", key=key)
            file.seek(start)
            while data := file.read(_CHUNK):
                start += len(data)
                yield data
        if start < size:
            raise UnavailableError(f"{self._name(key)} ended at byte {start:,} of {size:,}", key=key)

    def head(self, key: str) -> ObjectInfo | None:
        try:
            with self._errors("look at", key):
                found = self._path(key).stat()
        except NotFoundError:
            return None
        return _info(key, found) if stat.S_ISREG(found.st_mode) else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder, slash, beginning = check_prefix(prefix).rpartition("/")
        with self._errors("list", prefix):
            yield from self._walk(folder + slash, beginning)

    def list_folders(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        with self._errors("list", prefix):
            names = [entry.name for entry in self._entries(prefix) if entry.is_dir()]
            for name in names:
                if any(True for _ in self._walk(f"{prefix}{name}/", "")):
                    yield name

    def clock(self) -> float:
        """The disk's time, by the mtime of a fresh file; where nothing can be written, this machine's."""
        try:
            with self._new_file(lambda _: None) as path:
                return path.stat().st_mtime
        except OSError:
            return time.time()

    # ---- writing
    def put(self, key: str, data: bytes) -> str:
        with self._errors("write", key), self._new_file(lambda file: _write(file, data), len(data)) as path:
            return self._place(path, key)

    def put_file(self, key: str, path: Path, *, move: bool = False) -> str:
        if move and self._temporary in path.absolute().parents:
            return self._move_in(key, path)
        with path.open("rb") as source, self._errors("write", key):
            size = os.fstat(source.fileno()).st_size
            with self._new_file(lambda file: _copy(source, file), size) as copy:
                return self._place(copy, key)

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        with self._errors("write", key), self._new_file(lambda file: _write(file, data), len(data)) as path:
            return self._place(path, key, only_if=etag)

    def conditional(self, *, refresh: bool = False) -> bool:
        """Whether the disk has file locks. Makes the lock's file."""
        with self._errors("write", "tmp/lock"), self._exclusive() as held:
            return held

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._errors("delete", key):
            if not path.exists():
                return
            with self._exclusive() as held:
                path.unlink(missing_ok=True)
                if held:
                    self._prune(path.parent)

    def delete_many(self, keys: Iterable[str]) -> None:
        failed: dict[str, RemoteError] = {}
        for key in keys:
            try:
                self.delete(key)
            except RemoteError as error:
                failed[key] = error
        if failed:
            first = next(iter(failed.values()))
            raise type(first)(
                f"{len(failed):,} objects were not deleted; the first: {first.message}",
                remedy=first.remedy, failed=len(failed),
            )  # fmt: skip

    def abort_unfinished(
        self, before: float, *, mine: Callable[[str], bool] = lambda _: True, dry_run: bool = False
    ) -> int:
        """Delete files below `<root>/tmp` that were last written before then. Returns how many."""
        dropped = 0
        with self._errors("delete", "tmp"):
            for path in sorted(self._temporary.rglob("*"), reverse=True):  # what is in a folder before it
                with suppress(FileNotFoundError):
                    if path.lstat().st_mtime >= before or path == self._temporary / "lock":
                        continue
                    if not path.is_dir() or path.is_symlink():
                        dropped += 1
                        if not dry_run:
                            path.unlink()
                    elif not dry_run:
                        with suppress(OSError):  # not empty
                            path.rmdir()
        return dropped

    # ---- inside
    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _name(self, key: str) -> str:
        return str(self._root / key)

    @contextmanager
    def _new_file(self, fill: Callable[[BinaryIO], None], size: int | None = None) -> Iterator[Path]:
        """A temporary file, filled and on the disk, that is gone afterwards unless it was moved away."""
        self._temporary.mkdir(parents=True, exist_ok=True)
        path = self._temporary / f"{secrets.token_hex(16)}.tmp"
        try:
            with disk_full(self._temporary, size), path.open("xb") as file:
                fill(file)
                sync(file)
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _move_in(self, key: str, path: Path) -> str:
        with self._errors("write", key):
            with path.open("rb+") as file:
                sync(file)
            # Whoever wrote it may have made it for himself alone; in its place it is as open as its folder.
            path.chmod(stat.S_IMODE(self._temporary.stat().st_mode) & 0o666)
            os.utime(path)  # an object's age counts from when it came in
            return self._place(path, key)

    def _place(self, path: Path, key: str, only_if: str | None = _NEVER) -> str:
        """Rename the finished file into place, under a condition if one is given (None: nothing may be
        there)."""
        target = self._path(key)
        with self._exclusive() as held:
            if only_if != _NEVER:
                self._check_condition(key, target, only_if, held)
            self._make_folder(target.parent)
            with suppress(FileNotFoundError):
                _make_younger(path, target.stat().st_mtime_ns)
            etag = _etag(path.stat())
            path.replace(target)
        sync_folder(target.parent)
        return etag

    def _check_condition(self, key: str, target: Path, wanted: str | None, held: bool) -> None:
        if not held:
            raise UnsafeStoreError(
                f"the disk of {self._root} has no file locks, so two writers could overwrite each other",
                remedy="put the store on a disk with locks (flock), or let only one process ever write",
            )
        try:
            with target.open("rb") as file:  # opening it makes a network disk ask its server
                found = _etag(os.fstat(file.fileno()))
        except FileNotFoundError:
            found = None
        if found != wanted:
            raise PreconditionFailedError(
                f"{self._name(key)} was changed by someone else first: expected {wanted or 'no object'}, "
                f"found {found or 'none'}", key=key, expected=wanted, got=found,
            )  # fmt: skip

    @contextmanager
    def _exclusive(self) -> Iterator[bool]:
        """Hold the store's lock; False where the disk has none."""
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self._temporary / "lock"))
                held = True
            except LocksUnsupportedError:
                held = False
            yield held

    def _make_folder(self, folder: Path) -> None:
        """mkdir -p whose every step survives a power cut."""
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)

    def _prune(self, folder: Path) -> None:
        """Remove folders that a delete has left empty. Only under the lock, or a writer could lose his
        folder."""
        with suppress(OSError):  # not empty
            while folder != self._root:
                folder.rmdir()
                folder = folder.parent

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        """What is in a folder (empty, or ending in `/`), without what isn't an object's."""
        try:
            with os.scandir(self._root / folder) as found:
                entries = [entry for entry in found if not entry.name.startswith(".")]
        except OSError as error:
            if error.errno in _ABSENT:
                return
            raise
        for entry in entries:
            if folder or entry.name != "tmp":
                yield entry

    def _walk(self, folder: str, beginning: str) -> Iterator[ObjectInfo]:
        for entry in self._entries(folder):
            if not entry.name.startswith(beginning):
                continue
            if entry.is_dir():
                yield from self._walk(f"{folder}{entry.name}/", "")
                continue
            with suppress(FileNotFoundError):  # deleted meanwhile
                yield _info(folder + entry.name, entry.stat())

    @contextmanager
    def _errors(self, operation: str, key: str) -> Iterator[None]:
        """Turn what the file system says into what a store says."""
        try:
            yield
        except OSError as error:
            what = f"can't {operation} {self._name(key)}"
            reason = error.strerror or str(error)
            if error.errno in _ABSENT:
                raise NotFoundError(f"{what}: there is no such object", key=key) from error
            if error.errno in _FORBIDDEN:
                remedy = f"check the owner and mode with: ls -ld {self._root}"
                raise AccessError(f"{what}: {reason}", remedy=remedy, key=key) from error
            if error.errno in _PASSING:
                remedy = "see that the disk is mounted"
                raise UnavailableError(f"{what}: {reason}", remedy=remedy, key=key) from error
            raise RemoteError(f"{what}: {reason}", key=key) from error


def _etag(found: os.stat_result) -> str:
    return f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, found.st_size, _etag(found), found.st_mtime)


def _make_younger(path: Path, than: int) -> None:
    """Clocks of file systems tick every few milliseconds and inodes come back: without this an ETag could,
    too."""
    if path.stat().st_mtime_ns <= than:
        os.utime(path, ns=(than + 1, than + 1))


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)


def _copy(source: BinaryIO, file: BinaryIO) -> None:
    shutil.copyfileobj(source, file, _CHUNK)
