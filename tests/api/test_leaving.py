"""A program that leaves an iterator in the middle and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Torch lets go of the interpreter's lock in C++: a thread that is killed when it takes the lock again unwinds through
# a destructor, and the whole process aborts.
PROGRAM = """
import sys, dload, torch
repo = dload.Repository.open(sys.argv[1], cache_dir=sys.argv[1] + "-cache")
repo.commit("x", ((f"{i:03d}", {"v": b"1"}) for i in range(500)))
matrix = torch.rand(300, 300)
def heavy(sample):
    torch.linalg.svd(matrix)
    return sample
pipe = repo.dataset("x").samples().map(heavy, workers=int(sys.argv[3]))
left = iter(dload.Loader(pipe, global_batch=2) if sys.argv[2] == "loader" else pipe)
next(left)
print("done")
"""


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("what", ["loader", "pipeline"])
def test_the_process_ends_well_while_a_thread_is_in_a_users_function(tmp_path: Path, what: str, workers: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), what, workers],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
