"""The example that trains in JAX from what Hugging Face `datasets` holds: two processes, then one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")
pytest.importorskip("datasets")
EXAMPLE = Path(__file__).parents[2] / "examples" / "jax_without_import.py"


def test_losses_are_those_of_one_process() -> None:
    done = subprocess.run([sys.executable, "-W", "error", str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _, _, table = done.stdout.partition("step  one process")  # before it processes say that they have met
    rows = [line.split() for line in table.splitlines()[1:]]
    assert [int(number) for number, _, _ in rows] == list(range(1, 21))
    alone, moved = ([float(row[column]) for row in rows] for column in (1, 2))
    assert moved == pytest.approx(alone, abs=2e-3)
    assert alone[-1] < alone[0] / 50
