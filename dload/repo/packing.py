"""From a stream of samples to shards in the store: cut, pack, send, side by side, with a result that doesn't depend
on how many work on it."""

from __future__ import annotations

import concurrent.futures
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from dload.errors import SampleError
from dload.files.atomic import disk_full
from dload.manifest import Packing
from dload.pack import Cutter, PackedShard, ShardWriter, sample_size, validate_key
from dload.repo import keys
from dload.repo.group import Group, Item, LazySample
from dload.repo.leases import Lease
from dload.store.base import Store


class PackMemo(Protocol):
    """What shards came out of which samples before: stamp of the samples -> the shard."""

    def get(self, stamp: bytes) -> PackedShard | None: ...

    def put(self, stamp: bytes, shard: PackedShard) -> None: ...


@dataclass(frozen=True, slots=True)
class Part:
    """Shards that are in the store already, in order: a stretch of a version's samples.

    `hashes`: `uniqueness.key_hash` of each key, in their order; None: the keys are read from the shards' indexes.
    """

    shards: Sequence[PackedShard]
    hashes: bytes | None = None


@dataclass(frozen=True, slots=True)
class ShardDone:
    """One shard is in the store; `sent`: it was uploaded for it, else it was there."""

    number: int
    shard: PackedShard
    sent: bool


class _StoppedError(Exception):
    """Ends the packing of a shard after an interruption."""


class ShardSender:
    """Packs groups of samples in a staging folder and sends what the store lacks. In memory are the shards under way,
    one more than there are workers: of each the bytes of its samples, and of the small ones (below a kilobyte) about
    70 bytes beside; while it is packed, some 200 bytes for each key.

    `covered`: digests that the lease protects as its parent's, so they need no look. `keep` is called with a shard's
    digest and its file, once it is in the store, before the file goes (to put it into the local cache).
    """

    def __init__(
        self,
        store: Store,
        lease: Lease,
        staging: Path,
        packing: Packing,
        *,
        covered: frozenset[str] = frozenset(),
        memo: PackMemo | None = None,
        keep: Callable[[str, Path], object] | None = None,
        tell: Callable[[str], object] | None = None,
    ) -> None:
        self.store = store
        self.lease = lease
        self.staging = staging
        self.packing = packing
        self.covered = covered
        self.memo = memo
        self.keep = keep
        self.tell = tell
        self._stopped = threading.Event()
        self._files: set[Path] = set()  # in the staging folder now

    def send(self, items: Iterable[Item], workers: int, first: int = 0) -> Iterator[ShardDone]:
        """The shards of the items, in order, numbered from `first`. An error of the iterable, of packing or of the
        store comes out as it is."""
        packers = ThreadPoolExecutor(workers, thread_name_prefix="dload-pack")
        senders = ThreadPoolExecutor(workers, thread_name_prefix="dload-send")
        ahead: deque[Future[Future[ShardDone]]] = deque()
        interrupted = False
        try:
            for number, group in enumerate(groups(items, self.packing), first):
                ahead.append(packers.submit(self._pack_then_send, number, group, senders))
                # The group being collected and those being packed are in memory: one more than there are workers.
                if len(ahead) > workers:
                    yield ahead.popleft().result().result()
            while ahead:
                yield ahead.popleft().result().result()
        except BaseException as error:
            interrupted = not isinstance(error, Exception)
            raise
        finally:
            if interrupted:
                self._stopped.set()
            for pool in (packers, senders):
                pool.shutdown(wait=not interrupted, cancel_futures=True)
            if interrupted:  # who pressed Ctrl-C isn't made to wait for the network, but files are tidied up
                concurrent.futures.wait(ahead, timeout=1.0)
                for path in list(self._files):
                    self._remove(path)

    def _pack_then_send(self, number: int, group: Group, senders: ThreadPoolExecutor) -> Future[ShardDone]:
        stamp = group_stamp(group, self.packing) if self.memo is not None else None
        if self.memo is not None and stamp is not None:
            known = self.memo.get(stamp)
            if known is not None and self._is_there(known):
                self.memo.put(stamp, known)
                return senders.submit(ShardDone, number, known, False)
        shard, path = self._pack(group)
        if self.memo is not None and stamp is not None:
            self.memo.put(stamp, shard)
        return senders.submit(self._send, number, shard, path)

    def _pack(self, group: Group) -> tuple[PackedShard, Path]:
        path = self.staging / f"shard-{secrets.token_hex(8)}"
        self._files.add(path)
        try:
            with disk_full(self.staging, self.packing.target), path.open("xb", buffering=0) as file:
                writer = ShardWriter(file, codecs=self.packing.codecs)
                for key, fields in group.taken():
                    if self._stopped.is_set():
                        raise _StoppedError
                    writer.add(key, fields)
                return writer.finish(), path
        except BaseException:
            self._remove(path)
            raise

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._files.discard(path)

    def _send(self, number: int, shard: PackedShard, path: Path) -> ShardDone:
        try:
            if self._is_there(shard):
                return ShardDone(number, shard, sent=False)
            self.store.put_file(keys.shard_key(shard.digest), path, move=self.keep is None)
            self.lease.note([shard.digest])
            if self.keep is not None:
                self.keep(shard.digest, path)
            return ShardDone(number, shard, sent=True)
        finally:
            self._remove(path)

    def _is_there(self, shard: PackedShard) -> bool:
        """Whether the store has the shard, whole, and will keep it while the lease lasts."""
        if shard.digest in self.covered:
            return True
        key = keys.shard_key(shard.digest)
        if self.store.head(key) is None:
            return False
        self.lease.cover([shard.digest], waiting=self.tell)
        info = self.store.head(key)
        return info is not None and info.size == shard.size


def groups(items: Iterable[Item], packing: Packing) -> Iterator[Group]:
    """The items of each shard. Raises SampleError, naming the item, for what isn't a sample."""
    cutter = Cutter(packing.target, packing.boundaries)
    group = Group()
    for ordinal, item in enumerate(items):
        if isinstance(item, LazySample):
            key, names = item.key, tuple(item.sizes)
            validate_key(key)
            size = sample_size(key, {}) + sum(item.sizes.values())
        else:
            key, fields = as_sample(item, ordinal)
            names, size = tuple(fields), sample_size(key, fields)
        if cutter.begins(key, size, names):
            yield group
            group = Group()
        group.add(item, names, size)
    if group:
        yield group


def as_sample(item: object, ordinal: int | str) -> tuple[str, Mapping[str, bytes]]:
    """The item, if it has the form of a sample. Raises SampleError, which names it by `ordinal`."""
    if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[1], Mapping):
        raise SampleError(f"sample {ordinal} is not a sample: expected (key, {{field: bytes}}), got {item!r:.200}")
    validate_key(item[0])
    return item[0], item[1]


def group_stamp(group: Group, packing: Packing) -> bytes | None:
    """What a shard's bytes depend on, where all its samples have stamps."""
    state = blake2b(repr(("DLOADPK2", sorted(packing.codecs.items()))).encode(), digest_size=32)
    items = group.lazy()
    if items is None:
        return None
    for item in items:
        if item.stamp is None:
            return None
        for part in (item.key.encode(), item.stamp):
            state.update(len(part).to_bytes(4, "little") + part)
    return state.digest()
