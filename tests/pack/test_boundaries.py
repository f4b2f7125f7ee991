"""Where shards end: against a slow literal reading of the rules, and how little an edit moves them."""

from __future__ import annotations

from fractions import Fraction
from hashlib import blake2b
from random import Random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError
from dload.pack import Cutter, cuts

Item = tuple[str, int, tuple[str, ...]]


def reference(items: list[Item], t: int, boundaries: str, max_layouts: int = 65_535) -> list[int]:
    """The rules, word by word, with fractions."""
    shards: list[list[Item]] = []
    for item in items:
        _, size, names = item
        shard = shards[-1] if shards else []
        payload = sum(size for _, size, _ in shard)
        layouts = {names for _, _, names in shard}
        begin = not shards
        if shard:
            last_key, last_size, _ = shard[-1]
            h = int.from_bytes(blake2b(last_key.encode("utf-8"), digest_size=8).digest(), "little")
            if boundaries == "content":
                # cut before a sample that would take the payload past 2t
                begin |= payload + size > 2 * t
                # cut after a sample that leaves the payload at t/2 or more and for which H(key) / 2^64 < size / (t/2)
                begin |= payload >= Fraction(t, 2) and Fraction(h, 2**64) < Fraction(last_size) / Fraction(t, 2)
            else:
                # cut after the sample that reaches t
                begin |= payload >= t
                # a sample larger than 2t has a shard of its own
                begin |= size > 2 * t
            # a shard ends before its 65,536th layout
            begin |= len(layouts | {names}) > max_layouts
        if begin:
            shards.append([])
        shards[-1].append(item)
    return [len(shard) for shard in shards]


items_of = st.lists(
    st.tuples(
        st.text(min_size=1, max_size=4),
        st.integers(17, 60) | st.integers(17, 700),
        st.sampled_from([("x",), ("y",), ("x", "y")]),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(items=items_of, target=st.integers(1, 400), boundaries=st.sampled_from(["content", "size"]))
def test_the_cutter_follows_the_rules(items: list[Item], target: int, boundaries: str) -> None:
    expected = reference(items, target, boundaries)
    assert list(cuts(items, target, boundaries)) == expected
    cutter = Cutter(target, boundaries)
    begins = [cutter.begins(*item) for item in items]
    starts = [sum(expected[:number]) for number in range(1, len(expected))]
    assert [row for row, begin in enumerate(begins) if begin] == starts


def test_a_fixed_sequence_is_cut_where_it_always_was() -> None:
    items = [(f"key{row}", 100 + row % 7, ("x",)) for row in range(200)]
    assert list(cuts(items, 1000)) == reference(items, 1000, "content")
    assert list(cuts(items, 1000))[:8] == [7, 15, 8, 12, 9, 6, 10, 5]
    assert list(cuts(items, 1000, "size"))[:3] == [10, 10, 10]


def test_a_sample_larger_than_twice_the_target_is_alone() -> None:
    items = [("a", 50, ()), ("huge", 201, ()), ("b", 50, ())]
    for boundaries in ("content", "size"):
        assert list(cuts(items, 100, boundaries)) == [1, 1, 1]


def test_a_shard_ends_before_its_65536th_layout() -> None:
    items = [(f"k{row}", 20, (f"f{row}",)) for row in range(65_535 + 10)]
    again = [("again", 20, ("f3",))]
    for boundaries in ("content", "size"):
        assert list(cuts(items, 1 << 40, boundaries)) == [65_535, 10]
        assert list(cuts(items[:65_535] + again + items[65_535:], 1 << 40, boundaries)) == [65_536, 10]


def test_the_mean_is_about_the_target() -> None:
    random = Random(5)
    target = 100_000
    items = [(f"sample-{row}", random.randrange(100, 3000), ("x",)) for row in range(60_000)]
    counts = list(cuts(items, target))
    assert 0.92 * target < sum(size for _, size, _ in items) / len(counts) < 1.05 * target


def shards_of(items: list[Item], target: int) -> set[tuple[Item, ...]]:
    rest = iter(items)
    return {tuple(next(rest) for _ in range(count)) for count in cuts(items, target)}


def test_case_c07_one_change_or_insertion_alters_at_most_two_shards() -> None:
    random = Random(7)
    items: list[Item] = [(f"sample-{row:05d}", random.randrange(100, 2000), ("x",)) for row in range(10_000)]
    target = 200_000
    before = shards_of(items, target)
    assert len(before) > 40
    inserted = [("aaa", 500, ("x",)), *items]
    assert 1 <= len(shards_of(inserted, target) - before) <= 2
    changed = list(items)
    changed[5000] = ("sample-05000", 4000, ("x",))
    assert 1 <= len(shards_of(changed, target) - before) <= 2


def test_edits_anywhere_stay_local() -> None:
    """A shard that found no cut of its own before 2t (one in twenty) hands its boundary on; all others take it back."""
    random = Random(8)
    items: list[Item] = [(f"sample-{row:05d}", random.randrange(100, 2000), ("x",)) for row in range(4000)]
    target = 100_000
    before = shards_of(items, target)
    altered = []
    for _ in range(60):
        at = random.randrange(len(items))
        edited = list(items)
        match random.randrange(3):
            case 0:
                edited.insert(at, (f"new-{at}", 700, ("x",)))
            case 1:
                del edited[at]
            case _:
                edited[at] = (items[at][0], 1500, ("x",))
        altered.append(len(shards_of(edited, target) - before))
    assert mean(altered) < 1.5
    assert sum(count <= 2 for count in altered) >= 57


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigError, match="at least 1 byte, got 0"):
        Cutter(0)
    with pytest.raises(ConfigError, match="unknown boundaries 'rows'"):
        list(cuts([], 10, "rows"))
