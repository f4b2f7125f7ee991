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
from dataclasses import dataclass
from pathlib import Path

from dload.cache.budget import Budget, allowed
from dload.cache.download import OpenStream, fill, sha256_of
from dload.cache.inventory import Entry, Kind, scan, shard_path
from dload.cache.pins import Pin, delete_unlocked, in_use, pin_file, set_time
from dload.cache.room import Blocked, Reservation, Room
from dload.errors import CacheFullError, ConfigError, DiskFullError, IntegrityError
from dload.files.atomic import disk_full, free_space
from dload.sizes import format_size

_log = logging.getLogger("dload.cache")

_POLL = 0.05  # seconds between two looks whether others have made room
_ID = re.compile("[0-9a-f]{64}")
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}

_told: set[Path] = set()  # the caches of which it was said that they can only be read

# (root, digest) -> (device, inode) of the files whose digest this process has seen to be right.
_sound: dict[tuple[str, str], tuple[int, int]] = {}


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """What a cache holds, in bytes and files. `used` counts every file, unfinished downloads at their
    reserved size.
    """

    root: Path
    budget: int | None
    used: int
    free_disk: int
    shards: int
    shard_bytes: int
    pinned: int
    pinned_bytes: int
    partials: int
    partial_bytes: int
    manifests: int
    manifest_bytes: int
    key_indexes: int
    key_index_bytes: int


