"""Rows as one batch, as torch's users expect it, and without an error where it can't be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


def collate(rows: list[Any]) -> Any:
    """The rows as one batch: what `torch.utils.data.default_collate` makes of them, and lists where it would raise.

    Tensors and NumPy arrays of one shape and type are stacked; numbers become a tensor; mappings with the same keys
    become one of columns, and tuples or lists of one length a list of columns (a named tuple stays one). All else
    stays a list of values: texts, bytes, arrays of several shapes, None. So samples `(key, {field: bytes})` become
    `[keys, {field: [bytes, ...]}]`.
    """
    first = rows[0]
    kind = type(first)
    if all(type(row) is kind for row in rows):
        if isinstance(first, Mapping):
            return _mapping(first, rows)
        if isinstance(first, tuple | list):
            return _sequence(first, rows)
        if isinstance(first, torch.Tensor):
            return _stacked(rows)
        if kind in _NUMBERS or kind.__module__ == "numpy":
            return _numbers(_NUMBERS.get(kind), rows)
    return list(rows)


def _mapping(first: Mapping[Any, Any], rows: list[Any]) -> Any:
    if any(row.keys() != first.keys() for row in rows):
        return list(rows)
    return {key: collate([row[key] for row in rows]) for key in first}


def _sequence(first: Any, rows: list[Any]) -> Any:
    if any(len(row) != len(first) for row in rows):
        return list(rows)
    columns = [collate(list(column)) for column in zip(*rows, strict=True)]
    return type(first)(*columns) if hasattr(first, "_fields") else columns


def _stacked(rows: list[torch.Tensor]) -> Any:
    first = rows[0]
    alike = all(row.shape == first.shape and row.dtype == first.dtype and row.device == first.device for row in rows)
    return torch.stack(rows) if alike and first.layout is torch.strided else list(rows)


def _numbers(dtype: torch.dtype | None, rows: list[Any]) -> Any:
    """Of Python's numbers, or of NumPy's numbers and arrays."""
    try:
        return _stacked([torch.as_tensor(row) for row in rows]) if dtype is None else torch.tensor(rows, dtype=dtype)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # texts, objects, an int of more than 64 bits
        return list(rows)
