"""What a column of a foreign table becomes: the bytes of a field, by a rule that the column's type alone decides.

| codec | values | bytes, and what reads them |
|---|---|---|
| `bytes` | binary, files | as they are |
| `text` | strings; dates, times and decimals as Arrow writes them | UTF-8; `dload.text_from` |
| `json` | booleans, numbers; lists and structs of values | compact JSON, numbers exact, NaN as NaN; `dload.json_from` |
| `npy` | arrays, lists of numbers | .npy with dtype and shape; `dload.npy_from` |

A null is no field. Codec and type of each column are kept in the version's meta, so that an export can give the column
its type back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dload.errors import ConfigError, SampleError
from dload.pack.samples import MAX_KEY_SIZE

# The column that is the key of a sample, where a table has it; what `export` writes.
KEY = "__key__"
META = "columns"
_CODECS = ("bytes", "text", "json", "npy")


@dataclass(frozen=True)
class Column:
    """How a column is stored (`codec`) and what it was: `type` is the name of an Arrow type, a nest of such
    (`arrow_types.describe`), or one of `any` (whatever JSON holds), `array` (whatever npy holds) and `pickle`."""

    codec: str
    type: Any


def columns_meta(columns: Mapping[str, Column]) -> list[dict[str, Any]]:
    """For a manifest's meta, in the table's order."""
    return [{"name": name, "codec": column.codec, "type": column.type} for name, column in columns.items()]


def columns_from_meta(meta: Mapping[str, Any]) -> dict[str, Column]:
    """What `columns_meta` gave; nothing where a version's meta holds something else under that name."""
    kept = meta.get(META)
    if not isinstance(kept, Sequence) or isinstance(kept, str):
        return {}
    return {
        one["name"]: Column(one["codec"], one["type"])
        for one in kept
        if isinstance(one, Mapping) and {"name", "codec", "type"} <= one.keys() and one["codec"] in _CODECS
    }


def row_key(prefix: str, row: int) -> str:
    """The key of row `row` (from 0) of a table that has no keys of its own."""
    return f"{prefix}{row:08d}"


def own_key(value: object, column: str) -> str:
    """What a row has in the column that is the key, as a key. Raises ValueError where it can't be one."""
    key = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not 0 < len(key.encode()) <= MAX_KEY_SIZE:
        raise ValueError(
            f"the key {column!r} must be an integer, or a text of 1 to {MAX_KEY_SIZE:,} bytes, got {value!r:.100}"
        )
    return key


def choose(there: list[str], wanted: tuple[str, ...] | None, shown: str) -> list[str]:
    """The columns that were asked for, in the table's order. Raises ConfigError for one that isn't there, for a table
    that has two of one name, and for one without a name."""
    if len(set(there)) < len(there):
        twice = sorted({name for name in there if there.count(name) > 1})
        raise ConfigError(f"{shown}: there are two columns {twice[0]!r}", remedy="rename one of them")
    if "" in there and (not wanted or "" in wanted):
        raise ConfigError(
            f"{shown}: column {there.index('') + 1} of {len(there)} has no name, and a field needs one",
            remedy="name it, or choose the others with --columns A,B (pandas writes none with to_csv(index=False))",
        )
    if not wanted:
        return there
    if missing := [name for name in wanted if name not in there]:
        raise ConfigError(
            f"{shown}: there is no column {', '.join(map(repr, missing))}",
            remedy=f"there are {', '.join(map(repr, there[:50]))}",
        )
    return [name for name in there if name in wanted]


class RowError(ValueError):
    """What is wrong with a row, and what to do about it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@contextmanager
def naming(shown: str, row: str) -> Iterator[None]:
    """What can't be represented, as an error that names the row."""
    try:
        yield
    except SampleError:
        raise
    except (ValueError, TypeError, OverflowError, LookupError, RecursionError, struct.error) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        remedy = error.remedy if isinstance(error, RowError) else "mend the row, or leave the column out with --columns"
        raise SampleError(f"{shown}, {row}: {what}", remedy=remedy, source=shown, row=row) from error
