"""flock, whole: shared and exclusive locks that go with their process.

A lock belongs to an open file description: it ends when the last descriptor of it is closed, so a killed
process leaves nothing behind. `LOCK_UN` is never called, since a descriptor that was inherited by fork shares
its parent's lock; a child closes what it inherited, or it would keep its parent's locks for as long as it
lives.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dload.errors import LockTimeoutError

# What file systems answer that have no flock (some network disks).
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


class LocksUnsupportedError(OSError):
    """The file system has no flock."""


class LockFile:
    """A file opened to be locked. The lock ends with `close`, with the object, with the process, and never
    goes to a child: after a fork the child's object is closed, the parent's stays as it was.
    """

    __slots__ = ("__weakref__", "descriptor")

    def __init__(self, path: Path, flags: int = os.O_RDONLY) -> None:
        """Opens `path` (flags as for os.open); raises OSError."""
        self.descriptor = -1
        with _guard:
            self.descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
            _open_files.add(self)
            if any(path.is_relative_to(folder) for folder in _own_folders):
                status = os.fstat(self.descriptor)
                _own_files[self.descriptor] = (status.st_dev, status.st_ino)

    @property
    def closed(self) -> bool:
        return self.descriptor < 0

    def close(self) -> None:
        """Close the file, which gives up the lock. Closing twice is fine."""
        with _guard:
            descriptor, self.descriptor = self.descriptor, -1
            if descriptor >= 0:
                _open_files.discard(self)
                if _own_files.pop(descriptor, None) is not None and _own_locks.pop(descriptor, None) is not None:
                    _unlocked.notify_all()
                os.close(descriptor)

    def __enter__(self) -> LockFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self.descriptor >= 0:
            self.close()


# Held over every fork, so that the child finds no descriptor half opened or half closed. Reentrant, since a
# finalizer may close a file in the thread that is just opening one.
_guard = threading.RLock()
_open_files: weakref.WeakSet[LockFile] = weakref.WeakSet()

# For folders without flock that only this process uses: its threads' locks, kept here.
_own_folders: set[Path] = set()
_own_files: dict[int, tuple[int, int]] = {}  # open descriptor -> device and inode
_own_locks: dict[int, bool] = {}  # descriptor that has a lock -> whether it is shared
_unlocked = threading.Condition(_guard)


def _before_fork() -> None:
    _guard.acquire()


def _after_fork() -> None:
    _guard.release()


def _after_fork_in_child() -> None:
    for file in list(_open_files):
        os.close(file.descriptor)
        file.descriptor = -1
    for forgotten in (_open_files, _own_folders, _own_files, _own_locks):
        forgotten.clear()
    _guard.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def lock_within_process(folder: Path) -> None:
    """From now on, locks of files below `folder` hold between the threads of this process alone: for a file system
    that has no flock, and a folder that no other process uses. A child made by fork doesn't take this over.
    """
    with _guard:
        _own_folders.add(folder)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Take the lock of an open file if nobody is in the way; say whether it is taken. Raises
    LocksUnsupportedError.
    """
    if descriptor in _own_files:
        return _try_own(descriptor, shared)
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
    if descriptor in _own_files:
        with _guard:
            while not _try_own(descriptor, shared):
                _unlocked.wait()
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    except OSError as error:
        raise _translated(error) from error


def _try_own(descriptor: int, shared: bool) -> bool:
    with _guard:
        inode = _own_files[descriptor]
        others = [held for other, held in _own_locks.items() if other != descriptor and _own_files[other] == inode]
        free = all(others) if shared else not others
        if free:
            _own_locks[descriptor] = shared
        return free


def names(path: Path, descriptor: int) -> os.stat_result | None:
    """The open file's status if `path` still names it, else None: after any lock, it may have been deleted or replaced
    meanwhile.
    """
    try:
        at_path = path.stat()
    except FileNotFoundError:
        return None
    status = os.fstat(descriptor)
    return status if os.path.samestat(at_path, status) else None


@contextmanager
def locked(path: Path, *, timeout: float | None = None, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the exclusive lock of the file `path`, which is made where it is missing and is never deleted.

    Who holds it may replace the file by another (rename): those who wait then go on to wait for that one.
    `timeout` in seconds (None: forever), then LockTimeoutError; `waiting` is called if the lock isn't free.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with LockFile(path, os.O_RDWR | os.O_CREAT) as file:
            if not try_lock(file.descriptor):
                if waiting is not None:
                    waiting()
                _wait(file.descriptor, path, timeout)
            if names(path, file.descriptor):
                yield
                return


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
