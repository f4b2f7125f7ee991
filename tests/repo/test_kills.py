"""Real processes, killed at random moments: a bounded number here, any number by `python -m dload.testing.kills`."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("store", "count"), [("folder", 12), ("s3", 8)])
def test_killed_at_any_moment_nothing_is_lost_and_the_same_command_finishes(store: str, count: int) -> None:
    command = [sys.executable, "-m", "dload.testing.kills", "--count", str(count), "--store", store]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} killed" in done.stdout
