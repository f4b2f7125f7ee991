"""Where in a pipeline the demand comes from."""

from __future__ import annotations

from dload.pipeline.node import Node, walk
from dload.pipeline.sources import Samples


def index_tops(top: Node) -> list[Node]:
    """The highest nodes of the index tier: each goes forward by places of its own and has a demand of its own."""
    if top.indexed:
        return [top]
    return [below for parent in top.parents for below in index_tops(parent)]


def sources_of(top: Node) -> list[Samples]:
    """The data sets that a pipeline reads, each node once, from the top."""
    found = {id(node): node for _, node in walk(top) if isinstance(node, Samples)}
    return list(found.values())
