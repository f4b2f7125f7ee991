"""Packing, reading and deriving on a cluster of Ray (https://docs.ray.io). Needs the extra `ray`.

`write` makes a version of a Ray data set, `read` a Ray data set of a version, and `repo.derive(..., engine="ray")` runs
a pipeline on the cluster (`Engine`). A `dload.torch.StreamLoader` finds rank and world in the workers of Ray Train by
itself. Where Ray isn't running, its own rules say what happens: it joins RAY_ADDRESS, or begins on this machine.

What travels to the workers names stores and caches by where they are. Clients and credentials stay behind: each node
finds its own as any other program there does (environment, ~/.aws, the instance's role), and reads through its own
cache, which is at the same path on every node.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dload.ray.engine import Engine as Engine
    from dload.ray.reading import read as read
    from dload.ray.writing import write as write

# Loaded at first use: a task that packs needs no ray.data, whose import takes a second of every worker.
_HOMES = {"Engine": "engine", "read": "reading", "write": "writing"}

__all__ = ["Engine", "read", "write"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        try:
            return getattr(importlib.import_module(f"dload.ray.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            error.add_note("dload.ray needs Ray: pip install 'dload-ml[ray]'")
            raise
    raise AttributeError(f"module 'dload.ray' has no attribute {name!r}")
