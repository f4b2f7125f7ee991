"""The same elements in another order, or fewer, or more often."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

from dload.errors import ConfigError
from dload.pipeline.endless import EndlessOrder
from dload.pipeline.gathering import BufferCursor
from dload.pipeline.node import Node, assembled, finite, pieces, seed_given, whole_number
from dload.pipeline.order import DisplacedOrder, FullOrder, Homes
from dload.pipeline.running import Cursor, Epoch, Need, Run
from dload.pipeline.streams import RepeatCursor, SkipCursor, TakeCursor
from dload.randomness import hash64

_IDLE = 1000
_Order = DisplacedOrder | FullOrder | EndlessOrder


class Shuffle(Node):
    """Another order each epoch: units permuted, and their elements spread over the `size` places behind them.

    `full`: a uniform permutation of all. In the index tier nothing is held in memory; over a stream-tier parent a
    window of `size` elements is. Over a parent without an end there are no units: elements move by up to `size`
    places, across the passes of a `repeat`.
    """

    kind = "shuffle"
    draws = True

    def __init__(self, parent: Node, size: int = 4096, seed: int | None = None, full: bool = False) -> None:
        super().__init__(parent)
        self.size = whole_number(size, "the size of a shuffle", 1)
        self.seed = seed_given(seed)
        self.full = full
        self._orders: dict[tuple[int, Epoch, Homes], _Order] = {}
        if full and not parent.indexed:
            raise ConfigError(
                "a full shuffle needs a pipeline with places, and this one can only be streamed",
                remedy="shuffle below the filter or flat_map, or give filter holes=True or flat_map a fanout",
            )
        if full:
            finite(parent, "a full shuffle")

    def parameters(self) -> dict[str, Any]:
        return {"full": True} if self.full else {"size": self.size}

    @cached_property
    def length(self) -> int | None:
        return self.parents[0].length

    @property
    def total(self) -> int | None:
        return self.parents[0].total

    @cached_property
    def _sizes(self) -> list[int]:
        return self.parents[0].units()

    @cached_property
    def _starts(self) -> list[int]:
        return [0] if self.full else list(accumulate(self._sizes, initial=0))

    def order(self, run: Run, epoch: Epoch) -> _Order:
        """An epoch's order; the last two are kept, since places are asked for in pieces, and around an epoch's end of
        both. Each holds rows that have their keys and haven't had their turn: megabytes."""
        key = (run.seed_of(self), epoch, run.homes)
        order = self._orders.get(key)
        if order is None:
            length = self.length
            if length is None:
                order = EndlessOrder(key[0], epoch, self.size)
            elif self.full:
                order = FullOrder(length, key[0], epoch, run.homes)
            else:
                order = DisplacedOrder(self._sizes, key[0], epoch, run.homes, self.size)
            self._orders = {**dict(list(self._orders.items())[-1:]), key: order}
        return order

    def _below(self, run: Run, epoch: Epoch, places: Sequence[int]) -> Sequence[int]:
        if not places:
            return places
        order = self.order(run, epoch)
        if isinstance(places, range) and places.step == 1:
            return order.places(places.start, places.stop)
        return order.at(places)

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        return self.parents[0].fetch(run, epoch, self._below(run, epoch, places))

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        return self.parents[0].identities(run, epoch, self._below(run, epoch, places))

    def units(self) -> list[int]:
        return self._sizes

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        if start >= stop:
            return
        parent, order = self.parents[0], self.order(run, epoch)
        if isinstance(order, EndlessOrder):
            for need in parent.demand(run, epoch, max(0, start - self.size), stop + self.size):
                first, last = max(start, need.first - self.size), min(stop, need.last + self.size)
                if first < last:
                    yield Need(first, last, need.source, need.shard)
            return
        for first, last, unit, low, high in order.demand(start, stop):
            base = self._starts[unit]
            for need in parent.demand(run, epoch, base + low, base + high):
                yield Need(first, last, need.source, need.shard)

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        lane = run.lane
        size = -(-self.size // lane.grid.lanes)
        return BufferCursor(self.parents[0].cursor(run, epoch), size, hash64(run.seed_of(self), lane.number), epoch)

    def __getstate__(self) -> dict[str, Any]:
        derived = ("_sizes", "_starts")  # large, and quickly made again
        return {name: value for name, value in self.__dict__.items() if name not in derived} | {"_orders": {}}


class _Part(Node):
    """Places of the parent, moved by `offset`."""

    offset = 0

    def _moved(self, places: Sequence[int]) -> Sequence[int]:
        offset = self.offset
        if not offset:
            return places
        if isinstance(places, range):
            return range(places.start + offset, places.stop + offset, places.step)
        return [place + offset for place in places]

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        return self.parents[0].fetch(run, epoch, self._moved(places))

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        return self.parents[0].identities(run, epoch, self._moved(places))

    def units(self) -> list[int]:
        return clipped(self.parents[0].units(), self.offset, self.offset + finite(self, "this"))

    def part(self, place: int) -> tuple[int, int | None]:
        first, last = self.parents[0].part(place + self.offset)
        ends = [end for end in (None if last is None else last - self.offset, self.length) if end is not None]
        return max(0, first - self.offset), min(ends, default=None)

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        offset = self.offset
        for need in self.parents[0].demand(run, epoch, start + offset, stop + offset):
            yield Need(need.first - offset, need.last - offset, need.source, need.shard)


class Take(_Part):
    """The first `count` elements."""

    kind = "take"

    def __init__(self, parent: Node, count: int) -> None:
        super().__init__(parent)
        self.count = whole_number(count, "take", 0)

    def parameters(self) -> dict[str, Any]:
        return {"count": self.count}

    @cached_property
    def length(self) -> int | None:
        below = self.parents[0].length
        return self.count if below is None else min(self.count, below)

    def units(self) -> list[int]:
        return pieces(self.count) if self.parents[0].length is None else super().units()

    @property
    def endless(self) -> bool:
        return False

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        return TakeCursor(self.parents[0].cursor(run, epoch), run.lane.count(self.count))

    @cached_property
    def span(self) -> int | None:
        below = self.parents[0].span
        return self.count if below is None else min(self.count, below)


class Skip(_Part):
    """All but the first `count` elements."""

    kind = "skip"

    def __init__(self, parent: Node, count: int) -> None:
        super().__init__(parent)
        self.count = whole_number(count, "skip", 0)
        self.offset = self.count

    def parameters(self) -> dict[str, Any]:
        return {"count": self.count}

    @cached_property
    def length(self) -> int | None:
        below = self.parents[0].length
        return None if below is None else max(0, below - self.count)

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        return SkipCursor(self.parents[0].cursor(run, epoch), run.lane.count(self.count))

    @cached_property
    def span(self) -> int | None:
        below = self.parents[0].span
        return None if below is None else max(0, below - self.count)


class Repeat(Node):
    """The parent `times` times over (None: without end); each pass is an epoch of its own to what is below."""

    kind = "repeat"

    def __init__(self, parent: Node, times: int | None = None) -> None:
        super().__init__(parent)
        self.times = None if times is None else whole_number(times, "repeat", 0)
        if parent.indexed and parent.length is None:
            raise ConfigError("this pipeline has no end, so it can't be repeated", remedy="leave out the repeat")
        if parent.indexed and parent.length == 0 and times is None:
            raise ConfigError("an empty pipeline repeated without end would never give an element")

    def parameters(self) -> dict[str, Any]:
        return {"times": self.times}

    @cached_property
    def length(self) -> int | None:
        return None if self.times is None else self.times * finite(self.parents[0], "repeat")

    @property
    def endless(self) -> bool:
        return self.times is None

    def below(self, epoch: Epoch, number: int) -> Epoch:
        """The epoch of a pass."""
        return (*epoch, number)

    def inside(self, run: Run, number: int) -> Run:
        """The run in a pass."""
        return run

    def _pass_of(self, place: int) -> tuple[int, int, int]:
        each = finite(self.parents[0], "repeat")
        number = place // each
        return number, number * each, (number + 1) * each

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        parent = self.parents[0]
        return assembled(
            places,
            self._pass_of,
            lambda number, below: parent.fetch(self.inside(run, number), self.below(epoch, number), below),
        )

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        parent = self.parents[0]
        return assembled(
            places,
            self._pass_of,
            lambda number, below: parent.identities(self.inside(run, number), self.below(epoch, number), below),
        )

    def units(self) -> list[int]:
        return self.parents[0].units() * (self.times or 0)

    def part(self, place: int) -> tuple[int, int | None]:
        _, base, _ = self._pass_of(place)
        first, last = self.parents[0].part(place - base)
        return base + first, None if last is None else base + last

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        idle = 0  # passes without any need: whoever looks for the next one must not look for ever
        while start < stop and self.parents[0].reads and idle < _IDLE:
            number, base, end = self._pass_of(start)
            end = min(stop, end)
            idle += 1
            within = self.inside(run, number)
            for need in self.parents[0].demand(within, self.below(epoch, number), start - base, end - base):
                yield Need(need.first + base, need.last + base, need.source, need.shard)
                idle = 0
            start = end

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        return passes_of(self.parents[0], run, lambda number: self.below(epoch, number), self.times)

    @cached_property
    def span(self) -> int | None:
        below = self.parents[0].span
        return None if self.times is None or below is None else self.times * below


def passes_of(node: Node, run: Run, epoch_of: Callable[[int], Epoch], times: int | None) -> Cursor:
    """One pass over a stream-tier node after the other; each lane goes on with its share of the next."""

    def make(number: int) -> Cursor:
        return node.cursor(node.after(run, number), epoch_of(number))

    def fruitless(first: int, last: int) -> bool:
        return run.lane.saw_all(node.span or run.lane.grid.c, first, last)

    return RepeatCursor(make, times, fruitless)


def clipped(sizes: list[int], start: int, stop: int) -> list[int]:
    """The lengths of what of contiguous pieces lies in [start, stop)."""
    found, at = [], 0
    for size in sizes:
        length = min(stop, at + size) - max(start, at)
        if length > 0:
            found.append(length)
        at += size
    return found
