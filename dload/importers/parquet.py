"""Parquet and Arrow files: each row a sample, each column a field. Needs pyarrow, the extra parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dload.errors import ConfigError, SampleError
from dload.importers.arrow_types import PATH, Encode, column_of, encode_column, is_file, item_of, own_name, paths_of
from dload.importers.columns import KEY, Column, choose, naming, own_key, row_key
from dload.importers.jsonl import stem
from dload.importers.source import Files, of_suffix, title
from dload.pack import Sample

_BATCH_BYTES = 16 << 20
_MOST_ROWS = 4096


class Rows:
    """Record batches as samples, column by column; what all tables of a source share."""

    def __init__(self, wanted: Sequence[str], key: str | None) -> None:
        self.columns: dict[str, Column] = {}
        self._wanted = tuple(wanted)
        self._key = key
        self._encoders: dict[str, tuple[Any, Encode]] = {}
        self._kinds: dict[str, tuple[bool, Column]] = {}  # of each column, or of the items of its lists

    def chosen(self, schema: Any, shown: str) -> list[str]:
        """The columns to read. Raises ConfigError for those that aren't there and for types with no bytes."""
        if self._key is not None and self._key not in schema.names:
            raise ConfigError(
                f"{shown}: there is no column {self._key!r} for --key", remedy=f"there are {schema.names}"
            )
        names = choose(schema.names, self._wanted or None, shown)
        key = self._key_of(schema.names)
        for name in names:
            if not name == KEY == key:
                self._prepare(name, schema.field(name).type, shown)
        return names if key is None or key in names else [*names, key]

    def _key_of(self, names: Sequence[str]) -> str | None:
        return self._key or (KEY if KEY in names else None)

    def _prepare(self, name: str, type_: Any, shown: str) -> None:
        if name in self._encoders and self._encoders[name][0] == type_:
            return
        item = item_of(type_)
        column, encode = self._column_of(name, type_ if item is None else item, f"{shown}: column {name!r}")
        before = self._kinds.setdefault(name, (item is not None, column))
        if before != (item is not None, column):
            raise ConfigError(
                f"{shown}: column {name!r} is of the type {type_}, in a file before of {before[1].type}",
                remedy="import the files one by one, or leave the column out with --columns",
            )
        if item is None:
            self.columns.setdefault(name, column)
        self._encoders[name] = type_, encode

    def _column_of(self, name: str, type_: Any, shown: str) -> tuple[Column, Encode]:
        return column_of(type_, shown)

    def samples(self, batch: Any, first_row: int, prefix: str, shown: str) -> Iterator[Sample]:
        """The samples of a batch whose first row is number `first_row` of its table."""
        values: dict[str, list[bytes | None]] = {}
        for name in batch.schema.names:
            if name not in self._encoders or (self._wanted and name not in self._wanted):
                continue
            array = batch.column(name)
            if self._kinds[name][0]:
                self._add_items(values, name, array.to_pylist(), shown, first_row)
                continue
            values[name] = encode_column(array, self._encoders[name][1], name, shown, first_row)
            if is_file(array.type):
                values[name + PATH] = paths_of(array)
                self.columns.setdefault(name + PATH, Column("text", "string"))
        names = list(values)
        keys = self._keys(batch, first_row, prefix, shown)
        for key, row in zip(keys, zip(*values.values(), strict=True) if values else ((),) * len(keys), strict=True):
            yield key, {name: value for name, value in zip(names, row, strict=True) if value is not None}

    def _add_items(
        self, values: dict[str, list[bytes | None]], name: str, lists: list[Any], shown: str, first_row: int
    ) -> None:
        """The items of a column's lists, as the columns NAME.0, NAME.1, ...; no list and an empty one are the same."""
        for row, items in enumerate(lists):
            at = f"row {first_row + row:,}"
            for place, item in enumerate(items or ()):
                own = f"{name}.{place}"
                with naming(shown, at):
                    data, path = self._file(item, f"{shown}, {at}") if isinstance(item, dict) else (item, None)
                    if data is None:
                        raise ValueError(
                            f"column {name!r}: item {place} of its list is null, or only the name of a file"
                        )
                values.setdefault(own, [None] * len(lists))[row] = data
                self.columns.setdefault(own, self._kinds[name][1])
                if path is not None:
                    values.setdefault(own + PATH, [None] * len(lists))[row] = path
                    self.columns.setdefault(own + PATH, Column("text", "string"))

    def _file(self, file: dict[str, Any], shown: str) -> tuple[bytes | None, bytes | None]:
        """The bytes of a file and its name; `shown` says where it is."""
        return file["bytes"], own_name(file["path"])

    def _keys(self, batch: Any, first_row: int, prefix: str, shown: str) -> list[str]:
        column = self._key_of(batch.schema.names)
        if column is None:
            return [row_key(prefix, first_row + place) for place in range(batch.num_rows)]
        keys = []
        for row, value in enumerate(batch.column(column).to_pylist(), first_row):
            try:
                keys.append(own_key(value, column))
            except ValueError as error:
                raise SampleError(f"{shown}, row {row:,}: {error}", remedy="choose another --key", row=row) from None
        return keys


