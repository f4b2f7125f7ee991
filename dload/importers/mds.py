"""MosaicML's MDS: index.json and shards of rows. Read from the format itself, without the streaming library.

The format: docs.mosaicml.com, "Dataset Format" and the encodings of MDSWriter; the layout of bytes was taken from
files that MDSWriter wrote. A row is the sizes of its columns of free size (uint32 each), then the columns' bytes in the
order of their names.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dload.codecs import json_bytes, npy_bytes
from dload.errors import ConfigError, SampleError
from dload.importers.columns import KEY, Column, choose, naming, own_key, row_key
from dload.importers.packed import blobs, mapped, pixels, rows_of, safe_name
from dload.importers.source import Files, read_json, require
from dload.pack import Sample

INDEX = "index.json"
Decode = Callable[[bytes], bytes]

# The number that stands for a dtype before an array whose encoding doesn't name one.
DTYPES = {
    0x08: "u1", 0x09: "i1", 0x10: "<u2", 0x11: "<i2", 0x20: "<u4", 0x21: "<i4", 0x40: "<u8", 0x41: "<i8",
    0x12: "<f2", 0x22: "<f4", 0x42: "<f8",
}  # fmt: skip
_SHAPE_WIDTHS = "BHIQ"
_KEYS = re.compile(r"str|u?int\d*")
# Encoding -> Arrow's name for the type, and how struct reads it.
NUMBERS = {
    "int": ("int64", "<q"), "int8": ("int8", "<b"), "int16": ("int16", "<h"), "int32": ("int32", "<i"),
    "int64": ("int64", "<q"), "uint8": ("uint8", "<B"), "uint16": ("uint16", "<H"), "uint32": ("uint32", "<I"),
    "uint64": ("uint64", "<Q"), "float16": ("halffloat", "<e"), "float32": ("float", "<f"), "float64": ("double", "<d"),
}  # fmt: skip
# What is stored as it lies.
PLAIN = {
    "bytes": Column("bytes", "binary"), "str": Column("text", "string"), "json": Column("json", "any"),
    "str_int": Column("json", "str_int"), "str_float": Column("text", "str_float"),
    "str_decimal": Column("text", "str_decimal"), "jpeg": Column("bytes", "jpeg"), "png": Column("bytes", "png"),
    "pkl": Column("bytes", "pickle"),
}  # fmt: skip
_LISTS = {"list[jpeg]": "jpeg", "list[png]": "png", "list[pil]": "pil", "jpeg_array": "jpeg", "jpegarray": "jpeg"}


class Mds:
    """The rows of an MDS data set, in the order of its index.

    Numbers become JSON, arrays and raw images npy, JPEG and PNG stay as they are, the items of a list become the fields
    NAME.0, NAME.1, ...; pickles are kept and never opened. Each shard is checked against its sizes and hashes in the
    index. `columns`: only these; `key`: the column that is the key (default: `__key__` where there is one, else the
    number of the row).
    """

    kind = "mds"

    def __init__(self, files: Files, *, columns: Sequence[str] = (), key: str | None = None) -> None:
        self.files = files
        self.columns: dict[str, Column] = {}
        self._shown = f"{files.url}: {INDEX}"
        self._wanted = tuple(columns)
        self._key = key
        self._shards = self._index()
        self.total = sum(shard.samples for shard in self._shards)

    def _index(self) -> list[_Shard]:
        index = read_json(self.files, INDEX)
        try:
            shards = [_Shard(one, self._shown) for one in index["shards"]]
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, SampleError):
                raise
            raise SampleError(f"{self._shown} is no index of MDS shards: {error!r}") from error
        names = frozenset(self.files.names)
        for shard in shards:
            shard.unpacked = shard.name in names
        require(self.files, (shard.file for shard in shards), INDEX)
        for shard in shards:
            there = choose(list(shard.encodings), self._wanted or None, self._shown)
            key = self._key or (KEY if KEY in shard.encodings else None)
            if key is not None and key not in shard.encodings:
                raise ConfigError(f"{self._shown}: there is no column {key!r}", remedy=f"there are {there}")
            if key is not None and not _KEYS.fullmatch(shard.encodings[key]):
                raise ConfigError(
                    f"{self._shown}: the key {key!r} is {shard.encodings[key]}, neither a text nor an integer",
                    remedy="choose another --key, or none: rows are then numbered",
                )
            shard.prepare([name for name in there if not name == KEY == key], key, self.columns, self._shown)
        return shards

    def __iter__(self) -> Iterator[Sample]:
        number = 0
        for shard in self._shards:
            shown = f"{self.files.url}: {shard.name}"
            compression = None if shard.unpacked else shard.compression
            with mapped(self.files, shard.file, compression, shard.size) as view:
                shard.check(view, shown)
                for row in rows_of(view, shown):
                    with naming(shown, f"row {number:,}"):
                        key, fields = shard.sample(row, self.columns)
                    yield row_key("", number) if key is None else key, fields
                    number += 1


class _Shard:
    """One shard as the index has it."""

    def __init__(self, facts: dict[str, Any], shown: str) -> None:
        if facts["format"] != "mds":
            raise ConfigError(f"{shown}: shards of the format {facts['format']!r} aren't MDS", remedy="see --format")
        self.samples = int(facts["samples"])
        self.name = safe_name(facts["raw_data"]["basename"], shown)
        self.size = int(facts["raw_data"]["bytes"])
        self.hashes = dict(facts["raw_data"]["hashes"])
        self.compression = facts["compression"]
        self.packed = safe_name(facts["zip_data"]["basename"], shown) if facts["zip_data"] else None
        self.unpacked = True  # whether it lies there as it was before it was compressed, too
        self.encodings = dict(zip(facts["column_names"], facts["column_encodings"], strict=True))
        self._sizes = [None if size is None else int(size) for size in facts["column_sizes"]]
        self._free = self._sizes.count(None)
        self._decoders: list[tuple[str, Decode | str] | None] = []
        self._key: tuple[int, str] | None = None  # the place of the column that is the key, and its name

    def prepare(self, wanted: list[str], key: str | None, columns: dict[str, Column], shown: str) -> None:
        """Settle what becomes of each column."""
        for place, (name, encoding) in enumerate(self.encodings.items()):
            if name == key:
                self._key = place, name
            if name not in wanted:
                self._decoders.append(None)
                continue
            column, decode = _decoder(encoding, f"{shown}: column {name!r}")
            self._decoders.append((name, decode))
            if column is not None and columns.setdefault(name, column) != column:
                raise ConfigError(
                    f"{shown}: column {name!r} is {encoding} in one shard and another thing in one before"
                )

    @property
    def file(self) -> str:
        """Which file to read."""
        return self.name if self.unpacked or self.packed is None else self.packed

    def check(self, view: memoryview, shown: str) -> None:
        for method, expected in self.hashes.items():
            if method in hashlib.algorithms_available:
                got = hashlib.new(method, view).hexdigest()
                if got != expected:
                    raise SampleError(f"{shown} is damaged: its {method} is {got}, the index says {expected}")

    def sample(self, row: bytes, columns: dict[str, Column]) -> tuple[str | None, dict[str, bytes]]:
        free = iter(struct.unpack_from(f"<{self._free}I", row))
        at = 4 * self._free
        fields: dict[str, bytes] = {}
        key = None
        for place, (size, decoder) in enumerate(zip(self._sizes, self._decoders, strict=True)):
            end = at + (next(free) if size is None else size)
            if self._key is not None and self._key[0] == place:
                key = self._own_key(row[at:end], self._key[1])
            if decoder is not None:
                name, decode = decoder
                data = row[at:end]
                if isinstance(decode, str):
                    _add_list(fields, name, data, decode, columns)
                else:
                    fields[name] = decode(data)
            at = end
        if at != len(row):
            raise ValueError(f"its columns have {at:,} bytes, the row {len(row):,}")
        return key, fields

    def _own_key(self, data: bytes, name: str) -> str:
        encoding = self.encodings[name]
        return own_key(data.decode() if encoding == "str" else struct.unpack(NUMBERS[encoding][1], data)[0], name)


def _as_is(data: bytes) -> bytes:
    return data


def _decoder(encoding: str, shown: str) -> tuple[Column | None, Decode | str]:
    """How an encoding's bytes become a field's: a function, or for a list the encoding of its items."""
    if encoding in PLAIN:
        return PLAIN[encoding], _as_is
    if encoding in NUMBERS:
        type_, form = NUMBERS[encoding]
        return Column("json", type_), lambda data: json_bytes(struct.unpack(form, data)[0])
    if encoding == "pil":
        return Column("npy", "array"), pixels
    if encoding in _LISTS:
        return None, _LISTS[encoding] if encoding.startswith("list") else encoding
    name, _, rest = encoding.partition(":")
    if name == "ndarray":
        dtype, _, shape = rest.partition(":")
        fixed = tuple(map(int, shape.split(","))) if shape else None
        return Column("npy", "array"), lambda data: _array(data, dtype, fixed)
    raise ConfigError(f"{shown} has the unknown encoding {encoding!r}", remedy="leave it out with --columns")


def _array(data: bytes, dtype: str, shape: tuple[int, ...] | None) -> bytes:
    """An array as .npy: what its encoding doesn't say stands before it, first the dtype, then the shape."""
    at = 0
    if not dtype:
        if data[0] not in DTYPES:
            raise ValueError(f"an array of the unknown dtype {data[0]:#x}")
        dtype, at = DTYPES[data[0]], 1
    if shape is None:
        dimensions, width = divmod(data[at], 4)
        form = f"<{dimensions}{_SHAPE_WIDTHS[width]}"
        shape = struct.unpack_from(form, data, at + 1)
        at += 1 + struct.calcsize(form)
    return npy_bytes(np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), offset=at).reshape(shape))


def _add_list(fields: dict[str, bytes], name: str, data: bytes, item: str, columns: dict[str, Column]) -> None:
    if item in ("jpeg_array", "jpegarray"):
        found, item = blobs(data), "jpeg"
    else:  # a zero stands before a list[...]
        found = blobs(data[4:])
    for number, one in enumerate(found):
        fields[f"{name}.{number}"] = pixels(one) if item == "pil" else one
        columns.setdefault(f"{name}.{number}", Column("npy", "array") if item == "pil" else PLAIN[item])
