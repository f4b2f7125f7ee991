"""Where a cache's file system has no flock (some network disks): a folder of this process's own, below the cache's.

Locks then hold between the threads of this process alone, which is enough where no other process comes. The folder
goes at the end of the process; where that was killed, the next one that makes such a folder sweeps it.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path

from dload.cache.inventory import scan
from dload.files.locks import LockFile, LocksUnsupportedError, lock_within_process, try_lock

_log = logging.getLogger("dload.cache")

_FORGOTTEN = 7 * 86400.0  # seconds after which an untouched folder of another machine is taken for left behind

_places: dict[Path, Path] = {}
_guard = threading.Lock()


def _begin_process() -> None:
    global _guard  # noqa: PLW0603  a thread of the parent may have held it at the fork
    _guard = threading.Lock()
    _places.clear()


os.register_at_fork(after_in_child=_begin_process)


def place(root: Path, *, make: bool = False) -> Path:
    """The folder in which this process keeps the cache at `root`: that itself, or one below it where there is no flock.

    `make`: whether a missing cache is made, which is when a private folder is; else nothing is written.
    """
    found = _places.get(root)
    if found is not None:
        return found
    if make:
        with suppress(OSError):
            root.mkdir(parents=True, exist_ok=True)
            (root / "lock").touch()
    locks = _has_locks(root)
    if locks is None or not (locks or make):
        return root
    with _guard:
        if root not in _places:
            _places[root] = root if locks else _begin(root)
        return _places[root]


def _has_locks(root: Path) -> bool | None:
    """Whether its file system has flock, as pins need it; None where that can't be tried."""
    try:
        with LockFile(root / "lock") as lock:
            try_lock(lock.descriptor)
    except LocksUnsupportedError:
        return False
    except OSError as error:
        return False if error.errno == errno.EBADF else None  # network disks that lock only what is open for writing
    return True


def _begin(root: Path) -> Path:
    folder = root / "private" / _name(os.getpid())
    _log.warning(
        "the file system of the cache %s has no file locks: this process keeps what it downloads to itself, in %s. "
        "Choose a folder on a local disk to share it: DLOAD_CACHE_DIR", root, folder,
    )  # fmt: skip
    _sweep(root)
    folder.mkdir(parents=True, exist_ok=True)
    lock_within_process(folder)
    atexit.register(_end, folder, os.getpid())
    return folder


def _end(folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Delete the folders of processes that are gone."""
    for folder in (root / "private").glob("*"):
        machine, _, pid = folder.name.rpartition(".")[0].rpartition(".")
        if machine == _machine() and pid.isdigit():
            gone = _name(int(pid)) != folder.name
        else:
            newest = max((entry.mtime for entry in scan(folder)), default=folder.stat().st_mtime)
            gone = newest < time.time() - _FORGOTTEN
        if gone:
            shutil.rmtree(folder, ignore_errors=True)


def _name(pid: int) -> str:
    """The name of a process's folder, which no other process ever has: machine, process id, when that began."""
    return f"{_machine()}.{pid}.{_began(pid)}"


def _machine() -> str:
    """This host, and this container where process ids are its own."""
    try:
        space = Path("/proc/self/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        space = "0"
    return f"{os.uname().nodename}-{space}"


def _began(pid: int) -> str:
    """When a process began, in a unit of the system's; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "0"
