"""Where foreign data lies: files in a folder of this machine or in a bucket, to be listed, streamed and opened.

A source is written as people write it: a folder, a file, `s3://bucket/prefix`; the last may end in a pattern, of braces
(`shard-{000..009}.tar`, `{train,val}.csv`) or of the shell (`*.parquet`, `**/*.parquet`). Nothing is written there.
"""

from __future__ import annotations

import gzip
import io
import os
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from dload.errors import ConfigError, NotFoundError, SampleError
from dload.files.atomic import disk_full
from dload.importers.glob import matching, split_pattern
from dload.manifest import canonical
from dload.store import open_store
from dload.store.base import Store

MAX_TEXT = 256 << 20  # of one file of metadata, in bytes
# A compressed file may grow to the one or the other, whichever is more; what grows further is taken for a bomb.
MAX_GROWTH = 200
ALWAYS_ALLOWED = 1 << 30

_COMPRESSED = (".gz", ".tgz", ".zst", ".zstd")


class Files(Protocol):
    """The files of a source. `names` are paths relative to its root, sorted; a file that was named alone is under its
    own name."""

    @property
    def url(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def folder(self) -> Path | None:
        """The folder itself, where the source is one on this machine."""
        ...

    @property
    def alone(self) -> bool:
        """Whether the source is one file, by its own name: no folder and no pattern."""
        ...

    @property
    def here(self) -> bool:
        """Whether the files lie on this machine, so that a look into each costs little."""
        ...

    def size(self, name: str) -> int: ...

    def raw(self, name: str) -> BinaryIO:
        """The bytes of a file from its beginning, as they come."""
        ...

    def local(self, name: str) -> AbstractContextManager[Path]:
        """The file on this machine, while in the `with`: itself, or a download of the whole that is deleted behind."""
        ...


def open_files(source: str | Path, *, endpoint_url: str | None = None) -> Files:
    """The files at `source`. Raises ConfigError for what is no source, NotFoundError where there is nothing."""
    text = str(source)
    if not text:
        raise ConfigError("the source has no name", remedy="name a folder, a file, a pattern or s3://bucket/...")
    if text.startswith("s3://"):
        return _BucketFiles(text, endpoint_url)
    if "://" in text and not text.startswith("file://"):
        kind = text.partition("://")[0]
        raise ConfigError(f"unknown kind of place {kind}://", remedy="a source is a folder, a file or s3://bucket/...")
    return _LocalFiles(text.removeprefix("file://"))


class _LocalFiles:
    """Below a folder of this machine; links to files are followed, hidden files are left out."""

    here = True

    def __init__(self, text: str) -> None:
        self.url = text
        self.folder: Path | None = None
        self.alone = False
        path = Path(text)
        if path.is_dir():
            self.folder = self._root = path
            self._names: tuple[str, ...] | None = None  # listed at the first need: a folder may be large
        elif path.exists():
            self._root, self._names, self.alone = path.parent, (path.name,), True
        else:
            base, pattern = split_pattern(text)
            self._root = Path(base or ".")
            if not pattern:
                raise NotFoundError(
                    f"there is no file or folder {text!r}", remedy="name a folder, a file, or a pattern as *.parquet"
                )
            self._names = matching(pattern, lambda: _walk(self._root), self._is_file, text)

    @property
    def names(self) -> tuple[str, ...]:
        if self._names is None:
            self._names = tuple(sorted(_walk(self._root)))
        return self._names

    def _is_file(self, name: str) -> bool:
        return (self._root / name).is_file()

    def size(self, name: str) -> int:
        return (self._root / name).stat().st_size

    def raw(self, name: str) -> BinaryIO:
        return (self._root / name).open("rb")

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        yield self._root / name


class _BucketFiles:
    """Below a prefix of a bucket."""

    folder: Path | None = None
    here = False

    def __init__(self, url: str, endpoint_url: str | None) -> None:
        self.url = url
        self.alone = False
        base, pattern = split_pattern(url)
        self._store = open_store(base, endpoint_url=endpoint_url)
        self._sizes: dict[str, int] = {}
        if pattern:
            self.names = matching(pattern, lambda: self._list(self._store), self._is_file, url)
            return
        found = tuple(sorted(self._list(self._store)))
        if not found:  # one object, then
            parent, _, name = base.rstrip("/").rpartition("/")
            if parent != "s3:/" and (there := open_store(parent, endpoint_url=endpoint_url)).head(name):
                self._store, found, self.alone = there, (name,), True
        if not found:
            raise NotFoundError(f"there is nothing at {url}", remedy="name a prefix, an object, or a pattern as *.tar")
        self.names = found

    def _list(self, store: Store) -> Iterator[str]:
        for info in store.list(""):
            self._sizes[info.key] = info.size
            yield info.key

    def _is_file(self, name: str) -> bool:
        return self._store.head(name) is not None

    def size(self, name: str) -> int:
        if name not in self._sizes:
            info = self._store.head(name)
            self._sizes[name] = info.size if info else 0
        return self._sizes[name]

    def raw(self, name: str) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_Chunks(self._store.stream(name)), 1 << 20))

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="dload-import-") as folder:
            path = Path(folder) / name.rpartition("/")[2]
            with disk_full(Path(folder), self.size(name)), path.open("xb") as file, self.raw(name) as body:
                while chunk := body.read(1 << 20):
                    file.write(chunk)
            yield path


