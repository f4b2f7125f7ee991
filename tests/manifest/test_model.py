"""ShardList against a plain list of ShardInfo, and the manifest as an object."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.manifest import (
    FieldStats,
    Manifest,
    Packing,
    ShardInfo,
    ShardList,
    is_name,
    is_version,
    new_manifest,
)

rows = st.builds(
    ShardInfo,
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.integers(1000, 2**50),
    st.integers(0, 5),
    st.none() | st.integers(0, 1000),
)
lists = st.lists(rows, max_size=12)
bounds = st.none() | st.integers(-15, 15)


@settings(max_examples=150, deadline=None)
@given(lists, bounds, bounds, bounds.filter(lambda step: step != 0))
def test_it_is_a_sequence_like_a_plain_list(plain: list[ShardInfo], start: int, stop: int, step: int) -> None:
    shards = ShardList.of(iter(plain))
    assert len(shards) == len(plain)
    assert list(shards) == plain
    assert [shards[i] for i in range(-len(plain), len(plain))] == plain + plain
    assert list(reversed(shards)) == plain[::-1]
    part = shards[start:stop:step]
    assert isinstance(part, ShardList)
    assert list(part) == plain[start:stop:step]
    assert list(part.digests) == [row.digest for row in plain[start:stop:step]]
    for outside in (len(plain), -len(plain) - 1):
        with pytest.raises(IndexError):
            shards[outside]


@settings(max_examples=60, deadline=None)
@given(lists, lists)
def test_sums_equality_and_pickles(one: list[ShardInfo], other: list[ShardInfo]) -> None:
    first, second = ShardList.of(one), ShardList.of(other)
    assert list(first + second) == one + other
    assert (first == second) == (one == other)
    assert first == ShardList.of(one)
    assert pickle.loads(pickle.dumps(first + second)) == first + second
    assert ShardList.of(first) == first


@settings(max_examples=60, deadline=None)
@given(lists)
def test_columns(plain: list[ShardInfo]) -> None:
    shards = ShardList.of(plain)
    assert list(shards.digests) == [row.digest for row in plain]
    assert [shards.digests[i] for i in range(len(plain))] == [row.digest for row in plain]
    assert list(shards.sizes) == [row.size for row in plain]
    assert list(shards.counts) == [row.num_samples for row in plain]
    assert shards.index_sizes == [row.index_size for row in plain]
    assert list(shards.starts) == list(itertools.accumulate((row.num_samples for row in plain), initial=0))
    assert ShardList.of_columns(shards.digests, shards.sizes, shards.counts, shards.index_sizes) == shards


@settings(max_examples=60, deadline=None)
@given(lists)
def test_locate_finds_each_sample_also_behind_empty_shards(plain: list[ShardInfo]) -> None:
    shards = ShardList.of(plain)
    expected = [(number, row) for number, shard in enumerate(plain) for row in range(shard.num_samples)]
    assert [shards.locate(ordinal) for ordinal in range(len(expected))] == expected
    for outside in (-1, len(expected)):
        with pytest.raises(IndexError, match=f"sample {outside} of {len(expected)}"):
            shards.locate(outside)


def test_more_digests_than_are_turned_into_text_at_a_time() -> None:
    digests = [f"{number:064x}" for number in range(10_000)]
    shards = ShardList.of(ShardInfo(digest, 1, 1, 1) for digest in digests)
    assert list(shards.digests) == digests
    assert list(shards[4000:9000:7].digests) == digests[4000:9000:7]


def test_a_difference_in_any_column_is_a_difference() -> None:
    row = ShardInfo("ab" * 32, 10, 1, 5)
    others = [
        ShardInfo("cd" * 32, 10, 1, 5), ShardInfo("ab" * 32, 11, 1, 5),
        ShardInfo("ab" * 32, 10, 2, 5), ShardInfo("ab" * 32, 10, 1, None),
    ]  # fmt: skip
    for other in others:
        assert ShardList.of([row]) != ShardList.of([other])
    assert ShardList.of([row]) != [row]


def test_what_pickles_is_compact_and_leaves_derived_columns_behind() -> None:
    shards = ShardList.of(ShardInfo(f"{number:064x}", 1, 1, 1) for number in range(1000))
    before = len(pickle.dumps(shards))
    assert before < 57 * 1000
    assert shards.starts[-1] == 1000
    assert len(pickle.dumps(shards)) == before


def test_rows_that_cannot_be_are_refused() -> None:
    for row in (
        ShardInfo("x", 1, 1), ShardInfo("AB" * 32, 1, 1), ShardInfo("ab" * 32, -1, 1),
        ShardInfo("ab" * 32, 1, 2**64),
        ShardInfo("ab" * 32, 1, 1, 2), ShardInfo("ab" * 32, 1.5, 1),  # type: ignore[arg-type]
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"shard|digest|value"):
            ShardList.of([row])


def sample() -> Manifest:
    shards = [ShardInfo("ab" * 32, 200, 10, 20), ShardInfo("cd" * 32, 54, 1, 20)]
    return new_manifest("abc", shards, {"wav": FieldStats(11, 100)}, Packing(), {"a": 1}, None)[0]


def test_a_manifest_counts_and_shows_itself_briefly() -> None:
    manifest = sample()
    assert (manifest.num_samples, manifest.total_bytes) == (11, 254)
    assert repr(manifest) == f"Manifest(abc@{manifest.version[:12]}, 11 samples, 2 shards, 254 B)"
    assert repr(manifest.shards) == "ShardList(2 shards, 11 samples, 254 B)"


def test_the_time_comes_from_elsewhere_and_is_not_compared() -> None:
    manifest = sample()
    dated = manifest.with_created("2025-01-02T03:04:05Z")
    assert (manifest.created, dated.created) == (None, "2025-01-02T03:04:05Z")
    assert dated == manifest
    assert hash(dated) == hash(manifest)
    assert dated.version == manifest.version


def test_a_manifest_is_frozen_and_pickles() -> None:
    manifest = sample().with_created("then")
    assert manifest.num_samples == 11
    again = pickle.loads(pickle.dumps(manifest))
    assert again == manifest
    assert again.created == "then"
    with pytest.raises(FrozenInstanceError):
        manifest.name = "other"  # type: ignore[misc]


def test_names_and_versions() -> None:
    assert all(map(is_name, ["a", "0", "A.b_c-d", "a" * 100]))
    assert not any(map(is_name, ["", ".a", "-a", "_a", "a/b", "a b", "é", "a\n", "a" * 101]))
    assert is_version("0123456789abcdef" * 4)
    assert not any(map(is_version, ["", "ab" * 31, "AB" * 32, "ab" * 32 + "\n", "zz" * 32]))
