"""Which part of a pipeline can be computed piece by piece, on whatever machine, and in which pieces.

In the index tier an element is a function of its place. Above that, nodes that make of each element none, one or
several ask for no more than the elements themselves. All else needs to know what came before.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dload.errors import ConfigError
from dload.pipeline.elementwise import Elementwise, Enumerate
from dload.pipeline.group import Expand, Filter
from dload.pipeline.node import Node
from dload.pipeline.reorder import Skip, Take

_WHY = {
    "batch": "which elements come together hangs on how many the nodes below it leave",
    "enumerate": "its numbers hang on how many elements the nodes below it leave",
    "pack": "where a block begins hangs on how long the documents before it are",
    "scan": "each of its states is made of the one before",
    "shuffle": "it draws from a window that what came before has filled",
    "skip": "where it begins hangs on how many elements the nodes below it leave",
    "take": "where it ends hangs on how many elements the nodes below it leave",
    "through": "its function gets the whole stream, in order",
    "window": "which elements come together hangs on how many the nodes below it leave",
}
_ELSE = "its elements have no places of their own, since a node below it leaves elements out or gives more of them"


@dataclass(frozen=True)
class Parallel:
    """A pipeline that can be computed in stretches: a node with places, and those above it, the topmost first."""

    above: tuple[Node, ...]
    base: Node

    def stretch(self, start: int, stop: int) -> Node:
        """The pipeline over the places [start, stop) of its base alone. All draws are those of the whole."""
        top: Node = Take(Skip(self.base, start), stop - start)
        for node in reversed(self.above):
            found = copy.copy(node)
            found.parents = (top,)
            top = found
        return top


def parallel(top: Node) -> Parallel:
    """How a pipeline can be computed in stretches. Raises ConfigError, naming the node that is in the way, why, and
    what to do."""
    above: list[Node] = []
    node = top
    while not node.indexed:
        if not isinstance(node, Elementwise | Expand | Filter) or isinstance(node, Enumerate):
            raise ConfigError(
                f"{node.kind} can't be computed piece by piece: {_WHY.get(node.kind, _ELSE)}",
                remedy="where a filter or flat_map below it is why, filter(holes=True) and flat_map(fanout=) keep "
                f"places; or derive what is below the {node.kind} on the cluster, and this of it on one machine",
            )
        above.append(node)
        node = node.parents[0]
    return Parallel(tuple(above), node)


def stretches(units: Iterable[int], size: int) -> Iterator[tuple[int, int]]:
    """(first place, last place + 1) of pieces of at most `size` places: whole units where they are small enough, since
    these are cheap to read together, else equal parts of one."""
    start = stop = 0
    for unit in units:
        if start < stop and stop + unit - start > size:
            yield start, stop
            start = stop
        stop += unit
        if stop - start > size:
            yield from equal(start, stop, -(-unit // size))
            start = stop
    if start < stop:
        yield start, stop


def equal(start: int, stop: int, count: int) -> Iterator[tuple[int, int]]:
    """[start, stop) in `count` parts of which none is empty, where there are so many places."""
    length = stop - start
    count = max(1, min(count, length))
    for part in range(count):
        yield start + part * length // count, start + (part + 1) * length // count