class ShardCache:
    """Shards and manifests in a local directory, never more bytes than `budget` (see dload.cache.budget).

    Made without touching the disk; pickles; any number of objects, threads and processes may share a
    directory. `patience`: seconds that a download waits for room while nothing that others hold changes.
    """

    def __init__(self, root: Path, budget: Budget = None, *, patience: float = 60.0) -> None:
        self.root = root
        self._budget = budget
        self._patience = patience

    @property
    def budget(self) -> int | None:
        """Bytes, None for unlimited; for "auto" what that comes to now (reads the directory)."""
        stored = sum(entry.stored for entry in scan(self.root)) if self._budget == "auto" else 0
        return allowed(self._budget, self.root, stored)

    @property
    def _room(self) -> Room:
        return Room(self.root, self._budget)

    # ---- shards

    def ensure(
        self, digest: str, size: int, open_stream: OpenStream, *, name: str | None = None,
        next_use: float | None = None, pause: Callable[[float], object] = time.sleep,
    ) -> Pin:  # fmt: skip
        """The shard, pinned; downloaded if it isn't there, by one process while the others wait for it.

        `open_stream(position)` gives the bytes from there on; its errors pass through, and what came stays to
        be continued. `name` is what messages call the shard; `next_use` the seconds until its next use after
        release, where known. Waiting for room that others hold goes through `pause(seconds)`, which may raise
        to give up.

        A file that this process didn't download is hashed at its first pin; a damaged one is dropped and
        fetched again. Raises CacheFullError (names the least budget that would do, or who is in the way),
        DiskFullError, IntegrityError.
        """
        final = shard_path(self.root, _checked(digest))
        name = name or f"shard {digest}"
        waiting = _Waiting(self._patience, pause)
        while True:
            pin = pin_file(self.root, digest, final, next_use)
            if pin is not None:
                if self._is_sound(pin, size):
                    return pin
                self._drop_damaged(pin, name)
                continue
            try:
                claim = self._room.reserve(digest, size, final)
            except OSError as error:
                if error.errno not in _READ_ONLY:
                    raise
                return self._temporary(digest, size, open_stream, name)
            if isinstance(claim, Reservation):
                return self._download(claim, final, open_stream, name, next_use)
            if isinstance(claim, Blocked):
                waiting.for_room(claim, name, size)

    def pin(self, digest: str, *, next_use: float | None = None) -> Pin | None:
        """Pin a shard that is there, or None. It isn't hashed: check what is read by checksums."""
        return pin_file(self.root, digest, shard_path(self.root, _checked(digest)), next_use)

    def contains(self, digest: str) -> bool:
        return shard_path(self.root, _checked(digest)).is_file()

    def add(self, digest: str, path: Path) -> bool:
        """Copy a shard that is on this disk already into the cache, if there is room without evicting
        anything.
        """
        size = path.stat().st_size
        final = shard_path(self.root, _checked(digest))
        if final.exists() or not self._room.fits(size):
            return final.exists()
        with path.open("rb") as source:
            return self._keep(digest, size, final, iter(lambda: source.read(1 << 20), b""))

    def drop(self, digest: str) -> bool:
        """Forget a shard found damaged, also while others read it (their open file stays). Says whether it
        was there.
        """
        path = shard_path(self.root, _checked(digest))
        with self._room.lock():
            try:
                path.unlink()
            except FileNotFoundError:
                return False
        return True

    def evict(self, digest: str) -> bool:
        """Delete a shard that nobody uses; says whether it was there and is gone."""
        path = shard_path(self.root, _checked(digest))
        if not path.exists():
            return False
        with self._room.lock():
            return delete_unlocked(path)

    def _is_sound(self, pin: Pin, size: int) -> bool:
        status = os.fstat(pin.lock.descriptor)
        where, inode = (str(self.root), pin.digest), (status.st_dev, status.st_ino)
        if status.st_size != size:
            return False
        if _sound.get(where) != inode:
            if sha256_of(pin.lock.descriptor) != pin.digest:
                return False
            _sound[where] = inode
        return True

    def _drop_damaged(self, pin: Pin, name: str) -> None:
        _log.info("%s is damaged in the cache (%s): fetched again", name, pin.path)
        with self._room.lock():
            # Another process may have replaced it meanwhile; its readers keep the file that they have open.
            if pin.path.exists() and pin.path.stat().st_ino == os.fstat(pin.lock.descriptor).st_ino:
                pin.path.unlink()
        pin.lock.close()

    def _download(
        self, claim: Reservation, final: Path, open_stream: OpenStream, name: str, next_use: float | None
    ) -> Pin:
        def relieve() -> int:
            return self._room.free_disk(claim.size - os.fstat(claim.descriptor).st_size)

        with claim:
            try:
                with disk_full(self.root, claim.size):
                    fill(claim.descriptor, claim.name, claim.size, open_stream, name=name, relieve=relieve)
            except (IntegrityError, DiskFullError):
                claim.abandon()
                raise
            # No fsync: what a power cut leaves is hashed by the next process before it is used.
            pin = self._room.install(claim, final)
        status = os.fstat(pin.lock.descriptor)
        _sound[str(self.root), pin.digest] = (status.st_dev, status.st_ino)
        pin.next_use = next_use
        return pin

    def _temporary(self, digest: str, size: int, open_stream: OpenStream, name: str) -> Pin:
        """The shard in a file without a name, gone at its release: for a cache that can only be read."""
        if self.root not in _told:
            _told.add(self.root)
            _log.warning("the cache %s can't be written: what isn't there is fetched each time", self.root)
        with tempfile.NamedTemporaryFile(prefix="dload-") as file, disk_full(Path(file.name).parent, size):
            pin = Pin.of_unnamed(self.root, digest, Path(file.name))
            fill(pin.lock.descriptor, digest, size, open_stream, name=name, relieve=lambda: 0)
        return pin

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
        return self._keep(f"manifest-{version}", len(data), self._manifest_path(version), [data])

    def drop_manifest(self, version: str) -> None:
        """Forget a manifest that was found damaged."""
        path = self._manifest_path(version)
        with self._room.lock():
            path.unlink(missing_ok=True)

    def keys_path(self, version: str) -> Path:
        """Where the key index of a version is, if it is there: open it and see. May be evicted at any time.
        """
        return self.root / "keys" / _checked(version)

    def write_keys(self, version: str, size: int, chunks: Iterable[bytes]) -> bool:
        """Keep a key index of `size` bytes. Says whether there was room."""
        return self._keep(f"keys-{version}", size, self.keys_path(version), chunks)

    def _manifest_path(self, version: str) -> Path:
        return self.root / "manifests" / f"{_checked(version)}.json"

    def _keep(self, name: str, size: int, final: Path, chunks: Iterable[bytes]) -> bool:
        """Write a file of `size` bytes under the budget, or leave it where that can't be now."""
        try:
            claim = self._room.reserve(name, size, final)
            if not isinstance(claim, Reservation):
                return claim is None and final.exists()
            with claim, disk_full(self.root, size):
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
                self._room.install(claim, final).release()
        except (CacheFullError, DiskFullError):
            return False
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            return False
        return True

    # ---- the whole

    def used_bytes(self) -> int:
        """Bytes of the shards that are there (reads the directory)."""
        return sum(entry.size for entry in self._shards())

    def room_for_shards(self) -> int | None:
        """How many bytes of shards the budget can hold beside manifests and the cache's own files; None: any."""
        entries = scan(self.root)
        limit = allowed(self._budget, self.root, sum(entry.stored for entry in entries))
        beside = _total([entry for entry in entries if entry.kind in ("manifest", "other")])
        return None if limit is None else max(0, limit - beside)

    def entries(self) -> list[tuple[str, int, float]]:
        """The shards that are there: digest, size, mtime; oldest first."""
        shards = sorted(self._shards(), key=lambda entry: (entry.mtime, entry.name))
        return [(entry.name, entry.size, entry.mtime) for entry in shards]

    def clear(self) -> int:
        """Delete everything that nobody is using; returns the bytes freed."""
        if not self.root.exists():
            return 0
        freed = 0
        with self._room.lock():
            for entry in scan(self.root):
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
        entries = scan(self.root)
        kinds: tuple[Kind, ...] = ("shard", "partial", "manifest", "keys")
        by_kind = [[entry for entry in entries if entry.kind == kind] for kind in kinds]
        shards, partials, manifests, indexes = by_kind
        pinned = [entry for entry in shards if in_use(entry.path)]
        return CacheStatus(
            root=self.root,
            budget=allowed(self._budget, self.root, sum(entry.stored for entry in entries)),
            used=_total(entries), free_disk=free_space(self.root),
            shards=len(shards), shard_bytes=_total(shards),
            pinned=len(pinned), pinned_bytes=_total(pinned),
            partials=len(partials), partial_bytes=_total(partials),
            manifests=len(manifests), manifest_bytes=_total(manifests),
            key_indexes=len(indexes), key_index_bytes=_total(indexes),
        )  # fmt: skip

    def _shards(self) -> list[Entry]:
        return [entry for entry in scan(self.root) if entry.kind == "shard" and _ID.fullmatch(entry.name)]


