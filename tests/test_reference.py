"""The reference: every public name says what it is and what it takes, and has its place on the site."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dload.grain
import dload.jax
import dload.ray
import dload.store
import dload.torch

ROOT = Path(__file__).parent.parent
MODULES = (dload, dload.torch, dload.ray, dload.importers, dload.config)
BESIDE = {
    dload.codecs: [f"{kind}_{way}" for kind in ("json", "text", "npy", "tokens") for way in ("bytes", "from")],
    dload.jax: ["Loader", "DataPartition", "stacked"],
    dload.grain: ["source", "map_dataset", "iter_dataset"],
    dload.store: ["Store", "open_store"],
    dload.errors: [name for name in dir(dload.errors) if name.endswith("Error")],
}  # modules whose public names are these
ELSEWHERE = re.compile(r"\b(?:as|[Ss]ee|for|in)\s+`(?:\w+\.)*(\w+)[`(]")


def public() -> Iterator[tuple[str, Any]]:
    """All that users call, and the classes that they meet."""
    named = [*((module, module.__all__) for module in MODULES), *BESIDE.items()]
    for module, names in named:
        for name in names:
            if callable(value := getattr(module, name)):
                yield f"{module.__name__}.{name}", value


def described() -> Iterator[tuple[str, Any, list[Any]]]:
    """Everything public with members, and where its parameters may be described: in itself, in its class."""
    for name, value in public():
        if not inspect.isclass(value):
            yield name, value, [value]
            continue
        ours = [base for base in value.__mro__ if base.__module__.startswith("dload")]
        yield name, value, ours
        for member in sorted({member for base in ours for member in vars(base) if not member.startswith("_")}):
            found = getattr(value, member)
            if isinstance(found, property) or callable(found):
                yield f"{name}.{member}", found, [found, *ours]


def texts(values: list[Any], depth: int = 2) -> str:
    """Their docstrings, and those of what these name as the place where more is said."""
    text = "\n".join(inspect.getdoc(value) or "" for value in values)
    for name in ELSEWHERE.findall(text) if depth else ():
        places = [*values, *MODULES, dload.Repository]
        if (place := next((place for place in places if hasattr(place, name)), None)) is not None:
            around = [place] if inspect.isclass(place) else []
            text += "\n" + texts([getattr(place, name), *around], depth - 1)
    return text


def test_every_public_name_has_a_docstring_that_describes_its_parameters() -> None:
    lacking = []
    for name, value, places in described():
        if not inspect.getdoc(value):
            lacking.append(f"{name}: no docstring")
        if isinstance(value, property) or getattr(value, "_is_protocol", False):
            continue
        said = texts(places)
        parameters = [each for each in inspect.signature(value).parameters if each not in ("self", "cls")]
        lacking += [f"{name}: {each}" for each in parameters if not re.search(rf"\b{each}\b", said)]
    assert not lacking, "\n".join(lacking)


def inventory(path: Path) -> set[str]:
    """The names that a built site describes (objects.inv: four lines, then a compressed table)."""
    table = path.read_bytes().split(b"\n", 4)[4]
    return {line.split()[0] for line in zlib.decompress(table).decode().splitlines()}


@pytest.mark.timeout(900)
def test_the_site_is_built_without_a_warning_and_has_every_public_name(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "trees", "-c", "docs"]
    done = subprocess.run([*build, ".", tmp_path / "site"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    known = inventory(tmp_path / "site/objects.inv")
    names: dict[Any, list[str]] = {}  # an object may have several, of which one is on the site
    for name, value in public():
        names.setdefault(value, []).append(name)
    assert not [each for each in names.values() if known.isdisjoint(each)]
    classes = ("dload.Repository.", "dload.Dataset.", "dload.Pipeline.", "dload.Loader.")
    assert not [name for name, _, _ in described() if name.startswith(classes) and name not in known]
    for page in ("README", "TUTORIAL", "DESIGN", "BENCHMARKS", "examples/README", "docs/migrating/from-dvc"):
        assert (tmp_path / f"site/{page}.html").is_file()
