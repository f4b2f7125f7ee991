"""A program that leaves an iterator in the middle and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# NumPy's FFT is C++ with the lock of the interpreter let go, as in many libraries: a thread that is killed when it
# takes the lock again unwinds through code that mustn't throw, and aborts the process.
PROGRAM = """
import sys, dload
import numpy as np
repo = dload.Repository.open(sys.argv[1], cache_dir=sys.argv[1] + "-cache")
repo.commit("x", ((f"{i:03d}", {"v": b"1"}) for i in range(5000)))
def heavy(sample):
    for _ in range(200):
        np.fft.rfft(np.ones(4096))
    return sample
loader = dload.Loader(repo.dataset("x").samples().map(heavy), global_batch=10)
for step in loader:
    break
print("done")
"""


def test_the_process_ends_well_while_a_thread_is_in_a_users_function(tmp_path: Path) -> None:
    for number in range(3):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / str(number))],
            capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
