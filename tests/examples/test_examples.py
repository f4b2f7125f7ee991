"""Every example runs, quickly and without a warning, and holds to what it says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
ELSEWHERE = {  # with arguments, and only where their extras are installed
    "jax_without_import.py": "tests/providers/test_example.py",
    "ray_train.py": "tests/ray/test_train.py",
}
ALL = sorted(path for path in FOLDER.iterdir() if path.suffix in (".py", ".sh"))
EXAMPLES = [path for path in ALL if path.name not in ELSEWHERE]
LIGHTNING_WARNS = {"lightning_trainer.py"}  # of folders that aren't empty, and of what it calls in torch


@pytest.mark.timeout(620)  # some start many processes, on a machine that may be busy
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    """Each asserts what it shows."""
    home = {name: str(tmp_path) for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR")}
    warnings = "ignore" if example.name in LIGHTNING_WARNS else "error"
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # dload's own first
    done = subprocess.run(
        [sys.executable if example.suffix == ".py" else shutil.which("bash"), str(example)],
        capture_output=True, text=True, check=False, timeout=600, cwd=tmp_path,
        env={**os.environ, "PATH": commands, "PYTHONWARNINGS": warnings, **home},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout and not done.stderr


def test_the_others_are_run_where_it_says() -> None:
    assert EXAMPLES
    for example, test in ELSEWHERE.items():
        assert Path(example).stem in (ROOT / test).read_text()


def test_the_list_names_each() -> None:
    lines = (FOLDER / "README.md").read_text().splitlines()
    for path in ALL:
        assert sum(f"[{path.name}]({path.name})" in line for line in lines) == 1, path.name
