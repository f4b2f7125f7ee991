"""Arrow's types and columns as field bytes (`columns` has the rule), and types as words that a manifest keeps.

Needs pyarrow, the extra parquet.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from dload.codecs import json_bytes
from dload.errors import ConfigError, SampleError
from dload.importers.columns import Column

FILE = "file"  # struct<bytes, path>: how Hugging Face stores an image or a sound
PATH = ".path"
Encode = Callable[[Any], list[bytes | None]]


# ---- types as words
def describe(type_: Any) -> Any:
    """A type as a JSON value: its own name, or an object for what has types inside."""
    types = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return describe(type_.storage_type)
    if types.is_dictionary(type_):
        return describe(type_.value_type)
    if is_file(type_):
        return FILE
    return _describe_nest(type_) if types.is_nested(type_) else str(type_)


def _describe_nest(type_: Any) -> Any:
    types = pa.types
    if types.is_struct(type_):
        return {"struct": [[field.name, describe(field.type)] for field in type_]}
    if types.is_map(type_):
        return {"map": [describe(type_.key_type), describe(type_.item_type)]}
    if types.is_fixed_size_list(type_):
        return {"list": describe(type_.value_type), "size": type_.list_size}
    if types.is_list(type_) or types.is_large_list(type_):
        return {"large_list" if types.is_large_list(type_) else "list": describe(type_.value_type)}
    return str(type_)


def type_of(description: Any) -> Any | None:
    """The Arrow type of a description, or None where it is of another world."""
    if isinstance(description, str):
        return _simple_type(description)
    if "struct" in description:
        fields = [(name, type_of(one)) for name, one in description["struct"]]
        return pa.struct(fields) if all(one is not None for _, one in fields) else None
    if "class_label" in description:
        return pa.int64()
    kind = next((kind for kind in ("list", "large_list", "map") if kind in description), None)
    inner = [type_of(one) for one in (description[kind] if kind == "map" else [description.get(kind, "")])]
    if kind is None or None in inner:
        return None
    if kind == "list":
        return pa.list_(*inner, description.get("size", -1))
    return pa.map_(*inner) if kind == "map" else pa.large_list(*inner)


def _simple_type(name: str) -> Any | None:
    if name == FILE:
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    if match := re.fullmatch(r"timestamp\[(\w+), tz=(.+)\]", name):
        return pa.timestamp(match[1], match[2])
    if match := re.fullmatch(r"fixed_size_binary\[(\d+)\]", name):
        return pa.binary(int(match[1]))
    if match := re.fullmatch(r"(decimal\d+)\((\d+), (-?\d+)\)", name):
        return getattr(pa, match[1])(int(match[2]), int(match[3]))
    try:
        return pa.type_for_alias(name)
    except ValueError:
        return None


# ---- columns as bytes
def column_of(type_: Any, shown: str) -> tuple[Column, Encode]:
    """How a column of this type is stored, and what encodes an array of it: bytes for each value, None for null.

    Raises ConfigError for a type that has no bytes of its own. Encoding raises ValueError, saying at which place.
    """
    types = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        column, encode = column_of(type_.storage_type, shown)
        return column, lambda array: encode(array.storage)
    if types.is_dictionary(type_):
        column, encode = column_of(type_.value_type, shown)
        return column, lambda array: encode(array.dictionary_decode())
    for fits, codec, encoder in _RULES:
        if fits(type_):
            return Column(codec, describe(type_)), encoder
    raise ConfigError(
        f"{shown} is of the type {type_}, which has no place in JSON", remedy="leave it out with --columns A,B"
    )


def is_file(type_: Any) -> bool:
    """Whether it is a struct of bytes and path."""
    if not pa.types.is_struct(type_) or type_.num_fields != 2:
        return False
    fields = {field.name: field.type for field in type_}
    return fields.keys() == {"bytes", "path"} and _is_binary(fields["bytes"]) and pa.types.is_string(fields["path"])


def item_of(type_: Any) -> Any | None:
    """The type of the items of a list of files or of binary values, which are fields of their own; else None."""
    types = pa.types
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        item = type_.value_type
        return item if is_file(item) or _is_binary(item) else None
    return None


def paths_of(array: Any) -> list[bytes | None]:
    """The file names in a column of files; the folders that they were in are no data."""
    return [own_name(path) for path in file_part(array, "path").to_pylist()]


def file_part(array: Any, name: str) -> Any:
    """The bytes or the paths of a column of files; null where there is no file, whatever lies behind it."""
    return array.flatten()[array.type.get_field_index(name)]


def own_name(path: str | None) -> bytes | None:
    """The last part of a path, where there is one."""
    return None if path is None else path.replace("\\", "/").rpartition("/")[2].encode() or None


def is_number(type_: Any) -> bool:
    """Whether NumPy and JSON both have such numbers."""
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def _is_binary(type_: Any) -> bool:
    types = pa.types
    checks = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return any(check(type_) for check in checks)


def _is_text(type_: Any) -> bool:
    types = pa.types
    return bool(types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_))


def _is_json(type_: Any) -> bool:
    types = pa.types
    if types.is_struct(type_):
        names = [field.name for field in type_]
        return len(set(names)) == len(names) and all(_is_json(field.type) for field in type_)
    if types.is_map(type_):
        return _is_json(type_.key_type) and _is_json(type_.item_type)
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return _is_json(type_.value_type)
    return _is_text(type_) or is_number(type_) or types.is_boolean(type_) or types.is_null(type_)


def _is_fixed_array(type_: Any) -> bool:
    """Whether it is lists of numbers of fixed sizes, however deep."""
    types = pa.types
    if not types.is_fixed_size_list(type_):
        return False
    while types.is_fixed_size_list(type_):
        type_ = type_.value_type
    return is_number(type_) or types.is_boolean(type_)


def _is_array(type_: Any) -> bool:
    """Whether it is lists of numbers of any length."""
    types = pa.types
    if not (types.is_list(type_) or types.is_large_list(type_)):
        return False
    return is_number(type_.value_type) or types.is_boolean(type_.value_type)


def _file_bytes(array: Any) -> list[bytes | None]:
    data: list[bytes | None] = file_part(array, "bytes").to_pylist()
    there = array.is_valid().to_pylist()
    if None in data:
        for place, (value, is_there) in enumerate(zip(data, there, strict=True)):
            if is_there and value is None:
                path = array[place].as_py()["path"]
                raise PlaceError(place, f"its bytes aren't in the table, only the path {path!r}")
    return data


def _as_they_are(array: Any) -> list[bytes | None]:
    values: list[bytes | None] = array.to_pylist()
    return values


def _timestamps(array: Any) -> list[bytes | None]:
    return _texts(array.cast(pa.timestamp(array.type.unit)).cast(pa.string()))


def _texts(array: Any) -> list[bytes | None]:
    return [None if value is None else value.encode() for value in array.to_pylist()]


def _jsons(array: Any) -> list[bytes | None]:
    return [None if value is None else json_bytes(value) for value in array.to_pylist()]


def _ragged(array: Any) -> list[bytes | None]:
    offsets = array.offsets.to_numpy()
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    _refuse_nulls(values)
    flat = _numbers(values)
    header = _Headers(flat.dtype)
    starts, ends = (offsets[:-1] - offsets[0]).tolist(), (offsets[1:] - offsets[0]).tolist()
    return [
        header((end - start,)) + flat[start:end].tobytes() if valid else None
        for start, end, valid in zip(starts, ends, array.is_valid().to_pylist(), strict=True)
    ]


def _fixed(array: Any) -> list[bytes | None]:
    shape: list[int] = []
    there = array.is_valid().to_pylist()
    inner = array
    while pa.types.is_fixed_size_list(inner.type):
        shape.append(inner.type.list_size)
        if shape[1:]:
            _refuse_nulls(inner)
        inner = inner.flatten()
    _refuse_nulls(inner)
    flat = _numbers(inner).reshape(sum(there), *shape)
    rows, header = iter(flat), _Headers(flat.dtype)(tuple(shape))
    return [header + next(rows).tobytes() if valid else None for valid in there]


def _numbers(array: Any) -> Any:
    """Numbers or booleans without nulls, as a NumPy array of just their dtype."""
    return array.to_numpy(zero_copy_only=False).astype(np.dtype(array.type.to_pandas_dtype()), copy=False)


def _refuse_nulls(array: Any) -> None:
    if array.null_count:
        raise ValueError("a list of numbers has a null inside, which an array can't have")


# What a column is stored by: the first rule that its type fits.
_types = pa.types
_RULES: tuple[tuple[Callable[[Any], bool], str, Encode], ...] = (
    (is_file, "bytes", _file_bytes),
    (_is_binary, "bytes", _as_they_are),
    (_is_text, "text", _texts),
    (lambda type_: _types.is_date(type_) or _types.is_time(type_) or _types.is_decimal(type_), "text",
     lambda array: _texts(array.cast(pa.string()))),
    (_types.is_timestamp, "text", _timestamps),
    (_types.is_duration, "json", lambda array: _jsons(array.cast(pa.int64()))),
    (_is_fixed_array, "npy", _fixed),
    (_is_array, "npy", _ragged),
    (_is_json, "json", _jsons),
)  # fmt: skip


class _Headers:
    """The headers of .npy files (NumPy's format 1.0), one for each shape."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._known: dict[tuple[int, ...], bytes] = {}

    def __call__(self, shape: tuple[int, ...]) -> bytes:
        header = self._known.get(shape)
        if header is None:
            out = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                out, {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
            )
            header = out.getvalue()
            if len(self._known) < 10_000:
                self._known[shape] = header
        return header


class PlaceError(ValueError):
    """A value that can't be represented, with its place in the array."""

    def __init__(self, place: int, message: str) -> None:
        super().__init__(message)
        self.place = place


def encode_column(array: Any, encode: Encode, name: str, shown: str, first_row: int) -> list[bytes | None]:
    """The bytes of a column's values. SampleError names the row of one that can't be represented."""
    try:
        return encode(array)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        place = error.place if isinstance(error, PlaceError) else _first_bad(array, encode)
        raise SampleError(
            f"{shown}, row {first_row + place:,}: column {name!r}: {error}",
            remedy="mend the row, or leave the column out with --columns", row=first_row + place, column=name,
        ) from error  # fmt: skip


def _first_bad(array: Any, encode: Encode) -> int:
    for place in range(len(array)):
        try:
            encode(array.slice(place, 1))
        except (ValueError, TypeError, OverflowError, pa.ArrowException):
            return place
    return 0