class _Table:
    """Files of one format, row by row."""

    kind = ""
    suffixes: tuple[str, ...] = ()

    def __init__(self, files: Files, *, columns: Sequence[str] = (), key: str | None = None) -> None:
        self.files = files
        self.names = of_suffix(files, self.suffixes)
        self.total = self._count() if files.here else None
        self._rows = Rows(columns, key)

    @property
    def columns(self) -> dict[str, Column]:
        return self._rows.columns

    def _count(self) -> int | None:
        return None

    def __iter__(self) -> Iterator[Sample]:
        for name in self.names:
            shown, prefix = title(self.files, name), "" if self.files.alone else stem(name) + "/"
            row = 0
            with _readable(shown), self.files.local(name) as path:
                for batch in self._batches(path, shown):
                    yield from self._rows.samples(batch, row, prefix, shown)
                    row += batch.num_rows

    def _batches(self, path: Path, shown: str) -> Iterator[Any]:
        raise NotImplementedError


class Parquet(_Table):
    """The rows of Parquet files, row group by row group. `columns`: only these; `key`: the column that is the key
    (default: `__key__` where there is one, else file and row number)."""

    kind = "parquet"
    suffixes = (".parquet",)

    def _count(self) -> int:
        total = 0
        for name in self.names:
            with _readable(title(self.files, name)), self.files.local(name) as path:
                total += pq.read_metadata(path).num_rows
        return total

    def _batches(self, path: Path, shown: str) -> Iterator[Any]:
        with pq.ParquetFile(path) as file:
            wanted = self._rows.chosen(file.schema_arrow, shown)
            for group in range(file.num_row_groups):
                facts = file.metadata.row_group(group)
                row_bytes = max(1, facts.total_byte_size // max(1, facts.num_rows))
                size = max(1, min(_MOST_ROWS, _BATCH_BYTES // row_bytes))
                yield from file.iter_batches(size, row_groups=[group], columns=wanted)


class ArrowFiles(_Table):
    """The rows of Arrow IPC files and streams. Options as of `Parquet`."""

    kind = "arrow"
    suffixes = (".arrow", ".feather", ".ipc")

    def _batches(self, path: Path, shown: str) -> Iterator[Any]:
        yield from arrow_batches(path, lambda schema: self._rows.chosen(schema, shown))


def arrow_batches(path: Path, choose_columns: Any) -> Iterator[Any]:
    """The record batches of an IPC file or stream, in pieces of about 16 MiB, with the columns chosen of its schema."""
    with pa.memory_map(str(path)) as source:
        is_file_format = source.read(6) == b"ARROW1"
        source.seek(0)
        reader = pa.ipc.open_file(source) if is_file_format else pa.ipc.open_stream(source)
        names = choose_columns(reader.schema)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file_format else iter(reader)
        for batch in batches:
            yield from pieces(batch.select(names))


def pieces(batch: Any) -> Iterator[Any]:
    """A batch in slices of about 16 MiB."""
    rows = max(1, min(_MOST_ROWS, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


@contextmanager
def _readable(shown: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise SampleError(f"{shown} can't be read: {error}", remedy="fetch or make the file anew") from error
