"""Putting back what a store has lost or damaged, from wherever good bytes are; and naming what can't be put back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from dload.errors import DloadError, IntegrityError, NotFoundError, PackFormatError
from dload.manifest import Manifest, ShardInfo, decode
from dload.pack import ShardReader
from dload.repo import keys
from dload.repo.history import History
from dload.repo.readback import fetched
from dload.repo.refs import Record, ref_bytes
from dload.store.base import Store


class Source(Protocol):
    """Where good bytes may be: a cache, another store. What it gives is checked."""

    def manifest(self, name: str, version: str) -> bytes | None:
        """The bytes of a manifest, or None."""
        ...

    def shard(self, digest: str) -> Iterator[bytes] | None:
        """The bytes of a shard, or None."""
        ...


class StoreSource:
    """Another store as a source."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def manifest(self, name: str, version: str) -> bytes | None:
        try:
            return self.store.get(keys.manifest_key(name, version)).data
        except NotFoundError:
            return None

    def shard(self, digest: str) -> Iterator[bytes] | None:
        key = keys.shard_key(digest)
        return self.store.stream(key) if self.store.head(key) is not None else None


class Repair:
    """Puts good bytes in the place of bad ones. Every object is what its name says before it is written."""

    def __init__(self, history: History, sources: Sequence[Source]) -> None:
        self._history = history
        self._store = history.store
        self._sources = sources

    def manifest(self, name: str, version: str) -> Manifest | None:
        """Write a manifest again; None where no source has it."""
        key = keys.manifest_key(name, version)
        for source in self._sources:
            data = source.manifest(name, version)
            if data is None:
                continue
            try:
                manifest = decode(data, version=version, where=key)
            except (IntegrityError, PackFormatError):
                continue
            self._store.put(key, data)
            return manifest
        return None

    def shard(self, shard: ShardInfo, folder: Path) -> bool:
        """Write a shard again, by way of a file in `folder`; False where no source has it."""
        for source in self._sources:
            if source.shard(shard.digest) is None:
                continue
            try:
                with fetched(shard, lambda source=source: _body(source, shard), folder, shard.digest) as path:  # type: ignore[misc]
                    self._store.put_file(keys.shard_key(shard.digest), path)
                    return True
            except (IntegrityError, NotFoundError):
                continue
        return False

    def latest(self, name: str) -> bool:
        """Write `refs/latest` again, as the newest record of the log has it; False where there is none that can be
        read. Raises ConflictError where someone else writes it meanwhile."""
        records = []
        for info in self._store.list(keys.log_prefix(name)):
            try:
                records.append(Record.decode(self._store.get(info.key).data, info.key))
            except PackFormatError:
                continue
        if not records:
            return False
        newest = max(records, key=lambda record: record.seq)
        there = self._store.head(keys.latest_key(name))
        self._store.put_if(keys.latest_key(name), ref_bytes(newest), etag=there.etag if there else None)
        return True


def _body(source: Source, shard: ShardInfo) -> Iterator[bytes]:
    return source.shard(shard.digest) or iter(())


def lost_samples(store: Store, shard: ShardInfo) -> tuple[list[str], int]:
    """What can't be read of a damaged shard: the keys, as far as they can be told, and how many samples it is.

    A shard of format 2 whose index is whole loses only the samples whose crc32 is wrong.
    """
    try:
        data = store.get(keys.shard_key(shard.digest)).data
        with ShardReader(data, name=shard.digest) as reader:
            if reader.index.checksums() is None:
                return list(reader.keys), len(reader)
            lost = [key for row, key in enumerate(reader.keys) if _is_lost(reader, row)]
            return lost, len(lost)
    except DloadError:
        return [], shard.num_samples


def _is_lost(reader: ShardReader, row: int) -> bool:
    try:
        reader.check(row)
    except IntegrityError:
        return True
    return False
