"""CSV and TSV: each row a sample, each cell a text field."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from dload.errors import ConfigError, SampleError
from dload.importers.columns import KEY, Column, choose, naming, own_key, row_key
from dload.importers.jsonl import stem
from dload.importers.source import Files, of_suffix, plain_stream, title
from dload.pack import Sample

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst")


class Delimited:
    """The rows of CSV and TSV files (RFC 4180, UTF-8, the first row names the columns). Every cell is text, the empty
    one too. `key`: the column that is the key (default: `__key__` where there is one, else the number of the row).
    `delimiter`: what stands between cells (default: a tab in .tsv, else a comma).

    A row with more or fewer cells than there are names, a stray quote and what isn't UTF-8 are errors that name the
    line.
    """

    kind = "csv"
    total = None

    def __init__(
        self, files: Files, *, columns: Sequence[str] = (), key: str | None = None, delimiter: str | None = None
    ) -> None:
        if delimiter is not None and len(delimiter) != 1:
            raise ConfigError(f"--delimiter {delimiter!r} is not one character", remedy="write it as --delimiter ';'")
        self.files = files
        self.names = of_suffix(files, SUFFIXES)
        self.columns: dict[str, Column] = {}
        self._wanted = tuple(columns)
        self._key = key
        self._delimiter = delimiter
        csv.field_size_limit((1 << 31) - 1)  # of the whole process, and the only way to read long cells

    def __iter__(self) -> Iterator[Sample]:
        self.columns.clear()
        for name in self.names:
            with plain_stream(self.files, name) as stream:
                text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
                delimiter = self._delimiter or ("\t" if ".tsv" in name else ",")
                rows = csv.reader(text, delimiter=delimiter, strict=True)
                prefix = "" if self.files.alone else stem(name) + "/"
                yield from self._samples(rows, prefix, title(self.files, name))
                text.detach()

    def _samples(self, rows: Iterator[list[str]], prefix: str, shown: str) -> Iterator[Sample]:
        numbered = _checked(rows, shown)
        names = next(numbered, (0, []))[1]
        self._refuse_one_column(names, shown)
        key = self._key or (KEY if KEY in names else None)
        chosen = [name for name in choose(names, self._wanted or None, shown) if not name == KEY == key]
        if key is not None and key not in names:
            raise ConfigError(f"{shown}: there is no column {key!r} for --key", remedy=f"there are {names}")
        places = [(name, names.index(name)) for name in chosen]
        self.columns.update((name, Column("text", "string")) for name in chosen)
        for row, (line, cells) in enumerate(numbered):
            if len(cells) != len(names):
                raise SampleError(
                    f"{shown}, line {line:,}: {len(cells)} cells, though the first row names {len(names)} columns",
                    remedy="mend the row: a cell with commas or line breaks must be in quotes", row=f"line {line}",
                )  # fmt: skip
            fields = {name: cells[place].encode() for name, place in places}
            if key is None:
                yield row_key(prefix, row), fields
                continue
            with naming(shown, f"line {line:,}"):
                own = own_key(cells[names.index(key)], key)
            yield own, fields

    def _refuse_one_column(self, names: list[str], shown: str) -> None:
        """A table that is cut at the wrong character has one column, with all names in it."""
        if self._delimiter is None and len(names) == 1:
            for other in ";\t|":
                if other in names[0]:
                    raise ConfigError(
                        f"{shown}: the first row names one column alone, {names[0]!r:.100}",
                        remedy=f"cut it with --delimiter {other!r}, or say --delimiter , if it is one column",
                    )


def _checked(rows: Iterator[list[str]], shown: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that aren't blank, with the lines that they end in."""
    line = 0
    while True:
        try:
            cells = next(rows, None)
        except (csv.Error, UnicodeDecodeError) as error:
            raise SampleError(
                f"{shown}, behind line {line:,}: {error}", remedy="a CSV file must be UTF-8 and well-formed"
            ) from error
        if cells is None:
            return
        line = rows.line_num  # type: ignore[attr-defined]  # of csv's own iterator
        if cells:
            yield line, cells