class _Waiting:
    """Patience with others who hold the room that is needed: as long as something changes hands, and a while
    longer.
    """

    def __init__(self, patience: float, pause: Callable[[float], object]) -> None:
        self._patience = patience
        self._pause = pause
        self._last: Blocked | None = None
        self._since = 0.0

    def for_room(self, blocked: Blocked, name: str, size: int) -> None:
        now = time.monotonic()
        if blocked != self._last:
            self._last, self._since = blocked, now
        elif now - self._since > self._patience:
            who = ", ".join(blocked.holders) or "other processes"
            raise CacheFullError(
                f"no room for {name} ({format_size(size)}) in the cache: what {who} hold "
                f"({len(blocked.files)} files) hasn't changed for {self._patience:g} s",
                remedy="raise the cache budget (DLOAD_CACHE_BUDGET) or end one of these processes",
                needed=size, holders=list(blocked.holders),
            )  # fmt: skip
        self._pause(_POLL)


def _checked(identity: str) -> str:
    """Identities become file names; whatever isn't one must not reach the file system."""
    if not _ID.fullmatch(identity):
        raise ConfigError(f"{identity!r} is not a sha256 in hexadecimal", remedy="pass the full 64 digits")
    return identity


def _write_all(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view):]


def _total(entries: list[Entry]) -> int:
    return sum(entry.size for entry in entries)
