"""Pins: shared locks on the cached files themselves, seen by every process, gone with theirs.

Whoever wants to delete a cached file takes its exclusive lock first. So a file that someone reads stays,
whoever reads it, and a killed reader leaves nothing to clean up.
"""

from __future__ import annotations

import os
import resource
import time
import weakref
from collections.abc import Iterable
from pathlib import Path

from dload.cache.eviction import stamp
from dload.errors import CacheFullError
from dload.files.locks import LockFile, names, try_lock, wait_lock

_ABOUT = 0.001  # seconds. Who reads sample after sample from one shard needn't say each time that it is in use


class Held:
    """Space that this process keeps others from freeing: a pinned file, or a download under way."""

    def __init__(self, root: Path, name: str, size: int, lock: LockFile) -> None:
        self.root = root
        self.name = name
        self.size = size
        self.lock = lock
        _held[id(self)] = self


_held: weakref.WeakValueDictionary[int, Held] = weakref.WeakValueDictionary()


def own(root: Path | None = None) -> list[Held]:
    """What this process holds, in the cache at `root` or in any."""
    living = [held for reference in _held.valuerefs() if (held := reference()) is not None]
    return [held for held in living if not held.lock.closed and root in (None, held.root)]


class Pin(Held):
    """A cached file that stays where it is until `release`, or until the pin is forgotten. A context manager.

    In a child made by fork it is released already; the parent's stays. Whoever maps the file opens `path`
    himself: a map of the pin's own descriptor would be inherited by a child, and keep the lock alive there.
    """

    def __init__(
        self, root: Path, digest: str, path: Path, lock: LockFile, size: int, next_use: float | None = None
    ) -> None:
        super().__init__(root, digest, size, lock)
        self.path = path
        self.next_use = next_use

    @classmethod
    def of_unnamed(cls, root: Path, digest: str, path: Path) -> Pin:
        """A pin of a temporary file whose name is about to go: it is reached through the open descriptor."""
        lock = LockFile(path, os.O_RDWR)
        return cls(root, digest, Path(f"/dev/fd/{lock.descriptor}"), lock, 0)

    @property
    def digest(self) -> str:
        return self.name

    def release(self, next_use: float | None = None) -> None:
        """Let the file go. `next_use`: seconds until it is expected to be needed again (default: as the pin
        was made with; None: not known), which decides how soon it is evicted. Releasing twice is fine.
        """
        if self.lock.closed:
            return
        wanted = self.next_use if next_use is None else next_use
        current = os.fstat(self.lock.descriptor).st_mtime
        set_time(self.lock.descriptor, stamp(time.time(), wanted, current), current)
        self.lock.close()

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def pin_file(root: Path, digest: str, path: Path, next_use: float | None = None) -> Pin | None:
    """Pin the file at `path`, or None where there is none. Waits while someone looks whether it may be
    deleted.

    Raises CacheFullError where the process has as many pins as its limit of open files allows.
    """
    while True:
        most = most_pins()
        # What is forgotten is never less than what is open, and known at once: a count of each would add up.
        if len(_held) >= most and (held := len(own())) >= most:
            raise CacheFullError(
                f"this process holds {held} shards open, as many as its limit of open files allows",
                remedy="raise the limit: ulimit -n", held=held,
            )  # fmt: skip
        try:
            lock = LockFile(path)
        except FileNotFoundError:
            return None
        try:
            wait_lock(lock.descriptor, shared=True)
            status = names(path, lock.descriptor)
            if status is not None:
                set_time(lock.descriptor, time.time(), status.st_mtime)
                return Pin(root, digest, path, lock, status.st_size, next_use)
        except BaseException:
            lock.close()
            raise
        lock.close()


def delete_unlocked(path: Path) -> bool:
    """Delete a file unless someone holds its lock; say whether it is gone. Call it under the cache's lock.

    A file of another user that can't be opened or deleted stays.
    """
    try:
        with LockFile(path) as lock:
            if not try_lock(lock.descriptor):
                return False
            path.unlink()
    except FileNotFoundError:
        return True
    except PermissionError:
        return False
    return True


def in_use(path: Path) -> bool:
    """Whether anyone, this process included, holds the lock of a file."""
    try:
        with LockFile(path) as lock:
            return not try_lock(lock.descriptor)
    except (FileNotFoundError, PermissionError):
        return False


def set_time(descriptor: int, mtime: float, current: float | None = None) -> None:
    """Set a file's mtime, unless the `current` one is about right; where only its owner may, touch it; where nobody may
    (read-only), leave it."""
    if current is not None and abs(mtime - current) < _ABOUT:
        return
    try:
        os.utime(descriptor, (mtime, mtime))
    except OSError:
        try:
            os.utime(descriptor)
        except OSError:
            return


def most_pins() -> int:
    """How many pins this process may hold: each takes a descriptor, and so does the reader's map of the file."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, (soft - 32) // 2) if soft != resource.RLIM_INFINITY else 1_000_000


def most_downloads() -> int:
    """How many downloads side by side leave this process descriptors for all that they need."""
    return max(1, most_pins() // 2)


def holders(paths: Iterable[Path]) -> list[str]:
    """Who holds the locks of these files, as "PID (command)"; empty where the system doesn't tell (not
    Linux).
    """
    inodes = set()
    for path in paths:
        try:
            inodes.add(path.stat().st_ino)
        except FileNotFoundError:
            continue
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    pids = set()
    for line in lines:
        words = line.split()  # "1: FLOCK ADVISORY READ 4242 fe:00:131 0 EOF", a waiter has "->" second
        if len(words) >= 8 and words[1] == "FLOCK" and int(words[5].rpartition(":")[2]) in inodes:
            pids.add(int(words[4]))
    return [f"{pid} ({_command(pid)})" for pid in sorted(pids)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"
