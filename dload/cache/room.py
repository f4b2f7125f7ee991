"""Room in the cache: counted, freed and reserved under one short lock that all processes share.

What is about to be written first makes a partial file whose name says how large it will become. From then on
everyone counts it at that size. So many processes that download at once stay within the budget together.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dload.cache.budget import Budget, allowed
from dload.cache.eviction import victims
from dload.cache.inventory import Entry, partial_path, scan
from dload.cache.pins import Held, Pin, delete_unlocked, holders, in_use, own, pin_file
from dload.errors import CacheFullError, ConfigError
from dload.files.atomic import disk_full
from dload.files.locks import LockFile, LocksUnsupportedError, locked, names, try_lock, wait_lock
from dload.sizes import format_size

# Tells backup programs that all of this can be fetched again: https://bford.info/cachedir/
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n"


class Reservation(Held):
    """The exclusive right to fill one partial file. A context manager: what wasn't installed stays, for the
    next one to go on with, unless nothing has come yet.
    """

    def __init__(self, root: Path, name: str, size: int, path: Path, lock: LockFile) -> None:
        super().__init__(root, name, size, lock)
        self.path = path

    @property
    def descriptor(self) -> int:
        return self.lock.descriptor

    def abandon(self) -> None:
        """Delete the partial file: what came is of no use, or the space is."""
        if not self.lock.closed:
            self.path.unlink(missing_ok=True)
            self.lock.close()

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.lock.closed and os.fstat(self.lock.descriptor).st_size == 0:
            self.abandon()
        self.lock.close()


@dataclass(frozen=True, slots=True)
class Blocked:
    """No room, because of files that others hold. Equal to the next one if nothing has changed hands
    meanwhile.
    """

    holders: tuple[str, ...]
    files: tuple[tuple[str, int], ...]


class Room:
    """The space of the cache at `root`, for downloads that keep to `budget`."""

    def __init__(self, root: Path, budget: Budget) -> None:
        self.root = root
        self.budget = budget

    @contextmanager
    def lock(self) -> Iterator[None]:
        """The cache's lock, never held while bytes travel. Makes the folder. Raises OSError where it can't be
        written, ConfigError where the file system has no locks or the folder is a store.
        """
        if (self.root / "datasets").is_dir():  # its shards lie where a cache has those that it may delete
            raise ConfigError(
                f"the cache folder {self.root} is a store of data sets",
                remedy="choose another folder for the cache: DLOAD_CACHE_DIR", path=str(self.root),
            )  # fmt: skip
        try:
            with disk_full(self.root), locked(self.root / "lock"):
                yield
        except LocksUnsupportedError as error:
            raise ConfigError(
                f"the file system of the cache {self.root} has no file locks",
                remedy="choose a folder on a local disk: DLOAD_CACHE_DIR", path=str(self.root),
            ) from error  # fmt: skip

    def reserve(self, name: str, size: int, final: Path) -> Reservation | Blocked | None:
        """Reserve `size` bytes for the file `final`: the right to fill its partial, which may hold bytes already.

        None: look again, for `final` is there, or someone was filling the partial (this waits until that has ended).
        Raises CacheFullError if the budget can't hold it beside what this process holds.
        """
        path = partial_path(self.root, name, size)
        lock: LockFile | None = None
        claim: Reservation | Blocked | None = None
        try:
            with self.lock():
                if final.exists():
                    return None
                with suppress(FileNotFoundError):
                    lock = LockFile(path, os.O_RDWR)
                if lock is None or try_lock(lock.descriptor):
                    claim = self._claim(name, size, path, lock)
                    return claim
            # Shared: once the download is done, its readers hold shared locks on the same file as long as they like.
            wait_lock(lock.descriptor, shared=True)
            return None
        finally:
            if lock is not None and not isinstance(claim, Reservation):
                lock.close()

    def _claim(self, name: str, size: int, path: Path, lock: LockFile | None) -> Reservation | Blocked | None:
        """Make room, then the partial if there is none. Held are the cache's lock, and the partial's where
        there is one.
        """
        if lock is not None and not names(path, lock.descriptor):
            return None
        blocked = self._make_room(name, size, reserved=path if lock else None)
        if blocked is not None:
            return blocked
        if lock is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = LockFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try_lock(lock.descriptor)
        return Reservation(self.root, name, size, path, lock)

    def install(self, claim: Reservation, final: Path) -> Pin:
        """Give a filled partial its final name, and pin it: nobody can evict it in between."""
        with self.lock():
            final.parent.mkdir(parents=True, exist_ok=True)
            claim.path.replace(final)
            claim.lock.close()
            pin = pin_file(self.root, claim.name, final)
        if pin is None:
            raise FileNotFoundError(errno.ENOENT, "deleted by a program that isn't dload", str(final))
        return pin

    def _make_room(self, name: str, size: int, *, reserved: Path | None) -> Blocked | None:
        """Delete files until `size` more bytes fit into the budget; `reserved`: a partial that counts them
        already.

        The cache's lock is held. Returns what is in the way if others hold too much. Raises CacheFullError if
        what this process holds does: nobody but itself could make room.
        """
        self._write_tag()
        entries = scan(self.root)
        limit = allowed(self.budget, self.root, sum(entry.stored for entry in entries))
        if limit is None:
            return None
        self._check(name, size, limit, sum(entry.size for entry in entries if entry.kind == "other"))
        over = sum(entry.size for entry in entries) + (0 if reserved else size) - limit
        in_the_way = []
        for entry in victims(entries, time.time()):
            if over <= 0:
                break
            if entry.path == reserved:
                continue
            if delete_unlocked(entry.path):
                over -= entry.size
            else:
                in_the_way.append(entry)
        return _blocked(in_the_way) if over > 0 else None

    def _check(self, name: str, size: int, limit: int, fixed: int) -> None:
        """Raise CacheFullError if the budget can't hold `size` bytes beside this process's own; `fixed`:
        bytes of files that are never deleted.
        """
        mine = sum({held.name: held.size for held in own(self.root) if held.name != name}.values())
        least = mine + size + fixed
        if least > limit:
            beside = f" beside {format_size(mine)} that this process is using" if mine else ""
            raise CacheFullError(
                f"the cache budget of {format_size(limit)} ({limit} bytes) can't hold {name[:12]} "
                f"({format_size(size)}){beside}",
                remedy=f"set DLOAD_CACHE_BUDGET to at least {least} bytes ({format_size(least)})",
                budget=limit, needed=size, held=mine, least=least,
            )  # fmt: skip

    def fits(self, size: int) -> bool:
        """Whether `size` more bytes fit without deleting anything."""
        entries = scan(self.root)
        limit = allowed(self.budget, self.root, sum(entry.stored for entry in entries))
        return limit is None or sum(entry.size for entry in entries) + size <= limit

    def free_disk(self, needed: int) -> int:
        """Delete files that nobody uses until `needed` bytes of the disk are free again; returns how many
        that were.
        """
        freed = 0
        with self.lock():
            for entry in victims(scan(self.root), time.time()):
                if freed >= needed:
                    break
                if entry.stored and delete_unlocked(entry.path):
                    freed += entry.stored
        return freed

    def _write_tag(self) -> None:
        tag = self.root / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_bytes(_TAG)


def _blocked(entries: list[Entry]) -> Blocked:
    files = [(str(entry.path), entry.stored) for entry in entries if in_use(entry.path)]
    return Blocked(tuple(holders(Path(path) for path, _ in files)), tuple(sorted(files)))
