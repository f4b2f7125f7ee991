"""Folders of TensorFlow Datasets in ArrayRecord, read without TensorFlow. Needs array_record, the extra tfds.

The metadata, dataset_info.json and features.json, are as tensorflow.org/datasets/external_tfrecord describes them;
their JSON was taken from folders that TFDS wrote. A record is a tf.train.Example (`example`).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from dload.codecs import json_bytes, npy_bytes
from dload.errors import ConfigError, SampleError
from dload.importers.columns import Column, choose, naming, row_key
from dload.importers.example import Feature, parse_example
from dload.importers.packed import safe_name
from dload.importers.source import ALWAYS_ALLOWED, Files, read_json, read_text, require
from dload.pack import Sample

INFO, FEATURES = "dataset_info.json", "features.json"
_BUILDER = re.compile(r"([^/:]+)(?:/([^:]+))?(?::(.+))?")
_BATCH = 64

# What decodes one feature of an example into the field of that name, or into fields NAME.0, NAME.1, ... where there may
# be many.
Decode = Callable[[Mapping[str, Feature], str], bytes | list[bytes]]


@dataclass(frozen=True)
class _Leaf:
    """One feature: its name in the example, its field, what becomes of it."""

    name: str
    field: str
    column: Column
    decode: Decode


class Tfds:
    """The records of a TFDS folder (the one of a version, with features.json in it), in the order of its shards.

    Images and texts keep their bytes, scalars become JSON, tensors and sequences of numbers npy, class labels their
    number (the names of the classes go to the version's meta); many strings or images become NAME.0, NAME.1, ...
    Features in features are NAME.INNER. Keys are SPLIT/NUMBER. `split`: only this one; `columns`: only these fields;
    `builder`: NAME[/CONFIG][:VERSION] that the folder must be of.
    """

    kind = "tfds"

    def __init__(
        self, files: Files, *, columns: Sequence[str] = (), split: str | None = None, builder: str | None = None
    ) -> None:
        self.files = files
        info, features = (read_json(files, name) for name in (INFO, FEATURES))
        if builder is not None:
            _require(info, builder, files.url)
        if (form := info.get("fileFormat", "tfrecord")) != "array_record":
            raise ConfigError(
                f"{files.url} is written as {form}, which takes TensorFlow to read",
                remedy="write it anew with download_and_prepare(file_format='array_record')",
            )
        self._splits = _splits(info, files.url)
        if split is not None:
            if split not in self._splits:
                raise ConfigError(f"{files.url}: there is no split {split!r}", remedy=f"there are {list(self._splits)}")
            self._splits = {split: self._splits[split]}
        require(files, (name for shards in self._splits.values() for name, _ in shards), INFO)
        self.total = sum(count for shards in self._splits.values() for _, count in shards)
        names = [name for name, _ in _flat(features)]
        wanted = choose([_field(name) for name in names], tuple(columns) or None, files.url)
        self._leaves = [
            self._leaf(name, feature) for name, feature in _flat(features) if _field(name) in wanted
        ]  # fmt: skip
        self.columns = {leaf.field: leaf.column for leaf in self._leaves if leaf.decode is not _many}

    def _leaf(self, name: str, feature: dict[str, Any]) -> _Leaf:
        field = _field(name)
        if "classLabel" in feature:
            labels = f"{name.replace('/', '-')}.labels.txt"
            names = read_text(self.files, labels).decode().splitlines() if labels in self.files.names else []
            return _Leaf(name, field, Column("json", {"class_label": names}), _scalar("int64"))
        column, decode = _decoder(feature, f"{self.files.url}: feature {name!r}")
        return _Leaf(name, field, column, decode)

    def __iter__(self) -> Iterator[Sample]:
        for split, shards in self._splits.items():
            row = 0
            for name, count in shards:
                shown = f"{self.files.url}: {name}"
                for record in self._records(name, count, shown):
                    with naming(shown, f"row {row:,} of {split}"):
                        fields = self._fields(parse_example(record))
                    yield row_key(f"{split}/", row), fields
                    row += 1

    def _records(self, name: str, count: int, shown: str) -> Iterator[bytes]:
        with self.files.local(name) as path:
            reader = ArrayRecordReader(str(path))
            try:
                there = reader.num_records() if reader.ok() else None
                if there != count:
                    what = "is no ArrayRecord" if there is None else f"has {there:,} records, {INFO} says {count:,}"
                    raise SampleError(f"{shown} {what}", remedy="fetch or make it anew")
                for first in range(0, count, _BATCH):
                    yield from reader.read(list(range(first, min(count, first + _BATCH))))
            except (RuntimeError, IndexError) as error:
                raise SampleError(f"{shown} is damaged: {error}", remedy="fetch or make it anew") from error
            finally:
                with suppress(RuntimeError):
                    reader.close()

    def _fields(self, example: Mapping[str, Feature]) -> dict[str, bytes]:
        fields: dict[str, bytes] = {}
        for leaf in self._leaves:
            value = leaf.decode(example, leaf.name)
            if isinstance(value, bytes):
                fields[leaf.field] = value
            else:
                for place, one in enumerate(value):
                    fields[f"{leaf.field}.{place}"] = one
                    self.columns.setdefault(f"{leaf.field}.{place}", leaf.column)
        return fields


def _field(name: str) -> str:
    return name.replace("/", ".")


def _require(info: dict[str, Any], builder: str, shown: str) -> None:
    match = _BUILDER.fullmatch(builder)
    if not match:
        raise ConfigError(f"--builder {builder!r} is not NAME[/CONFIG][:VERSION]")
    there = (info.get("name"), info.get("configName"), info.get("version"))
    for what, wanted, found in zip(("builder", "config", "version"), match.groups(), there, strict=True):
        if wanted is not None and wanted != found:
            raise ConfigError(
                f"{shown} holds {what} {found!r}, not {wanted!r}", remedy="name the folder of the version you mean"
            )


def _splits(info: dict[str, Any], shown: str) -> dict[str, list[tuple[str, int]]]:
    """The files of each split. SampleError where the metadata doesn't say."""
    try:
        return {one["name"]: _shards(info, one, shown) for one in info["splits"]}
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, SampleError):
            raise
        raise SampleError(f"{shown}: {INFO} is damaged: {error!r}", remedy="make it anew") from error


