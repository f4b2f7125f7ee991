"""Hugging Face data sets: from the hub, its cache, or a folder that `save_to_disk` wrote.

Needs datasets, the extra hf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from dload.codecs import npy_bytes
from dload.errors import ConfigError, NotFoundError, UnavailableError
from dload.importers.arrow_types import Encode, describe, file_part, is_file
from dload.importers.columns import Column
from dload.importers.parquet import Rows, pieces
from dload.importers.source import Files
from dload.pack import Sample

_HUB = "hf/"
_ARRAYS = (datasets.Array2D, datasets.Array3D, datasets.Array4D, datasets.Array5D)


class HuggingFace:
    """The rows of a data set. Images, sounds and other files come as their original bytes, never decoded; what they
    are called goes to the field NAME.path. Arrays of declared shape become npy; a class label its number, with the
    names of the classes in the version's meta.

    `split`: only this one; where there are splits, keys begin with the split's name. `config` and `revision`: which
    configuration of a data set on the hub, and in which state (a commit, tag or branch). `columns` and `key` as of
    `Parquet`. By name, what isn't cached is downloaded.
    """

    kind = "hf"

    def __init__(
        self, files: Files | str, *, columns: Sequence[str] = (), key: str | None = None, split: str | None = None,
        config: str | None = None, revision: str | None = None,
    ) -> None:  # fmt: skip
        by_name = isinstance(files, str)
        self.url = files if isinstance(files, str) else files.url
        splits = _by_name(files, config, revision, split) if isinstance(files, str) else _saved(files)
        if split is not None:
            splits = _choose(splits, split, self.url)
        self._parts = [(f"{name}/" if name else "", part) for name, part in splits.items()]
        self.total = sum(len(part) for _, part in self._parts)
        features = {name: feature for _, part in self._parts for name, feature in part.features.items()}
        self._rows = _FeatureRows(columns, key, features)
        for prefix, part in self._parts:
            self._rows.chosen(part.features.arrow_schema, f"{self.url} {prefix}".rstrip("/ "))
        if (config or revision) and not by_name:
            given = "--config" if config else "--revision"
            raise ConfigError(f"{given} is for a data set by name", remedy=f"write {_HUB}NAME")

    @property
    def columns(self) -> dict[str, Column]:
        return self._rows.columns

    def __iter__(self) -> Iterator[Sample]:
        for prefix, part in self._parts:
            shown = f"{self.url} {prefix}".rstrip("/ ")
            names = self._rows.chosen(part.features.arrow_schema, shown)
            row = 0
            for table in part.select_columns(names).with_format("arrow").iter(64):
                for batch in table.combine_chunks().to_batches():
                    for piece in pieces(batch):
                        embedded = _embedded(piece, shown, row)
                        yield from self._rows.samples(embedded, row, prefix, shown)
                        row += piece.num_rows


def _saved(files: Files) -> dict[str, Any]:
    if files.folder is None:
        raise ConfigError(f"{files.url}: only a folder of this machine is read as save_to_disk wrote it")
    return _from_disk(files.folder)


def _from_disk(folder: Path) -> dict[str, Any]:
    try:
        found = datasets.load_from_disk(str(folder))
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{folder} is no data set that save_to_disk wrote: {error}",
            remedy="name the folder with dataset_dict.json or state.json in it; files of data are imported as their "
            "own kind, by --format parquet, arrow, jsonl or csv",
        ) from error
    return dict(found) if isinstance(found, datasets.DatasetDict) else {"": found}


def _by_name(source: str, config: str | None, revision: str | None, split: str | None) -> dict[str, Any]:
    name = source.removeprefix(_HUB)
    if not name:
        raise ConfigError(f"{source} names no data set", remedy=f"write {_HUB}NAME, as {_HUB}ylecun/mnist")
    if any((Path(name) / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
        return _from_disk(Path(name))
    try:
        found = datasets.load_dataset(name, config, split=split, revision=revision)
    except ConnectionError as error:
        raise UnavailableError(
            f"{source} is neither a folder here nor in the cache of `datasets`, and the hub can't be reached: {error}",
            remedy="check the name and the network",
        ) from error
    except (FileNotFoundError, ValueError) as error:
        raise NotFoundError(
            f"can't load {name!r} from the hub or its cache: {error}",
            remedy="check the name, --config and --split",
        ) from error
    return {str(split): found} if split is not None else dict(found)


def _choose(splits: dict[str, Any], split: str, shown: str) -> dict[str, Any]:
    if split not in splits:
        there = ", ".join(map(repr, splits)) if "" not in splits else "none"
        raise ConfigError(f"{shown}: there is no split {split!r}", remedy=f"its splits: {there}")
    return {split: splits[split]}


class _FeatureRows(Rows):
    """Rows that know what the data set declares beyond Arrow's types."""

    def __init__(self, wanted: Sequence[str], key: str | None, features: dict[str, Any]) -> None:
        super().__init__(wanted, key)
        self._features = features

    def _column_of(self, name: str, type_: Any, shown: str) -> tuple[Column, Encode]:
        feature = self._features.get(name)
        if isinstance(feature, _ARRAYS):
            return Column("npy", describe(type_)), _shaped(feature.shape, feature.dtype)
        column, encode = super()._column_of(name, type_, shown)
        if isinstance(feature, datasets.ClassLabel):
            column = Column("json", {"class_label": list(feature.names or ())})
        return column, encode

    def _file(self, file: dict[str, Any], shown: str) -> tuple[bytes | None, bytes | None]:
        return super()._file(_read(file, shown) or file, shown)


def _shaped(shape: tuple[int | None, ...], dtype: str) -> Encode:
    """Encodes arrays of a declared shape, whose first dimension may be free."""

    def encode(array: Any) -> list[bytes | None]:
        storage = array.storage if isinstance(array, pa.ExtensionArray) else array
        return [None if value.as_py() is None else one(value) for value in storage]

    def one(value: Any) -> bytes:
        made = np.array(value.as_py(), dtype)
        if made.size == 0:
            made = made.reshape(len(value), *shape[1:])
        if len(made.shape) != len(shape):
            raise ValueError(f"an array of {len(shape)} dimensions was declared, this has the shape {made.shape}")
        return npy_bytes(made)

    return encode


def _embedded(batch: Any, shown: str, first_row: int) -> Any:
    """The batch with the bytes of files that it only names."""
    for place, field in enumerate(batch.schema):
        if not is_file(field.type):
            continue
        column = batch.column(place)
        if file_part(column, "bytes").null_count > column.null_count:
            files = [_read(one, f"{shown}, row {first_row + row:,}") for row, one in enumerate(column.to_pylist())]
            filled = pa.array(files, field.type)
            batch = batch.set_column(place, field, filled)
    return batch


def _read(file: dict[str, Any] | None, shown: str) -> dict[str, Any] | None:
    if file is None or file["bytes"] is not None or file["path"] is None:
        return file
    path = Path(file["path"])
    if not path.is_file():
        raise NotFoundError(f"{shown}: the file {path} is gone", remedy="bring it back, or load the data set anew")
    return {"bytes": path.read_bytes(), "path": file["path"]}
