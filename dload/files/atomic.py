"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dload.errors import DiskFullError
from dload.sizes import format_size

_FULL = {errno.ENOSPC, errno.EDQUOT}


def write_atomic(path: Path, data: bytes) -> None:
    """Make `path` hold `data`: temporary file beside it, fsync, rename, fsync of the folder. Makes missing
    folders.

    Its mode follows the process's umask, so that a group may share a folder. Raises DiskFullError, or
    OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name[:100]}.{secrets.token_hex(8)}.tmp"
    try:
        with disk_full(path.parent, len(data)), temporary.open("xb") as file:
            file.write(data)
            sync(file)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync(file: BinaryIO) -> None:
    """Flush a file's bytes to the disk itself."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut; where folders can't be synced (some network disks), do
    nothing.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def free_space(where: Path) -> int:
    """Bytes that may still be written below `where`, which needn't exist yet."""
    while not where.exists():
        where = where.parent
    return shutil.disk_usage(where).free


@contextmanager
def disk_full(where: Path, needed: int | None = None) -> Iterator[None]:
    """Turn "no space left on device" into a DiskFullError that says how much is needed and how much is free."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        free = free_space(where)
        wanted = f"{format_size(needed)} needed, " if needed is not None else ""
        raise DiskFullError(
            f"no space left on the disk of {where}: {wanted}{format_size(free)} free",
            remedy="free some space there, or choose another disk",
            path=str(where), needed=needed, free=free,
        ) from error  # fmt: skip
