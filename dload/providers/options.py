"""What the providers can be told beyond name and split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class HFOptions:
    """For "hf/NAME". `config`, `revision`, `data_dir` and `data_files` are those of `datasets.load_dataset`.

    `prepare(dataset)` gives the Hugging Face data set that is read instead of the one that was opened: a cast, a
    selection of columns, a filter. A stream that it shuffles with a buffer can't say where it stands.
    """

    config: str | None = None
    revision: str | None = None
    data_dir: str | None = None
    data_files: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = None
    prepare: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class TFDSOptions:
    """For "tfds/NAME". `config`, `version` and `data_dir` are those of `tfds.builder`: `data_dir` is the folder that
    holds all prepared data sets."""

    config: str | None = None
    version: str | None = None
    data_dir: str | None = None
