from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dload
from dload.testing.sources import LoggedSource

_SOURCE_TREE = Path(dload.__file__).parent.parent

_PROLOGUE = """
import os, sys, time
from pathlib import Path
from dload.cache import ShardCache
from dload.testing.sources import LoggedSource

def say(*words):
    print(*words, flush=True)

def hear():
    return sys.stdin.readline().strip()
"""


@pytest.fixture
def source(tmp_path: Path) -> LoggedSource:
    return LoggedSource(tmp_path / "source")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def open_to_all() -> Callable[[Path], None]:
    """Lets other users into a folder of the tests."""

    def allow(folder: Path) -> None:
        for each in (folder, *folder.parents):
            if each.is_relative_to("/tmp") and each != Path("/tmp"):
                each.chmod(each.stat().st_mode | 0o055)

    return allow


@pytest.fixture
def python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a real process that runs a piece of code with say(), hear(), ShardCache and LoggedSource at
    hand.
    """
    started = []

    def start(code: str, *arguments: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROLOGUE + code, *map(str, arguments)],
            cwd=_SOURCE_TREE, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
