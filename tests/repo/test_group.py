"""The samples of a shard while they are collected: what goes in comes out, and it takes little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import dload
from dload.pack import Sample, sample_size
from dload.repo.group import Group, LazySample

VALUES = st.one_of(st.binary(max_size=40), st.integers(0, 2000).map(bytes), st.binary(max_size=9).map(bytearray))
FIELDS = st.dictionaries(st.sampled_from(["a", "b", "é"]), VALUES, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=5), FIELDS, st.booleans(), st.integers(1, 300)), max_size=12))
def test_samples_come_out_as_they_went_in(given_: list[tuple[str, dict[str, Any], bool, int]]) -> None:
    group, expected = Group(), []
    for key, fields, lazy, times in given_:
        for _ in range(times):
            sizes = {name: len(value) for name, value in fields.items()}
            item: Any = LazySample(key, sizes, lambda fields=fields: fields) if lazy else (key, fields)
            group.add(item, tuple(fields), sample_size(key, fields))
            expected.append((key, fields))
    assert bool(group) == bool(expected)
    found = group.lazy()
    assert (found is not None) == all(lazy for _, _, lazy, _ in given_)
    out = list(group.taken())
    assert [(key, dict(fields)) for key, fields in out] == expected
    assert [list(fields) for _, fields in out] == [list(fields) for _, fields in expected]
    assert not group


def many(count: int) -> Iterator[Sample]:
    return ((f"sample-{row:08d}", {"x": row.to_bytes(100, "big")}) for row in range(count))


def test_small_samples_take_little_more_than_their_bytes() -> None:
    count, group = 20_000, Group()
    tracemalloc.start()
    try:
        for key, fields in many(count):
            group.add((key, fields), ("x",), sample_size(key, fields))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 140 * count, "115 bytes each, of 20,000, and what the last 256 are"
    assert sum(1 for _ in group.taken()) == count


def test_case_c80_a_commit_holds_small_samples_in_little_memory(tmp_path: Path) -> None:
    count = 30_000
    repo = dload.Repository.open(str(tmp_path / "store"), cache_dir=tmp_path / "cache")
    repo.commit("few", many(10))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        repo.commit("many", many(count))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 320 * count, "a shard's samples, and its index while it is written and read back"
    assert len(repo.dataset("many")) == count
