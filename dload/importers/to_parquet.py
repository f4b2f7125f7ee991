"""Samples as Parquet. Needs pyarrow, the extra parquet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import compute

from dload.codecs import npy_from
from dload.errors import SampleError
from dload.importers.arrow_types import FILE, PATH, type_of
from dload.importers.columns import KEY, Column
from dload.importers.target import Exported, Request, Target, unfit
from dload.manifest import canonical

SHARD_SIZE = 512 << 20
_GROUP_BYTES = 64 << 20
_GROUP_ROWS = 100_000
Rows = list[tuple[str, Mapping[str, bytes]]]


def write(request: Request, folder: Path, *, replace: bool = False) -> Exported:
    """Write NAME-00000.parquet, ...: a row a sample, its key the column `__key__`, each field a column, null where a
    sample lacks it.

    A column that came from Arrow gets its type back, where the version's meta has it. Otherwise text is `string`, JSON
    its text, arrays and anything else `binary`, arrays as .npy. SampleError names a sample whose bytes aren't what its
    column says.
    """
    plan = _plan(request.columns)
    schema = pa.schema([(KEY, pa.string()), *((name, type_) for name, (type_, _) in plan.items())])
    limit = request.shard_size or SHARD_SIZE
    groups = _groups(request, min(_GROUP_BYTES, limit))
    group = next(groups, None)
    with Target(folder, rf"{re.escape(request.name)}-\d{{5}}\.parquet", replace=replace) as target:
        number = 0
        while group is not None or number == 0:  # a data set without samples is a table without rows
            with target.file(f"{request.name}-{number:05d}.parquet") as stream:
                size = 0
                with pq.ParquetWriter(stream, schema) as writer:
                    while group is not None and size < limit:
                        rows, weight = group
                        writer.write_batch(_batch(rows, plan, request.columns, schema), row_group_size=len(rows))
                        target.done.samples += len(rows)
                        size += weight
                        group = next(groups, None)
            number += 1
        return target.done


def _groups(request: Request, limit: int) -> Iterator[tuple[Rows, int]]:
    """Samples for one row group at a time, with their size."""
    rows: Rows = []
    size = 0
    for key, fields in request.samples:
        if KEY in fields:
            raise unfit(key, f"it has a field {KEY!r}, where the key goes", "export it with --fields, without that one")
        rows.append((key, fields))
        size += sum(map(len, fields.values()))
        if size >= limit or len(rows) >= _GROUP_ROWS:
            yield rows, size
            rows, size = [], 0
    if rows:
        yield rows, size


def _plan(columns: Mapping[str, Column]) -> dict[str, tuple[Any, str]]:
    """Each column's type, and by which rule its values get it."""
    plan: dict[str, tuple[Any, str]] = {}
    for name, column in columns.items():
        if name.endswith(PATH) and columns.get(name.removesuffix(PATH), Column("", "")).type == FILE:
            continue  # a part of the struct that the files are
        type_ = type_of(column.type)
        if column.codec == "bytes":
            rule = FILE if column.type == FILE else "bytes"
            plan[name] = (type_ if type_ is not None else pa.binary()), rule
        elif type_ is None:
            plan[name] = (pa.binary(), "bytes") if column.codec == "npy" else (pa.string(), "text")
        else:
            plan[name] = type_, column.codec
    return plan


def _batch(rows: Rows, plan: Mapping[str, tuple[Any, str]], columns: Mapping[str, Column], schema: Any) -> Any:
    arrays = [pa.array([key for key, _ in rows], pa.string())]
    for name, (type_, rule) in plan.items():
        values = [fields.get(name) for _, fields in rows]
        paths = [fields.get(name + PATH) for _, fields in rows] if rule == FILE else None
        try:
            arrays.append(_array(values, paths, type_, rule))
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            key = _first_bad(rows, name, type_, rule)
            raise SampleError(
                f"sample {key!r}: field {name!r} is no {columns[name].codec} of the type {type_}: {error}", key=key,
                remedy=f"say what it holds, for example --codec {name}=bytes",
            ) from error  # fmt: skip
    return pa.record_batch(arrays, schema=schema)


def _array(values: list[bytes | None], paths: list[bytes | None] | None, type_: Any, rule: str) -> Any:
    if rule == FILE:
        decoded = [None if path is None else path.decode() for path in paths or []]
        there = [
            None if value is None and path is None else {"bytes": value, "path": path}
            for value, path in zip(values, decoded, strict=True)
        ]
        return pa.array(there, type_)
    if rule == "bytes":
        return pa.array(values, type_)
    if rule == "text":
        return _parsed(pa.array([None if value is None else value.decode() for value in values], pa.string()), type_)
    if rule == "json":
        loaded = [None if value is None else _paired(canonical.loads(value), type_) for value in values]
        return pa.array(loaded, _plain(type_)).cast(type_)
    return pa.array([None if value is None else npy_from(value).tolist() for value in values], type_)


def _plain(type_: Any) -> Any:
    return pa.int64() if pa.types.is_duration(type_) else type_


def _paired(value: Any, type_: Any) -> Any:
    """A JSON value as pyarrow takes it: the entries of maps are pairs."""
    types = pa.types
    if value is None or not types.is_nested(type_):
        return value
    if types.is_map(type_):
        return [(key, _paired(item, type_.item_type)) for key, item in value]
    if types.is_struct(type_):
        return {field.name: _paired(value.get(field.name), field.type) for field in type_}
    return [_paired(one, type_.value_type) for one in value]


def _parsed(texts: Any, type_: Any) -> Any:
    """What texts say, as the type that they came from."""
    if pa.types.is_timestamp(type_):
        return texts.cast(pa.timestamp(type_.unit)).cast(type_)
    if pa.types.is_time(type_):  # only a moment of a day is parsed
        return compute.binary_join_element_wise("1970-01-01", texts, " ").cast(pa.timestamp(type_.unit)).cast(type_)
    return texts.cast(type_)


def _first_bad(rows: Rows, name: str, type_: Any, rule: str) -> str:
    for key, fields in rows:
        try:
            _array([fields.get(name)], [fields.get(name + PATH)], type_, rule)
        except (ValueError, TypeError, OverflowError, pa.ArrowException):
            return key
    return rows[0][0]
