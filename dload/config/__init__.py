"""Settings: flags, environment, files and defaults, each value with where it came from."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dload.config.edit import write_config_file as write_config_file
    from dload.config.resolve import Config as Config
    from dload.sizes import format_size as format_size
    from dload.sizes import parse_size as parse_size

# Loaded at first use: the command line needs the names of the settings at once, their values only when it runs.
_HOMES = {
    "Config": "dload.config.resolve",
    "write_config_file": "dload.config.edit",
    "format_size": "dload.sizes",
    "parse_size": "dload.sizes",
}

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dload.config' has no attribute {name!r}")
