"""Several pipelines as one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from math import isfinite
from numbers import Real
from typing import Any

from dload.errors import ConfigError
from dload.pipeline.elementwise import Elementwise
from dload.pipeline.joins import ConcatCursor, SelectCursor, ZipCursor
from dload.pipeline.node import Node, assembled, each, function, merged, pieces, some
from dload.pipeline.promises import Lazy
from dload.pipeline.reorder import clipped
from dload.pipeline.running import HOLE, Cursor, Epoch, Need, Run
from dload.pipeline.sources import RandomStream
from dload.randomness import hash64


class Concat(Node):
    """One pipeline after another."""

    kind = "concat"
    alternatives = True

    def __init__(self, *parents: Node) -> None:
        super().__init__(*some(parents, "concat"))

    @property
    def indexed(self) -> bool:
        return super().indexed and all(parent.length is not None for parent in self.parents)

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((parent.length or 0 for parent in self.parents), initial=0))

    @cached_property
    def length(self) -> int | None:
        return self._starts[-1]

    def _part_of(self, place: int) -> tuple[int, int, int]:
        part = bisect_right(self._starts, place) - 1
        return part, self._starts[part], self._starts[part + 1]

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        return assembled(places, self._part_of, lambda part, below: self.parents[part].fetch(run, epoch, below))

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        def of(part: int, below: Sequence[int]) -> list[int]:
            return [hash64(part, name) for name in self.parents[part].identities(run, epoch, below)]

        return assembled(places, self._part_of, of)

    def units(self) -> list[int]:
        return [size for parent in self.parents for size in parent.units()]

    def part(self, place: int) -> tuple[int, int | None]:
        number, base, _ = self._part_of(place)
        first, last = self.parents[number].part(place - base)
        return base + first, None if last is None else base + last

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        while start < stop:
            part, base, end = self._part_of(start)
            end = min(stop, end)
            for need in self.parents[part].demand(run, epoch, start - base, end - base):
                yield Need(need.first + base, need.last + base, need.source, need.shard)
            start = end

    @property
    def endless(self) -> bool:
        return any(parent.endless for parent in self.parents)

    @cached_property
    def span(self) -> int | None:
        return sum(parent.span or 0 for parent in self.parents) or None

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        before = accumulate((parent.span or 0 for parent in self.parents), initial=0)
        return ConcatCursor(
            [parent.cursor(run.later(rows), epoch) for parent, rows in zip(self.parents, before, strict=False)]
        )


class Zip(Node):
    """Tuples of one element of each; `fn(*tuple)` where there is a function. Ends with the shortest."""

    kind = "zip"

    def __init__(self, *parents: Node, fn: Callable[..., Any] | None = None) -> None:
        super().__init__(*some(parents, "zip"))
        self.fn = None if fn is None else function(fn, "zip_with")

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return () if self.fn is None else (self.fn,)

    @cached_property
    def length(self) -> int | None:
        return min((parent.length for parent in self.parents if parent.length is not None), default=None)

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        sides = [parent.fetch(run, epoch, places) for parent in self.parents]
        if self.ahead:
            return [Lazy(self._whole, *items) for items in zip(*sides, strict=True)]
        if self.holes:
            return [self._whole(*items) for items in zip(*sides, strict=True)]
        return list(zip(*sides, strict=True)) if self.fn is None else each(self.fn, *sides)

    def _whole(self, *items: Any) -> Any:
        return HOLE if any(item is HOLE for item in items) else self._joined(items)

    def _joined(self, items: tuple[Any, ...]) -> Any:
        return items if self.fn is None else self.fn(*items)

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        sides = [parent.identities(run, epoch, places) for parent in self.parents]
        return [hash64("zip", *names) for names in zip(*sides, strict=True)]

    def units(self) -> list[int]:
        first, length = self.parents[0], self.length
        assert length is not None
        return pieces(length) if first.length is None else clipped(first.units(), 0, length)

    def part(self, place: int) -> tuple[int, int | None]:
        first, last = self.parents[0].part(place)
        ends = [end for end in (last, self.length) if end is not None]
        return first, min(ends, default=None)

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        return merged(parent.demand(run, epoch, start, stop) for parent in self.parents)

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        return ZipCursor([parent.cursor(run, epoch) for parent in self.parents], self._joined)


class Select(Node):
    """A pipeline of numbers, the first parent, says from which of the others the next element comes."""

    kind = "select"

    def __init__(self, index: Node, *parents: Node) -> None:
        super().__init__(index, *some(parents, "select"))

    @property
    def indexed(self) -> bool:
        return False

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        index, *others = (parent.cursor(run, epoch) for parent in self.parents)
        return SelectCursor(index, others)


class Pick(Elementwise):
    """A number of a pipeline for each uniform draw: by weights, or (None) from elements `(weights, draw)`, where the
    weights may be one number, the share of the first of two."""

    kind = "pick"

    def __init__(self, parent: Node, count: int, weights: Sequence[float] | float | None) -> None:
        super().__init__(parent)
        self.count = count
        self.weights = None if weights is None else shares(weights, count, "choice")

    def parameters(self) -> dict[str, Any]:
        return {"count": self.count, "weights": self.weights}

    def bind(self, run: Run) -> Callable[..., Any]:
        count, weights = self.count, self.weights
        if weights is None:
            return lambda pair: picked(shares(pair[0], count, "choice"), pair[1])
        return lambda draw: picked(weights, draw)


def picked(weights: Sequence[float], draw: float) -> int:
    """The number whose interval of cumulative weight holds the draw from [0, 1). Never one of weight 0."""
    edges = list(accumulate(weights))
    number = bisect_right(edges, draw * edges[-1])
    return number if number < len(edges) else bisect_left(edges, edges[-1])  # a product that was rounded up to the sum


def shares(weights: Any, count: int, what: str) -> list[float]:
    """One weight for each of `count` pipelines, checked. Raises ConfigError. A single number is the share of the
    first of two."""
    if isinstance(weights, Real):
        share = float(weights)
        if count != 2 or not 0 <= share <= 1:
            raise ConfigError(f"{what}: one number is the share of the first of two pipelines, got {share} for {count}")
        return [share, 1 - share]
    found = list(weights)
    if len(found) != count:
        raise ConfigError(f"{what} needs one weight for each of {count} pipelines, got {len(found)}")
    for weight in found:
        if not isinstance(weight, Real) or not isfinite(weight) or weight < 0:
            raise ConfigError(f"{what}: a weight is a finite number, and not negative, got {weight!r}")
    if not any(found):
        raise ConfigError(f"{what}: all weights are 0, so there is nothing to draw from")
    return [float(weight) for weight in found]


def choice(parents: Sequence[Node], p: Node | Sequence[float] | float, seed: int | None = None) -> Node:
    """For each element one of the parents at random, by `p`: the share of the first of two, weights, or a pipeline of
    either. Ends when a chosen one does."""
    some(parents, "choice")
    draws = RandomStream(seed)
    index = Pick(Zip(p, draws), len(parents), None) if isinstance(p, Node) else Pick(draws, len(parents), p)
    return Select(index, *parents)
