"""dload demo"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dload.cli.output import count
from dload.cli.session import Session, verb
from dload.errors import ConfigError, DloadError
from dload.sizes import format_size

if TYPE_CHECKING:
    from dload.api import Dataset, Pipeline

_NAME = "python-library"
_SHARD_SIZE = "2MiB"
# What is left out is large, made at run time, or belongs to other packages.
_LEFT_OUT = ("__pycache__", "site-packages", "dist-packages", "test", "tests", "config-*", "*.so", "*.a")


@verb("demo")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Work in this new folder and leave it there (default: a temporary one, deleted at the end).",
)
def command(session: Session, folder: Path | None) -> None:  # fmt: skip
    """Show what dload does, on real files: Python's own library.

    Commits them into a store that is a plain folder, changes one and commits again, pins, streams them shuffled and
    resumes in the middle, looks one sample up, and writes the files back and compares them. Needs no network and no
    settings, and changes none.
    """
    from dload.cli.main import run

    with _workplace(folder) as place, _settings(place):
        _Demo(session, run, place).all_steps()
    if folder is not None:
        session.out.say(f"all of it is in {folder}")
    session.out.next("dload init --store s3://bucket/prefix")


@dataclass
class _Demo:
    """The steps, each a command as anyone would type it."""

    session: Session
    run: Callable[[list[str]], int]
    place: Path

    def all_steps(self) -> None:
        files = self.place / "files"
        self.title(f"Real files to work with: a copy of {sysconfig.get_path('stdlib')}")
        _copy_library(files)
        found = [path for path in files.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in found)
        self.session.out.data(f"{count(len(found), 'file')}, {format_size(size)}, in {files}")

        self.title("Commit the folder: its files become samples, packed into shards")
        self.dload("commit", _NAME, "--from", "files", "--shard-size", _SHARD_SIZE, "-m", "as installed")
        self.title("Commit it again: nothing has changed, so nothing is sent")
        self.dload("commit", _NAME, "--from", "files")
        self.title("Change one file: only the shard around it is sent")
        changed = files / "this.py"
        changed.write_bytes(changed.read_bytes() + b"# one more line\n")
        self.session.out.data(f"$ echo '# one more line' >> {changed.relative_to(self.place)}")
        self.dload("commit", _NAME, "--from", "files", "-m", "one more line")
        self.dload("log", _NAME)
        self.dload("diff", _NAME, self.first_version(), "latest", expect=4)

        self.title("Pin the version that this project uses, in dload.lock, to be kept under version control")
        self.dload("pin", _NAME)
        self.dload("ls")

        self.title("Stream it through the cache, shuffled, as a training would")
        keys = self.stream()
        self.title("Stop in the middle, and resume exactly there")
        self.resume(keys)
        self.title("Read one sample, and nothing else")
        self.dload("head", _NAME, "-n", "3")
        self.dload("cat", _NAME, "this", "py")

        self.title("Write the files back, and compare them with the folder that was committed")
        self.dload("pull", _NAME, "--to", "back")
        self.compare(files, self.place / "back", found)

    def title(self, text: str) -> None:
        self.session.out.data(f"\n# {text}")

    def dload(self, *arguments: str, expect: int = 0) -> None:
        """Say a command and run it."""
        self.session.out.data("$ dload " + " ".join(f"'{a}'" if " " in a else a for a in arguments))
        code = self.run(list(arguments))
        if code == 130:
            raise KeyboardInterrupt
        if code != expect:
            raise DloadError(f"dload {arguments[0]} ended with {code}", remedy="please report it, with the lines above")

    def first_version(self) -> str:
        from dload.api import Repository

        return Repository.open().log(_NAME)[-1].version[:12]

    def stream(self) -> list[str]:
        """Goes over the data set once, shuffled; gives the keys in that order."""
        self.session.out.data(f'>>> pipe = dload.Repository.open().dataset("{_NAME}").samples().shuffle(seed=0)')
        self.session.out.data(">>> for key, fields in pipe: ...")
        pipe = _shuffled()
        total = sum(stats.bytes for stats in _dataset().manifest.fields.values())
        begun, keys, size = time.monotonic(), [], 0
        with self.session.out.bar("streaming", total) as bar:
            for key, fields in pipe:
                amount = sum(map(len, fields.values()))
                keys.append(key)
                size += amount
                bar.advance(amount)
        took = max(time.monotonic() - begun, 1e-6)
        rate = f"{len(keys) / took:,.0f} samples/s, {format_size(round(size / took))}/s"
        self.session.out.data(f"{count(len(keys), 'sample')}, {format_size(size)} in {took:.2f} s: {rate}")
        return keys

    def resume(self, keys: list[str]) -> None:
        """Stops in the middle of that epoch, and goes on in what could be another process on another machine."""
        self.session.out.data(f">>> iterator = iter(pipe)  # ... and after {len(keys) // 2} samples:")
        self.session.out.data(">>> state = iterator.get_state()")
        with iter(_shuffled()) as iterator:
            head = [key for key, _ in islice(iterator, len(keys) // 2)]
            state = json.dumps(iterator.get_state())
        self.session.out.data(">>> rest = list(pipe.iter(state=state))")
        rest = [key for key, _ in _shuffled().iter(state=json.loads(state))]
        if head + rest != keys:
            raise DloadError("the two halves are not the whole", remedy="please report it")
        self.session.out.data(
            f"{len(head)} + {len(rest)} samples: the same order, each exactly once, from a state of {len(state)} bytes"
        )

    def compare(self, source: Path, back: Path, found: list[Path]) -> None:
        names = [str(path.relative_to(source)) for path in found]
        same, different, missing = filecmp.cmpfiles(source, back, names, shallow=False)
        extra = sum(path.is_file() for path in back.rglob("*")) - len(names)
        if different or missing or extra:
            raise DloadError(f"{len(different)} files differ, {len(missing)} are missing, {extra} are too many")
        self.session.out.data(f"{count(len(same), 'file')} compared byte for byte: all the same\n")


def _dataset() -> Dataset:
    from dload.api import Repository

    return Repository.open().dataset(_NAME)


def _shuffled() -> Pipeline:
    return _dataset().samples().shuffle(seed=0)


@contextmanager
def _workplace(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="dload-demo-") as temporary:
            yield Path(temporary)
        return
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty", remedy="choose a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder.absolute()


@contextmanager
def _settings(place: Path) -> Iterator[None]:
    """Settings of its own, so that neither the user's store nor the cache are touched."""
    own = {
        "DLOAD_STORE": str(place / "store"), "DLOAD_CACHE_DIR": str(place / "cache"), "DLOAD_CACHE_BUDGET": "1GB",
        "XDG_CONFIG_HOME": str(place / "settings"), "XDG_STATE_HOME": str(place / "state"),
    }  # fmt: skip
    before, here = dict(os.environ), Path.cwd()
    for name in [name for name in os.environ if name.startswith("DLOAD_")]:
        del os.environ[name]
    os.environ.update(own)
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


def _copy_library(files: Path) -> None:
    shutil.copytree(
        sysconfig.get_path("stdlib"), files, ignore=shutil.ignore_patterns(*_LEFT_OUT), ignore_dangling_symlinks=True
    )
