"""What nodes need of the world while they run, and what a pass over a node is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from dload.pipeline.failures import Failures
from dload.pipeline.lanes import Lane
from dload.pipeline.order import Homes
from dload.pipeline.promises import Workers
from dload.randomness import hash64

if TYPE_CHECKING:
    from dload.pipeline.node import Node
    from dload.pipeline.sources import Samples

Epoch = tuple[int, ...]
"""The epoch, and below each `repeat` (or a mix that begins a child again) the pass in it."""


class _Hole:
    """Stands where an element was left out and its place is kept."""

    def __repr__(self) -> str:
        return "HOLE"

    def __reduce__(self) -> str:
        return "HOLE"


HOLE = _Hole()


@dataclass(frozen=True, slots=True)
class Need:
    """That places [first, last) of a node may need one shard of a source. A list of these, in the order of `first`,
    is the demand: feasibility, explanation, prefetching and eviction all read it."""

    first: int
    last: int
    source: Samples
    shard: int


class Feed(Protocol):
    """The demand of one cursor, as it goes forward."""

    def advance(self, place: int) -> None:
        """Places below `place` are done with."""
        ...

    def close(self) -> None:
        """Nothing of it is needed any more."""
        ...


class Rows(Protocol):
    """How a running pipeline gets at samples."""

    def read(self, source: Samples, ordinals: Sequence[int]) -> list[Any]:
        """The samples with these numbers, in this order."""
        ...

    def follow(self, demand: Iterator[Need], later: Callable[[int], Iterator[Need]] | None = None) -> Feed:
        """Fetch ahead what a cursor will need, in the order of its demand. `later(0)` gives that demand again, and
        `later(1)` that of the pass after this one, where they are known.
        """
        ...


@dataclass(frozen=True)
class Run:
    """One run of a pipeline: its seed, how many homes its shuffles have, how it reads, and for which lane; what it
    left out, and its threads. Who runs it closes `workers`."""

    seed: int
    rows: Rows
    homes: Homes = 1
    paths: dict[int, str] = field(default_factory=dict)  # id of a node -> where it stands: `paths_of`
    lane: Lane = field(default_factory=Lane)
    failures: Failures = field(default_factory=Failures)
    workers: Workers = field(default_factory=Workers)

    def seed_of(self, node: Node) -> int:
        """A node's own seed, else one that follows from the run's and its place in the pipeline."""
        return node.seed if node.seed is not None else hash64(self.seed, self.paths[id(node)])

    def later(self, rows: int) -> Run:
        """The run of what begins so many rows of the lanes later."""
        return replace(self, lane=self.lane.later(rows)) if rows else self


class Cursor(ABC):
    """One pass over a node, forward. `reset` is the only way in; `get_state` says in JSON where the next element is.

    After an error of `__next__` (StopIteration is none) only `reset` and `close` are of use: see `SteadyCursor`.
    """

    below: tuple[Cursor, ...] = ()
    """The cursors that this one draws from."""

    @abstractmethod
    def reset(self, state: Any | None) -> None:
        """Begin (None), or go on where `get_state` was called."""

    @abstractmethod
    def __next__(self) -> Any:
        """The next element (HOLE among them). Raises StopIteration, and then always."""

    @abstractmethod
    def get_state(self) -> Any:
        """Small, and never bytes of samples; cheap enough to be asked before every element."""

    def standing(self) -> Any:
        """`get_state()`, or the NoState that says why there is none: for who takes a state that may not be wanted."""
        return self.get_state()

    def __iter__(self) -> Iterator[Any]:
        return self

    def keep_identities(self) -> None:
        """`identity` will be asked for: called once, before `reset`."""
        for cursor in self.below:
            cursor.keep_identities()

    def origin(self, state: Any = None) -> tuple[Node, Epoch, int] | None:
        """Where the element is from that came last, or behind a state: a node, the epoch and the place; None where that
        isn't known."""
        return None

    def identity(self) -> int:
        """What the element that came last is, whoever reads it: see `Node.identities`."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what was fetched ahead. Closing twice is fine, and `reset` opens it again."""
        for cursor in self.below:
            cursor.close()
