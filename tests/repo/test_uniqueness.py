"""The check that keys are unique: against a dictionary, in memory and spilled, and what it leaves behind."""

from __future__ import annotations

import errno
import hashlib
import itertools
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.errors import DiskFullError
from dload.repo import uniqueness
from dload.repo.uniqueness import KeyCheck


def expected_pairs(keys: list[str]) -> list[tuple[int, int]]:
    numbered = list(enumerate(keys))
    return sorted((a, b) for (a, x), (b, y) in itertools.combinations(numbered, 2) if x == y)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=2), max_size=60), st.integers(1, 80))
def test_candidates_are_the_equal_keys_whether_spilled_or_not(keys: list[str], limit: int) -> None:
    with KeyCheck(limit=limit) as check:
        for ordinal, key in enumerate(keys):
            check.add(key, ordinal)
        assert sorted(check.finish()) == expected_pairs(keys)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=20), st.integers(1, 7))
def test_any_ordinals_in_any_order(ordinals: list[int], limit: int) -> None:
    with KeyCheck(limit=limit) as check:
        for ordinal in ordinals:
            check.add("same", ordinal)
        pairs = list(check.finish())
    assert sorted(pairs) == sorted(itertools.combinations(sorted(ordinals), 2))


def test_hashes_that_collide_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Different keys, equal hashes: a pair for the caller to compare, never lost and never an error here."""

    def weak(data: bytes, digest_size: int) -> Any:
        return hashlib.blake2b(str(int(data) % 100).encode(), digest_size=digest_size)

    monkeypatch.setattr(uniqueness, "blake2b", weak)
    with KeyCheck(limit=7) as check:
        for ordinal in range(300):
            check.add(str(ordinal), ordinal)
        pairs = sorted(check.finish())
    assert pairs == sorted((a, b) for a, b in itertools.combinations(range(300), 2) if a % 100 == b % 100)


def test_one_part_larger_than_memory_is_looked_at_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def lopsided(data: bytes, digest_size: int) -> Any:
        digest = hashlib.blake2b(data, digest_size=digest_size).digest()
        return type("Hash", (), {"digest": lambda _: b"\x07" + digest[1:]})()

    monkeypatch.setattr(uniqueness, "blake2b", lopsided)
    sizes = []
    real = uniqueness._equal
    monkeypatch.setattr(uniqueness, "_equal", lambda hashes, rows: sizes.append(len(hashes)) or real(hashes, rows))
    keys = [str(number % 1990) for number in range(2000)]
    with KeyCheck(limit=100) as check:
        for ordinal, key in enumerate(keys):
            check.add(key, ordinal)
        assert sorted(check.finish()) == [(number, number + 1990) for number in range(10)]
    assert max(sizes) < 200


def test_duplicates_within_one_filling_of_memory_are_told_at_once() -> None:
    with KeyCheck(limit=100) as check:
        told = [list(check.add(str(ordinal % 90), ordinal)) for ordinal in range(100)]
    assert not any(told[:-1])
    assert sorted(told[-1]) == [(number, number + 90) for number in range(10)]


def test_one_key_over_and_over_costs_no_more_than_others() -> None:
    with KeyCheck(limit=50_000) as check:
        told = [len(check.add("same", ordinal)) for ordinal in range(100_000)]
        assert sum(told) == 200
        assert list(itertools.islice(check.finish(), 2)) == [(0, 1), (0, 2)]


def test_finish_can_be_asked_twice_and_left_early_and_adding_can_go_on() -> None:
    keys = [str(number % 250) for number in range(500)]
    with KeyCheck(limit=30) as check:
        for ordinal, key in enumerate(keys[:300]):
            check.add(key, ordinal)
        assert sorted(check.finish()) == sorted(check.finish()) == expected_pairs(keys[:300])
        assert next(check.finish()) in expected_pairs(keys[:300])
        for ordinal, key in enumerate(keys[300:], 300):
            check.add(key, ordinal)
        assert sorted(check.finish()) == expected_pairs(keys)


def test_keys_that_are_no_unicode_are_someone_elses_to_refuse() -> None:
    with KeyCheck() as check:
        check.add("\ud800", 0)
        check.add("\udfff", 1)
        assert list(check.finish()) == []


def test_nothing_is_written_while_memory_lasts_and_nothing_stays(tmp_path: Path, open_files: Callable[[], int]) -> None:
    with KeyCheck(tmp_path / "missing", limit=10) as check:
        for ordinal in range(9):
            check.add(str(ordinal), ordinal)
        assert list(check.finish()) == []
    descriptors = open_files()
    with pytest.raises(RuntimeError), KeyCheck(tmp_path, limit=10) as check:
        for ordinal in range(100):
            check.add(str(ordinal), ordinal)
        assert open_files() == descriptors + 1
        raise RuntimeError
    assert open_files() == descriptors
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from dload.repo.uniqueness import KeyCheck
check = KeyCheck(Path(sys.argv[1]), limit=10)
for ordinal in range(100):
    check.add(str(ordinal), ordinal)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(uniqueness.tempfile, "TemporaryFile", full)
    with KeyCheck(tmp_path, limit=10) as check, pytest.raises(DiskFullError, match="free") as caught:
        for ordinal in range(100):
            check.add(str(ordinal), ordinal)
    assert caught.value.details["needed"] == 160
