"""Loaders inside the workers of Ray Train, as the example has them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_train.py"


@pytest.mark.timeout(900)
def test_workers_find_rank_and_world_and_their_state_goes_on_elsewhere(
    tmp_path: Path, ray_settings: dict[str, str]
) -> None:
    """It asserts what it shows. Its warnings are not ours: Ray has many."""
    short = tempfile.mkdtemp(prefix="ray")
    home = {name: str(tmp_path) for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
    try:
        done = subprocess.run(
            [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=800, cwd=tmp_path,
            env={**os.environ, **ray_settings, **home, "RAY_TMPDIR": short},
        )  # fmt: skip
    finally:
        shutil.rmtree(short, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    assert "stopped on two workers of Ray Train behind step 7, resumed for 13: " in done.stdout
