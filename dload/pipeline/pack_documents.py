"""A document of integers from whatever an element holds them in."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from dload import randomness
from dload.codecs import INTEGERS, TOKENS, check_integers, integer_letter
from dload.errors import ConfigError, SampleError

Column = Any
"""Integers: a NumPy array of one dimension, or where NumPy isn't installed an `array.array`."""
Document = list[Column]
"""The columns of one document, all of one length; the first one is its tokens."""

_NPY = b"\x93NUMPY"
_NPY_HEADER = re.compile(
    rb"\x93NUMPY[\1-\3]\0.{2}(?:\0\0)?"
    rb"\{'descr': '([<>|=])([iu])([1248])', 'fortran_order': \w+, 'shape': \((\d+),\), \}",
    re.DOTALL,
)
_LETTERS = {(letter.islower(), array(letter).itemsize): letter for letter in INTEGERS.values()}


class DocumentReader:
    """Reads the columns `names` of elements: samples `(key, fields)`, or dicts of fields, or, where there is only one
    column, the tokens themselves. `dtypes`: of each column's raw bytes the type, or None where bytes say it
    themselves."""

    def __init__(self, names: Sequence[str], dtypes: Sequence[str | None]) -> None:
        self._names = tuple(names)
        self._letters = [None if dtype is None else INTEGERS[dtype] for dtype in dtypes]

    def read(self, item: Any) -> Document:
        """The document of an element. Raises SampleError, naming the sample's key, for what isn't one."""
        key, fields = item if _is_sample(item) else (None, item)
        columns = []
        for name, letter in zip(self._names, self._letters, strict=True):
            value = fields.get(name) if isinstance(fields, Mapping) else fields if len(self._names) == 1 else None
            try:
                columns.append(_column(value, letter))
            except (ValueError, OverflowError) as error:
                raise SampleError(
                    f"{_named(name, key, fields)}: {error}",
                    remedy="leave such samples out with a filter below pack(), or mend them with a map",
                    key=key,
                ) from error
            if len(columns[-1]) != len(columns[0]):
                raise SampleError(
                    f"{_named(name, key, fields)} has {len(columns[-1])} numbers, and its tokens are "
                    f"{len(columns[0])}: columns that are cut alike have one length",
                    key=key,
                )
        return columns


def dtype_name(dtype: Any, of: str) -> str | None:
    """The name of an integer type, as `DocumentReader` takes it. Raises ConfigError."""
    if dtype is None:
        return None
    try:
        letter = integer_letter(dtype)
    except ValueError as error:
        raise ConfigError(f"the dtype of {of!r}: {error}") from error
    return next(name for name, known in INTEGERS.items() if known == letter)


def _is_sample(item: Any) -> bool:
    return type(item) is tuple and len(item) == 2 and isinstance(item[1], Mapping)


def _named(name: str, key: Any, fields: Any) -> str:
    if isinstance(fields, Mapping):
        return f"field {name!r} of " + (f"sample {key!r}" if key is not None else "an element without a key")
    return f"the tokens {fields!r:.60}"


def _column(value: Any, letter: str | None) -> Column:
    if value is None:
        raise ValueError("there are no tokens")
    if isinstance(value, bytes | bytearray | memoryview):
        return _of_bytes(value, letter)
    if isinstance(value, list | tuple):
        check_integers(value)
        value = array("q", value)
    elif isinstance(value, str) or not (isinstance(value, array) or hasattr(value, "__array__")):
        raise ValueError(f"expected integers in a list, an array or bytes, got a {type(value).__name__}")
    if isinstance(value, array) and value.typecode in "fdu":
        raise ValueError(f"expected integers, got an array of type {value.typecode!r}")
    return _numpy(value) if randomness.HAVE_NUMPY else _plain(value)


def _numpy(value: Any) -> Column:
    import numpy as np

    column = np.asarray(value)
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise ValueError(f"expected integers of one dimension, got {column.dtype} of shape {column.shape}")
    if column.dtype.itemsize == 8 and column.dtype.kind == "u" and (column >> np.uint64(63)).any():
        raise ValueError(f"{column.max()} doesn't fit into 64 bits with a sign")
    return column


def _plain(value: Any) -> Column:
    numbers = value if isinstance(value, array) else value.tolist()
    return array("q", numbers)  # raises OverflowError


def _of_bytes(data: bytes | bytearray | memoryview, letter: str | None) -> Column:
    """The integers of bytes: raw ones of type `letter`, else a token array or a .npy file."""
    start, swap = 0, sys.byteorder == "big"
    head = bytes(data[:8])
    if letter is None:
        if head.startswith(TOKENS) and chr(head[7]) in INTEGERS.values():
            letter, start = chr(head[7]), 8
        elif head.startswith(_NPY):
            letter, start, other = _npy(bytes(data[:512]))
            swap = other
        else:
            raise ValueError(
                f"bytes that don't say their type: they begin {head!r}; pass dtype= if they are raw numbers, "
                "or store them by codecs.tokens_bytes or npy_bytes"
            )
    elif head.startswith(TOKENS) or bytes(data[8:18]).endswith(b"{'descr'"):
        raise ValueError("dtype= is for raw numbers, and these bytes say their type themselves: leave it out")
    size = array(letter).itemsize
    if (len(data) - start) % size:
        raise ValueError(f"{len(data) - start} bytes are no whole number of integers of {size} bytes")
    if randomness.HAVE_NUMPY:
        import numpy as np

        dtype = np.dtype(letter)
        return _numpy(np.frombuffer(data, dtype.newbyteorder("S") if swap else dtype, offset=start))
    column = array(letter, bytes(data[start:]))
    if swap:
        column.byteswap()
    return column if letter != "Q" else _plain(column)


def _npy(head: bytes) -> tuple[str, int, bool]:
    """Letter, start of the numbers, and whether their byte order is the other one, from the beginning of a .npy file.

    See numpy.lib.format: magic, version, length of the header (2 bytes, from version 2 on 4), a dict as text.
    """
    found = _NPY_HEADER.match(head)
    if found is None:
        raise ValueError(f"expected a .npy file of integers in one dimension, got {head[10:80]!r}")
    order, kind, size, _ = found.groups()
    width = 2 if head[6] == 1 else 4
    start = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    letter = _LETTERS[kind == b"i", int(size)]
    return letter, start, {b"<": sys.byteorder == "big", b">": sys.byteorder == "little"}.get(order, False)
