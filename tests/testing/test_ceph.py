"""The gateway that a command gets: there for it, and gone afterwards, however it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

installed = pytest.mark.skipif(shutil.which("radosgw") is None, reason="Ceph isn't installed")
# What the command notes for the test: the processes beside it, which are the parts of Ceph, and itself.
_NOTE_CHILDREN = 'cat /proc/$PPID/task/$PPID/children > "$TMPDIR.children"'

Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begins a command with a gateway, whose files come into a folder of the test's."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    with contextlib.ExitStack() as stack:

        def begin(*command: str, **environment: str) -> subprocess.Popen[str]:
            words = [sys.executable, "-m", "dload.testing.ceph", "--", *command]
            env = {**os.environ, "TMPDIR": str(folder), **environment}
            pipe = subprocess.PIPE
            process = subprocess.Popen(words, env=env, text=True, stdout=pipe, stderr=pipe)
            stack.enter_context(process)
            stack.callback(process.terminate)
            return process

        yield begin


def _children(folder: Path) -> list[int]:
    """Waits for the command's note."""
    note = folder / "tmp.children"
    for _ in range(600):
        if note.exists() and (words := note.read_text().split()):
            return [int(word) for word in words]
        time.sleep(0.05)
    raise AssertionError("the command didn't begin")


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"  # an orphan that ended may stay where nobody reaps


def _all_end(pids: Sequence[int]) -> bool:
    for _ in range(200):
        if not any(map(_alive, pids)):
            return True
        time.sleep(0.05)
    return False


def test_what_is_missing_and_how_to_get_it(begin: Begin, tmp_path: Path) -> None:
    process = begin("true", PATH=str(tmp_path))
    _, errors = process.communicate()
    assert process.returncode == 2
    assert "radosgw" in errors and "apt-get install" in errors
    assert "Traceback" not in errors


@installed
def test_the_command_gets_a_gateway_that_knows_its_keys(begin: Begin, tmp_path: Path) -> None:
    ask = "import boto3; boto3.client('s3', region_name='us-east-1').create_bucket(Bucket='mine')"
    script = f'{_NOTE_CHILDREN}; echo $0 $AWS_ENDPOINT_URL; "$1" -c "$2" && exit 7'
    process = begin("sh", "-c", script, "{endpoint}", sys.executable, ask, AWS_SESSION_TOKEN="of another server")
    output, errors = process.communicate()
    assert process.returncode == 7, errors
    given, told = output.split()
    assert given == told and given.startswith("http://127.0.0.1:")
    children = _children(tmp_path)
    assert len(children) == 4
    assert _all_end(children)
    assert not any((tmp_path / "tmp").iterdir())


@installed
def test_asked_to_end_it_stops_everything(begin: Begin, tmp_path: Path) -> None:
    process = begin("sh", "-c", f"{_NOTE_CHILDREN}; exec sleep 60")
    children = _children(tmp_path)
    assert len(children) == 4 and all(map(_alive, children))
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert _all_end(children)
    assert not any((tmp_path / "tmp").iterdir())


@installed
def test_no_part_outlives_it(begin: Begin, tmp_path: Path) -> None:
    process = begin("sh", "-c", f"{_NOTE_CHILDREN}; exec sleep 60")
    *parts, command = _children(tmp_path)
    assert len(parts) == 3 and all(map(_alive, parts))
    process.kill()
    assert _all_end(parts)
    os.kill(command, signal.SIGTERM)  # this one is nobody's now
