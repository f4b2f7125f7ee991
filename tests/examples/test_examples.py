"""Every example runs, quickly and without a warning, and holds to what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ELSEWHERE = {  # with arguments, and only where their extras are installed
    "jax_global_arrays": "tests/jax/test_loader.py",
    "jax_without_import": "tests/providers/test_example.py",
    "ray_train": "tests/ray/test_train.py",
}
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem not in ELSEWHERE]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    """Each asserts what it shows."""
    home = {name: str(tmp_path) for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)], capture_output=True, text=True, check=False, timeout=120,
        cwd=tmp_path, env={**os.environ, "PYTHONWARNINGS": "error", **home},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout and not done.stderr


def test_the_others_are_run_where_it_says() -> None:
    assert EXAMPLES
    for example, test in ELSEWHERE.items():
        assert example in (ROOT / test).read_text()
