"""Every store keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from dload.store.local import FolderStore
from dload.store.memory import MemoryStore
from dload.store.s3 import S3Store
from dload.testing.s3_server import S3Server
from dload.testing.store_contract import StoreContract


class TestFolder(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FolderStore:
        return FolderStore(tmp_path / "the store" / "100%")


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()


class TestS3(StoreContract):
    @pytest.fixture
    def store(self, s3_server: S3Server, s3_bucket: str) -> S3Store:
        return S3Store(s3_bucket, "some/prefix", endpoint_url=s3_server.endpoint_url)
