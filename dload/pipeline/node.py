"""What a pipeline is made of: nodes that describe, and never touch storage or threads.

A node is in one of two tiers. In the **index tier** it has a length (or is endless) and its element at a place is a
pure function of the place and the epoch: such pipelines seek, and resume from one number. In the **stream tier** it
is a cursor that goes forward and says in a few bytes where it stands. What a node needs of the world while it runs
comes in a `Run`.
"""

from __future__ import annotations

import heapq
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

from dload.errors import ConfigError
from dload.pipeline.cursors import PlaceCursor
from dload.pipeline.running import HOLE, Cursor, Epoch, Feed, Need, Rows, Run
from dload.pipeline.woven import Woven

__all__ = ["HOLE", "Cursor", "Epoch", "Feed", "Need", "Node", "Rows", "Run", "paths_of", "walk"]


class Node(ABC):
    """One operation of a pipeline over its parents. Immutable; pickles if its functions do."""

    kind: ClassVar[str]
    alternatives: ClassVar[bool] = False  # whether each element comes from one of the parents, not from all
    draws: bool = False  # whether it needs a seed
    seed: int | None = None

    def __init__(self, *parents: Node) -> None:
        self.parents = parents

    # ---- what it is
    def parameters(self) -> dict[str, Any]:
        """What makes this node differ from another of its kind, as JSON values; without parents, seed and functions."""
        return {}

    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user's functions in it."""
        return ()

    @property
    def indexed(self) -> bool:
        """Whether it is in the index tier."""
        return all(parent.indexed for parent in self.parents)

    @property
    def holes(self) -> bool:
        """Whether elements may be HOLE."""
        return any(parent.holes for parent in self.parents)

    @property
    def endless(self) -> bool:
        """Whether it surely has no end. One that is in the stream tier, and isn't endless, ends nobody knows when."""
        return self.length is None if self.indexed else all(parent.endless for parent in self.parents)

    @property
    def factor(self) -> float:
        """About how many elements of a parent one of its own is made of."""
        return 1.0

    @cached_property
    def mean_samples(self) -> float:
        """About how many samples one element is made of: chunks are bounded by it."""
        return self._made_of([parent.mean_samples for parent in self.parents])

    @cached_property
    def mean_bytes(self) -> float:
        """About how many bytes these have: chunks are bounded by it, too."""
        return self._made_of([parent.mean_bytes for parent in self.parents])

    def _made_of(self, parents: list[float]) -> float:
        return self.factor * (max(parents) if self.alternatives else sum(parents))

    @cached_property
    def sources(self) -> int:
        """How many nodes a stretch of elements comes from: what a chunk costs grows with it, however long it is."""
        return max((parent.sources for parent in self.parents), default=1)

    @cached_property
    def reads(self) -> bool:
        """Whether there are samples of a data set below."""
        return any(parent.reads for parent in self.parents)

    @cached_property
    def ahead(self) -> int:
        """How many elements are to be asked for before the first of them is needed, since functions work on them on
        threads; 0: none. Then `fetch` may give promises."""
        return max((parent.ahead for parent in self.parents), default=0)

    @cached_property
    def together(self) -> int:
        """How many elements, at least, are better asked for together."""
        return max((parent.together for parent in self.parents), default=1)

    # ---- the index tier
    @cached_property
    def length(self) -> int | None:
        """How many elements an epoch has; None: endless. Index tier only."""
        raise NotImplementedError

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        """The elements at these places, which may come in any order; where `ahead`, some may be a Promise of one."""
        raise NotImplementedError

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        """64-bit names of the elements at these places. They depend on what the elements are made of, not on who reads
        them in which order: random draws hang on them."""
        raise NotImplementedError

    def units(self) -> list[int]:
        """The lengths of the contiguous pieces, in order, that are cheap to read together. Finite nodes only."""
        raise NotImplementedError

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        """What places [start, stop) need, by `first`, lazily. Reads nothing."""
        raise NotImplementedError

    def part(self, place: int) -> tuple[int, int | None]:
        """The part that a place is in: its first place, and the last + 1 (None: it has no end). Each lane gets one
        slice of a part, so that the elements of a part are all read before those of the next."""
        return 0, self.length

    def woven(self, epoch: Epoch, place: int) -> Woven | None:
        """The pass over a mix that a place belongs to, if there are only element-wise nodes above it."""
        return None

    # ---- both tiers
    def check_lanes(self, lanes: int) -> None:
        """Raises ConfigError where so many lanes can't share what it gives, or something below it."""
        for parent in self.parents:
            parent.check_lanes(lanes)

    @property
    def total(self) -> int | None:
        """How many elements all lanes together give in an epoch, where that is known: in the stream tier it seldom
        is."""
        return self.length if self.indexed else None

    @cached_property
    def span(self) -> int | None:
        """How many of the lanes' rows a pass takes: there the next one begins. In the stream tier rows are those of the
        parents: any number would do, and this one gives every lane its share in time. None: unknown, or no end."""
        if self.indexed:
            return self.length
        return next((span for parent in self.parents if (span := parent.span) is not None), None)

    def after(self, run: Run, passes: int) -> Run:
        """The run for what comes after so many passes over this node."""
        return run.later(passes * (self.span or run.lane.grid.c))

    def cursor(self, run: Run, epoch: Epoch) -> Cursor:
        """A pass over it. Index tier: by place; a stream-tier node makes its own."""
        if self.indexed:
            return PlaceCursor(self, run, epoch)
        return self.stream(run, epoch)

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        """A pass over it in the stream tier."""
        raise NotImplementedError


