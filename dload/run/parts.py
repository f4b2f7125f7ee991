"""Which rows of which shards a read is made of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def consecutive(starts: Sequence[int], ordinals: range) -> list[tuple[int, int, int]]:
    """(shard, first row, last row + 1) of consecutive samples, in order; `starts`: the shards' first ordinals."""
    parts: list[tuple[int, int, int]] = []
    at = ordinals.start
    while at < ordinals.stop:
        number = bisect_right(starts, at) - 1
        stop = min(ordinals.stop, starts[number + 1])
        parts.append((number, at - starts[number], stop - starts[number]))
        at = stop
    return parts


def scattered(starts: Sequence[int], ordinals: Sequence[int]) -> list[tuple[int, list[int], Sequence[int]]]:
    """(shard, its rows, where in `ordinals` they are) of any samples: in storage order, or where they are all in one
    shard, which needs no sorting, in the order given."""
    if not ordinals:
        return []
    number = bisect_right(starts, min(ordinals)) - 1
    if max(ordinals) < starts[number + 1]:
        first = starts[number]
        return [(number, [ordinal - first for ordinal in ordinals], range(len(ordinals)))]
    order = sorted(range(len(ordinals)), key=ordinals.__getitem__)
    in_order = [ordinals[place] for place in order]
    parts: list[tuple[int, list[int], Sequence[int]]] = []
    low = 0
    while low < len(order):
        number = bisect_right(starts, in_order[low]) - 1
        first = starts[number]
        high = bisect_right(in_order, starts[number + 1] - 1, low)
        parts.append((number, [ordinal - first for ordinal in in_order[low:high]], order[low:high]))
        low = high
    return parts
