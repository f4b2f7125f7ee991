"""The values that LitData's serializer `json` writes, as JSON: a tag, then the value in a layout of the tag's own.

The layouts were taken from what the library wrote. All counts and lengths are little-endian uint32.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from dload.codecs import json_bytes

_TEXT, _STRINGS, _INTEGERS, _FLOATS, _BOOLEANS, _OBJECT, _TABLE = range(7)
_STRING, _INTEGER, _FLOAT, _BOOLEAN, _NULL = range(7, 12)
# In the cells of a table, scalars have tags of their own.
_CELLS = {0x10: _NULL, 0x11: _STRING, 0x12: _INTEGER, 0x13: _FLOAT, 0x14: _BOOLEAN}


def as_json(data: bytes) -> bytes:
    """The value as JSON bytes. Raises ValueError or struct.error for what is no such value."""
    reader = _Reader(data)
    value = reader.value()
    if reader.at != len(data):
        raise ValueError(f"a value of {reader.at:,} bytes in {len(data):,}")
    return json_bytes(value)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        self._layouts: dict[int, Callable[[], Any]] = {
            _TEXT: lambda: json.loads(self._bytes()),
            _STRINGS: lambda: [self._string() for _ in range(self._count())],
            _INTEGERS: lambda: self._numbers("q"),
            _FLOATS: lambda: self._numbers("d"),
            _BOOLEANS: lambda: self._numbers("?"),
            _OBJECT: lambda: {self._string(): self.value() for _ in range(self._count())},
            _TABLE: self._table,
            _STRING: self._string,
            _INTEGER: lambda: self._unpack("<q")[0],
            _FLOAT: lambda: self._unpack("<d")[0],
            _BOOLEAN: lambda: self._unpack("<?")[0],
            _NULL: lambda: None,
        }

    def value(self) -> Any:
        (tag,) = self._unpack("<B")
        if tag not in self._layouts:
            raise ValueError(f"a value of the unknown tag {tag}")
        return self._layouts[tag]()

    def _table(self) -> list[dict[str, Any]]:
        rows = self._count()
        names = [self._string() for _ in range(self._count())]
        return [{name: self._cell() for name in names} for _ in range(rows)]

    def _cell(self) -> Any:
        (tag,) = self._unpack("<B")
        if tag not in _CELLS:
            raise ValueError(f"a cell of the unknown tag {tag}")
        return self._layouts[_CELLS[tag]]()

    def _numbers(self, letter: str) -> list[Any]:
        return list(self._unpack(f"<{self._count()}{letter}"))

    def _count(self) -> int:
        """How many things follow, each of which takes a byte at least, but for a row of no columns."""
        count: int = self._unpack("<I")[0]
        if count > len(self._data) - self.at:
            raise ValueError(f"{count:,} things in {len(self._data) - self.at:,} bytes")
        return count

    def _string(self) -> str:
        return self._bytes().decode()

    def _bytes(self) -> bytes:
        size = self._count()
        data = self._data[self.at : self.at + size]
        self.at += size
        return data

    def _unpack(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self._data, self.at)
        self.at += struct.calcsize(form)
        return values
