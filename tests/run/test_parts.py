from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from dload.run.parts import consecutive, scattered

counts = st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any)


def where(sizes: list[int]) -> list[tuple[int, int]]:
    """(shard, row) of every sample."""
    return [(shard, row) for shard, size in enumerate(sizes) for row in range(size)]


@given(counts, st.data())
def test_consecutive_samples(sizes: list[int], data: st.DataObject) -> None:
    places, starts = where(sizes), list(accumulate(sizes, initial=0))
    start = data.draw(st.integers(0, len(places)))
    stop = data.draw(st.integers(start, len(places)))
    parts = consecutive(starts, range(start, stop))
    assert [(shard, row) for shard, first, last in parts for row in range(first, last)] == places[start:stop]
    assert len({shard for shard, _, _ in parts}) == len(parts)


@given(counts, st.data())
def test_scattered_samples(sizes: list[int], data: st.DataObject) -> None:
    places, starts = where(sizes), list(accumulate(sizes, initial=0))
    ordinals = data.draw(st.lists(st.integers(0, len(places) - 1)))
    parts = scattered(starts, ordinals)
    found: list[tuple[int, int] | None] = [None] * len(ordinals)
    for shard, rows, slots in parts:
        assert rows == sorted(rows) or (len(parts) == 1 and list(slots) == list(range(len(ordinals))))
        for row, slot in zip(rows, slots, strict=True):
            found[slot] = shard, row
    assert found == [places[ordinal] for ordinal in ordinals]
    assert [shard for shard, _, _ in parts] == sorted({shard for shard, _, _ in parts})
