"""The rows of a LitData chunk, whichever way it is packed; each chunk shows by its first or last bytes which.

Either plain, or one zstd stream of the plain chunk, or (newer versions) rows compressed in batches: the magic
`LDFZ01`, then as uint32 a version, the numbers of rows, rows a batch and batches, the offset of each row and of the end
in all that the batches decompress to, and for each batch its first row, its number of rows, its place in the file
(uint64), its size there and its size decompressed; or (newer versions, for rows that are flat and simple) one Arrow
file, behind a table whose offsets are all the same and before its size and the magic `LDARW01`. Taken from files that
the library wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from itertools import pairwise
from typing import Any

from dload.errors import ConfigError, SampleError
from dload.importers.packed import mapped, rows_of
from dload.importers.source import Files, zstd_stream

_ZSTD = b"\x28\xb5\x2f\xfd"
_BATCHES = b"LDFZ01\0\0"
_ARROW = b"LDARW01\0"
_HEAD = struct.Struct("<4I")
_BATCH = struct.Struct("<IIQII")
_ARROW_ROWS = 256


def chunk_rows(files: Files, name: str, shown: str) -> Iterator[bytes | dict[str, Any]]:
    """The rows of a chunk: bytes, or of an Arrow file the values by name. Raises SampleError where it is damaged."""
    with files.raw(name) as raw:
        head = raw.read(len(_BATCHES))
    with mapped(files, name, "zstd" if head.startswith(_ZSTD) else None, None) as view:
        if head != _BATCHES and view[-len(_ARROW) :] != _ARROW:
            yield from rows_of(view, shown)
            return
        try:
            yield from _rows_of_batches(view) if head == _BATCHES else _rows_of_arrow(view)
        except (struct.error, ValueError) as error:
            raise SampleError(f"{shown} is damaged: {error}", remedy="fetch or make it anew") from error


def _rows_of_batches(view: memoryview) -> Iterator[bytes]:
    at = len(_BATCHES)
    version, rows, _, batches = _HEAD.unpack_from(view, at)
    at += _HEAD.size
    if version != 1 or 4 * rows + _BATCH.size * batches > len(view):
        raise ValueError(f"version {version}, {rows:,} rows in {batches:,} batches")
    offsets = struct.unpack_from(f"<{rows + 1}I", view, at)
    at += 4 * (rows + 1)
    table = [_BATCH.unpack_from(view, at + _BATCH.size * number) for number in range(batches)]
    if offsets[-1] != sum(raw_size for *_, raw_size in table) or any(a > b for a, b in pairwise(offsets)):
        raise ValueError("its table of rows makes no sense")
    for first, count, place, size, raw_size in table:
        try:
            body = zstd_stream(BytesIO(view[place : place + size])).read(raw_size + 1)
        except Exception as error:  # of zstandard's own kind
            raise ValueError(str(error)) from error
        if len(body) != raw_size:
            raise ValueError(f"a batch of {len(body):,} bytes, where its table says {raw_size:,}")
        for start, end in pairwise(offsets[first : first + count + 1]):
            yield body[start - offsets[first] : end - offsets[first]]


def _rows_of_arrow(view: memoryview) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow as pa
    except ImportError:
        raise ConfigError("Arrow chunks need pyarrow", remedy="pip install 'dload-ml[parquet]'") from None
    end = len(view) - len(_ARROW) - 4
    (size,) = struct.unpack_from("<I", view, end)
    if size > end:
        raise ValueError(f"an Arrow file of {size:,} bytes in {end:,}")
    reader = pa.ipc.open_file(pa.py_buffer(bytes(view[end - size : end])))
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        for start in range(0, batch.num_rows, _ARROW_ROWS):
            yield from batch.slice(start, _ARROW_ROWS).to_pylist()
