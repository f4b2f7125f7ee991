"""Which sample of a version has a given key: sorted 64-bit hashes with the samples' numbers.

File, all numbers little-endian: magic (8 bytes) | u32 crc32 of all that follows it | u32 zero | u64 shards |
u64 samples | per shard its sha256 (32 bytes) | per shard its samples (u64) | the hashes in ascending order
(u64) | their samples' numbers (u64). The shards are in it so that the index of another version can take over
what both have in common.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from dload.cache import ShardCache
from dload.manifest import Manifest, ShardList
from dload.repo.footers import read_indexes
from dload.store.base import Store

_MAGIC = b"DLOADKY1"
_HEADER = struct.Struct("<8sIIQQ")
_CHECKED_FROM = 12  # what follows magic and crc
_U64 = struct.Struct("<Q")


class KeyIndex:
    """A key index in memory or mapped from its file."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        """Raises ValueError where the bytes aren't an index of consistent size (their crc is left to
        `sound`).
        """
        if len(data) < _HEADER.size:
            raise ValueError("shorter than a header")
        magic, self._crc, _, shards, self.num_samples = _HEADER.unpack_from(data)
        if magic != _MAGIC or len(data) != _HEADER.size + 40 * shards + 16 * self.num_samples:
            raise ValueError("no key index, or of another length than it says")
        self._data = data
        self._counts = _HEADER.size + 32 * shards
        self._hashes = self._counts + 8 * shards
        self._ordinals = self._hashes + 8 * self.num_samples

    def ordinals(self, key: str) -> list[int]:
        """The numbers of the samples whose key has the same hash: nearly always one, or none."""
        wanted = key_hash(key)
        low, high = 0, self.num_samples
        while low < high:
            middle = (low + high) // 2
            if self._number(self._hashes, middle) < wanted:
                low = middle + 1
            else:
                high = middle
        found = []
        while low < self.num_samples and self._number(self._hashes, low) == wanted:
            found.append(self._number(self._ordinals, low))
            low += 1
        return found

    def sound(self) -> bool:
        """Whether its bytes have their crc. Reads all of them."""
        with memoryview(self._data) as whole, whole[_CHECKED_FROM:] as checked:
            return bool(zlib.crc32(checked) == self._crc)

    def is_of(self, shards: ShardList) -> bool:
        """Whether it is the index of these shards."""
        digests = b"".join(map(bytes.fromhex, shards.digests))
        return bytes(self._data[_HEADER.size : self._counts]) == digests

    def columns(self) -> tuple[array[int], array[int]]:
        """The hashes in ascending order, and their samples' numbers. Needs 16 bytes a sample."""
        return self._column(self._hashes, self.num_samples), self._column(self._ordinals, self.num_samples)

    def hashes_by_shard(self) -> Iterator[tuple[str, array[int]]]:
        """Each shard's digest and the hashes of its keys in their order. Needs 8 bytes a sample."""
        by_ordinal = array("Q", bytes(8 * self.num_samples))
        hashes = self._column(self._hashes, self.num_samples)
        for ordinal, hashed in zip(self._column(self._ordinals, self.num_samples), hashes, strict=True):
            by_ordinal[ordinal] = hashed
        start = 0
        for number, count in enumerate(self._column(self._counts, (self._hashes - self._counts) // 8)):
            at = _HEADER.size + 32 * number
            yield self._data[at : at + 32].hex(), by_ordinal[start : start + count]
            start += count

    def _number(self, column: int, place: int) -> int:
        number: int = _U64.unpack_from(self._data, column + 8 * place)[0]
        return number

    def _column(self, start: int, length: int) -> array[int]:
        return _little_endian(array("Q", self._data[start : start + 8 * length]))


def key_hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")


def key_index(store: Store, cache: ShardCache, manifest: Manifest) -> KeyIndex:
    """The key index of a version: from the cache, else built and kept there if there is room.

    Building reads the index of each shard by ranged reads, but for those that the newest index of another
    version in the cache knows already. It needs about 50 bytes of memory a sample; NumPy sorts faster where
    it is installed.
    """
    path = cache.keys_path(manifest.version)
    kept = _load(path)
    if kept is not None and kept.is_of(manifest.shards):
        return kept
    data = b"".join(_encoded(manifest, _hashes(store, cache, manifest)))
    path.unlink(missing_ok=True)
    cache.write_keys(manifest.version, len(data), [data])
    return KeyIndex(data)


def _load(path: Path) -> KeyIndex | None:
    """The index in a file, if it is one and undamaged."""
    try:
        with path.open("rb") as file:
            index = KeyIndex(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return None
    return index if index.sound() else None


def _hashes(store: Store, cache: ShardCache, manifest: Manifest) -> array[int]:
    """The hashes of all keys, in the samples' order."""
    shards, view = manifest.shards, manifest.rows
    known = _known(cache, dict(zip(shards.digests, shards.counts, strict=True)))
    missing = [shard for shard in shards if shard.digest not in known]
    for shard, index in zip(missing, read_indexes(store, missing), strict=True):
        known[shard.digest] = array("Q", map(key_hash, index.keys))
    hashes = array("Q")
    for number, digest in enumerate(shards.digests):
        whole = known[digest]
        hashes += whole if view is None else array("Q", map(whole.__getitem__, view.of(number)))
    return hashes


def _known(cache: ShardCache, wanted: Mapping[str, int]) -> dict[str, array[int]]:
    """The hashes of those shards, of so many samples each, that the newest key index in the cache which has any of
    them knows whole: that of a view knows some of their rows alone."""
    try:
        files = sorted((cache.root / "keys").iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return {}
    for index in filter(None, map(_load, files)):
        known = {digest: hashes for digest, hashes in index.hashes_by_shard() if wanted.get(digest) == len(hashes)}
        if known:
            return known
    return {}


def _encoded(manifest: Manifest, hashes: array[int]) -> Iterable[bytes]:
    shards, ordinals = manifest.shards, _ascending(hashes)
    body = [
        struct.pack("<IQQ", 0, len(shards), len(hashes)),
        b"".join(map(bytes.fromhex, shards.digests)),
        _little_endian(array("Q", manifest.counts)).tobytes(),
        _little_endian(array("Q", map(hashes.__getitem__, ordinals))).tobytes(),
        _little_endian(array("Q", ordinals)).tobytes(),
    ]
    crc = 0
    for part in body:
        crc = zlib.crc32(part, crc)
    return [_MAGIC, struct.pack("<I", crc), *body]


def _ascending(hashes: array[int]) -> Iterable[int]:
    """The places of the hashes in ascending order; equal ones in the order of their places."""
    try:
        import numpy
    except ImportError:
        return array("Q", sorted(range(len(hashes)), key=hashes.__getitem__))
    order = numpy.argsort(numpy.frombuffer(hashes, dtype=numpy.uint64), kind="stable")
    return array("Q", order.astype(numpy.uint64).tobytes())


def _little_endian(column: array[int]) -> array[int]:
    """The column in the file's byte order, or back in this machine's: a new array where that differs."""
    if sys.byteorder == "big":
        column = array("Q", column)
        column.byteswap()
    return column
