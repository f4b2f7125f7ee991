"""The command line as its users run it: real processes, a folder for a store, a home of their own."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dload


@dataclass(frozen=True)
class Result:
    """What a command ended with and said."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """Runs `dload` in a folder of its own; nothing of this machine's settings is seen or changed."""

    def __init__(self, root: Path) -> None:
        self.cwd = root / "work"
        self.cwd.mkdir()
        self.store = root / "store"
        self.env = {
            **os.environ, "HOME": str(root / "home"), "DLOAD_STORE": str(self.store), "DLOAD_CACHE_BUDGET": "1GB",
            "DLOAD_CACHE_DIR": str(root / "cache"), "PYTHONPATH": str(Path(dload.__file__).parents[1]),
        }  # fmt: skip
        for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "NO_COLOR"):
            self.env.pop(name, None)

    def start(self, *arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dload", *map(str, arguments)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.cwd, env=self.env, **{**pipes, **options})

    def run(self, *arguments: str | Path) -> Result:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=120)
        return Result(process.returncode, out.decode(errors="surrogateescape"), err.decode())

    def ok(self, *arguments: str | Path) -> Result:
        """Run a command that must succeed."""
        result = self.run(*arguments)
        assert result.code == 0, result
        return result

    def fails(self, code: int, *arguments: str | Path) -> str:
        """Run a command that must end with `code`; gives what it said."""
        result = self.run(*arguments)
        assert result.code == code, result
        assert "Traceback" not in result.err
        return result.err

    def on_terminal(self, *arguments: str | Path, typed: str = "") -> Result:
        """Run a command on a pseudo terminal; all that it says is in `out`."""
        ours, theirs = pty.openpty()
        with self.start(*arguments, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
            os.close(theirs)
            os.write(ours, typed.encode())
            said = b""
            while select.select([ours], [], [], 60)[0]:
                try:
                    chunk = os.read(ours, 65536)
                except OSError:  # the terminal is closed
                    break
                if not chunk:
                    break
                said += chunk
        os.close(ours)
        return Result(process.returncode, said.decode(), "")

    def files(self, tree: dict[str, bytes | str], folder: str = "data") -> Path:
        for name, data in tree.items():
            path = self.cwd / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.encode() if isinstance(data, str) else data)
        return self.cwd / folder

    def commit(self, tree: dict[str, bytes | str], *options: str, name: str = "birds") -> str:
        """Commit a fresh folder of these files; gives the version."""
        folder = self.files(tree, f"data-{len(list(self.cwd.iterdir()))}")
        version: str = self.ok("commit", name, "--from", folder, "--json", *options).json()["version"]
        return version


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)
