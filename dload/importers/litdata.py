"""LitData's chunks: index.json and chunks of rows. Read from the format itself, without the litdata library.

The format was taken from litdata's documentation of `optimize` and from files that it wrote. A row is the sizes of its
leaves (uint32 each), then the leaves; index.json names each leaf's serializer and the tree that they are in. Chunks of
tokens have one leaf and no sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dload.codecs import json_bytes, npy_bytes
from dload.errors import ConfigError, SampleError
from dload.importers.columns import Column, choose, naming, row_key
from dload.importers.litdata_frames import chunk_rows
from dload.importers.litdata_json import as_json
from dload.importers.packed import blobs, pixels, safe_name
from dload.importers.source import Files, read_json, require
from dload.manifest import canonical
from dload.pack import Sample

INDEX = "index.json"
ALONE = "data"  # the field of a row that is one value

_NUMPY = ("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", "?")
_BFLOAT16 = "bfloat16"
_TORCH = (
    "<f4", "<f4", "<f8", "<f8", "<c8", "<c8", "<c16", "<c16", "<f2", "<f2", _BFLOAT16, "u1", "i1", "<i2", "<i2", "<i4",
    "<i4", "<i8", "<i8", "?", "<u2",
)  # fmt: skip

# What is stored as it lies; so is every serializer that isn't known, under its own name.
_PLAIN = {
    "str": Column("text", "string"), "text": Column("text", "string"), "bytes": Column("bytes", "binary"),
}  # fmt: skip


class LitData:
    """The rows of a LitData data set, in the order of its index.

    A leaf's field is its place in the row's tree: `a`, `a.b`, `0` for the first of a tuple; `data` where the row is one
    value. Integers, floats and booleans become JSON, arrays and tensors npy (bfloat16 as float32, which holds it
    exactly), raw images npy, the items of a list of JPEGs NAME.0, NAME.1, ...; everything else keeps its bytes: pickles
    are never opened. Keys are the numbers of the rows. `columns`: only these fields.
    """

    kind = "litdata"

    def __init__(self, files: Files, *, columns: Sequence[str] = ()) -> None:
        self.files = files
        self._shown = f"{files.url}: {INDEX}"
        index = read_json(files, INDEX)
        try:
            config, self._chunks = index["config"], list(index["chunks"])
            self._names = [safe_name(chunk["filename"], self._shown) for chunk in self._chunks]
            self._paths = _paths(canonical.loads(config["data_spec"].encode())[1])
            self._formats = [str(one) for one in config["data_format"]]
            self.total = sum(int(chunk["chunk_size"]) for chunk in self._chunks)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
            if isinstance(error, SampleError):
                raise
            raise SampleError(f"{self._shown} is no index of LitData chunks: {error!r}") from error
        require(files, self._names, INDEX)
        self._bare = config.get("item_loader") == "TokensLoader"
        self._refuse(config)
        wanted = choose(self._paths, tuple(columns) or None, self._shown)
        self.columns: dict[str, Column] = {}
        self._leaves: list[tuple[str, Callable[[bytes], bytes]] | None] = []
        for path, form in zip(self._paths, self._formats, strict=True):
            column, decode = _decoder(form)
            self._leaves.append((path, decode) if path in wanted else None)
            if path in wanted and form != "jpeg_array":
                self.columns[path] = column

    def _refuse(self, config: dict[str, Any]) -> None:
        if config.get("compression") not in (None, "zstd"):
            raise ConfigError(f"{self._shown}: chunks compressed by {config['compression']} can't be read, zstd can")
        if config.get("encryption"):
            raise ConfigError(f"{self._shown}: the chunks are encrypted", remedy="decrypt them with litdata first")
        if config.get("item_loader") not in ("PyTreeLoader", "TokensLoader", None):
            raise ConfigError(
                f"{self._shown}: chunks of the kind {config['item_loader']} aren't rows of LitData's own format",
                remedy="Parquet files are imported with --format parquet",
            )
        if len(self._paths) != len(self._formats) or (self._bare and len(self._paths) != 1):
            raise SampleError(f"{self._shown}: {len(self._formats)} serializers for {len(self._paths)} leaves")

    def __iter__(self) -> Iterator[Sample]:
        number = 0
        for name, chunk in zip(self._names, self._chunks, strict=True):
            shown = f"{self.files.url}: {name}"
            first = number
            for row in chunk_rows(self.files, name, shown):
                with naming(shown, f"row {number:,}"):
                    fields = self._fields(row) if isinstance(row, bytes) else self._values(row)
                yield row_key("", number), fields
                number += 1
            if number - first != int(chunk["chunk_size"]):
                raise SampleError(f"{shown} has {number - first:,} rows, its index says {chunk['chunk_size']:,}")

    def _values(self, row: dict[str, Any]) -> dict[str, bytes]:
        """The fields of a row whose values are there already."""
        wanted = [leaf[0] for leaf in self._leaves if leaf is not None]
        return {name: _simple(row[name]) for name in wanted if row[name] is not None}

    def _fields(self, row: bytes) -> dict[str, bytes]:
        count = 0 if self._bare else len(self._leaves)
        sizes = struct.unpack_from(f"<{count}I", row) if count else (len(row),)
        at, fields = 4 * count, dict[str, bytes]()
        for size, leaf, form in zip(sizes, self._leaves, self._formats, strict=True):
            data = row[at : at + size]
            at += size
            if leaf is None:
                continue
            path, decode = leaf
            if form == "jpeg_array":
                for place, one in enumerate(blobs(data)):
                    fields[f"{path}.{place}"] = one
                    self.columns.setdefault(f"{path}.{place}", Column("bytes", "jpeg"))
            else:
                fields[path] = decode(data)
        if at != len(row):
            raise ValueError(f"its leaves have {at:,} bytes, the row {len(row):,}")
        return fields


def _paths(node: dict[str, Any], path: tuple[str, ...] = ()) -> list[str]:
    """Where each leaf is in the tree of a row."""
    if node["type"] is None:
        return [".".join(path) or ALONE]
    children = node["children_spec"]
    names = canonical.loads(node["context"].encode()) if node["context"] not in (None, "null", "") else None
    if not isinstance(names, list) or len(names) != len(children):
        names = list(range(len(children)))
    return [one for name, child in zip(names, children, strict=True) for one in _paths(child, (*path, str(name)))]


def _decoder(form: str) -> tuple[Column, Callable[[bytes], bytes]]:
    """How a leaf is stored, by the name of its serializer."""
    name, _, rest = form.partition(":")
    if name in ("int", "float", "bool"):
        layout = {"int": "<q", "float": "<d", "bool": "<?"}[name]
        type_ = {"int": "int64", "float": "double", "bool": "bool"}[name]
        return Column("json", type_), lambda data: json_bytes(struct.unpack(layout, data)[0])
    if name == "json":
        return Column("json", "any"), as_json
    if name in ("numpy", "tensor"):
        dtypes = _NUMPY if name == "numpy" else _TORCH
        return Column("npy", "array"), lambda data: _array(data, dtypes)
    if name in ("no_header_numpy", "no_header_tensor"):
        dtypes = _NUMPY if name == "no_header_numpy" else _TORCH
        return Column("npy", "array"), lambda data: _flat(data, dtypes, int(rest))
    if name == "pil":
        return Column("npy", "array"), pixels
    return _PLAIN.get(name, Column("bytes", form)), _as_is


def _simple(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json_bytes(value)


def _as_is(data: bytes) -> bytes:
    return data


def _array(data: bytes, dtypes: Sequence[str]) -> bytes:
    """An array behind its dtype's number, its number of dimensions and its shape. For tensors, newer versions write
    these with the high byte first."""
    order = "<" if struct.unpack_from("<I", data)[0] < len(dtypes) else ">"
    if data[:4] == bytes(4) and data[4:7] == bytes(3):  # dtype 0 looks the same in both orders
        order = ">"
    dtype, dimensions = struct.unpack_from(f"{order}2I", data)
    if 4 * dimensions > len(data) - 8:
        raise ValueError(f"an array of {dimensions:,} dimensions in {len(data):,} bytes")
    shape = struct.unpack_from(f"{order}{dimensions}I", data, 8)
    return _flat(data[8 + 4 * dimensions :], dtypes, dtype, shape)


def _flat(data: bytes, dtypes: Sequence[str], number: int, shape: tuple[int, ...] | None = None) -> bytes:
    if number >= len(dtypes):
        raise ValueError(f"an array of the dtype number {number}, which npy without pickle can't hold")
    if dtypes[number] == _BFLOAT16:
        array = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    else:
        array = np.frombuffer(data, dtypes[number])
    return npy_bytes(array if shape is None else array.reshape(shape))
