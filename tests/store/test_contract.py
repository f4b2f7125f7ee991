"""Every store keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from dload.store.local import FolderStore
from dload.store.memory import MemoryStore
from dload.testing.store_contract import StoreContract


class TestFolder(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FolderStore:
        return FolderStore(tmp_path / "the store" / "100%")


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()
