"""With homes, a node reads a part of the data of its own: in all epochs, whatever an epoch leaves out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.pipeline.dealing import Deal
from dload.pipeline.elementwise import Enumerate
from dload.pipeline.lanes import Grid
from dload.pipeline.node import Node
from dload.pipeline.order import left_out
from dload.pipeline.reorder import Shuffle
from dload.testing.pipelines import elements, made_source, make_run

NODES, EPOCHS = 4, 6

TOPS: dict[str, Callable[[list[int]], Node]] = {
    "shuffled": lambda sizes: Shuffle(made_source(sizes), 25),
    "shuffled and numbered": lambda sizes: Enumerate(Shuffle(made_source(sizes), 25)),
    "in full": lambda sizes: Shuffle(made_source(sizes), full=True),
}


def shards_of(make: Callable[[], Node], ends: str, column: int) -> tuple[set[int], int]:
    """The shards that a column's lane reads in all epochs, and how many rows."""
    read: set[int] = set()
    count = 0
    for epoch in range(EPOCHS):
        node = make()
        run, rows = make_run(node, homes=NODES)
        cursor = Deal(node, Grid(3 * NODES, NODES), ends).lane_cursor(run, epoch, column)
        cursor.reset(None)
        for _ in cursor:
            read |= {shard for _, shard in rows.last}
            count += 1
    return read, count


@pytest.mark.parametrize("kind", sorted(TOPS))
@pytest.mark.parametrize(
    "sizes", [[10] * 40, [*[10] * 39, 5], [7, 13] * 20, [401]], ids=["even", "short", "odd", "one"]
)
def test_a_node_reads_its_own_part_and_at_most_a_border_shard_with_its_neighbour(kind: str, sizes: list[int]) -> None:
    found = [shards_of(lambda: TOPS[kind](sizes), "drop", column) for column in range(NODES)]
    assert {count for _, count in found} == {sum(sizes) // (3 * NODES) * 3 * EPOCHS}
    nodes_of = [sum(shard in read for read, _ in found) for shard in range(len(sizes))]
    assert sum(nodes_of) <= len(sizes) + NODES - 1
    if len(sizes) > 1:
        assert max(nodes_of) <= 2


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 3), st.integers(1, 4), st.data())
def test_what_each_home_leaves_out_is_gone_around(sizes: list[int], homes: int, rows: int, data: st.DataObject) -> None:
    """Places in any order, states and the demand (which the runs check) agree with the order without what is left
    out."""
    batch = homes * rows
    deal = Deal(Enumerate(Shuffle(made_source(sizes), 6, 3)), Grid(batch, homes), "drop")
    order = elements(deal.top, 2, homes=homes)
    run, feeds = make_run(deal.top, homes=homes)
    for first, count in reversed(left_out(3, (2,), len(order), batch, homes)):
        del order[first : first + count]
    each = len(order) // homes
    for column in range(homes):
        cursor = deal.lane_cursor(run, 2, column)
        at = data.draw(st.integers(0, each))
        cursor.reset(at)
        assert list(cursor) == order[column * each + at : (column + 1) * each]
    feeds.checking = False
    assert deal._node.fetch(run, (2,), range(len(order))[::-1]) == order[::-1]
    start = data.draw(st.integers(0, len(order)))
    assert deal._node.fetch(run, (2,), range(start, len(order))) == order[start:]