def _shards(info: dict[str, Any], split: dict[str, Any], shown: str) -> list[tuple[str, int]]:
    """The files of a split, each with its number of records."""
    lengths = [int(one) for one in split.get("shardLengths", ())]
    template = split.get("filepathTemplate") or "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    found = []
    for index, length in enumerate(lengths):
        values = {
            "DATASET": info["name"], "SPLIT": split["name"], "FILEFORMAT": "array_record",
            "SHARD_INDEX": f"{index:05d}", "NUM_SHARDS": f"{len(lengths):05d}",
            "SHARD_X_OF_Y": f"{index:05d}-of-{len(lengths):05d}",
        }  # fmt: skip
        name = re.sub(r"\{(\w+)\}", lambda match, known=values: known.get(match[1], match[0]), template)
        found.append((safe_name(name, f"{shown}: {INFO}"), length))
    return found


def _flat(feature: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """The features that hold values, each with its name in an example. A sequence of features is features of
    sequences."""
    if "featuresDict" in feature:
        inner = feature["featuresDict"].get("features", {})
        return [leaf for name in sorted(inner) for leaf in _flat(inner[name], f"{path}/{name}" if path else name)]
    if "sequence" in feature and "featuresDict" in feature["sequence"]["feature"]:
        leaves = _flat(feature["sequence"]["feature"], path)
        return [(name, {"sequence": {"feature": one}}) for name, one in leaves]
    return [(path, feature)]


# ---- features
def _decoder(feature: dict[str, Any], shown: str) -> tuple[Column, Decode]:
    if "image" in feature:
        return Column("bytes", "image"), _one
    if "text" in feature:
        return Column("text", "string"), _one
    if "sequence" in feature:
        return _sequence(feature["sequence"]["feature"], shown)
    dtype, shape = _dtype(feature, shown), _shape(feature)
    if dtype is None:
        return Column("bytes", "binary"), _many if shape else _one
    encoding = feature.get("tensor", {}).get("encoding", "none").lower()
    if encoding in ("bytes", "zlib") or shape:
        packed = _packed(dtype, shape, encoding == "zlib")
        return Column("npy", "array"), packed if encoding in ("bytes", "zlib") else _tensor(dtype, shape)
    return Column("json", _ARROW.get(dtype, "any")), _scalar(dtype)


def _sequence(inner: dict[str, Any], shown: str) -> tuple[Column, Decode]:
    if "text" in inner:
        return Column("text", "string"), _many
    dtype = None if "image" in inner else _dtype(inner, shown)
    if dtype is None:
        return Column("bytes", "binary"), _many
    return Column("npy", "array"), _tensor(dtype, (-1, *_shape(inner)))


_ARROW = {"float16": "halffloat", "float32": "float", "float64": "double"} | {
    name: name for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}


def _dtype(feature: dict[str, Any], shown: str) -> str | None:
    """The dtype of a tensor; None for strings. ConfigError for a kind of feature that isn't known."""
    if "classLabel" in feature:
        return "int64"
    if "boundingBox" in feature:
        return "float32"
    dtype = feature.get("tensor", feature.get("audio", {})).get("dtype")
    if dtype in ("string", "object", "bytes"):
        return None
    if dtype not in _ARROW:
        what = feature.get("pythonClassName", "?").rpartition(".")[2]
        raise ConfigError(
            f"{shown} is a {what} of {dtype}, which isn't known here", remedy="leave it out with --columns A,B"
        )
    return str(dtype)


def _shape(feature: dict[str, Any]) -> tuple[int, ...]:
    if "boundingBox" in feature:
        return (4,)
    shape = feature.get("tensor", feature.get("audio", {})).get("shape", {})
    return tuple(int(size) for size in shape.get("dimensions", ()))


def _value(example: Mapping[str, Feature], name: str) -> Feature:
    if name not in example:
        ragged = any(one.startswith(f"{name}/ragged_") for one in example)
        raise ValueError(f"there is no feature {name!r}" + (", only the parts of a ragged one" if ragged else ""))
    return example[name]


def _one(example: Mapping[str, Feature], name: str) -> bytes:
    value = _value(example, name)
    if len(value) != 1 or not isinstance(value[0], bytes):
        raise ValueError(f"{name!r} has {len(value)} values, not one of bytes")
    return value[0]


def _many(example: Mapping[str, Feature], name: str) -> list[bytes]:
    return [one if isinstance(one, bytes) else json_bytes(one) for one in _value(example, name)]


def _scalar(dtype: str) -> Decode:
    def decode(example: Mapping[str, Feature], name: str) -> bytes:
        value = _value(example, name)
        if len(value) != 1:
            raise ValueError(f"{name!r} has {len(value)} values, not one")
        return json_bytes(np.array(value).astype(dtype)[0].item())

    return decode


def _tensor(dtype: str, shape: tuple[int, ...]) -> Decode:
    def decode(example: Mapping[str, Feature], name: str) -> bytes:
        sizes = tuple(int(size) for size in example[f"{name}/shape"]) if f"{name}/shape" in example else shape
        return npy_bytes(np.array(_value(example, name), _wide(dtype)).astype(dtype).reshape(sizes))

    return decode


def _wide(dtype: str) -> str:
    """What an example holds such numbers as."""
    return "float32" if dtype.startswith("float") else "int64"


def _packed(dtype: str, shape: tuple[int, ...], compressed: bool) -> Decode:
    def decode(example: Mapping[str, Feature], name: str) -> bytes:
        data = _one(example, name)
        if compressed:
            inflate = zlib.decompressobj()
            data = inflate.decompress(data, ALWAYS_ALLOWED)
            if not inflate.eof:
                raise ValueError(f"{name!r} is damaged, or grows to more than {ALWAYS_ALLOWED >> 30} GiB")
        sizes = tuple(int(size) for size in example[f"{name}/shape"]) if f"{name}/shape" in example else shape
        return npy_bytes(np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(sizes))

    return decode
