"""Random access: single samples by number or key, from the cache or by ranged reads."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import groupby, pairwise

from dload.cache import Pin, ShardCache
from dload.errors import IntegrityError, PackFormatError, UnknownKeyError
from dload.manifest import Manifest, ShardInfo
from dload.pack import Sample, ShardIndex, ShardReader
from dload.repo.footers import read_index
from dload.repo.keys import shard_key
from dload.run.indexes import indexes
from dload.run.key_index import KeyIndex, key_index
from dload.store.base import Store

_ATTEMPTS = 3


class Lookup:
    """Samples of one version, by number or key. Every one is checked by its crc (in format 1, which has none,
    by the shard's digest).

    A shard that is in the cache is read there; of another, the index and the samples asked for are fetched by
    ranged reads, the whole shard only where most of it is asked for or it is of format 1. Any number of
    threads may read from it at once.
    """

    def __init__(self, store: Store, cache: ShardCache, manifest: Manifest) -> None:
        self._store = store
        self._cache = cache
        self._manifest = manifest

    def by_ordinal(self, ordinal: int, fields: Collection[str] | None = None) -> Sample:
        """The sample with that number (negative: from the end). Raises IndexError, IntegrityError,
        RemoteError.
        """
        number, row = self._locate(ordinal)
        return self._read(number, [row], fields)[0]

    def rows(self, wanted: slice | Sequence[int], fields: Collection[str] | None = None) -> list[Sample]:
        """The samples with these numbers, in the order given. Raises as `by_ordinal`."""
        if isinstance(wanted, slice):
            wanted = range(*wanted.indices(self._manifest.num_samples))
        places = map(self._locate, wanted)
        found: list[Sample] = []
        for number, group in groupby(places, key=lambda place: place[0]):
            found += self._read(number, [row for _, row in group], fields)
        return found

    def by_key(self, key: str, fields: Collection[str] | None = None) -> dict[str, bytes]:
        """The fields of the sample with that key. The first call builds the version's key index if the cache has none.

        Raises UnknownKeyError, and as `by_ordinal`.
        """
        for ordinal in self._keys.ordinals(key):
            number, row = self._locate(ordinal)
            if self._index(self._manifest.shards[number]).keys[row] == key:  # else another key has the same hash
                return self._read(number, [row], fields)[0][1]
        version = self._manifest.version[:12]
        raise UnknownKeyError(
            f"no sample {key!r} in {self._manifest.name}@{version}",
            remedy=f"see some: dload head {self._manifest.name}", key=key,
        )  # fmt: skip

    @cached_property
    def _keys(self) -> KeyIndex:
        return key_index(self._store, self._cache, self._manifest)

    def _locate(self, ordinal: int) -> tuple[int, int]:
        manifest = self._manifest
        if not -manifest.num_samples <= ordinal < manifest.num_samples:
            what = f"{manifest.name}@{manifest.version[:12]}"
            raise IndexError(f"there is no sample {ordinal}: {what} has {manifest.num_samples:,}")
        return manifest.locate(ordinal % manifest.num_samples)

    # ---- one shard

    def _read(self, number: int, rows: Sequence[int], fields: Collection[str] | None) -> list[Sample]:
        shard = self._manifest.shards[number]
        index = self._index(shard)
        spans = [index.span(row) for row in rows]
        if index.crc is None or 2 * sum(length for _, length in spans) > shard.size:
            with self._whole(shard) as whole:
                return _samples(index, rows, [_read_file(whole, *span) for span in spans], fields)
        resident = self._cache.pin(shard.digest)
        if resident is not None:
            with resident:
                try:
                    return _samples(index, rows, [_read_file(resident, *span) for span in spans], fields)
                except IntegrityError:
                    self._cache.drop(resident)
        return self._read_remote(shard, index, rows, fields)

    def _read_remote(
        self, shard: ShardInfo, index: ShardIndex, rows: Sequence[int], fields: Collection[str] | None
    ) -> list[Sample]:
        """By one ranged read where the samples are neighbours, else by one for each."""
        spans = [index.span(row) for row in rows]
        neighbours = all(start + length == after for (start, length), (after, _) in pairwise(spans))
        key = shard_key(shard.digest)
        for attempt in range(1, _ATTEMPTS + 1):
            if neighbours:
                start = spans[0][0]
                whole = self._range(key, start, sum(length for _, length in spans))
                stored = [whole[at - start : at - start + length] for at, length in spans]
            else:
                stored = [self._range(key, *span) for span in spans]
            try:
                return _samples(index, rows, stored, fields)
            except IntegrityError:
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _range(self, key: str, start: int, length: int) -> bytes:
        return self._store.get_range(key, start, length) if length else b""

    def _whole(self, shard: ShardInfo) -> Pin:
        key = shard_key(shard.digest)
        return self._cache.ensure(
            shard.digest, shard.size, lambda start: self._store.stream(key, start), name=f"{self._store.url}/{key}"
        )

    def _index(self, shard: ShardInfo) -> ShardIndex:
        """A shard's index: one that is known, else from the cached file, else by a ranged read of the shard's end."""
        found = indexes.get(self._store, shard)
        if found is not None:
            return found
        index = self._cached_index(shard) or read_index(self._store, shard)
        if len(index) != shard.num_samples:
            raise PackFormatError(
                f"shard {shard.digest} has {len(index)} samples, its manifest says {shard.num_samples}",
                key=shard.digest,
            )
        indexes.keep(self._store, shard, index)
        return index

    def _cached_index(self, shard: ShardInfo) -> ShardIndex | None:
        pin = self._cache.pin(shard.digest)
        if pin is None:
            return None
        with pin:
            try:
                with ShardReader.open(pin.path, name=shard.digest) as reader:
                    return reader.index
            except (PackFormatError, IntegrityError):
                self._cache.drop(pin)
            except FileNotFoundError:  # someone else has found it damaged, and dropped it
                pass
        return None


def _read_file(pin: Pin, start: int, length: int) -> bytes:
    return os.pread(pin.lock.descriptor, length, start)


def _samples(
    index: ShardIndex, rows: Sequence[int], stored: Sequence[bytes], fields: Collection[str] | None
) -> list[Sample]:
    pairs = zip(rows, stored, strict=True)
    return [(index.keys[row], index.decode(row, data, fields)) for row, data in pairs]
