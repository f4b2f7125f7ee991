"""Fixtures for all rooms: one real S3 server for the whole run, and stores of every kind."""

from __future__ import annotations

import gc
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from hypothesis import HealthCheck, settings

from dload import randomness
from dload.files.locks import locked
from dload.run.indexes import indexes
from dload.store.base import Store
from dload.store.local import FolderStore
from dload.store.memory import MemoryStore
from dload.testing.s3_server import S3Server

# How long an example takes says nothing about whether it is right.
settings.register_profile("dload", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dload")

_CREDENTIALS = pytest.StashKey[tuple[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--s3-endpoint",
        metavar="URL",
        help="run the tests of S3 only, against the server at URL, in buckets of their own, with AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY of the environment",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "seaweedfs: needs the suite's own server, which has several keys of known names")
    if config.getoption("--s3-endpoint"):
        try:
            config.stash[_CREDENTIALS] = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
        except KeyError as error:
            raise pytest.UsageError(f"--s3-endpoint needs credentials; {error} isn't set") from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--s3-endpoint"):
        others = [item for item in items if not _wants_s3(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _wants_s3(item)]
        for item in items:
            if item.get_closest_marker("seaweedfs"):
                item.add_marker(pytest.mark.skip(reason="needs the keys of the suite's own server"))


def _wants_s3(item: pytest.Item) -> bool:
    """Whether a test uses the server, by a fixture or by a parameter that chooses the kind of store."""
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "s3_server" in getattr(item, "fixturenames", ()) or "s3" in chosen


class RunningServer(S3Server):
    """An S3 server that runs already, whatever it is. Its only profile is admin."""

    def __init__(self, folder: Path, endpoint_url: str, access_key: str, secret_key: str) -> None:
        super().__init__(folder)
        self._endpoint_url, self._keys = endpoint_url, (access_key, secret_key)
        keys = {"aws_access_key_id": access_key, "aws_secret_access_key": secret_key}
        self._resource = boto3.resource("s3", endpoint_url=endpoint_url, region_name="us-east-1", **keys)
        lines = [f"{name} = {value}" for name, value in keys.items()]
        (folder / "credentials").write_text("\n".join(["[default]", *lines, "[admin]", *lines]))
        (folder / "config").write_text("[default]\nregion = us-east-1\n[profile admin]\nregion = us-east-1\n")

    @property
    def endpoint_url(self) -> str:
        return self._endpoint_url

    @property
    def keys(self) -> tuple[str, str]:
        return self._keys

    def make_bucket(self, name: str) -> None:
        self._resource.create_bucket(Bucket=name)

    def drop_bucket(self, name: str) -> None:
        bucket = self._resource.Bucket(name)
        for upload in bucket.multipart_uploads.all():
            upload.abort()
        for left in bucket.objects.all():
            left.delete()
        bucket.delete()

    def environment(self, profile: str = "admin") -> dict[str, str]:
        if profile not in ("admin", "default"):
            pytest.skip(f"needs the profile {profile!r}, which only SeaweedFS is given")
        return super().environment(profile)


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


@pytest.fixture(autouse=True)
def no_indexes_of_earlier_tests() -> None:
    """A test that counts requests finds none of the shards' indexes known."""
    indexes.clear()


@pytest.fixture
def open_files() -> Callable[[], int]:
    """Counts the descriptors of this process."""

    def count() -> int:
        gc.collect()  # what earlier tests have left closes its files before, not meanwhile
        return len(list(Path("/dev/fd").iterdir()))

    return count


@pytest.fixture(scope="session")
def s3_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> S3Server:
    """SeaweedFS, shared by all processes of the run; started at the first need, stopped at the end of the
    run. Or the server of --s3-endpoint."""
    if endpoint := pytestconfig.getoption("--s3-endpoint"):
        folder = tmp_path_factory.mktemp("s3-server")
        return RunningServer(folder, endpoint, *pytestconfig.stash[_CREDENTIALS])
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


@pytest.fixture(scope="session")
def s3_common_bucket(s3_server: S3Server) -> Iterator[str]:
    """A bucket that all tests of this process share, each with a prefix of its own: a fresh one costs half a second."""
    name = f"common-{secrets.token_hex(6)}"
    s3_server.make_bucket(name)
    yield name
    s3_server.drop_bucket(name)


@pytest.fixture
def s3_place(s3_environment: S3Server, s3_common_bucket: str) -> tuple[str, str]:
    """A bucket and a prefix of it that is empty; the server's credentials are in the environment."""
    return s3_common_bucket, f"test/{secrets.token_hex(6)}"


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind."""
    if request.param == "folder":
        return FolderStore(tmp_path / "store")
    if request.param == "memory":
        return MemoryStore()
    from dload.store.s3 import S3Store

    server = request.getfixturevalue("s3_server")
    return S3Store(*request.getfixturevalue("s3_place"), endpoint_url=server.endpoint_url)


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


@pytest.fixture(params=[True, False], ids=["numpy", "plain"])
def numpy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways through what NumPy makes faster: whether it is used."""
    if request.param:
        pytest.importorskip("numpy")
    monkeypatch.setattr(randomness, "HAVE_NUMPY", request.param)
    return bool(request.param)
