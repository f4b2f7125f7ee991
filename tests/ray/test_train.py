"""Loaders inside the workers of Ray Train, as the example has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_train.py"


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("cluster")
def test_workers_find_rank_and_world_and_their_state_goes_on_elsewhere(tmp_path: Path) -> None:
    """It asserts what it shows."""
    home = {name: str(tmp_path) for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
    settings = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), ray.get_runtime_context().gcs_address],
        capture_output=True, text=True, check=False, timeout=800, cwd=tmp_path, env={**os.environ, **home, **settings},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "stopped on two workers of Ray Train behind step 7, resumed for 13: " in done.stdout
