"""The rules of the house: types, lint, floors, and that the README's commands are those that CI runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command", [["mypy"], ["ruff", "check", "."], ["ruff", "format", "--check", "."], ["lint-imports"]], ids=" ".join
)
def test_the_linters_are_content(command: list[str]) -> None:
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith((".venv", "python3"))]
    readme = (ROOT / "README.md").read_text()
    assert commands
    assert any("pytest" in command for command in commands)
    assert "\n".join(commands) in readme


def test_importing_dload_loads_none_of_its_rooms() -> None:
    code = "import sys, dload; print([m for m in sys.modules if m.startswith('dload.') or m in ('boto3', 'numpy')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    import dload

    for name in dload.__all__:
        assert getattr(dload, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = dload.nothing_like_this  # type: ignore[attr-defined]
