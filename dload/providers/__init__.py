"""Data sets that others hold, read where they are: Hugging Face `datasets` and TensorFlow Datasets.

A provider opens one split, as records with places or as a stream. Nothing is imported or copied by dload; what the
provider itself downloads and keeps is its own affair.
"""

from __future__ import annotations

from typing import Any

from dload.errors import ConfigError
from dload.pipeline.provided import RecordStream, RecordTable
from dload.providers.options import HFOptions, TFDSOptions

__all__ = ["HFOptions", "TFDSOptions", "open_split"]

_OPTIONS: dict[str, type] = {"hf": HFOptions, "tfds": TFDSOptions}


def open_split(source: str, split: str, options: object, streaming: bool) -> RecordTable | RecordStream:
    """A split of "hf/NAME" or "tfds/NAME". Raises ConfigError where there is no such provider, name or split, TypeError
    where the options are another provider's, NotFoundError where the data isn't there."""
    provider, found, name = source.partition("/")
    if provider not in _OPTIONS or not found or not name:
        raise ConfigError(f"{source!r} names no provider", remedy='write "hf/NAME" or "tfds/NAME"')
    kind: Any = _OPTIONS[provider]
    if options is not None and not isinstance(options, kind):
        raise TypeError(f"{provider}/ takes options={kind.__name__}(...), got {type(options).__name__}")
    if provider == "hf":
        from dload.providers import huggingface

        return huggingface.open_split(name, split, options or kind(), streaming)
    from dload.providers import tfds

    return tfds.open_split(name, split, options or kind(), streaming)
