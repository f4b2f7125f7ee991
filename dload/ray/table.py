"""Blocks of Ray Data as samples: rows of a table, by the rules of an import."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data.block import BlockAccessor
from ray.data.extensions import ArrowPythonObjectType, get_arrow_extension_tensor_types

from dload.codecs import npy_bytes
from dload.errors import ConfigError
from dload.importers.arrow_types import Encode
from dload.importers.columns import KEY, Column
from dload.importers.parquet import Rows, pieces
from dload.pack import Sample

SHOWN = "the Ray data set"


class _BlockRows(Rows):
    """Rows of tables that may hold what only Ray has: tensors, and Python objects, which are refused."""

    def _column_of(self, name: str, type_: Any, shown: str) -> tuple[Column, Encode]:
        if isinstance(type_, ArrowPythonObjectType):
            raise ConfigError(
                f"{shown} holds Python objects, which would have to be pickled",
                remedy="make bytes of them before, for example by dload.codecs, or leave it out with columns=[...]",
            )
        if isinstance(type_, get_arrow_extension_tensor_types()):
            return Column("npy", "array"), _tensors
        return super()._column_of(name, type_, shown)


def _tensors(array: Any) -> list[bytes | None]:
    """Each tensor with its shape. Ray's own types hold them flat, and so does Arrow's."""
    own = array.to_numpy if not hasattr(array, "to_numpy_ndarray") else None
    values = array.to_numpy_ndarray() if own is None else own(zero_copy_only=False)
    there = array.is_valid().to_pylist()
    return [npy_bytes(np.asarray(value)) if valid else None for value, valid in zip(values, there, strict=True)]


class Table:
    """Rows as samples. `key`: the column with the keys (None: `__key__`, else the row's number); `columns`: only these
    become fields (none given: all but `__key__`). A column without any value, whose type nobody knows, is none."""

    def __init__(self, key: str | None, columns: Sequence[str]) -> None:
        self._key = key
        self._wanted = tuple(columns)
        self.columns: dict[str, Column] = {}

    def samples(self, block: Any, start: int, stop: int, number: int) -> Iterator[Sample]:
        table = BlockAccessor.for_block(block).to_arrow().slice(start, stop - start)
        if self._key is not None and self._key not in table.schema.names:
            raise ConfigError(
                f"{SHOWN} has no column {self._key!r} for key=", remedy=f"there are {table.schema.names}"
            )  # fmt: skip
        rows = _BlockRows(self._wanted, self._key)
        unknown = {field.name for field in table.schema if pa.types.is_null(field.type)} - {self._key, KEY}
        chosen = [name for name in rows.chosen(table.schema, SHOWN) if name not in unknown]
        for batch in table.select(chosen).combine_chunks().to_batches():
            for piece in pieces(batch):
                yield from rows.samples(piece, number, "", SHOWN)
                number += piece.num_rows
        self.columns = {name: column for name, column in rows.columns.items() if name not in unknown}


def unite(known: dict[str, Column], found: dict[str, Column]) -> None:
    """Put what columns become in one block to what they became in those before. ConfigError where they differ."""
    for name, column in found.items():
        if known.setdefault(name, column) != column:
            raise ConfigError(
                f"{SHOWN}: column {name!r} is of the type {column.type} in some rows, of {known[name].type} in others",
                remedy="give it one type before, for example by map_batches",
            )
