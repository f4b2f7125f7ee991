"""The folder that an export goes to: its files appear whole or not at all, and nothing is written outside of it."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dload.errors import ConfigError, LockTimeoutError, SampleError
from dload.files.atomic import disk_full
from dload.files.locks import LocksUnsupportedError, try_lock
from dload.importers.columns import Column
from dload.importers.restore import PARTIAL

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
    files of the same names are replaced, and what an earlier export of the kind left over is deleted at the end.

    `own`: the pattern of the names that the format writes.
    """

    def __init__(self, folder: Path, own: str, *, replace: bool) -> None:
        self.folder = folder
        self.done = Exported()
        self._names: set[str] = set()
        self._own = re.compile(own)
        self._replace = replace

    def __enter__(self) -> Target:
        with disk_full(self.folder.absolute().parent):
            self.folder.mkdir(parents=True, exist_ok=True)
        refuse_full(self.folder, replace=self._replace)
        self._descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(LocksUnsupportedError):
            if not try_lock(self._descriptor):
                os.close(self._descriptor)
                raise LockTimeoutError(
                    f"another process is writing to {self.folder}", remedy="wait for it, or choose another folder"
                )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for path in self.folder.iterdir():
                if self._own.fullmatch(path.name) and path.name not in self._names:
                    path.unlink()
        os.close(self._descriptor)

    @contextmanager
    def file(self, name: str) -> Generator[BinaryIO, None, None]:
        """A file to write, which takes its name when all of it is there."""
        with suppress(FileNotFoundError):
            os.unlink(PARTIAL, dir_fd=self._descriptor)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(PARTIAL, flags, 0o666, dir_fd=self._descriptor)
        try:
            with disk_full(self.folder), os.fdopen(descriptor, "w+b") as stream:
                yield stream
                self.done.bytes += stream.seek(0, os.SEEK_END)
            os.rename(PARTIAL, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(PARTIAL, dir_fd=self._descriptor)
            raise
        self.done.files += 1
        self._names.add(name)


def refuse_full(folder: Path, *, replace: bool) -> None:
    """ConfigError where there is something in a folder that may not be replaced."""
    if not replace and folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty", remedy="name a new folder, or replace what an earlier export wrote with --force"
        )


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
