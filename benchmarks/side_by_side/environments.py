"""Each system in a virtual environment of its own, from the package registry.

All on one version of Python, so that no system is faster for its interpreter; `dload-ml 0.3.1` asks for 3.12 and runs
on 3.11 as well. PyTorch is pinned to one version for all that need it. An environment that is there isn't touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import platformdirs

PYTHON = "3.11"
_TORCH = ("torch==2.13.0", "numpy", "pillow")


@dataclass(frozen=True)
class Environment:
    """What pip installs for one system. `anyway`: whatever Python it says it needs, without what it depends on."""

    packages: tuple[str, ...]
    anyway: tuple[str, ...] = ()


ENVIRONMENTS = {
    "dload_ml": Environment(("boto3", "click", "msgpack", *_TORCH), anyway=("dload-ml==0.3.1",)),
    "litdata": Environment(("litdata==0.2.76", "boto3", *_TORCH)),
    "mosaicml": Environment(("mosaicml-streaming==0.13.0", *_TORCH)),
    "webdataset": Environment(("webdataset==1.0.2", "boto3", *_TORCH)),
    "lancedb": Environment(("lancedb==0.40.0", "pyarrow", *_TORCH)),
    "huggingface": Environment(("datasets==5.2.0", "pyarrow", "s3fs", *_TORCH)),
    "grain": Environment(("grain==0.2.18", "array_record==0.8.6", "numpy", "pillow")),
}
HERE = ("dload_now", "bare", "ideal")  # run in the runner's own environment


def default_folder() -> Path:
    return Path(platformdirs.user_cache_path("dload"), "benchmark-environments")


def interpreter(folder: Path, system: str) -> Path | None:
    """The Python that has `system`, if its environment was made."""
    if system in HERE:
        return Path(sys.executable)
    python = folder / system / "bin" / "python"
    return python if python.exists() else None


def make(folder: Path, systems: list[str]) -> None:
    """Make the environments that aren't there: minutes, and a gigabyte of disk each where there is PyTorch in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for system in systems:
        if system in HERE or interpreter(folder, system) is not None:
            print(f"{system:12} is there")
            continue
        environment, half = ENVIRONMENTS[system], folder / f"{system}.making"
        shutil.rmtree(half, ignore_errors=True)
        subprocess.run([_python(), "-m", "venv", str(half)], check=True)
        pip = [str(half / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *environment.packages], check=True)
        if environment.anyway:
            subprocess.run([*pip, "--ignore-requires-python", "--no-deps", *environment.anyway], check=True)
        half.rename(folder / system)  # its scripts name the old place; only its python is used
        print(f"{system:12} made in {folder / system}")


def _python() -> str:
    """An interpreter of version PYTHON: this one, one on the PATH, or one of pyenv's."""
    if sys.version.startswith(f"{PYTHON}."):
        return getattr(sys, "_base_executable", sys.executable)
    candidates = [shutil.which(f"python{PYTHON}"), shutil.which("python3"), shutil.which("python")]
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    candidates += sorted(map(str, pyenv.glob(f"{PYTHON}.*/bin/python")), reverse=True)
    ask = "import json, sys; print(json.dumps(list(sys.version_info[:2])))"
    for python in filter(None, candidates):
        told = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
        if not told.returncode and json.loads(told.stdout) == [int(part) for part in PYTHON.split(".")]:
            return python
    raise SystemExit(f"no Python {PYTHON} was found on the PATH or below {pyenv}; install one, say by: pyenv install")
