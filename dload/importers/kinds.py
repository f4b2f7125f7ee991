"""The kinds of foreign data, and which of them a source is."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from dload.errors import ConfigError, SampleError
from dload.importers.columns import META, Column, columns_meta
from dload.importers.source import Files, open_files, read_json
from dload.repo.group import Item


@runtime_checkable
class Importer(Protocol):
    """Foreign data as samples. Making one looks at the source; iterating reads it, forward and in bounded memory, the
    same samples with the same keys each time."""

    @property
    def kind(self) -> str:
        """Which of KINDS it is."""
        ...

    @property
    def total(self) -> int | None:
        """How many samples there are, where the source says so before it is read."""
        ...

    @property
    def columns(self) -> Mapping[str, Column]:
        """How each field is stored, where the source has types; complete once all samples have been read."""
        ...

    def __iter__(self) -> Iterator[Item]: ...


# Kind -> its module and class here, and what it is for people.
KINDS: dict[str, tuple[str, str, str]] = {
    "folder": ("labelled", "LabelledFolder", "a folder of files"),
    "jsonl": ("jsonl", "JsonLines", "JSON lines: .jsonl, .ndjson, plain, .gz or .zst"),
    "csv": ("delimited", "Delimited", "CSV or TSV: .csv, .tsv, plain, .gz or .zst"),
    "webdataset": ("webdataset", "WebDataset", "WebDataset shards: .tar, .tar.gz, .tgz, .tar.zst"),
    "parquet": ("parquet", "Parquet", "Parquet files"),
    "arrow": ("parquet", "ArrowFiles", "Arrow IPC files and streams: .arrow, .feather, .ipc"),
    "hf": ("huggingface", "HuggingFace", "a Hugging Face data set: hf/NAME, or what save_to_disk wrote"),
    "mds": ("mds", "Mds", "MosaicML MDS: index.json and .mds shards"),
    "litdata": ("litdata", "LitData", "LitData chunks: index.json and .bin chunks"),
    "tfds": ("tfds", "Tfds", "a TensorFlow Datasets folder in ArrayRecord"),
}
_BY_SUFFIX = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv", ".tar": "webdataset", ".tgz": "webdataset",
    ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
HUB = "hf/"


def open_source(
    source: str | Path, kind: str | None = None, *, endpoint_url: str | None = None, **options: Any
) -> Importer:
    """The samples of `source`, to iterate. `kind`: one of KINDS; None: the one that the source shows to be.

    `options` are those of the kind's class; one that the kind doesn't know is a ConfigError, as is a source of no known
    kind. Buckets are read with the usual credentials, at `endpoint_url` where it is no AWS.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"there is no kind of source {kind!r}", remedy=f"the kinds are {', '.join(KINDS)}")
    where: Files | str
    if kind in (None, "hf") and str(source).startswith(HUB) and not Path(source).exists():
        kind, where = "hf", str(source)
    else:
        where = open_files(source, endpoint_url=endpoint_url)
        kind = kind or detect(where)
    module, name, _ = KINDS[kind]
    made: Callable[..., Importer] = getattr(load_module(module, kind), name)
    given = {option: value for option, value in options.items() if value not in (None, False, (), [], "")}
    known = inspect.signature(made).parameters
    if unknown := [option for option in given if option not in known]:
        flag = "--" + unknown[0].replace("_", "-")
        raise ConfigError(f"{flag} makes no sense for a source of the kind {kind}", remedy=f"import it without {flag}")
    return made(where, **given)


def load_module(name: str, kind: str) -> ModuleType:
    """A module of this room that needs more than the core does. ConfigError where that isn't installed."""
    try:
        return importlib.import_module(f"dload.importers.{name}")
    except ModuleNotFoundError as error:
        extra = {"pyarrow": "parquet", "datasets": "hf", "array_record": "tfds"}.get(str(error.name).partition(".")[0])
        remedy = f"pip install 'dload-ml[{extra}]'" if extra else f"pip install {error.name}"
        raise ConfigError(f"{kind} needs the package {error.name}", remedy=remedy) from error


