"""Waiting for what other threads and processes are about to do."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool]) -> None:
    """Return when the condition holds. A wait in vain is ended by the test's own time limit, not by a shorter one that
    a busy machine would miss."""
    while not condition():
        time.sleep(0.002)
