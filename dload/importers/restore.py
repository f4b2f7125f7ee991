"""Samples as files again, below a folder that they can't reach out of."""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from dload.errors import LockTimeoutError, SampleError
from dload.files.atomic import disk_full
from dload.files.locks import LocksUnsupportedError, try_lock
from dload.importers.names import join_path

# The file that is being written; a killed process leaves at most this one, and the next run writes over it.
PARTIAL = ".dload-partial"
# The folder in which an export is made; where it is, an export was cut off, which may go on.
EXPORTING = ".dload-export"
_CHUNK = 1 << 20
_NO_FOLDER = {errno.ENOTDIR, errno.ELOOP, errno.EMLINK}


@dataclass
class Restored:
    """What `write_files` did. `same`: files that were there already. `differing`: files that were there with
    other bytes and were left as they are."""

    written: int = 0
    same: int = 0
    written_bytes: int = 0
    differing: list[str] = field(default_factory=list)


def write_files(samples: Iterable[tuple[str, Mapping[str, bytes]]], folder: Path, *, replace: bool = False) -> Restored:
    """Write each field of each sample to its file below `folder`, which is made where it is missing.

    The inverse of committing a folder. A file appears whole or not at all. One that is there with the same
    bytes is not touched; one with other bytes only with `replace`. Links inside the folder are never
    followed. Raises SampleError, naming the file, for a sample that can't be a file there or that shares one
    with another sample (on a file system that ignores case, also `A.txt` and `a.txt`); LockTimeoutError if
    another process writes to the folder; DiskFullError.
    """
    result = Restored()
    with disk_full(folder.absolute().parent):
        folder.mkdir(parents=True, exist_ok=True)
    with _Tree(folder) as tree:
        for key, fields in samples:
            for name, value in fields.items():
                path = join_path(key, name)
                state = tree.write(path, value, replace)
                if state == "written":
                    result.written += 1
                    result.written_bytes += len(value)
                elif state == "same":
                    result.same += 1
                else:
                    result.differing.append(path)
    return result


class _Tree:
    """The folder, held by its descriptor: every step down is taken from there and follows no link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.names_fold = False
        self._written: set[int] = set()
        self._folders: dict[str, str] = {}
        self._current: tuple[str, int] = ("", os.dup(self.root))

    def __enter__(self) -> _Tree:
        try:
            with suppress(LocksUnsupportedError):  # then two processes may disturb each other, as with cp
                if not try_lock(self.root):
                    what = f"another process is writing to {self.folder}"
                    raise LockTimeoutError(what, remedy="wait for it, or choose another folder")
            self.names_fold = ignores_case(self.root)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        os.close(self._current[1])
        os.close(self.root)

    def write(self, path: str, value: bytes, replace: bool) -> str:
        """Make the file: "written", "same" (was there), or "differs" (other bytes are there)."""
        folder, _, name = path.rpartition("/")
        self._refuse_collision(path, folder)
        with self._in_the_way(path), disk_full(self.folder, len(value)):
            where = self._open(folder)
            there = _compare(where, name, value)
            if there == "same" or (there == "differs" and not replace):
                return there
            _write_whole(where, name, value)
        return "written"

    def _refuse_collision(self, path: str, folder: str) -> None:
        folded = fold(path) if self.names_fold else path
        exact = self._folders.setdefault(fold(folder), folder) if self.names_fold else folder
        if hash(folded) in self._written or exact != folder:
            raise SampleError(
                f"two samples would be the same file {path!r} in {self.folder}", path=path,
                remedy="restore to a file system that tells such names apart, or read the samples in Python",
            )  # fmt: skip
        self._written.add(hash(folded))

    def _open(self, folder: str) -> int:
        if folder != self._current[0]:
            opened = _descend(self.root, folder)
            os.close(self._current[1])
            self._current = (folder, opened)
        return self._current[1]

    @contextmanager
    def _in_the_way(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _NO_FOLDER:
                what = "a file or a link stands where a folder must be"
            elif isinstance(error, IsADirectoryError):
                what = "a folder stands in its place"
            elif error.errno in (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.EACCES, errno.EPERM):
                what = str(error.strerror).lower()
            else:
                raise
            raise SampleError(f"can't write {path!r} in {self.folder}: {what}", path=path) from error


def _descend(root: int, folder: str) -> int:
    """The descriptor of a folder below `root`; makes what is missing."""
    at = os.dup(root)
    for part in folder.split("/") if folder else ():
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=at)
        try:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at


def _compare(folder: int, name: str, value: bytes) -> str:
    """ "missing", "same" or "differs"."""
    try:
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return "missing"
    if not stat.S_ISREG(state.st_mode) or state.st_size != len(value):
        return "differs"
    view, position = memoryview(value), 0
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        while chunk := os.read(descriptor, _CHUNK):
            if view[position : position + len(chunk)] != chunk:
                return "differs"
            position += len(chunk)
    finally:
        os.close(descriptor)
    return "same" if position == len(value) else "differs"


def _write_whole(folder: int, name: str, value: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(PARTIAL, flags, 0o666, dir_fd=folder)
    except FileExistsError:
        os.unlink(PARTIAL, dir_fd=folder)
        descriptor = os.open(PARTIAL, flags, 0o666, dir_fd=folder)
    try:
        try:
            view = memoryview(value)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        os.rename(PARTIAL, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):  # a Ctrl-C may come just behind the rename
            os.unlink(PARTIAL, dir_fd=folder)
        raise


def ignores_case(folder: int) -> bool:
    """Whether the file system takes `A` and `a` for one name. Writes a small file and deletes it."""
    descriptor = os.open(PARTIAL, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666, dir_fd=folder)
    os.close(descriptor)
    try:
        os.stat(PARTIAL.upper(), dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    else:
        return True
    finally:
        os.unlink(PARTIAL, dir_fd=folder)


def fold(path: str) -> str:
    """One text for all names that such a file system may take for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
