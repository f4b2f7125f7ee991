"""Data for ranks to read, and the ranks."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dload.api import Repository
from dload.cache import ShardCache
from dload.store.local import FolderStore
from tests.grid.ranks import Ranks


@pytest.fixture(scope="session")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """Data sets of many small shards: "numbers", 600 samples with nine doubles each, and "noise", 90 smaller ones."""
    folder = tmp_path_factory.mktemp("grid")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        repo = Repository(FolderStore(folder / "store"), ShardCache(folder / "cache"), folder / "dload.lock")
        rng = random.Random(0)
        numbers = [(f"k{i:04d}", {"x": struct.pack("9d", *[rng.gauss(0, 1) for _ in range(9)])}) for i in range(600)]
        repo.commit("numbers", numbers, target_shard_size=3000)
        repo.commit("noise", [(f"n{i:04d}", {"x": rng.randbytes(30)}) for i in range(90)], target_shard_size=1500)
        yield repo


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """start(world, work, *arguments): a run of `world` ranks. Nothing of it is left running."""
    started: list[Ranks] = []

    def begin(world: int, work: Callable[..., Any], *arguments: Any) -> Ranks:
        started.append(Ranks(tmp_path / f"meeting-{len(started)}", world, work, arguments))
        return started[-1]

    yield begin
    for ranks in started:
        ranks.kill()
