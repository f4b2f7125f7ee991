"""JSON lines: each line an object, each member a field."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from dload.codecs import json_bytes
from dload.errors import SampleError
from dload.importers.columns import KEY, Column, RowError, naming, own_key, row_key
from dload.importers.source import Files, of_suffix, plain_stream, title
from dload.manifest import canonical
from dload.pack import Sample
from dload.pack.samples import MAX_VALUE_SIZE

SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst")
# An object with this only member stands for bytes that are no text; what `export` writes for them.
BASE64 = "dload.base64"
_TYPES = {"text": "string", "bytes": "binary", "json": "any"}
_SEPARATORS = b" \t\r\n"


class JsonLines:
    """The lines of JSONL files as samples: a string becomes a text field, every other value a JSON one, null none.

    Within a column, text and other values don't mix: where they would, SampleError names the line (a `5` and a `"5"`
    would become the same bytes). Lines are UTF-8; numbers are IEEE doubles, or integers of up to 4,300 digits. An
    object that names a member twice, a number beyond the doubles and half of a surrogate pair are errors. With
    `whole_lines` each line is one field `json`, byte for byte. `columns`: only these members; `key`: the member that is
    the key (default: `__key__` where the first line has it, else the number of the line, from 0).
    """

    kind = "jsonl"
    total = None

    def __init__(
        self, files: Files, *, columns: Sequence[str] = (), key: str | None = None, whole_lines: bool = False
    ) -> None:
        self.files = files
        self.names = of_suffix(files, SUFFIXES)
        self.columns: dict[str, Column] = {}
        self._wanted = frozenset(columns)
        self._key = key
        self._whole = whole_lines
        self._begun = False

    def __iter__(self) -> Iterator[Sample]:
        self.columns.clear()
        seen: set[str] = set()
        for name in self.names:
            prefix = "" if self.files.alone else stem(name) + "/"
            shown = title(self.files, name)
            with plain_stream(self.files, name) as stream:
                for number, line in _lines(stream, shown):
                    with naming(shown, f"line {number + 1:,}"):
                        key, row = self._parsed(line)
                        yield row_key(prefix, number) if key is None else key, self._fields(line, row, seen)
        if missing := self._wanted - seen:
            raise SampleError(f"{self.files.url}: no line has {', '.join(map(repr, sorted(missing)))}")

    def _parsed(self, line: bytes) -> tuple[str | None, dict[str, Any]]:
        row = canonical.loads(line)
        if not isinstance(row, dict):
            raise RowError("it is no JSON object", "each line must be one: of an array, jq -c '.[]' FILE makes lines")
        if not self._begun and self._key is None and KEY in row:
            self._key = KEY
        self._begun = True
        if self._key is None:
            return None, row
        return own_key(row.get(self._key), self._key), row

    def _fields(self, line: bytes, row: dict[str, Any], seen: set[str]) -> dict[str, bytes]:
        if self._whole:
            self.columns.setdefault("json", Column("json", "any"))
            return {"json": line}
        fields = {}
        for name, value in row.items():
            if (name == KEY == self._key) or value is None or (self._wanted and name not in self._wanted):
                continue
            if not name:
                raise RowError("a member has no name, and a field needs one", "name it")
            seen.add(name)
            codec, fields[name] = _encoded(name, value)
            known = self.columns.setdefault(name, Column(codec, _TYPES[codec]))
            if known.codec != codec:
                raise RowError(
                    f"{name!r} is {value!r:.60}, though before it was {known.codec}",
                    "mend the row, leave the column out with --columns, or keep lines as they are with --whole-lines",
                )
        return fields


def _encoded(name: str, value: Any) -> tuple[str, bytes]:
    if isinstance(value, str):
        return "text", value.encode()
    if isinstance(value, dict) and set(value) == {BASE64}:
        try:
            return "bytes", base64.b64decode(value[BASE64], validate=True)
        except (binascii.Error, TypeError) as error:
            raise ValueError(f"{name!r} has a {BASE64!r} that is none: {error}") from error
    return "json", json_bytes(value)


def _lines(stream: BinaryIO, shown: str) -> Iterator[tuple[int, bytes]]:
    """The lines that aren't blank, each with its number among all."""
    number = 0
    while line := stream.readline(MAX_VALUE_SIZE + 1):
        if len(line) > MAX_VALUE_SIZE:
            raise SampleError(f"{shown}, line {number + 1:,}: it has 4 GiB or more")
        if number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip(_SEPARATORS):
            yield number, line.rstrip(b"\r\n")
        number += 1


def stem(name: str) -> str:
    """A file's path without the suffixes of its kind: what its rows' keys begin with."""
    name = name.removesuffix(".gz").removesuffix(".zst")
    folder, slash, own = name.rpartition("/")
    return folder + slash + own.rpartition(".")[0]
