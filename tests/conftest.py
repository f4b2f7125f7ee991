"""Fixtures for all rooms: one real S3 server for the whole run, and stores of every kind."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from dload.files.locks import locked
from dload.store.base import Store
from dload.store.local import FolderStore
from dload.store.memory import MemoryStore
from dload.testing.s3_server import S3Server


@pytest.fixture(autouse=True, scope="session")
def no_settings_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees the settings or credentials of whoever runs it."""
    nothing = tmp_path_factory.mktemp("settings") / "none"
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("AWS_", "DLOAD_", "R2_")):
                patch.delenv(name)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(nothing))
        patch.setenv("AWS_CONFIG_FILE", str(nothing))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> S3Server:
    """SeaweedFS, shared by all processes of the run; started at the first need, stopped at the end of the
    run."""
    folder = _run_folder(tmp_path_factory)
    with locked(folder / "s3-server.lock", timeout=60):
        return S3Server.shared(folder / "s3-server")


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with its credentials in this process's environment (profiles: see S3Server)."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def s3_bucket(s3_environment: S3Server) -> Iterator[str]:
    """The name of a fresh bucket; the server's credentials are in the environment."""
    name = f"test-{secrets.token_hex(6)}"
    s3_environment.make_bucket(name)
    yield name
    s3_environment.drop_bucket(name)


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind."""
    if request.param == "folder":
        return FolderStore(tmp_path / "store")
    if request.param == "memory":
        return MemoryStore()
    from dload.store.s3 import S3Store

    bucket = request.getfixturevalue("s3_bucket")
    server = request.getfixturevalue("s3_server")
    return S3Store(bucket, "some/prefix", endpoint_url=server.endpoint_url)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return  # the others may still need the server
    factory: pytest.TempPathFactory | None = getattr(session.config, "_tmp_path_factory", None)
    server = S3Server.running(_run_folder(factory) / "s3-server") if factory else None
    if server:
        server.stop()


def _run_folder(factory: pytest.TempPathFactory) -> Path:
    """The run's temporary folder, the same for all of its processes."""
    base = factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
