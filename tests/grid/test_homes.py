"""With homes, a node reads a part of the data of its own: in all epochs, whatever an epoch leaves out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.pipeline.dealing import Deal
from dload.pipeline.elementwise import Enumerate
from dload.pipeline.group import Windows
from dload.pipeline.lanes import Grid
from dload.pipeline.node import Node
from dload.pipeline.order import left_out
from dload.pipeline.reorder import Shuffle
from dload.testing.pipelines import elements, made_source, make_run

NODES, EPOCHS = 4, 6

TOPS: dict[str, Callable[[list[int]], Node]] = {
    "shuffled": lambda sizes: Shuffle(made_source(sizes), 25),
    "shuffled and numbered": lambda sizes: Enumerate(Shuffle(made_source(sizes), 25)),
    "shuffled, in batches": lambda sizes: Enumerate(Windows(Shuffle(made_source(sizes), 25), 2)),
    "in full": lambda sizes: Shuffle(made_source(sizes), full=True),
}
ENDS: dict[str, int | None] = {"drop": None, "endless": None, "steps": 11}


def shards_of(make: Callable[[], Node], ends: str, column: int) -> tuple[set[int], int]:
    """The shards that a column's lane reads in all epochs, and how many elements it gives."""
    read: set[int] = set()
    count = 0
    node = make()
    length = node.length
    assert length is not None
    run, rows = make_run(node, homes=NODES)
    deal = Deal(node, Grid(3 * NODES, NODES), ends, ENDS[ends])
    for epoch in range(1 if ends == "endless" else EPOCHS if ends == "drop" else EPOCHS * length // (33 * NODES)):
        cursor = deal.lane_cursor(run, epoch, column)
        cursor.reset(None)
        for _ in islice(cursor, EPOCHS * length // (3 * NODES) * 3):
            read |= {shard for _, shard in rows.last}
            count += 1
        cursor.close()
    return read, count


@pytest.mark.parametrize("ends", sorted(ENDS))
@pytest.mark.parametrize("kind", sorted(TOPS))
@pytest.mark.parametrize(
    "sizes", [[10] * 40, [*[10] * 39, 5], [7, 13] * 20, [401]], ids=["even", "short", "odd", "one"]
)
def test_a_node_reads_its_own_part_and_at_most_border_shards_with_its_neighbour(
    kind: str, sizes: list[int], ends: str
) -> None:
    found = [shards_of(lambda: TOPS[kind](sizes), ends, column) for column in range(NODES)]
    assert len({count for _, count in found}) == 1
    nodes_of = [sum(shard in read for read, _ in found) for shard in range(len(sizes))]
    each = 1 if ends == "drop" else 2  # an epoch that begins inside a step moves a border by less than a step's rows
    assert sum(nodes_of) <= len(sizes) + each * (NODES - 1)
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
