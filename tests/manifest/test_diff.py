"""Diffs of versions, against sets and dictionaries."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dload.manifest import Manifest, SampleDiff, ShardDiff, ShardInfo, ShardList, chosen, sample_diff, shard_diff

numbers = st.lists(st.integers(0, 20), max_size=12)


def shards(of: list[int]) -> Manifest:
    return Manifest("x", "", ShardList.of(ShardInfo(f"{number:064x}", 100, number, 1) for number in of))


@settings(max_examples=100, deadline=None)
@given(numbers, numbers)
def test_shard_diff(old: list[int], new: list[int]) -> None:
    diff = shard_diff(shards(old), shards(new))
    assert {old[number] for number in diff.removed} == set(old) - set(new)
    assert {new[number] for number in diff.added} == set(new) - set(old)
    assert len(diff.added) == len(set(diff.added))
    assert diff.shared == len(set(old) & set(new))


def test_shards_come_in_their_order_each_once() -> None:
    diff = shard_diff(shards([3, 1, 2]), shards([9, 1, 5, 9, 7]))
    assert diff.removed == [0, 2]
    assert diff.added == [0, 2, 4]
    assert diff.shared == 1


def test_a_shard_of_which_a_view_has_other_rows_counts_as_another() -> None:
    whole = shards([8, 9])
    views = []
    for flags in (b"\1" * 8 + b"\0" * 9, b"\1" * 8 + b"\1\0" * 4 + b"\1"):
        listed, rows = chosen(whole.shards, None, flags)
        views.append(Manifest("x", "", listed, rows=rows))
    assert shard_diff(whole, views[0]) == ShardDiff([1], [], 1)
    assert shard_diff(whole, views[1]) == ShardDiff([1], [1], 1)
    assert shard_diff(views[0], views[1]) == ShardDiff([], [1], 1)


contents = st.dictionaries(st.text(max_size=2), st.integers(0, 2), max_size=10)


@settings(max_examples=100, deadline=None)
@given(contents, contents)
def test_sample_diff(old: dict[str, int], new: dict[str, int]) -> None:
    diff = sample_diff(old.items(), reversed(new.items()))
    assert diff.added == sorted(new.keys() - old.keys())
    assert diff.removed == sorted(old.keys() - new.keys())
    assert diff.changed == sorted(key for key in old.keys() & new.keys() if old[key] != new[key])
    assert bool(diff) == (old != new)


def test_equal_versions_have_an_empty_diff() -> None:
    assert sample_diff([("a", 1), ("b", 2)], [("b", 2), ("a", 1)]) == SampleDiff([], [], [])
