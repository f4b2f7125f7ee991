"""Writing one shard, in one pass."""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from dload.errors import DuplicateKeyError, IntegrityError, SampleError
from dload.pack import compression, wire
from dload.pack.layout import MAX_LAYOUTS, ShardIndex
from dload.pack.samples import Fields, as_bytes, names_of, validate_key, validate_names

# Values are gathered up to about this many bytes before they are hashed and written together.
_BATCH = 1 << 18


@dataclass(frozen=True, slots=True)
class PackedShard:
    """A shard that was written. `digest`: sha256 of its bytes, hex. Sizes in bytes; `index_size` is the index alone,
    without the trailer. `fields`: per name how many samples have it and its raw bytes in all.
    """

    digest: str
    size: int
    num_samples: int
    index_size: int
    fields: dict[str, tuple[int, int]]


class ShardWriter:
    """Writes samples to a file as a shard of format 2, hashing as it goes; memory holds the index and one batch.

    `file` is written from where it stands and neither synced nor closed. `codecs`: field name to codec. Raises
    ConfigError for a codec that is unknown or whose extra is missing.
    """

    def __init__(self, file: BinaryIO, *, codecs: Mapping[str, str] | None = None) -> None:
        self._file = file
        self._codecs = dict(codecs or {})
        self._encoders = {name: compression.encoder(codec) for name, codec in self._codecs.items()}
        self._raw_sizes = dict.fromkeys(self._codecs, 0)
        self._sha256 = hashlib.sha256()
        self._payload_size = 0
        self._batch: list[bytes] = []
        self._batch_size = 0
        self._keys: dict[str, None] = {}
        self._layouts: dict[tuple[str, ...], int] = {}
        self._layout = array("H")
        self._lengths = array("I")
        self._crc = array("I")

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: str, fields: Fields) -> None:
        """Write one sample.

        Raises SampleError if it can't be stored (the shard stays as it was), DuplicateKeyError if the shard has its
        key already, OSError if the file can't be written.
        """
        validate_key(key)
        if key in self._keys:
            raise DuplicateKeyError(f"two samples of one shard have the key {key!r}", key=key)
        names = names_of(key, fields)
        layout = self._layouts.get(names)
        if layout is None:
            layout = self._new_layout(key, names)
        values = [
            value if type(value) is bytes and len(value) < _BATCH else as_bytes(key, name, value)
            for name, value in fields.items()
        ]
        if self._encoders:
            values = self._encode(key, names, values)
        self._layouts.setdefault(names, layout)
        self._keys[key] = None
        self._layout.append(layout)
        crc = 0
        for value in values:
            crc = zlib.crc32(value, crc)
        self._crc.append(crc)
        lengths = list(map(len, values))
        self._lengths.extend(lengths)
        self._batch += values
        self._batch_size += sum(lengths)
        if self._batch_size >= _BATCH:
            self._flush()

    def finish(self) -> PackedShard:
        """Write what is left, the index and the trailer; flush the file. The index is read back before it is trusted.

        Raises SampleError if the index is too large, IntegrityError if it doesn't read back, OSError.
        """
        self._flush()
        present = {name for names in self._layouts for name in names}
        index = ShardIndex(
            "being written", self._payload_size, list(self._keys), list(self._layouts),
            self._layout if len(self._layouts) > 1 else None, self._lengths, self._crc,
            {name: self._codecs[name] for name in sorted(present & self._codecs.keys())},
        )  # fmt: skip
        data = index.encode()
        if len(data) > wire.MAX_INDEX_SIZE:
            raise SampleError(
                f"the index of a shard of {len(index):,} samples has {len(data):,} bytes, "
                f"more than the limit of {wire.MAX_INDEX_SIZE:,}",
                remedy="choose a smaller target size for shards",
            )
        if ShardIndex.parse(data, payload_size=self._payload_size, name=index.name) != index:
            raise IntegrityError(
                "the index of a shard reads back differently from what was written",
                remedy="check the memory of this machine",
            )
        self._write(data)
        self._write(wire.write_trailer(data))
        self._file.flush()
        size = self._payload_size + len(data) + wire.TRAILER_SIZE
        return PackedShard(self._sha256.hexdigest(), size, len(index), len(data), self._stats(index))

    def _new_layout(self, key: str, names: tuple[str, ...]) -> int:
        validate_names(key, names)
        if len(self._layouts) == MAX_LAYOUTS:
            raise SampleError(
                f"sample {key!r} would give its shard more than {MAX_LAYOUTS:,} layouts",
                remedy="begin a new shard", key=key,
            )  # fmt: skip
        return len(self._layouts)

    def _encode(self, key: str, names: tuple[str, ...], values: list[bytes]) -> list[bytes]:
        stored = list(values)
        for at, name in enumerate(names):
            if name in self._encoders:
                stored[at] = as_bytes(key, name, self._encoders[name](values[at]))
        for name, value in zip(names, values, strict=True):
            if name in self._encoders:
                self._raw_sizes[name] += len(value)
        return stored

    def _flush(self) -> None:
        """Hash and write the gathered values: small ones joined, large ones as they are."""
        small: list[bytes] = []
        for value in self._batch:
            if len(value) < _BATCH:
                small.append(value)
            else:
                self._write(b"".join(small))
                self._write(value)
                small.clear()
        self._write(b"".join(small))
        self._payload_size += self._batch_size
        self._batch.clear()
        self._batch_size = 0

    def _write(self, piece: bytes) -> None:
        self._sha256.update(piece)
        written = self._file.write(piece)
        while written < len(piece):  # an unbuffered file takes no more than 2 GiB at once
            written += self._file.write(memoryview(piece)[written:])

    def _stats(self, index: ShardIndex) -> dict[str, tuple[int, int]]:
        stats = index.field_stats()
        for name, raw_size in self._raw_sizes.items():
            if name in stats:
                stats[name] = (stats[name][0], raw_size)
        return stats
