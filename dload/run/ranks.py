"""Which part of a distributed run this process is."""

from __future__ import annotations

import os
import sys
from typing import Any

from dload.errors import ConfigError


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """(rank, world): as given, else those of torch.distributed or JAX where one of them is initialised, else `RANK` and
    `WORLD_SIZE`, else 0 of 1. Never imports either; asked in the process that trains, not in its workers."""
    if (rank is None) != (world is None):
        raise ConfigError(f"rank={rank!r} and world_size={world!r}", remedy="give both, or neither")
    if rank is None or world is None:
        rank, world = _torch() or _environment() or _jax() or (0, 1)
    if not 0 <= rank < world:
        raise ConfigError(f"rank {rank} is not one of {world}", remedy=f"ranks are 0 to {world - 1}")
    return rank, world


def nodes_of(world: int) -> int:
    """How many machines a launcher spread the ranks over, as `LOCAL_WORLD_SIZE` says; 1 where nobody says."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    local = int(text) if text.isascii() and text.isdigit() else 0
    return world // local if local and world % local == 0 else 1


def _torch() -> tuple[int, int] | None:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _environment() -> tuple[int, int] | None:
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if not rank and not world:
        return None
    if not (rank.isdigit() and world.isdigit()):
        raise ConfigError(f"RANK is {rank!r} and WORLD_SIZE is {world!r}", remedy="set both to numbers, or unset both")
    return int(rank), int(world)


def _jax() -> tuple[int, int] | None:
    jax: Any = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return None
    return jax.process_index(), jax.process_count()