def with_columns(importer: Importer, meta: dict[str, Any]) -> Iterator[Item]:
    """The samples; behind the last one, when it is known how each field is stored, that goes into `meta`."""
    yield from importer
    if importer.columns:
        meta.setdefault(META, columns_meta(importer.columns))


def detect(files: Files) -> str:
    """Which kind the files are: by the index that a tool wrote beside them, by their suffix where all have one, else a
    folder. Raises ConfigError, saying what was looked for."""
    if kind := _by_index(files):
        return kind
    kinds = {_by_suffix(name) for name in files.names if not _is_beside(name)}
    if len(kinds) == 1 and (kind := kinds.pop()):
        return kind
    if files.folder is not None:
        _refuse_nested(files)
        return "folder"
    raise _unknown(files, sorted(filter(None, kinds)))


def _unknown(files: Files, kinds: list[str]) -> ConfigError:
    names = ", ".join(files.names[:3])
    if kinds:
        several = f"{files.url} is of several kinds, {', '.join(kinds)}: {names}"
        return ConfigError(several, remedy="import one kind at a time, each under a name of its own")
    looked = "looked for " + "; ".join(text for _, _, text in KINDS.values()) + "; name one with --format KIND"
    if files.alone and files.here:
        looked = f"one file as a sample: import the folder that it is in, with --include {names!r}; else {looked}"
    if files.names[0].endswith(".json"):
        looked = "if each line is an object: --format jsonl; of an array, jq -c '.[]' FILE makes such lines"
    return ConfigError(f"{files.url}: can't tell what kind of data this is: {names}", remedy=looked)


def _by_index(files: Files) -> str | None:
    names = _top(files)
    if "index.json" in names:
        index = _index(files)
        if "shards" in index:
            return "mds"
        if "chunks" in index:
            return "litdata"
    if "dataset_dict.json" in names or {"state.json", "dataset_info.json"} <= names:
        return "hf"
    if {"features.json", "dataset_info.json"} <= names:
        return "tfds"
    return None


def _refuse_nested(files: Files) -> None:
    """What a tool wrote one level down must not become a folder of its index and shards in silence."""
    marks = {"features.json", "state.json", "dataset_dict.json", "index.json"}
    inner = {folder for name in files.names for folder, _, own in [name.rpartition("/")] if own in marks and folder}
    for folder in sorted(inner):
        below = open_files(f"{files.url.rstrip('/')}/{folder}")
        if kind := _by_index(below):
            raise ConfigError(
                f"{files.url} is no {kind} data set itself, but its folder {folder} is one",
                remedy="import that, or all of it as files with --format folder",
            )


def _top(files: Files) -> set[str]:
    """The names at the top, without a walk through all that is below."""
    if files.folder is not None:
        return {path.name for path in files.folder.iterdir()}
    return {name for name in files.names if "/" not in name}


def _index(files: Files) -> dict[str, Any]:
    """What index.json says. A damaged one is an error where there are shards or chunks beside it, as else they would
    become a folder of files; where there are none, it may be anything."""
    try:
        return read_json(files, "index.json")
    except SampleError:
        if any(name.endswith((".mds", ".mds.zstd", ".bin")) for name in files.names):
            raise
        return {}


def _by_suffix(name: str) -> str | None:
    for packed in (".gz", ".zst"):
        name = name.removesuffix(packed)
    return next((kind for suffix, kind in _BY_SUFFIX.items() if name.endswith(suffix)), None)


def _is_beside(name: str) -> bool:
    """Whether a file only speaks about the data beside it."""
    own = name.rpartition("/")[2].lower()
    return own.startswith(("readme", "license", "_success", "_metadata", "_common_metadata")) or own.endswith(".md")
