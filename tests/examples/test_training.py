"""Every training run runs as its user would start it, without a warning, and learns what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "training"
RUNS = sorted(FOLDER.glob("*.py"))


@pytest.mark.timeout(900)  # seconds of computing, each; but machines may have much else to do
@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.stem)
def test_it_learns(run: Path, tmp_path: Path) -> None:
    """Each asserts that it is better than its baseline on rows that it hasn't learnt from."""
    own = {name: str(tmp_path) for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR")}
    quiet = {"PYTHONWARNINGS": "error", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(run)], capture_output=True, text=True, check=False, timeout=800,
        cwd=tmp_path, env={**os.environ, **own, **quiet},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout and not done.stderr
    assert not list(tmp_path.glob("dload-example-*"))  # each clears up behind itself


def test_there_are_twelve_and_all_are_listed() -> None:
    assert len(RUNS) == 12
    table = (FOLDER / "README.md").read_text()
    for run in RUNS:
        assert f"[{run.stem}.py]({run.name})" in table
