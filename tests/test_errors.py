"""The tree of exceptions: what programs rely on."""

from __future__ import annotations

import pickle

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
