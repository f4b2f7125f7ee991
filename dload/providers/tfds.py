"""Splits that TensorFlow Datasets has prepared, in ArrayRecord: read without TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dload.errors import ConfigError, NotFoundError
from dload.pipeline.provided import Origin
from dload.providers.options import TFDSOptions
from dload.providers.table import Table


def open_split(name: str, split: str, options: TFDSOptions, streaming: bool) -> Table:
    """The split as a table. It is never a stream: TFRecord files, which have no places, need TensorFlow."""
    if streaming:
        raise ConfigError(
            f"tfds/{name} can't be streamed without TensorFlow",
            remedy="leave out streaming: a data set that is prepared in ArrayRecord has places",
        )
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ConfigError(
            f"tfds/{name} needs the package tensorflow-datasets", remedy="pip install 'dload-ml[tfds]'"
        ) from error
    builder = _builder(tfds, name, options)
    try:
        source = builder.as_data_source(split=split)
    except NotImplementedError as error:
        raise ConfigError(
            f"tfds/{name} isn't prepared in a format with places: {_first_line(error)}",
            remedy="prepare it with file_format='array_record'",
        ) from error
    except ValueError as error:
        raise ConfigError(f"tfds/{name}, split {split}: {_first_line(error)}") from error
    origin: Origin = {
        "provider": "tfds", "name": builder.info.full_name, "split": split,
    }  # fmt: skip
    return Table(origin, source)


def _builder(tfds: Any, name: str, options: TFDSOptions) -> Any:
    if Path(name).is_dir() and options == TFDSOptions():
        return tfds.builder_from_directory(name)
    wanted = (
        name + (f"/{options.config}" if options.config else "") + (f":{options.version}" if options.version else "")
    )
    try:
        return tfds.builder(wanted, data_dir=options.data_dir)
    except ValueError as error:  # a name that isn't known, or a config or version that isn't there
        where = options.data_dir or "the default data_dir"
        raise NotFoundError(f"tfds/{wanted} isn't in {where}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
