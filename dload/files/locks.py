"""flock, whole: shared and exclusive locks that go with their process.

A lock belongs to an open file description: it ends when the last descriptor of it is closed, so a killed process leaves
nothing behind. `LOCK_UN` is never called, since a descriptor that was inherited by fork shares its parent's lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dload.errors import LockTimeoutError

# What file systems answer that have no flock (some network disks).
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


class LocksUnsupportedError(OSError):
    """The file system has no flock."""


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Take the lock of an open file if nobody is in the way; say whether it is taken. Raises LocksUnsupportedError."""
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _translated(error) from error
    return True


def wait_lock(descriptor: int, *, shared: bool = False) -> None:
    """Take the lock of an open file, however long it takes. Raises LocksUnsupportedError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    except OSError as error:
        raise _translated(error) from error


def names(path: Path, descriptor: int) -> bool:
    """Whether `path` still names the open file: after any lock, it may have been deleted or replaced meanwhile."""
    try:
        at_path = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(at_path, os.fstat(descriptor))


@contextmanager
def locked(path: Path, *, timeout: float | None = None, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the exclusive lock of the file `path`, which is made where it is missing and is never deleted.

    `timeout` in seconds (None: forever), then LockTimeoutError; `waiting` is called once if the lock isn't free.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not try_lock(descriptor):
            if waiting is not None:
                waiting()
            _wait(descriptor, path, timeout)
        yield
    finally:
        os.close(descriptor)


def _wait(descriptor: int, path: Path, timeout: float | None) -> None:
    if timeout is None:
        wait_lock(descriptor)
        return
    deadline = time.monotonic() + timeout
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            raise LockTimeoutError(
                f"another process has held the lock {path} for more than {timeout:g} s",
                remedy="find it with: fuser -v " + str(path), path=str(path),
            )  # fmt: skip
        time.sleep(0.02)


def _translated(error: OSError) -> OSError:
    if error.errno in _UNSUPPORTED:
        return LocksUnsupportedError(error.errno, "this file system has no file locks (flock)")
    return error
