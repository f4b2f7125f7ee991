"""Records that somebody else holds: a table with places, or a stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NoReturn, Protocol

from dload.errors import ConfigError
from dload.pipeline.lanes import Lane
from dload.pipeline.node import Node, whole_number
from dload.pipeline.plain import NoState, frozen, thawed
from dload.pipeline.running import Cursor, Epoch, Run
from dload.pipeline.sources import Sequenced, numbered
from dload.randomness import hash64

Origin = dict[str, str | None]
"""What tells a split from others, by name: provider, name, split, version and the like. Never a path's content."""


_WORD = (1 << 64) - 1


class RecordTable(Protocol):
    """Records with places. It pickles, and any number of threads may read from it."""

    origin: Origin

    def __len__(self) -> int: ...
    def __getitem__(self, place: int) -> Any: ...
    def __getitems__(self, places: list[int]) -> list[Any]:
        """Several at once, by the name that PyTorch has for it."""
        ...


class RecordStream(Protocol):
    """Records that come in one order, again in each epoch. It pickles."""

    origin: Origin

    @property
    def records(self) -> int | None:
        """How many there are, where the provider knows."""
        ...

    def open(self, epoch: int, part: int, parts: int) -> OpenStream | None:
        """One of so many parts, which together are the whole; None where it can't be parted into so many by what is
        read. (0, 1) is always there."""
        ...


class OpenStream(Protocol):
    """A pass over a stream, or over a part of it."""

    def __next__(self) -> Any: ...
    def get_state(self) -> Any:
        """Where it stands, as JSON. Raises TypeError, with the reason, where it can't say so."""
        ...

    def set_state(self, state: Any) -> None:
        """Go on there. Called before the first record is asked for."""
        ...

    def close(self) -> None:
        """No more records are asked for; where it stands may be."""
        ...


class Provided(Sequenced):
    """A table of records that somebody else holds."""

    kind = "provided"

    def __init__(self, table: RecordTable) -> None:
        super().__init__(table)  # type: ignore[arg-type]
        self._table = table

    def parameters(self) -> dict[str, Any]:
        return {**self._table.origin, "records": len(self.items)}

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        return list(self._table.__getitems__(list(places)))

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        return numbered(places, *_names(self._table.origin), epoch)


class ProvidedStream(Node):
    """A stream of records that somebody else holds; `records`: how many it was said to give.

    Lanes share its rows. Where the stream can be parted, and nobody counts on a length, each lane reads a part of its
    own; else each goes over all of it and keeps its rows, so that they have equally many, give or take a step's.
    """

    kind = "provided_stream"

    def __init__(self, source: RecordStream, records: int | None = None) -> None:
        super().__init__()
        self.source = source
        self.records = None if records is None else whole_number(records, "records", 0)

    def parameters(self) -> dict[str, Any]:
        return {**self.source.origin, "records": self.records}

    @property
    def indexed(self) -> bool:
        return False

    @property
    def endless(self) -> bool:
        return False

    @property
    def total(self) -> int | None:
        return self.records

    @cached_property
    def span(self) -> int | None:
        return self.records

    def check_lanes(self, lanes: int) -> None:
        if self.records is not None and self.records < lanes:
            self._refuse(lanes)

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        grid = run.lane.grid
        if self.records is not None and not all(grid.count(lane, self.records) for lane in range(grid.lanes)):
            self._refuse(grid.lanes)  # lanes take c records in turn
        return ProvidedCursor(self, epoch, run.lane)

    def _refuse(self, lanes: int) -> NoReturn:
        raise ConfigError(
            f"{self.name} has {self.records} records, so that of {lanes} lanes some would get none",
            remedy="use fewer ranks, or a smaller global batch",
        )

    @property
    def name(self) -> str:
        """The split, in words."""
        return ", ".join(f"{name} {value}" for name, value in self.source.origin.items() if value is not None)


class ProvidedCursor(Cursor):
    """A lane's pass over a stream. State: [[the stream's], how many of its records were read, how many were given]."""

    def __init__(self, node: ProvidedStream, epoch: Epoch, lane: Lane) -> None:
        self._node, self._epoch, self._lane = node, epoch, lane
        self._base = hash64(*_names(node.source.origin), epoch)
        self._items: OpenStream | None = None  # also when it is closed: it still says where it stands
        self._open = False
        self._dealt = True  # whether records of other lanes come, too
        self._resumed: Any = None  # the state that it goes on from, until it has gone on
        self._read = self._given = 0

    def reset(self, state: Any | None) -> None:
        self.close()
        own, self._read, self._given = (None, 0, 0) if state is None else state
        lanes, number = self._lane.grid.lanes, _number(self._epoch)
        parted = lanes > 1 and self._node.records is None
        items = self._node.source.open(number, self._lane.number, lanes) if parted else None
        self._dealt = items is None and lanes > 1
        self._items = items or self._node.source.open(number, 0, 1)
        assert self._items is not None
        self._resumed, self._open = own, True
        if own is not None:
            self._items.set_state(thawed(own[0]))

    def __next__(self) -> Any:
        due = self._lane.row(self._lane.count(self._read)) if self._dealt else self._read
        while True:
            item = self._next()
            self._read += 1
            if self._read > due:
                self._given += 1
                return item

    def _next(self) -> Any:
        records = self._node.records
        if self._items is None or not self._open:
            raise StopIteration
        try:
            item = next(self._items)
        except StopIteration:
            self._check_end()
            raise
        self._resumed = None
        if records is not None and self._read >= records:
            raise ConfigError(f"records={records}, and {self._node.name} has more", remedy="leave records out")
        return item

    def _check_end(self) -> None:
        records = self._node.records
        if records is not None and self._read != records:
            raise ConfigError(f"records={records}, and {self._node.name} has {self._read}", remedy="leave records out")
        if not self._given and not self._lane.base:
            raise ConfigError(
                f"lane {self._lane.number} of {self._lane.grid.lanes} gets no record of {self._node.name}",
                remedy="use fewer ranks, or a smaller global batch",
            )

    def get_state(self) -> Any:
        if not self._read or self._resumed is not None:
            return [self._resumed, self._read, self._given]
        assert self._items is not None
        try:
            own = self._items.get_state()
        except TypeError as error:
            return NoState(f"{self._node.name}: {error}", "read it as a table (streaming=False), or import it")
        return [[frozen(own, f"the position in {self._node.name}")], self._read, self._given]

    def identity(self) -> int:
        whole = self._dealt or self._lane.grid.lanes == 1
        return self._base + (self._read - 1 if whole else self._lane.row(self._given - 1)) & _WORD

    def close(self) -> None:
        if self._items is not None and self._open:
            self._items.close()
            self._open = False


def _number(epoch: Epoch) -> int:
    """An epoch as one number, below 2**31."""
    return epoch[0] if len(epoch) == 1 else hash64(epoch) & 0x7FFFFFFF


def _names(origin: Origin) -> list[str]:
    return [text for pair in sorted((name, value or "") for name, value in origin.items()) for text in pair]