def of_suffix(files: Files, suffixes: tuple[str, ...]) -> tuple[str, ...]:
    """The files that end so; one that was named alone, whatever it ends in. ConfigError where there is none."""
    names = tuple(name for name in files.names if name.endswith(suffixes))
    if not names and not files.alone:
        there = f"there are {', '.join(files.names[:3])}" if files.names else "it is empty"
        raise ConfigError(
            f"{files.url}: no file ends in {' or '.join(suffixes)}: {there}",
            remedy="name the folder that they are in, one file itself, or another kind with --format",
        )
    return names or files.names


def title(files: Files, name: str) -> str:
    """A file of the source, for people."""
    return files.url if files.alone else f"{files.url}: {name}"


def require(files: Files, names: Iterable[str], index: str) -> None:
    """Raise NotFoundError where files are missing that an index names: before the first is read, not behind it."""
    there = set(files.names)
    if missing := [name for name in names if name not in there]:
        more = f", nor are {len(missing) - 1:,} more" if missing[1:] else ""
        raise NotFoundError(
            f"{files.url}: {index} names {missing[0]}, which isn't there{more}",
            remedy="fetch what is missing, or make the data set anew",
        )


def _walk(root: Path) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        relative = Path(folder).relative_to(root).as_posix()
        prefix = "" if relative == "." else relative + "/"
        yield from (prefix + name for name in names if not name.startswith("."))


# ---- streams
@contextmanager
def plain_stream(files: Files, name: str) -> Generator[BinaryIO, None, None]:
    """A file's bytes, decompressed where its name says that it is compressed (`.gz`, `.tgz`, `.zst`).

    Raises SampleError for what is damaged or grows like a bomb.
    """
    with files.raw(name) as raw:
        if not name.endswith(_COMPRESSED):
            yield raw
            return
        counted = _Counted(raw)
        body = cast(BinaryIO, counted)
        opened = cast(BinaryIO, gzip.GzipFile(fileobj=body)) if name.endswith("gz") else zstd_stream(body)
        yield cast(BinaryIO, io.BufferedReader(_Inflated(opened, counted, title(files, name)), 1 << 20))


def zstd_stream(raw: BinaryIO) -> BinaryIO:
    """What a zstd stream decompresses to. Raises ConfigError without the extra zstd."""
    try:
        import zstandard
    except ImportError:
        raise ConfigError("zstd needs a package that is missing", remedy="pip install 'dload-ml[zstd]'") from None
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw, read_across_frames=True)
    return cast(BinaryIO, reader)


def read_text(files: Files, name: str) -> bytes:
    """A file of metadata, whole. Raises NotFoundError where it isn't there, SampleError where it is too large to be
    one."""
    try:
        with files.raw(name) as raw:
            data = raw.read(MAX_TEXT + 1)
    except (FileNotFoundError, NotADirectoryError, NotFoundError) as error:
        raise NotFoundError(f"{files.url}: there is no {name}", remedy="name the folder that it is in") from error
    if len(data) > MAX_TEXT:
        raise SampleError(f"{files.url}: {name} has more than {MAX_TEXT >> 20} MiB, too much for metadata")
    return data


def read_json(files: Files, name: str) -> dict[str, Any]:
    """The JSON object that a file of metadata is. Raises as `read_text`, and SampleError where it is none."""
    try:
        value = canonical.loads(read_text(files, name))
    except ValueError as error:
        if isinstance(error, SampleError):
            raise
        raise SampleError(f"{files.url}: {name} is damaged: {error}", remedy="fetch or make it anew") from error
    if not isinstance(value, dict):
        raise SampleError(f"{files.url}: {name} is damaged: no JSON object", remedy="fetch or make it anew")
    return value


class _Chunks(io.RawIOBase):
    """Chunks as a file that is read forward."""

    def __init__(self, chunks: Generator[bytes, None, None]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        self._chunks.close()
        super().close()


class _Counted(io.RawIOBase):
    """A stream that counts what was read of it."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        data = self._raw.read(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


class _Inflated(io.RawIOBase):
    """What a compressed stream gives, as long as it stays in proportion."""

    def __init__(self, opened: BinaryIO, compressed: _Counted, shown: str) -> None:
        self._opened = opened
        self._compressed = compressed
        self._shown = shown
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        try:
            data = self._opened.read(len(buffer))
        except (OSError, EOFError, ValueError) as error:
            what = f"{self._shown} is damaged or cut off: {error}"
            raise SampleError(what, remedy="fetch or make it anew") from error
        buffer[: len(data)] = data
        self._count += len(data)
        if self._count > max(ALWAYS_ALLOWED, MAX_GROWTH * self._compressed.count):
            raise SampleError(
                f"{self._shown} grows to more than {MAX_GROWTH} times its size, like a bomb",
                remedy="if it is none, decompress it first and import that",
            )
        return len(data)
