"""What MDS shards and LitData chunks have in common: a table of offsets over the rows, whole-file compression, and
values packed in the same ways.

Both files begin with the number of rows and the offset of each row and of the end, as little-endian uint32.
"""

from __future__ import annotations

import bz2
import gzip
import mmap
import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from dload.codecs import npy_bytes
from dload.errors import ConfigError, SampleError
from dload.files.atomic import disk_full
from dload.importers.source import ALWAYS_ALLOWED, MAX_GROWTH, Files, zstd_stream

_STEP = 1 << 20
# Modes of images whose raw pixels are an array, by the names that Pillow gives them: dtype and channels.
_MODES = {
    "L": ("u1", 1), "RGB": ("u1", 3), "RGBA": ("u1", 4), "I": ("<i4", 1), "F": ("<f4", 1), "I;16": ("<u2", 1),
}  # fmt: skip


def safe_name(name: object, shown: str) -> str:
    """A file's path as an index has it. SampleError where it leads out of the folder."""
    if not isinstance(name, str) or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise SampleError(
            f"{shown} names the file {name!r:.200}, which leads out of its folder or is none",
            remedy="nobody makes such an index by accident: ask where it comes from",
        )
    return name


@contextmanager
def mapped(files: Files, name: str, compression: str | None, size: int | None) -> Iterator[memoryview]:
    """A file's bytes, mapped; decompressed to a temporary file first where `compression` names a method.

    `size`: how many they must be, decompressed; None: not known. SampleError where they are damaged.
    """
    shown = f"{files.url}: {name}"
    with ExitStack() as stack:
        path = stack.enter_context(files.local(name))
        file: BinaryIO = stack.enter_context(path.open("rb"))
        if compression is not None:
            plain = cast(BinaryIO, stack.enter_context(tempfile.TemporaryFile(prefix="dload-import-")))
            _decompress(file, plain, compression, size, path.stat().st_size, shown)
            file = plain
        length = file.seek(0, 2)
        if length < 8 or (size is not None and length != size):
            told = f", its index says {size:,}" if size is not None else ""
            raise SampleError(f"{shown} has {length:,} bytes{told}", remedy="fetch or make it anew")
        mapping = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        yield stack.enter_context(memoryview(mapping))


def _decompress(raw: BinaryIO, plain: BinaryIO, method: str, size: int | None, packed: int, shown: str) -> None:
    most = size if size is not None else max(ALWAYS_ALLOWED, MAX_GROWTH * packed)
    name = method.partition(":")[0]
    if name == "zstd":
        stream = zstd_stream(raw)
    elif name == "gz":
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    elif name == "bz2":
        stream = cast(BinaryIO, bz2.BZ2File(raw))
    else:
        raise ConfigError(
            f"{shown} is compressed by {method}; zstd, gz and bz2 can be read", remedy="decompress the shards first"
        )
    done = 0
    with disk_full(Path(tempfile.gettempdir()), most):
        while True:
            try:
                chunk = stream.read(_STEP)
            except Exception as error:  # each method has its own
                raise SampleError(f"{shown} is damaged: {error}", remedy="fetch or make it anew") from error
            if not chunk:
                break
            done += len(chunk)
            if done > most:
                raise SampleError(
                    f"{shown} grows to more than {most:,} bytes, like a bomb", remedy="ask where it is from"
                )
            plain.write(chunk)
    plain.flush()


def rows_of(view: memoryview, shown: str) -> Iterator[bytes]:
    """The rows of a mapped shard or chunk."""
    (count,) = struct.unpack_from("<I", view)
    if 4 * (count + 2) > len(view):
        raise _damaged(shown)
    offsets = struct.unpack_from(f"<{count + 1}I", view, 4)
    if offsets[0] < 4 * (count + 2) or offsets[-1] > len(view) or any(a > b for a, b in pairwise(offsets)):
        raise _damaged(shown)
    for start, end in pairwise(offsets):
        yield bytes(view[start:end])


def _damaged(shown: str) -> SampleError:
    return SampleError(f"{shown} is damaged: its table of rows makes no sense", remedy="fetch or make it anew")


# ---- values
def pixels(data: bytes) -> bytes:
    """An image packed as width, height, mode and raw pixels, as .npy of (height, width[, channels]).

    Raises ValueError for a mode whose raw pixels don't say all (palettes, bits).
    """
    width, height, length = struct.unpack_from("<3I", data)
    mode = data[12 : 12 + length].decode("ascii", "replace")
    if mode not in _MODES:
        raise ValueError(f"an image of the mode {mode!r}; those of {', '.join(_MODES)} are arrays")
    dtype, channels = _MODES[mode]
    shape = (height, width) if channels == 1 else (height, width, channels)
    return npy_bytes(np.frombuffer(data, dtype, offset=12 + length).reshape(shape))


def blobs(data: bytes) -> list[bytes]:
    """The byte strings of a list: how many, their sizes, then they themselves."""
    (count,) = struct.unpack_from("<I", data)
    sizes = struct.unpack_from(f"<{count}I", data, 4)
    found, at = [], 4 + 4 * count
    for size in sizes:
        found.append(data[at : at + size])
        at += size
    if at != len(data):
        raise ValueError(f"a list of {at:,} bytes in {len(data):,}")
    return found
