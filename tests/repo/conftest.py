"""A repository over each kind of store, with its own cache and no pins."""

from __future__ import annotations

from pathlib import Path

import pytest

from dload.api import Repository
from dload.cache import ShardCache
from dload.store.base import Store
from dload.store.memory import MemoryStore


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What dload remembers of commits stays inside the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def repo(store: Store, tmp_path: Path) -> Repository:
    """An empty repository, over each kind of store in turn."""
    return Repository(store, ShardCache(tmp_path / "cache"), tmp_path / "dload.lock")


@pytest.fixture
def memory_repo(tmp_path: Path) -> Repository:
    """An empty repository in memory, where the kind of store plays no part."""
    return Repository(MemoryStore(), ShardCache(tmp_path / "cache"), tmp_path / "dload.lock")
