"""What the documents show runs: every fragment of a document in turn, in one empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FRAGMENT = re.compile(r'^```(bash|python)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def fragments(document: str) -> list[tuple[str, str | None, str]]:
    """Language, the file that it is to be saved as, text."""
    return [found.groups() for found in FRAGMENT.finditer((ROOT / document).read_text())]


def environment(home: Path) -> dict[str, str]:
    """As on a machine where dload was just installed: no settings, its programs on the path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DLOAD_", "AWS_", "R2_"))}
    folders = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("DATA", "CACHE", "CONFIG")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**clean, **folders, "HOME": str(home), "PATH": path, "NO_COLOR": "1"}


@pytest.mark.parametrize("document", ["TUTORIAL.md"])
def test_every_fragment_runs(document: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    program = ""  # all that Python has been shown so far: later fragments use what earlier ones define
    for language, title, text in fragments(document):
        if title is not None:
            (work / title).write_text(text)
            continue
        if language == "bash":
            command = ["bash", "-euo", "pipefail", "-c", text]
        else:
            program += text
            command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, cwd=work, env=environment(tmp_path), capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
