"""Every store keeps the contract."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dload.store.faulty import Call, Fault, Faulty
from dload.store.local import FolderStore
from dload.store.memory import MemoryStore
from dload.store.retrying import Backoff, Retrying
from dload.store.s3 import S3Store
from dload.testing.fault_proxy import Cut, FaultProxy, LostReply, Status
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
    def store(self, s3_server: S3Server, s3_place: tuple[str, str]) -> S3Store:
        return S3Store(*s3_place, endpoint_url=s3_server.endpoint_url)


class TestRetryingOverFaults(StoreContract):
    """One call in five fails, half of them after the deed."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Retrying:
        chance = random.Random(0)

        def plan(_: Call) -> Fault | None:
            return chance.choice((Fault.BEFORE, Fault.AFTER)) if chance.random() < 0.2 else None

        return Retrying(_PicklableFaults(FolderStore(tmp_path), plan), Backoff(sleep=_no_pause))


class TestS3ThroughFaults(StoreContract):
    """One request in ten is refused for the moment, breaks off, or loses its reply."""

    @pytest.fixture
    def store(self, s3_server: S3Server, s3_place: tuple[str, str]) -> Iterator[Retrying]:
        backoff = Backoff(first=0.01, longest=0.05)
        with FaultProxy(s3_server.endpoint_url) as proxy:
            proxy.add(Status(503), rate=0.04)
            proxy.add(Cut(0.5), method="GET", rate=0.04)
            proxy.add(LostReply(), rate=0.02)
            yield Retrying(S3Store(*s3_place, endpoint_url=proxy.url, backoff=backoff), backoff)


class _PicklableFaults(Faulty):
    """Its plan stays behind."""

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"plan": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {"plan": _no_faults})


def _no_faults(_: Call) -> None:
    return None


def _no_pause(_: float) -> None:
    pass
