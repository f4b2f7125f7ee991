"""dload: versioned data sets in one bucket, streamed into training through a local cache."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dload import codecs as codecs
    from dload import importers as importers
    from dload.api import Dataset as Dataset
    from dload.api import Pipeline as Pipeline
    from dload.api import Repository as Repository
    from dload.api.load import HFOptions as HFOptions
    from dload.api.load import TFDSOptions as TFDSOptions
    from dload.api.load import load as load
    from dload.api.loader import Loader as Loader
    from dload.api.loader import merge_states as merge_states
    from dload.api.pipeline import choice as choice
    from dload.api.pipeline import concat as concat
    from dload.api.pipeline import from_iterable as from_iterable
    from dload.api.pipeline import mix as mix
    from dload.api.pipeline import random_stream as random_stream
    from dload.api.pipeline import select as select
    from dload.api.pipeline import zip_streams as zip  # noqa: A004, F401
    from dload.api.pipeline import zip_with as zip_with
    from dload.config import Config as Config
    from dload.errors import CacheFullError as CacheFullError
    from dload.errors import ConfigError as ConfigError
    from dload.errors import DloadError as DloadError
    from dload.errors import InfeasiblePipelineError as InfeasiblePipelineError
    from dload.errors import IntegrityError as IntegrityError
    from dload.errors import NotFoundError as NotFoundError
    from dload.errors import PackFormatError as PackFormatError
    from dload.errors import RemoteError as RemoteError
    from dload.manifest import Manifest as Manifest
    from dload.manifest import ShardInfo as ShardInfo
    from dload.pipeline.fingerprint import same_as as same_as
    from dload.pipeline.ramp import Ramp as Ramp
    from dload.plan import PlanReport as PlanReport
    from dload.randomness import seeded as seeded
    from dload.randomness import seeded_rng as seeded_rng
    from dload.sizes import format_size as format_size
    from dload.sizes import parse_size as parse_size

# Name -> the module that has it. Loaded at first use, so that `import dload` costs next to nothing.
_HOMES = {
    **dict.fromkeys(("Dataset", "Pipeline", "Repository"), "dload.api"),
    **dict.fromkeys(("Loader", "merge_states"), "dload.api.loader"),
    **dict.fromkeys(
        ("choice", "concat", "from_iterable", "mix", "random_stream", "select", "zip", "zip_with"), "dload.api.pipeline"
    ),
    **dict.fromkeys(("HFOptions", "TFDSOptions", "load"), "dload.api.load"),
    "Ramp": "dload.pipeline.ramp",
    "same_as": "dload.pipeline.fingerprint",
    "PlanReport": "dload.plan",
    **dict.fromkeys(("seeded", "seeded_rng"), "dload.randomness"),
    "Config": "dload.config",
    **dict.fromkeys(
        (
            "CacheFullError", "ConfigError", "DloadError", "InfeasiblePipelineError", "IntegrityError", "NotFoundError",
            "PackFormatError", "RemoteError",
        ),
        "dload.errors",
    ),
    **dict.fromkeys(("Manifest", "ShardInfo"), "dload.manifest"),
    **dict.fromkeys(("format_size", "parse_size"), "dload.sizes"),
}  # fmt: skip
_INSIDE = {"zip": "zip_streams"}  # names that would hide a builtin where they are defined
_MODULES = ("codecs", "config", "errors", "importers")

__all__ = [*sorted(_HOMES), *_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), _INSIDE.get(name, name))
    if name in _MODULES:
        return importlib.import_module(f"dload.{name}")
    raise AttributeError(f"module 'dload' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
