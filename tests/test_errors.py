"""The tree of exceptions: what programs rely on."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from dload import errors

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.DloadError)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_errors_survive_pickling_whole(cls: type[errors.DloadError]) -> None:
    error = cls("what happened", remedy="do this", key="k", expected=1)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert (str(copy), copy.message, copy.remedy, copy.details) == (
        "what happened — do this", "what happened", "do this", {"key": "k", "expected": 1},
    )  # fmt: skip


def test_kinds_are_stable_and_each_is_one_class() -> None:
    assert {c.kind: c.exit_code for c in CLASSES} == {
        "error": 1, "config": 2, "sample": 1, "duplicate-key": 1, "remote": 1, "unavailable": 1, "not-found": 10,
        "unknown-key": 10, "removed": 10, "access": 12, "conflict": 13, "precondition-failed": 13, "unsafe-store": 1,
        "integrity": 14, "format": 14, "cache-full": 15, "disk-full": 15, "infeasible": 15, "lock-timeout": 11,
        "too-many-failures": 1,
    }  # fmt: skip
    assert len({c.kind for c in CLASSES}) == len(CLASSES)


@pytest.mark.parametrize(("room", "name"), [("torch", "StreamLoader"), ("grain", "source"), ("ray", "read")])
def test_a_room_whose_package_is_missing_says_how_to_get_it(room: str, name: str) -> None:
    program = f"import sys; sys.modules[{room!r}] = None; from dload.{room} import {name}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert "ModuleNotFoundError" in done.stderr
    assert done.stderr.rstrip().endswith(f"pip install 'dload-ml[{room}]'")
