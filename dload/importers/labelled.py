"""A folder of files with more than the files say: labels from the names of folders, fields from a table beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path

from dload.errors import ConfigError, SampleError
from dload.importers.columns import Column
from dload.importers.delimited import Delimited
from dload.importers.folder import Folder
from dload.importers.jsonl import JsonLines
from dload.importers.names import split_path
from dload.importers.source import Files, open_files
from dload.repo.group import LazySample

TABLES = ("metadata.csv", "metadata.jsonl")
FILE_NAME = "file_name"
LABEL = "label"


class LabelledFolder:
    """The files of a folder as samples (`folder.Folder`), each with further fields.

    `label_from_folder`: the field `label`, the name of the folder that a file lies in. `metadata`: a CSV or JSONL file
    of that folder whose column `file_name` has paths in it; the other columns become fields of that file's sample.
    Default: `metadata.csv` or `metadata.jsonl` at the top of the folder, where there is one.

    The table is held in memory. SampleError names a row whose file isn't there, and a sample that has a field of that
    name already.
    """

    kind = "folder"

    def __init__(
        self, files: Files, *, include: Sequence[str] = (), exclude: Sequence[str] = (),
        label_from_folder: bool = False, metadata: str | None = None,
    ) -> None:  # fmt: skip
        if files.folder is None:
            raise ConfigError(
                f"{files.url} is no folder of this machine, and only such are imported file by file",
                remedy="download it first, or name the kind of its files with --format",
            )
        root = self.root = files.folder
        found = metadata or next((name for name in TABLES if (root / name).is_file()), None)
        self.columns: dict[str, Column] = {LABEL: Column("text", "string")} if label_from_folder else {}
        self._label = label_from_folder
        self._extra = self._read(root, found) if found else {}
        self._folder = Folder(root, include=include, exclude=[*exclude, *(["/" + found] if found else [])])
        self._table = found
        self.total = len(self._folder)

    def _read(self, root: Path, name: str) -> dict[str, dict[str, bytes]]:
        """The fields of each sample that the table speaks of."""
        if not (root / name).is_file():
            raise ConfigError(f"there is no {root / name}", remedy="name a CSV or JSONL file of the folder")
        table_files = open_files(root / name)
        table: Delimited | JsonLines
        if name.endswith((".csv", ".tsv")):
            table = Delimited(table_files, key=FILE_NAME)
        elif name.endswith(".jsonl"):
            table = JsonLines(table_files, key=FILE_NAME)
        else:
            raise ConfigError(f"{name} is neither CSV nor JSONL", remedy="name a .csv, .tsv or .jsonl file")
        extra: dict[str, dict[str, bytes]] = {}
        for path, fields in table:
            key = split_path(path)[0]
            own = {field: value for field, value in fields.items() if field != FILE_NAME}
            if common := extra.get(key, {}).keys() & own.keys():
                raise SampleError(f"{root / name}: two rows give sample {key!r} a field {min(common)!r}")
            extra.setdefault(key, {}).update(own)
        self.columns.update((one, column) for one, column in table.columns.items() if one != FILE_NAME)
        return extra

    def __iter__(self) -> Iterator[LazySample]:
        left = set(self._extra)
        for lazy in self._folder:
            left.discard(lazy.key)
            yield self._with_more(lazy)
        if left:
            count = "a row names a file that isn't" if len(left) == 1 else f"{len(left):,} rows name files that aren't"
            raise SampleError(
                f"{self.root}/{self._table}: {count} there, as {min(left)!r}",
                remedy=f"paths in {FILE_NAME} are relative to {self.root}",
            )

    def _with_more(self, lazy: LazySample) -> LazySample:
        more = dict(self._extra.get(lazy.key, {}))
        if self._label:
            folder = lazy.key.rpartition("/")[0].rpartition("/")[2]
            if not folder:
                raise SampleError(
                    f"sample {lazy.key!r} lies in no folder below {self.root}, so it has no label", key=lazy.key,
                    remedy="leave such files out with --exclude, or import without --label-from-folder",
                )  # fmt: skip
            if LABEL in more:
                raise SampleError(f"sample {lazy.key!r} has a {LABEL!r} from the table and one from its folder")
            more[LABEL] = folder.encode()
        if not more:
            return lazy
        if common := lazy.sizes.keys() & more.keys():
            raise SampleError(
                f"sample {lazy.key!r} has a file and a value for the field {min(common)!r}", key=lazy.key,
                remedy="rename the column, or the file's suffix",
            )  # fmt: skip
        stamp = lazy.stamp and blake2b(lazy.stamp + repr(sorted(more.items())).encode(), digest_size=32).digest()
        sizes = {**lazy.sizes, **{name: len(value) for name, value in more.items()}}
        return replace(lazy, sizes=sizes, load=partial(_load, lazy, more), stamp=stamp)


def _load(lazy: LazySample, more: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return {**lazy.load(), **more}
