"""A short run of the soak: many processes at a time, on a bad day of the server. An hour of it is one command:

python -m dload.testing.soak --minutes 60 --s3
"""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.timeout(900)  # a machine that is busy takes its time
@pytest.mark.parametrize(("options", "seconds"), [([], 20), (["--s3"], 40)], ids=["folder", "s3"])
def test_mixed_jobs_lose_nothing_and_read_what_was_committed(options: list[str], seconds: float) -> None:
    command = [sys.executable, "-m", "dload.testing.soak", "--minutes", str(seconds / 60), "--seed", "3", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "versions in the end" in done.stdout
    print(done.stdout)