def walk(top: Node) -> Iterator[tuple[str, Node]]:
    """Every node of a pipeline with its path from the top ("", "0", "0.1", ...), parents after children."""
    yield "", top
    stack = [("", top)]
    while stack:
        path, node = stack.pop()
        below = [(f"{path}.{i}" if path else str(i), parent) for i, parent in enumerate(node.parents)]
        yield from below
        stack.extend(reversed(below))


def paths_of(top: Node) -> dict[int, str]:
    """id of each node -> where it stands: the sides that lead to it from the top, at nodes with several parents; its
    kind; and how many of its kind are below it that draw, too. Draws of nodes without a seed hang on it, so what is
    put on top of a pipeline doesn't change them. Of a node that is reached on several ways the first counts."""
    found: dict[int, str] = {}
    stack: list[tuple[Node, str]] = [(top, "")]
    while stack:
        node, sides = stack.pop()
        if id(node) in found:
            continue
        found[id(node)] = f"{sides}/{node.kind}/{_alike_below(node)}"
        many = len(node.parents) > 1
        stack += [(parent, f"{sides}.{i}" if many else sides) for i, parent in enumerate(node.parents)][::-1]
    return found


def _alike_below(node: Node) -> int:
    count, below = 0, node
    while below.parents:
        below = below.parents[0]
        count += below.kind == node.kind and below.draws
    return count


def pieces(total: int, size: int = 1024) -> list[int]:
    """The lengths of pieces of `size` that make up `total`."""
    whole, rest = divmod(total, size)
    return [size] * whole + ([rest] if rest else [])


def assembled(
    places: Sequence[int],
    part_of: Callable[[int], tuple[int, int, int]],
    get: Callable[[int, Sequence[int]], list[Any]],
) -> list[Any]:
    """What is at these places, where they belong to parts: `part_of(place)` gives (part, its first place, its last +
    1), and `get(part, places counted from its first)` what is there. Each part is asked once, in contiguous runs
    where it can be."""
    if isinstance(places, range) and places.step == 1:
        found: list[Any] = []
        at = places.start
        while at < places.stop:
            part, start, stop = part_of(at)
            stop = min(stop, places.stop)
            items = get(part, range(at - start, stop - start))
            found = found + items if found else items
            at = stop
        return found
    groups: dict[int, tuple[list[int], list[int]]] = {}  # part -> where its elements go, its places
    start = stop = 0
    for at, place in enumerate(places):
        if not start <= place < stop:
            part, start, stop = part_of(place)
            slots, below = groups.setdefault(part, ([], []))
        slots.append(at)
        below.append(place - start)
    found = [None] * len(places)
    for part, (slots, below) in groups.items():
        for slot, item in zip(slots, get(part, below), strict=True):
            found[slot] = item
    return found


def merged(needs: Iterable[Iterator[Need]]) -> Iterator[Need]:
    """Several demands as one, by first use."""
    return heapq.merge(*needs, key=lambda need: need.first)


def some(parents: Sequence[Node], what: str) -> Sequence[Node]:
    """The parents, if there are any. Raises ConfigError."""
    if not parents:
        raise ConfigError(f"{what} needs at least one pipeline")
    return parents


def finite(node: Node, what: str) -> int:
    """A node's length. Raises ConfigError, saying what needs it, where it is endless."""
    if node.length is None:
        raise ConfigError(f"{what} needs an end, and this pipeline has none", remedy="put a take(n) below it")
    return node.length


def function(value: object, what: str) -> Callable[..., Any]:
    """The value, if it can be called. Raises ConfigError."""
    if not callable(value):
        raise ConfigError(f"{what} needs a function, got {value!r}")
    return value


def each(fn: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
    """[fn(...)] of the columns' elements, as fast as Python can. A StopIteration of `fn` is an error, not an end."""
    found = list(map(fn, *columns))
    if len(found) < len(columns[0]):
        raise RuntimeError(f"{fn!r} raised StopIteration")
    return found


def whole_number(value: object, what: str, least: int | None = None) -> int:
    """The value, if it is an int, of at least `least`. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise ConfigError(
            f"{what} must be a whole number{'' if least is None else f' of at least {least}'}, got {value!r}"
        )
    return value


def seed_given(seed: object) -> int | None:
    """A seed, if it is None or an int. Raises ConfigError."""
    return None if seed is None else whole_number(seed, "a seed")
