"""Samples as MosaicML's MDS. The format: see `mds`."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from dload.codecs import npy_from
from dload.importers.columns import KEY, Column
from dload.importers.mds import DTYPES, INDEX, NUMBERS, PLAIN
from dload.importers.target import Exported, Request, Target, fitting, unfit
from dload.manifest import canonical

SHARD_SIZE = 1 << 26
_MAX_OFFSET = (1 << 32) - 1
Encode = Callable[[bytes], bytes]
_CODES = {np.dtype(name): code for code, name in DTYPES.items()}
# The encodings of types of other worlds: Arrow's numbers, and MDS's own by the columns they become.
_NUMBER_ENCODINGS = {type_: name for name, (type_, _) in NUMBERS.items() if name != "int"}
_OWN = {str(column.type): name for name, column in PLAIN.items()}
_BY_CODEC = {"bytes": "bytes", "text": "str", "json": "json", "npy": "ndarray"}


def write(request: Request, folder: Path, *, replace: bool = False) -> Exported:
    """Write shard.00000.mds, ... and index.json, which StreamingDataset reads: each field a column, the key `__key__`.

    Text becomes `str`, numbers of known types theirs, other JSON `json`, arrays `ndarray`, JPEG and PNG of known type
    `jpeg` and `png`, anything else `bytes`. SampleError names a sample that lacks a field (MDS has no null) and one
    whose array MDS can't hold: without elements or dimensions, or of a dtype such as bool.
    """
    columns = {KEY: Column("text", "string"), **request.columns}
    encoders = {name: _encoder(columns[name]) for name in sorted(columns)}
    limit = request.shard_size or SHARD_SIZE
    with Target(folder, r"shard\.\d{5}\.mds|index\.json", replace=replace) as target:
        shards: list[dict[str, Any]] = []
        rows: list[bytes] = []
        size = 0
        for key, fields in request.samples:
            with fitting(key):
                row = _row(key, {KEY: key.encode(), **fields}, encoders)
            if rows and size + len(row) > limit:
                shards.append(_write_shard(target, len(shards), rows, encoders, limit))
                rows, size = [], 0
            rows.append(row)
            size += len(row) + 4
            target.done.samples += 1
        if rows:
            shards.append(_write_shard(target, len(shards), rows, encoders, limit))
        with target.file(INDEX) as stream:
            stream.write(json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode())
        return target.done


Encoders = dict[str, tuple[str, int | None, Encode]]


def _row(key: str, fields: dict[str, bytes], encoders: Encoders) -> bytes:
    sizes, values = [], []
    for name, (_, fixed, encode) in encoders.items():
        if name not in fields:
            raise unfit(
                key, f"it has no field {name!r}, and MDS has no null", "choose fields that all have: --fields A,B"
            )
        value = encode(fields[name])
        values.append(value)
        if fixed is None:
            sizes.append(len(value))
    row = struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(values)
    if len(row) > _MAX_OFFSET - (1 << 20):
        raise unfit(key, f"it has {len(row):,} bytes, more than a shard of MDS can", "leave out fields: --fields A,B")
    return row


def _write_shard(
    target: Target, number: int, rows: list[bytes], encoders: Encoders, limit: int
) -> dict[str, Any]:  # fmt: skip
    facts = {
        "column_encodings": [encoding for encoding, _, _ in encoders.values()],
        "column_names": list(encoders),
        "column_sizes": [fixed for _, fixed, _ in encoders.values()],
        "compression": None, "format": "mds", "hashes": [], "size_limit": limit, "version": 2,
    }  # fmt: skip
    config = json.dumps(facts, sort_keys=True).encode()
    first = 4 * (len(rows) + 2) + len(config)
    offsets = list(accumulate(map(len, rows), initial=first))
    name = f"shard.{number:05d}.mds"
    with target.file(name) as stream:
        stream.write(struct.pack(f"<{len(rows) + 2}I", len(rows), *offsets) + config)
        stream.writelines(rows)
    raw = {"basename": name, "bytes": offsets[-1], "hashes": {}}
    return facts | {"raw_data": raw, "samples": len(rows), "zip_data": None}


def _encoder(column: Column) -> tuple[str, int | None, Encode]:
    """The encoding of a column, the size of its values where that is fixed, and what encodes one."""
    type_ = "int64" if isinstance(column.type, dict) and "class_label" in column.type else str(column.type)
    if column.codec == "json" and type_ in _NUMBER_ENCODINGS:
        name = _NUMBER_ENCODINGS[type_]
        form = NUMBERS[name][1]
        return name, struct.calcsize(form), lambda value: struct.pack(form, canonical.loads(value))
    own = _OWN.get(type_)
    if own is not None and PLAIN[own].codec == column.codec:
        return own, None, _checked(own)
    name = _BY_CODEC[column.codec]
    return name, None, _array if name == "ndarray" else _checked(name)


def _checked(encoding: str) -> Encode:
    """Leaves bytes as they are, if the library can decode them."""
    if encoding in ("str", "str_int", "str_float", "str_decimal"):
        return lambda value: value.decode().encode()
    if encoding == "json":
        return _json
    return lambda value: value


def _json(value: bytes) -> bytes:
    canonical.loads(value)
    return value


def _array(value: bytes) -> bytes:
    array = npy_from(value)
    if array.size == 0 or array.ndim == 0 or array.dtype.newbyteorder("<") not in _CODES:
        raise ValueError(
            f"MDS can't hold an array of the shape {array.shape} and dtype {array.dtype}; as .npy bytes it can, with "
            "--codec FIELD=bytes"
        )
    width = next(width for width, most in enumerate((1 << 8, 1 << 16, 1 << 32, 1 << 64)) if max(array.shape) < most)
    code = _CODES[array.dtype.newbyteorder("<")]
    shape = struct.pack(f"<{array.ndim}{'BHIQ'[width]}", *array.shape)
    return bytes((code, 4 * array.ndim + width)) + shape + array.astype(array.dtype.newbyteorder("<")).tobytes()
