"""A folder of files as samples."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

from dload.errors import ConfigError, DuplicateKeyError, SampleError
from dload.importers.names import Patterns, split_path
from dload.importers.restore import EXPORTING, PARTIAL
from dload.pack.samples import MAX_KEY_SIZE, MAX_NAME_SIZE, MAX_VALUE_SIZE
from dload.repo.group import LazySample

LEFT_OUT = (b".git", b".DS_Store", os.fsencode(PARTIAL), os.fsencode(EXPORTING))
_RACY_SECONDS = 2.0
_NAMED = 10  # how many names an error lists


class _File(NamedTuple):
    """One file of the folder, as it was when it was found. They are ordered as samples and their fields are: by UTF-8
    bytes of the key.
    """

    key: bytes
    field: str
    root: int
    path: bytes
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @property
    def shown(self) -> str:
        return os.fsdecode(self.path)


class Folder:
    """The files below one or more folders, as samples in the order of their keys' UTF-8 bytes.

    `names.py` says which file becomes which field of which sample; keys are paths relative to their root.
    Hidden files count like others; what is named `.git` or `.DS_Store` is left out. Links to files are read
    as files. Links to folders are followed, but not back into a folder that they are in. Empty folders leave
    no trace; empty files are kept. `include` and `exclude` are patterns (`names.Patterns`).

    Making it looks at every file, without reading any, and refuses up front what can't be committed:
    SampleError naming the files (names that aren't UTF-8, dangling links, sockets and devices, what may not
    be read, keys and fields that are too long, files of 4 GiB or more, no files at all), DuplicateKeyError
    naming both places, ConfigError for a root that is no folder and for an `include` that matches nothing.

    A file that changes while it is read is read once more; if it still changes, SampleError, or with
    `allow_changed` whatever was read last. Files are never written to. With `force`, samples have no stamp:
    all are read again.
    """

    def __init__(
        self, *roots: Path | str, include: Iterable[str] = (), exclude: Iterable[str] = (),
        allow_changed: bool = False, force: bool = False,
    ) -> None:  # fmt: skip
        self.allow_changed = allow_changed
        self.force = force
        self._settled = (time.time() - _RACY_SECONDS) * 1e9
        scan = _Scan(Patterns(include), Patterns(exclude))
        for number, root in enumerate(roots):
            scan.walk(number, Path(root))
        scan.raise_refusals()
        self._files = sorted(scan.files)
        self.total_bytes = scan.total_bytes
        _refuse_same_keys(self._files)
        if not self._files:
            where = " or ".join(map(str, roots))
            raise SampleError(f"no files in {where}", remedy="is this the right folder?")
        self._len = 1 + sum(one.key != other.key for one, other in pairwise(self._files))

    def __len__(self) -> int:
        return self._len

    @property
    def num_files(self) -> int:
        """How many files there are."""
        return len(self._files)

    def __iter__(self) -> Iterator[LazySample]:
        """The samples, as the files were when they were found. Reads none before a sample is loaded."""
        for key, group in groupby(self._files, key=lambda file: file.key):
            files = list(group)
            sizes = {file.field: file.size for file in files}
            stamp = None if self.force else _stamp(files, self._settled)
            yield LazySample(key.decode(), sizes, partial(_load, files, self.allow_changed), stamp)


# ---- looking
class _Scan:
    """Finds the files of folders, and what of them can't be committed."""

    def __init__(self, include: Patterns, exclude: Patterns) -> None:
        self.include = include
        self.exclude = exclude
        self.files: list[_File] = []
        self.total_bytes = 0
        self.refused: list[str] = []

    def walk(self, number: int, root: Path) -> None:
        try:
            state = root.stat()
        except OSError as error:
            raise ConfigError(f"{root}: {error.strerror}", remedy="name a folder that can be read") from None
        if not stat.S_ISDIR(state.st_mode):
            raise ConfigError(f"{root} is not a folder", remedy="name the folder it is in, and --include it")
        self._folders(number, os.fsencode(root), (state.st_dev, state.st_ino))

    def _folders(self, number: int, root: bytes, start: tuple[int, int]) -> None:
        """Every folder below `root`, with the folders that lead to it: a link back to one of these would
        never end."""
        waiting = [(b"", frozenset({start}))]
        while waiting:
            folder, above = waiting.pop()
            for entry, path in self._entries(root, folder):
                try:
                    state = entry.stat()
                except OSError as error:
                    if not self.include or self.include.match(_text(path)):
                        dangling = entry.is_symlink()
                        self._refuse(entry.path, "a link to nothing" if dangling else error.strerror)
                    continue
                identity = (state.st_dev, state.st_ino)
                if not stat.S_ISDIR(state.st_mode):
                    self._file(number, entry.path, path, state)
                elif identity not in above:
                    waiting.append((path + b"/", above | {identity}))

    def _entries(self, root: bytes, folder: bytes) -> Iterator[tuple[os.DirEntry[bytes], bytes]]:
        """What is in a folder and not left out, with its path below the root."""
        try:
            with os.scandir(root + b"/" + folder) as entries:
                for entry in entries:
                    path = folder + entry.name
                    if entry.name not in LEFT_OUT and not self.exclude.match(_text(path)):
                        yield entry, path
        except OSError as error:
            self._refuse(root + b"/" + folder, error.strerror)

    def _file(self, number: int, path: bytes, relative: bytes, state: os.stat_result) -> None:
        if self.include and not self.include.match(_text(relative)):
            return
        try:
            key, field = split_path(relative.decode())
        except UnicodeDecodeError:
            self._refuse(path, "its name is not UTF-8")
            return
        file = _File(
            key.encode(), field, number, path, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino
        )
        if not stat.S_ISREG(state.st_mode):
            self._refuse(path, "neither a file nor a folder")
        elif len(file.key) > MAX_KEY_SIZE:
            self._refuse(path, f"its key would have {len(file.key):,} bytes; {MAX_KEY_SIZE:,} are possible")
        elif len(field.encode()) > MAX_NAME_SIZE:
            self._refuse(path, f"what follows its last dot has more than {MAX_NAME_SIZE} bytes")
        elif state.st_size > MAX_VALUE_SIZE:
            self._refuse(path, "it has 4 GiB or more")
        elif not os.access(path, os.R_OK):
            self._refuse(path, "it may not be read")
        else:
            self.files.append(file)
            self.total_bytes += state.st_size

    def _refuse(self, path: bytes, why: str | None) -> None:
        self.refused.append(f"{os.fsdecode(path)!r}: {why}")

    def raise_refusals(self) -> None:
        if unused := self.include.unused:
            which = ", ".join(map(repr, unused))
            raise ConfigError(f"no file matches --include {which}", remedy="patterns are for paths in it")
        if not self.refused:
            return
        count, listed = len(self.refused), "; ".join(sorted(self.refused)[:_NAMED])
        more = f"; and {count - _NAMED:,} more" if count > _NAMED else ""
        raise SampleError(
            f"{count:,} {'file' if count == 1 else 'files'} can't be committed: {listed}{more}",
            remedy="rename or repair them, or leave them out with --exclude PATTERN",
        )


