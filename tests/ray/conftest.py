"""A cluster of this process's own, on this machine: a head that is its only node, with two processors."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import ray.data

from dload.testing.s3_server import S3Server


@pytest.fixture(scope="session")
def ray_settings() -> dict[str, str]:
    """What a Ray of the tests has in its environment."""
    return {
        "RAY_AUTH_MODE": "disabled",  # else a token is written into the home
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
        "RAY_local_fs_capacity_threshold": "1",  # a full disk is no reason to refuse a few kilobytes
        "RAY_memory_monitor_refresh_ms": "0",  # nor a full memory, to kill a worker
        "RAY_num_workers_soft_limit": "8",  # idle ones stay for the next test: to start one takes seconds
        # A machine that is busy with other tests is slow, not dead.
        "RAY_raylet_start_wait_time_s": "240",
        "RAY_worker_register_timeout_seconds": "240",
        "RAY_health_check_timeout_ms": "60000",
        "RAY_health_check_failure_threshold": "50",
    }


@pytest.fixture(scope="module")
def cluster(s3_server: S3Server, ray_settings: dict[str, str]) -> Iterator[None]:
    """Its workers have the S3 server's credentials, in the environment, where the nodes of a cluster have theirs. It
    ends with the tests that need it: those behind them fork, and count threads."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # not below pytest's own, since names of sockets must be short
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("RAY_ADDRESS", raising=False)
            for name, value in {**ray_settings, **s3_server.environment()}.items():
                patch.setenv(name, value)
            ray.init(
                address="local", num_cpus=2, include_dashboard=False, object_store_memory=80 << 20,
                _temp_dir=str(folder), log_to_driver=False, logging_level=logging.ERROR,
            )  # fmt: skip
            logging.getLogger("ray.data").setLevel(logging.ERROR)
            yield
    finally:
        ray.shutdown()  # and with it all of its processes
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What dload remembers of commits stays inside the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
