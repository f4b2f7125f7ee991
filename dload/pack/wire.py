"""What shards are made of on disk: the trailer, columns of numbers, and msgpack that isn't trusted.

A shard of format 2:

    payload    the fields' bytes, sample after sample, no padding
    index      msgpack map
    trailer    u64 length of the index | u32 crc32 of the index | u32 zero | b"DLOADPK2"    (24 bytes, little-endian)

Format 1 has a trailer of 16 bytes: u64 length of the index | b"DLOADPK1".
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgpack

from dload.errors import IntegrityError, PackFormatError

MAGIC = b"DLOADPK2"
MAGIC_1 = b"DLOADPK1"
MAX_INDEX_SIZE = 1 << 30

_MAGIC_FAMILY = b"DLOADPK"
_TRAILER = struct.Struct("<QII8s")
_TRAILER_1 = struct.Struct("<Q8s")
TRAILER_SIZE = _TRAILER.size


@dataclass(frozen=True, slots=True)
class Trailer:
    """The end of a shard. `format`: 1 or 2. `crc`: of the index; None in format 1. Sizes in bytes."""

    format: int
    payload_size: int
    index_size: int
    crc: int | None

    def check(self, index: bytes | memoryview, name: str) -> None:
        """Raise IntegrityError unless these are the bytes of the index that the trailer speaks of."""
        if len(index) != self.index_size:
            raise IntegrityError(f"the index of shard {name} has {self.index_size} bytes, got {len(index)}", shard=name)
        crc = zlib.crc32(index)
        if self.crc is not None and crc != self.crc:
            raise IntegrityError(
                f"the index of shard {name} is damaged: expected crc32 {self.crc:08x}, got {crc:08x}", shard=name
            )


def write_trailer(index: bytes) -> bytes:
    """The trailer of a shard of format 2 with that index."""
    return _TRAILER.pack(len(index), zlib.crc32(index), 0, MAGIC)


def read_trailer(tail: bytes | memoryview, file_size: int, name: str) -> Trailer:
    """The trailer at the end of a shard, read from its last 24 bytes or more (all of them, in a shorter file).

    Raises PackFormatError for anything that is no shard of format 1 or 2, or has no room for the index it announces.
    """
    magic = bytes(tail[-8:])
    if magic == MAGIC and len(tail) >= TRAILER_SIZE:
        size = TRAILER_SIZE
        index_size, crc, zero, _ = _TRAILER.unpack(tail[-size:])
        found = Trailer(2, file_size - size - index_size, index_size, crc)
        if zero:
            raise damaged(name, f"its trailer holds {zero} where format 2 has zero")
    elif magic == MAGIC_1 and len(tail) >= _TRAILER_1.size:
        size = _TRAILER_1.size
        index_size, _ = _TRAILER_1.unpack(tail[-size:])
        found = Trailer(1, file_size - size - index_size, index_size, None)
    elif magic.startswith(_MAGIC_FAMILY) and magic not in (MAGIC, MAGIC_1):
        raise PackFormatError(
            f"shard {name} is of format {magic[7:].decode('ascii', 'replace')}; this dload reads 1 and 2",
            remedy="upgrade dload", shard=name,
        )  # fmt: skip
    else:
        raise damaged(name, f"expected it to end in {MAGIC!r}, got {magic!r} ({file_size:,} bytes)")
    if found.payload_size < 0:
        raise damaged(name, f"its trailer announces an index of {index_size:,} bytes in a file of {file_size:,}")
    if index_size > MAX_INDEX_SIZE:
        raise damaged(name, f"its index of {index_size:,} bytes is larger than the limit of {MAX_INDEX_SIZE:,}")
    return found


def damaged(name: str, what: str) -> PackFormatError:
    """The error of a shard whose bytes make no sense."""
    return PackFormatError(f"shard {name} is damaged or no shard: {what}", shard=name)


def column_bytes(column: array[int]) -> bytes:
    """A column as it is stored: little-endian."""
    return _little_endian(column).tobytes()


def column(typecode: str, stored: bytes, name: str, what: str) -> array[int]:
    """A stored column. Raises PackFormatError unless it is bytes that hold whole numbers of the type."""
    numbers = array(typecode)
    if type(stored) is not bytes or len(stored) % numbers.itemsize:
        raise damaged(name, f"{what} must be bytes, {numbers.itemsize} for each number")
    numbers.frombytes(stored)
    return _little_endian(numbers)


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return numbers
    swapped = numbers[:]
    swapped.byteswap()
    return swapped


def pack(value: Any) -> bytes:
    """The msgpack of a value: the same everywhere."""
    data: bytes = msgpack.packb(value)
    return data


def unpack(data: bytes | memoryview, name: str, **hooks_and_limits: Any) -> Any:
    """The msgpack value of `data`. Raises PackFormatError for bytes that aren't exactly one value, or that a hook (by
    ValueError) or a limit refuses."""
    walk(data, name)
    with guarded(name):
        return msgpack.unpackb(data, ext_hook=_refuse_extension, **hooks_and_limits)


def unpacker(data: bytes | memoryview, name: str) -> msgpack.Unpacker:
    """The same, piece by piece: use it under `guarded`."""
    walk(data, name)
    reader = msgpack.Unpacker(max_buffer_size=max(1, len(data)), ext_hook=_refuse_extension)
    reader.feed(data)
    return reader


def walk(data: bytes | memoryview, name: str) -> None:
    """Raise PackFormatError unless the bytes are exactly one msgpack value, without building anything of it.

    After that every length in it is known to be backed by bytes, so that what unpacking allocates is bounded by a
    multiple of `len(data)`: an array that claims a billion elements has them, or never gets that far.
    """
    walker = msgpack.Unpacker(max_buffer_size=max(1, len(data)))
    walker.feed(data)
    try:
        walker.skip()
    except (ValueError, msgpack.UnpackException) as error:
        raise damaged(name, f"its index is not msgpack ({type(error).__name__})") from error
    if walker.tell() != len(data):
        raise damaged(name, f"its index ends after {walker.tell():,} of {len(data):,} bytes")


@contextmanager
def guarded(name: str) -> Iterator[None]:
    """Turn what an unpacker refuses into a PackFormatError."""
    try:
        yield
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise damaged(name, f"its index makes no sense: {error or type(error).__name__}") from error


def _refuse_extension(code: int, _: bytes) -> Any:
    raise ValueError(f"an extension type {code}")
