"""The folder that an export goes to: its files appear whole or not at all, and nothing is written outside of it."""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dload.errors import ConfigError, LockTimeoutError, SampleError
from dload.files.atomic import disk_full
from dload.files.locks import LocksUnsupportedError, try_lock
from dload.importers.columns import Column
from dload.importers.restore import EXPORTING, write_files

Samples = Iterable[tuple[str, Mapping[str, bytes]]]


@dataclass(frozen=True)
class Request:
    """What to export. `columns`: how each field is stored, for all fields that there are, in the order to write them.
    `name`: what files are called, where the format leaves that open. `shard_size`: about how many bytes a file has;
    None: what is usual."""

    samples: Samples
    columns: Mapping[str, Column]
    name: str
    shard_size: int | None = None


@dataclass
class Exported:
    """What an export wrote."""

    samples: int = 0
    files: int = 0
    bytes: int = 0


class Target:
    """The folder, locked while in the `with`. Raises ConfigError where there is something in it, unless `replace`; then
    files of the same names are replaced, and what an earlier export of the kind left over is deleted.

    `own`: the pattern of the names that the format writes. Files are made in a folder inside, and take their places
    when all of them are there: an export that was cut off is none, to no tool, and one before it is still whole.
    """

    def __init__(self, folder: Path, own: str, *, replace: bool) -> None:
        self.folder = folder
        self.done = Exported()
        self._names: list[str] = []
        self._own = re.compile(own)
        self._replace = replace
        self._made = folder / EXPORTING

    def __enter__(self) -> Target:
        with disk_full(self.folder.absolute().parent):
            self.folder.mkdir(parents=True, exist_ok=True)
        refuse_full(self.folder, replace=self._replace)
        self._descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(LocksUnsupportedError):
                if not try_lock(self._descriptor):
                    raise LockTimeoutError(
                        f"another process is writing to {self.folder}", remedy="wait for it, or choose another folder"
                    )
            self._clear()
            self._made.mkdir()
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                for name in self._names:
                    (self._made / name).replace(self.folder / name)
                for path in self.folder.iterdir():
                    if self._own.fullmatch(path.name) and path.name not in self._names:
                        path.unlink()
            self._clear()
        finally:
            os.close(self._descriptor)

    def _clear(self) -> None:
        """Delete what was made and has no place."""
        if self._made.exists():
            shutil.rmtree(self._made)

    @contextmanager
    def file(self, name: str) -> Generator[BinaryIO, None, None]:
        """A file to write."""
        with disk_full(self.folder), (self._made / name).open("xb") as stream:
            yield stream
            self.done.bytes += stream.seek(0, os.SEEK_END)
        self.done.files += 1
        self._names.append(name)


def refuse_full(folder: Path, *, replace: bool) -> None:
    """ConfigError where there is something in a folder that may not be replaced. An export that was cut off may."""
    if not replace and folder.exists() and any(folder.iterdir()) and not (folder / EXPORTING).is_dir():
        raise ConfigError(
            f"{folder} is not empty", remedy="name a new folder, or replace what an earlier export wrote with --force"
        )


def write_as_files(request: Request, folder: Path, *, replace: bool = False) -> Exported:
    """Write each field of each sample as a file, as `restore.write_files` does. One that was cut off goes on.

    Raises ConfigError where the folder has files of the same names with other contents, unless `replace`.
    """
    mark, done = folder / EXPORTING, Exported()
    with disk_full(folder.absolute().parent):
        mark.mkdir(parents=True, exist_ok=True)

    def counted() -> Iterator[tuple[str, Mapping[str, bytes]]]:
        for sample in request.samples:
            yield sample
            done.samples += 1

    restored = write_files(counted(), folder, replace=replace)
    if restored.differing:
        raise ConfigError(
            f"{len(restored.differing):,} files in {folder} have other contents, the first is {restored.differing[0]}",
            remedy="they are of another export, which was cut off: name a new folder, or replace them with --force",
        )
    with suppress(OSError):  # a sample has a file in it
        mark.rmdir()
    done.files, done.bytes = restored.written + restored.same, restored.written_bytes
    return done


@contextmanager
def fitting(key: str) -> Generator[None, None, None]:
    """What a format can't hold, as an error that names the sample."""
    try:
        yield
    except SampleError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, struct.error) as error:
        raise unfit(
            key, str(error), "leave the field out with --fields A,B, or say what it holds with --codec"
        ) from error


def unfit(key: str, what: str, remedy: str) -> SampleError:
    """A sample that a format can't hold."""
    return SampleError(f"sample {key!r}: {what}", remedy=remedy, key=key)