def _text(path: bytes) -> str:
    """A path for patterns: also one that isn't UTF-8 must be possible to exclude."""
    return path.decode("utf-8", "surrogateescape")


def _refuse_same_keys(files: list[_File]) -> None:
    for one, other in pairwise(files):
        if one.key == other.key and one.root != other.root:
            raise DuplicateKeyError(
                f"two files make the same sample {one.key.decode()!r}: {one.shown!r} and {other.shown!r}",
                remedy="rename one, or commit the folder above them so that their paths differ",
            )


# ---- reading
def _load(files: Sequence[_File], allow_changed: bool) -> dict[str, bytes]:
    return {file.field: _read(file, allow_changed) for file in files}


def _read(file: _File, allow_changed: bool) -> bytes:
    """The file's bytes as they were when it was found."""
    data, unchanged = _read_once(file, (file.size, file.mtime_ns, file.inode))
    if not unchanged:
        # It may be at rest again by now. But its size was promised.
        data, unchanged = _read_once(file, None)
        if not allow_changed and not (unchanged and len(data) == file.size):
            raise SampleError(
                f"{file.shown!r} changed while it was committed: {file.size:,} bytes, then {len(data):,}",
                remedy="commit again when it is at rest, or take it as it is read with --allow-changed",
                path=file.shown,
            )
    return data


def _read_once(file: _File, before: tuple[int, int, int] | None) -> tuple[bytes, bool]:
    """The bytes, and whether the file was the same before (None: now) and after."""
    with _named(file), open(file.path, "rb") as stream:  # noqa: PTH123 (the path is bytes)
        now = os.fstat(stream.fileno())
        data = stream.read(now.st_size + 1)  # one more shows that it grew; all of it might never end
        last = os.fstat(stream.fileno())
    unchanged = (before or _identity(now)) == _identity(last) and len(data) == now.st_size
    return data[: now.st_size], unchanged


def _stamp(files: Sequence[_File], settled: float) -> bytes | None:
    """What tells that the files are still the same ones, unread. None where one is younger than `settled` (ns since
    1970): it could change once more without a difference in its times.
    """
    if any(file.mtime_ns > settled or file.ctime_ns > settled for file in files):
        return None
    return blake2b(repr([file[1:] for file in files]).encode(), digest_size=32).digest()


def _identity(state: os.stat_result) -> tuple[int, int, int]:
    return state.st_size, state.st_mtime_ns, state.st_ino


@contextmanager
def _named(file: _File) -> Iterator[None]:
    """What the system refuses, as an error that names the file."""
    try:
        yield
    except OSError as error:
        raise SampleError(
            f"can't read {file.shown!r}: {error.strerror}", path=file.shown,
            remedy="commit again when it is there and may be read, or leave it out with --exclude",
        ) from error  # fmt: skip
