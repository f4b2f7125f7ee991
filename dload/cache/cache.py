"""The face of the cache: shards that are there while they are pinned, and as long as the budget lets them
stay after.

One directory serves all processes of a machine. Nothing in it needs cleaning up by hand, whatever was killed
when.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from dload.cache import private
from dload.cache import turn as turns
from dload.cache.budget import Budget, allowed
from dload.cache.counters import Counters, Counts
from dload.cache.download import OpenStream, fill, sha256_of
from dload.cache.eviction import stamp
from dload.cache.inventory import Entry, scan, shard_path
from dload.cache.pins import Pin, delete_unlocked, most_downloads, pin_file, set_time
from dload.cache.room import WAITED, Blocked, Reservation, Room, unfurnished
from dload.cache.status import CacheStatus, DatasetShare, by_dataset, status_of
from dload.cache.turn import Seat
from dload.cache.waiting import Waiting
from dload.errors import CacheFullError, ConfigError, DiskFullError, DloadError
from dload.files.atomic import disk_full
from dload.files.locks import names

_log = logging.getLogger("dload.cache")

_ID = re.compile("[0-9a-f]{64}")
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}
_LOOK_AGAIN = 60.0  # seconds; a budget of "auto" changes with the disk

_told: set[Path] = set()  # the caches of which it was said that they can only be read

# (root, digest) -> (device, inode) of the files whose digest this process has seen to be right.
_sound: dict[tuple[str, str], tuple[int, int]] = {}

# When it was last looked whether a cache is within its budget.
_looked: dict[tuple[Path, Budget], float] = {}


class ShardCache:
    """Shards and manifests in a local directory, never more bytes than `budget` (see dload.cache.budget).

    `root` is the directory. Made without touching the disk; pickles; any number of objects, threads and processes may
    share a directory. `patience`: seconds that a download waits for room while nothing that others hold changes.
    `jobs`: how many downloads a reader may run side by side in one process. `rate`: bytes a second that come down
    through this object, all processes together that have it (None: no limit).
    """

    def __init__(
        self, root: Path, budget: Budget = None, *, patience: float = 60.0, jobs: int | None = None,
        rate: float | None = None,
    ) -> None:  # fmt: skip
        self.root = root
        self.jobs = jobs
        self.rate = rate
        self._budget = budget
        self._patience = patience
        self._counters = Counters()

    @property
    def asked_budget(self) -> Budget:
        """As it was given."""
        return self._budget

    @property
    def budget(self) -> int | None:
        """Bytes, None for unlimited; for "auto" what that comes to now (reads the directory)."""
        stored = sum(entry.stored for entry in scan(self.root)) if self._budget == "auto" else 0
        return allowed(self._budget, self.root, stored)

    @property
    def _here(self) -> Path:
        """Where to look for what this process may have: the folder itself, but where that has no flock."""
        return private.place(self.root)

    @property
    def _room(self) -> Room:
        return Room(private.place(self.root, make=True), self._budget, self._counters)

    # ---- shards

    def ensure(
        self, digest: str, size: int, open_stream: OpenStream, *, name: str | None = None,
        next_use: float | None = None, pause: Callable[[float], object] = time.sleep,
        seat: Seat | None = None, urgent: Callable[[], bool] = lambda: True,
    ) -> Pin:  # fmt: skip
        """The shard, pinned; downloaded if it isn't there, by one process while the others wait for it.

        `open_stream(position)` gives the bytes from there on; its errors pass through, and what came stays to
        be continued. `name` is what messages call the shard; `next_use` the seconds until its next use after
        release, where known. Waiting for room that others hold goes through `pause(seconds)`, which may raise
        to give up; `pause(0)` is called before what takes long: hashing the file, or having it fetched. `seat` is the
        reader's, who holds other pins: he keeps the turn until he is settled; `urgent` says whether he stands still
        without this shard: only then the turn is taken, and other readers of this process give up what is in the way.

        A file that this process didn't download is hashed at its first pin; a damaged one is dropped and
        fetched again. Raises CacheFullError (names the least budget that would do, or who is in the way),
        DiskFullError, IntegrityError; and what another process's download of this shard failed by, while this waited.
        """
        _checked(digest)
        room = self._room
        final = shard_path(room.root, digest)
        name = name or f"shard {digest}"
        self._keep_to_budget(room)
        waiting = Waiting(room, digest, size, name, patience=self._patience, seat=seat, urgent=urgent, pause=pause)
        with waiting:
            while True:
                try:
                    found = pin_file(room.root, digest, final, next_use)
                    if found is None:
                        pause(0)
                        claim = room.reserve(digest, size, final, seat=waiting.seat)
                except CacheFullError:
                    if not urgent() or not turns.make_way(room.root):
                        raise
                    continue
                except OSError as error:
                    if error.errno not in _READ_ONLY:
                        raise
                    return self._temporary(digest, size, open_stream, name)
                if found is not None:
                    if self._is_sound(found, size, pause):
                        self._counters.add(hits=1, waits=waiting.waited)
                        return found
                    if not self._drop_damaged(found, name):
                        return self._temporary(digest, size, open_stream, name)
                elif isinstance(claim, Reservation):
                    waiting.over()
                    return self._download(room, claim, final, open_stream, name, next_use, waiting.waited)
                elif isinstance(claim, Blocked):
                    waiting.for_room(claim, final)
                elif claim is WAITED:
                    waiting.waited = True

    def pin(self, digest: str, *, next_use: float | None = None) -> Pin | None:
        """Pin a shard that is there, or None. It isn't hashed: check what is read by checksums."""
        return pin_file(self._here, digest, shard_path(self._here, _checked(digest)), next_use)

    def seat(self, give_up: Callable[[], object]) -> Seat:
        """A place for a reader who holds several pins at a time: see Seat. Close it when he is gone."""
        return Seat(self._room.root, give_up)

    def contains(self, digest: str) -> bool:
        """Whether a shard is there."""
        return shard_path(self._here, _checked(digest)).is_file()

    def expect(self, uses: Iterable[tuple[str, float]]) -> None:
        """Say in how many seconds shards are going to be needed: what is needed late is evicted first. Of those that
        are there only; of several uses of one, the first counts. Estimates should err long.
        """
        resident = {entry.name: entry for entry in self._shards()}
        first: dict[str, float] = {}
        for digest, seconds in uses:
            if digest in resident:
                first[digest] = min(seconds, first.get(digest, seconds))
        now = time.time()
        for digest, seconds in first.items():
            mtime = stamp(now, seconds, now)
            with suppress(OSError):  # gone meanwhile; or of another user, which loses the hint and nothing else
                os.utime(resident[digest].path, (mtime, mtime))

    def add(self, digest: str, path: Path) -> bool:
        """Copy a shard that is on this disk already into the cache, if there is room without evicting
        anything.
        """
        size = path.stat().st_size
        room, final = self._room, shard_path(self._here, _checked(digest))
        if final.exists() or not room.fits(size):
            return final.exists()
        with path.open("rb") as source:
            return self._keep(room, digest, size, final, iter(lambda: source.read(1 << 20), b""))

    def drop(self, pin: Pin) -> bool:
        """Forget a pinned shard that was found damaged, also while others read it (their open file stays); the pin is
        still to be released. What another process has put in its place since stays. Says whether it was there and is
        gone: in a cache that can only be read it never is.
        """
        path = shard_path(pin.root, pin.digest)
        try:
            with self._room.lock():
                if not names(path, pin.lock.descriptor):
                    return False
                path.unlink()
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            return False
        return True

    def evict(self, digest: str) -> bool:
        """Delete a shard that nobody uses; says whether it was there and is gone."""
        path = shard_path(self._here, _checked(digest))
        if not path.exists():
            return False
        with self._room.lock():
            return delete_unlocked(path)

    def downloads(self, wanted: int) -> int:
        """How many of `wanted` downloads a reader should run side by side: `jobs`, and the limit of open files."""
        return max(1, min(wanted, self.jobs or wanted, most_downloads()))

    def counts(self) -> Counts:
        """What happened since this object was made, here and in the worker processes that have it from here: see
        dload.cache.counters for which these are.
        """
        return self._counters.read()

    def _keep_to_budget(self, room: Room) -> None:
        """At the first use, since the budget may be smaller than before; "auto" now and then, as the disk fills."""
        which, now = (room.root, self._budget), time.monotonic()
        seen = _looked.get(which)
        if self._budget is None or (seen is not None and (self._budget != "auto" or now - seen < _LOOK_AGAIN)):
            return
        _looked[which] = now
        try:
            room.trim()
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise

    def _is_sound(self, pin: Pin, size: int, pause: Callable[[float], object]) -> bool:
        """Whether it has its digest: looked at once by each process. An error, also one of `pause`, releases it."""
        status = os.fstat(pin.lock.descriptor)
        where, inode = (str(pin.root), pin.digest), (status.st_dev, status.st_ino)
        if status.st_size != size:
            return False
        if _sound.get(where) != inode:
            try:
                pause(0)
                found = sha256_of(pin.lock.descriptor)
            except BaseException:
                pin.release()
                raise
            if found != pin.digest:
                return False
            _sound[where] = inode
        return True

    def _drop_damaged(self, pin: Pin, name: str) -> bool:
        """Whether its place is free, or another's by now."""
        _log.info("%s is damaged in the cache (%s): fetched again", name, pin.path)
        self.drop(pin)
        stays = names(pin.path, pin.lock.descriptor)
        _sound[str(pin.root), pin.digest] = (0, 0)  # it was here: to fetch it is to fetch it again
        pin.lock.close()
        return not stays

    def _download(
        self, room: Room, claim: Reservation, final: Path, open_stream: OpenStream, name: str,
        next_use: float | None, waited: bool,
    ) -> Pin:  # fmt: skip
        def relieve() -> int:
            return room.free_disk(claim.size - os.fstat(claim.descriptor).st_size)

        def bad_body() -> None:
            _log.info("%s came damaged: fetched again", name)
            self._counters.add(refetches=1)

        where = (str(room.root), claim.name)
        self._counters.add(misses=1, waits=waited, refetches=where in _sound)
        with claim:
            try:
                with disk_full(room.root, claim.size):
                    stream = self._measured(open_stream)
                    fill(claim.descriptor, claim.name, claim.size, stream, name=name, relieve=relieve, again=bad_body)
            except DloadError as error:
                room.fail(claim, error)
                raise
            # No fsync: what a power cut leaves is hashed by the next process before it is used.
            pin = room.install(claim, final)
        status = os.fstat(pin.lock.descriptor)
        _sound[where] = (status.st_dev, status.st_ino)
        pin.next_use = next_use
        return pin

    def _temporary(self, digest: str, size: int, open_stream: OpenStream, name: str) -> Pin:
        """The shard in a file without a name, gone at its release: for a cache that can only be read."""
        if self.root not in _told:
            _told.add(self.root)
            _log.warning("the cache %s can't be written: what isn't there is fetched each time", self.root)
        self._counters.add(misses=1)
        with tempfile.NamedTemporaryFile(prefix="dload-") as file, disk_full(Path(file.name).parent, size):
            pin = Pin.of_unnamed(self.root, digest, Path(file.name))
            stream = self._measured(open_stream)
            fill(pin.lock.descriptor, digest, size, stream, name=name, relieve=lambda: 0, again=lambda: None)
        return pin

    def _measured(self, open_stream: OpenStream) -> OpenStream:
        """The same bytes, counted, and no faster than `rate`."""

        def measured(start: int) -> Iterator[bytes]:
            for chunk in open_stream(start):
                self._counters.add(bytes_down=len(chunk))
                if self.rate:
                    time.sleep(self._counters.turn_of(len(chunk), self.rate))
                yield chunk

        return measured

    # ---- manifests and key indexes

    def read_manifest(self, version: str) -> bytes | None:
        """A manifest's bytes as they were written, unchecked, or None."""
        path = self._manifest_path(version)
        try:
            with path.open("rb") as file:
                set_time(file.fileno(), time.time())
                return file.read()
        except FileNotFoundError:
            return None

    def write_manifest(self, version: str, data: bytes) -> bool:
        """Keep a manifest, so that its version opens without network. Says whether there was room."""
        return self._keep(self._room, f"manifest-{version}", len(data), self._manifest_path(version), [data])

    def drop_manifest(self, version: str) -> None:
        """Forget a manifest that was found damaged."""
        path = self._manifest_path(version)
        with self._room.lock():
            path.unlink(missing_ok=True)

    def keys_path(self, version: str) -> Path:
        """Where the key index of a version is, if it is there: open it and see. May be evicted at any time."""
        return self._here / "keys" / _checked(version)

    def write_keys(self, version: str, size: int, chunks: Iterable[bytes]) -> bool:
        """Keep a key index of `size` bytes. Says whether there was room."""
        return self._keep(self._room, f"keys-{version}", size, self.keys_path(version), chunks)

    def _manifest_path(self, version: str) -> Path:
        return self._here / "manifests" / f"{_checked(version)}.json"

    def _keep(self, room: Room, name: str, size: int, final: Path, chunks: Iterable[bytes]) -> bool:
        """Write a file of `size` bytes under the budget, or leave it where that can't be now."""
        self._keep_to_budget(room)
        try:
            claim = room.reserve(name, size, final)
            if not isinstance(claim, Reservation):
                return not isinstance(claim, Blocked) and final.exists()
            with claim, disk_full(room.root, size):
                written = 0
                os.ftruncate(claim.descriptor, 0)
                for chunk in chunks:
                    written += len(chunk)
                    if written > size:
                        break
                    _write_all(claim.descriptor, chunk)
                if written != size:
                    claim.abandon()
                    return False
                room.install(claim, final).release()
        except (CacheFullError, DiskFullError):
            return False
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            return False
        return True

    # ---- the whole

    def used_bytes(self) -> int:
        """Bytes of the shards that are there. Reads the directory, and not at one moment: while shards come and go, one
        that has made room and the one that it made room for may both count."""
        return sum(entry.size for entry in self._shards())

    def room_for_shards(self) -> int | None:
        """How many bytes of shards the budget can hold beside manifests and the cache's own files; None: any. Reads the
        directory where there is a budget."""
        if self._budget is None:
            return None
        entries = scan(self._here)
        limit = allowed(self._budget, self._here, sum(entry.stored for entry in entries))
        beside = unfurnished(self._here) + sum(entry.size for entry in entries if entry.kind in ("manifest", "other"))
        return None if limit is None else max(0, limit - beside)

    def entries(self) -> list[tuple[str, int, float]]:
        """The shards that are there: digest, size, mtime; oldest first."""
        shards = sorted(self._shards(), key=lambda entry: (entry.mtime, entry.name))
        return [(entry.name, entry.size, entry.mtime) for entry in shards]

    def clear(self) -> int:
        """Delete everything that nobody is using; returns the bytes freed."""
        if not self.root.exists():
            return 0
        room, freed = self._room, 0
        with room.lock():
            for entry in scan(room.root):
                if entry.kind != "other" and delete_unlocked(entry.path):
                    freed += entry.stored
        return freed

    def verify(self) -> Iterator[tuple[str, bool]]:
        """Hash every shard: yields its digest and whether it is sound; a damaged one is dropped first."""
        for entry in sorted(self._shards(), key=lambda entry: entry.name):
            pin = self.pin(entry.name)
            if pin is None:
                continue
            sound = sha256_of(pin.lock.descriptor) == pin.digest
            if sound:
                set_time(pin.lock.descriptor, entry.mtime)
            else:
                self._drop_damaged(pin, f"shard {pin.digest}")
            pin.lock.close()
            yield entry.name, sound

    def status(self) -> CacheStatus:
        """What is there and what is in use. Reads the directory and tries each shard's lock."""
        return status_of(self._here, self._budget)

    def by_dataset(self) -> list[DatasetShare]:
        """Whose the shards are, by the manifests that are there. Reads these."""
        return by_dataset(self._here)

    def _shards(self) -> list[Entry]:
        return [entry for entry in scan(self._here) if entry.kind == "shard" and _ID.fullmatch(entry.name)]


def _checked(identity: str) -> str:
    """Identities become file names; whatever isn't one must not reach the file system."""
    if not _ID.fullmatch(identity):
        raise ConfigError(f"{identity!r} is not a sha256 in hexadecimal", remedy="pass the full 64 digits")
    return identity


def _write_all(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]
