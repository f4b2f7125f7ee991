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
from typing import Literal

from dload.cache import failure
from dload.cache import turn as turns
from dload.cache.budget import Budget, allowed
from dload.cache.counters import Counters
from dload.cache.eviction import victims
from dload.cache.inventory import Entry, partial_path, scan
from dload.cache.pins import Held, Pin, delete_unlocked, holders, in_use, own, pin_file
from dload.cache.turn import Seat
from dload.errors import CacheFullError, ConfigError, DiskFullError, DloadError, IntegrityError
from dload.files.atomic import disk_full
from dload.files.locks import LockFile, locked, names, try_lock, wait_lock
from dload.sizes import format_size

# Tells backup programs that all of this can be fetched again: https://bford.info/cachedir/
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n"
_FURNITURE = (("CACHEDIR.TAG", _TAG), ("turn", b" " * turns.LINE))


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
    """No room, because of files that others hold, or of the bytes that the one whose turn it is waits for. Equal to the
    next one if nothing has changed hands meanwhile.
    """

    holders: tuple[str, ...]
    files: tuple[tuple[str, int], ...]
    turn: str


WAITED: Literal["waited"] = "waited"
"""Someone was filling the file; that has ended."""


class Room:
    """The space of the cache at `root`, for downloads that keep to `budget`. Counts what it evicts."""

    def __init__(self, root: Path, budget: Budget, counters: Counters) -> None:
        self.root = root
        self.budget = budget
        self.counters = counters

    @contextmanager
    def lock(self) -> Iterator[None]:
        """The cache's lock, never held while bytes travel. Makes the folder. Raises OSError where it can't be
        written, ConfigError where the folder is a store.
        """
        if (self.root / "datasets").is_dir():  # its shards lie where a cache has those that it may delete
            raise ConfigError(
                f"the cache folder {self.root} is a store of data sets",
                remedy="choose another folder for the cache: DLOAD_CACHE_DIR", path=str(self.root),
            )  # fmt: skip
        with disk_full(self.root), locked(self.root / "lock"):
            yield

    def reserve(
        self, name: str, size: int, final: Path, *, seat: Seat | None = None
    ) -> Reservation | Blocked | Literal["waited"] | None:
        """Reserve `size` bytes for the file `final`: the right to fill its partial, which may hold bytes already.

        None: `final` is there. WAITED: someone was filling the partial, and this has waited until that ended; look
        again. `seat`: on whose behalf; what the one whose turn it is waits for is left to it.

        Raises CacheFullError if the budget can't hold it beside what this process holds; the error of whoever was
        filling the partial, if that has failed for good.
        """
        path = partial_path(self.root, name, size)
        lock: LockFile | None = None
        claim: Reservation | Blocked | Literal["waited"] | None = None
        try:
            with self.lock():
                if final.exists():
                    return None
                with suppress(FileNotFoundError):
                    lock = LockFile(path, os.O_RDWR)
                if lock is None or try_lock(lock.descriptor):
                    claim = self._claim(name, size, path, lock, seat)
                    return claim
            # Shared: once the download is done, its readers hold shared locks on the same file as long as they like.
            wait_lock(lock.descriptor, shared=True)
            if not final.exists() and (error := failure.left(path)) is not None:
                raise error
            return WAITED
        finally:
            if lock is not None and not isinstance(claim, Reservation):
                lock.close()

    def _claim(
        self, name: str, size: int, path: Path, lock: LockFile | None, seat: Seat | None
    ) -> Reservation | Blocked | None:
        """Make room, then the partial if there is none. Held are the cache's lock, and the partial's where
        there is one.
        """
        if lock is not None and not names(path, lock.descriptor):
            return None
        blocked = self._make_room(name, size, path if lock else None, seat)
        if blocked is not None:
            return blocked
        if lock is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = LockFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            wait_lock(lock.descriptor)  # for who only looks whether it is in use
        failure.forget(path)
        return Reservation(self.root, name, size, path, lock)

    def fail(self, claim: Reservation, error: DloadError) -> None:
        """End a download that failed for good: tell those who wait for it why, where there is room for that without
        deleting anything. What came stays to be continued, unless it is of no use, or its space is what is needed.
        """
        useless = isinstance(error, IntegrityError | DiskFullError)
        with suppress(OSError, DiskFullError), self.lock():
            if useless:
                claim.path.unlink(missing_ok=True)
            failure.leave(claim.path, error, self.fits)
            if useless:  # not before: who waits for this lock looks for the note
                claim.lock.close()
        if useless:
            claim.abandon()

    def take_turn(self, seat: Seat, name: str, size: int) -> bool:
        """Try to take the turn for `seat`, which waits for `size` bytes; says whether it has it."""
        with self.lock():
            return turns.take(seat, name, size)

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

    def _make_room(self, name: str, size: int, reserved: Path | None, seat: Seat | None) -> Blocked | None:
        """Delete files until `size` more bytes fit into the budget; `reserved`: a partial that counts them
        already.

        The cache's lock is held. Returns what is in the way if others hold too much. Raises CacheFullError if
        what this process holds does: nobody but itself could make room.
        """
        self._furnish()
        entries = scan(self.root)
        limit = self._limit(entries)
        if limit is None:
            return None
        self._check(name, size, limit, sum(entry.size for entry in entries if entry.kind == "other"))
        turn, left = ("", 0) if seat is not None and seat.has_turn() else turns.state(self.root)
        over = sum(entry.size for entry in entries) + (0 if reserved else size) + left - limit
        over, in_the_way = self._evict(entries, over, but=reserved)
        return _blocked(in_the_way, turn) if over > 0 else None

    def trim(self) -> None:
        """Delete what nobody uses until the cache is within its budget, which may have become smaller."""
        entries = scan(self.root)
        limit = self._limit(entries)
        if limit is not None and sum(entry.size for entry in entries) > limit:
            with self.lock():
                entries = scan(self.root)
                self._evict(entries, sum(entry.size for entry in entries) - limit)

    def _evict(self, entries: list[Entry], over: int, but: Path | None = None) -> tuple[int, list[Entry]]:
        """Delete files until `over` bytes are gone. Returns how many are left, and which files couldn't be deleted."""
        in_the_way: list[Entry] = []
        if over <= 0:
            return over, in_the_way
        evicted = 0
        for entry in victims(entries, time.time()):
            if over <= 0:
                break
            if but is not None and entry.path == but:
                continue
            if delete_unlocked(entry.path):
                over -= entry.size
                evicted += 1
            else:
                in_the_way.append(entry)
        if evicted:
            self.counters.add(evictions=evicted)
        return over, in_the_way

    def _limit(self, entries: list[Entry]) -> int | None:
        return allowed(self.budget, self.root, sum(entry.stored for entry in entries))

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
        limit = self._limit(entries)
        return limit is None or sum(entry.size for entry in entries) + size <= limit

    def free_disk(self, needed: int) -> int:
        """Delete files that nobody uses until `needed` bytes of the disk are free again; returns how many
        that were.
        """
        with self.lock():
            stored = [entry for entry in scan(self.root) if entry.stored]
            left, _ = self._evict([entry._replace(size=entry.stored) for entry in stored], needed)
        return needed - left

    def _furnish(self) -> None:
        """Make the cache's own files, so that what they take is known from the start."""
        for name, content in _missing(self.root):
            (self.root / name).write_bytes(content)


def unfurnished(root: Path) -> int:
    """Bytes of the cache's own files that will be made at its first use."""
    return sum(len(content) for _, content in _missing(root))


def _missing(root: Path) -> list[tuple[str, bytes]]:
    return [(name, content) for name, content in _FURNITURE if not (root / name).exists()]


def _blocked(entries: list[Entry], turn: str) -> Blocked:
    files = [(str(entry.path), entry.stored) for entry in entries if in_use(entry.path)]
    return Blocked(tuple(holders(Path(path) for path, _ in files)), tuple(sorted(files)), turn)
