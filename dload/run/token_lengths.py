"""How many tokens each sample of a version has, from the indexes of its shards: without reading a sample.

The lengths of a field's bytes are looked up once, by ranged reads, and kept in the cache beside the key indexes. The
file, all little-endian:

    magic "DLOADLEN" · u32 crc32 of what follows · u32 zero · u64 samples · u32 bytes of the field of each sample
    (2**32 - 1: it has no such field)
"""

from __future__ import annotations

import hashlib
import struct
import sys
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dload.cache import ShardCache
from dload.codecs import INTEGERS
from dload.errors import SampleError
from dload.manifest import Manifest
from dload.pack import ShardIndex
from dload.pipeline.sources import Samples
from dload.repo.footers import read_index, read_indexes
from dload.store.base import Store

_MAGIC = b"DLOADLEN"
_HEADER = struct.Struct("<8sIIQ")
_CHECKED_FROM = 12  # what follows magic and crc
_NONE = (1 << 32) - 1


class TokenLengths:
    """The tokens of each sample of a source, in a field of raw numbers of type `dtype`: `lengths(source)`.

    None where the field is stored compressed, so that its bytes say nothing. The first call for a version reads the
    cache or the network, and may take what these raise; later ones, in this process, nothing. Raises SampleError where
    a sample has no such field, or not a whole number of tokens. Pickles without what it has read.
    """

    def __init__(self, field: str, dtype: str) -> None:
        self._field, self._dtype = field, dtype
        self._known: dict[str, Sequence[int] | None] = {}

    def __call__(self, source: Samples) -> Sequence[int] | None:
        version = source.manifest.version
        if version not in self._known:
            store, manifest = source.origin.store, source.manifest
            sizes = field_sizes(store, source.origin.cache, manifest, self._field)
            self._known[version] = None if sizes is None else self._tokens(store, manifest, sizes)
        return self._known[version]

    def _tokens(self, store: Store, manifest: Manifest, sizes: array[int]) -> array[int]:
        width = array(INTEGERS[self._dtype]).itemsize
        for ordinal, size in enumerate(sizes):
            if size == _NONE or size % width:
                shard, row = manifest.locate(ordinal)
                key = read_index(store, manifest.shards[shard]).keys[row]
                raise SampleError(
                    f"sample {key!r} of {manifest.name}@{manifest.version[:12]}: expected a field {self._field!r} of "
                    f"numbers of {width} bytes, got {'none' if size == _NONE else f'{size} bytes'}",
                    remedy="check dtype=; where some samples have no tokens, leave them out with a filter below pack()",
                    key=key,
                )
        return array("I", (size // width for size in sizes))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}


def field_sizes(store: Store, cache: ShardCache, manifest: Manifest, field: str) -> array[int] | None:
    """The bytes of a field in each sample of a version, in storage order, 2**32 - 1 where a sample lacks it: from the
    cache, else by reading the index of each shard, and kept there if there is room. None where it is compressed."""
    name = hashlib.sha256(f"sizes of {field} in {manifest.version}".encode()).hexdigest()
    path = cache.keys_path(name)
    kept = _load(path, manifest.num_samples)
    if kept is not None:
        return kept
    sizes = array("I")
    for number, index in enumerate(read_indexes(store, manifest.shards)):
        if field in index.codecs:
            return None
        own = _sizes(index, field)
        sizes.extend(own if manifest.rows is None else array("I", map(own.__getitem__, manifest.rows.of(number))))
    data = _encoded(sizes)
    path.unlink(missing_ok=True)
    cache.write_keys(name, len(data), [data])
    return sizes


def _sizes(index: ShardIndex, field: str) -> array[int]:
    """Of each sample in a shard."""
    places = [names.index(field) if field in names else None for names in index.layouts]
    if index.layout is None:
        at = places[0] if places else None
        if at is None:
            return array("I", [_NONE]) * len(index)
        return array("I", index.lengths[at :: len(index.layouts[0])])
    return array(
        "I",
        (
            _NONE if (at := places[number]) is None else index.lengths[first + at]
            for number, first in zip(index.layout, index.first_values, strict=False)
        ),
    )


def _encoded(sizes: array[int]) -> bytes:
    body = struct.pack("<IQ", 0, len(sizes)) + _little_endian(sizes).tobytes()
    return _MAGIC + struct.pack("<I", zlib.crc32(body)) + body


def _load(path: Path, samples: int) -> array[int] | None:
    """What a file holds, if it is undamaged and of so many samples."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) != _HEADER.size + 4 * samples:
        return None
    magic, crc, _, count = _HEADER.unpack_from(data)
    if magic != _MAGIC or count != samples or zlib.crc32(memoryview(data)[_CHECKED_FROM:]) != crc:
        return None
    return _little_endian(array("I", data[_HEADER.size :]))


def _little_endian(column: array[int]) -> array[int]:
    """The column in the file's byte order, or back in this machine's: a new array where that differs."""
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column
