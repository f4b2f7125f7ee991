"""Passes over stream-tier nodes that hold nothing: an element in, an element out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dload.errors import ConfigError
from dload.pipeline.cursors import applied
from dload.pipeline.lanes import Lane
from dload.pipeline.running import HOLE, Cursor


class ElementCursor(Cursor):
    """`apply(element)`, or `apply(element, identity)`. HOLEs pass. State: the parent's."""

    def __init__(self, parent: Cursor, apply: Callable[..., Any], named: bool) -> None:
        self.below = (parent,)
        self._parent, self._apply, self._named = parent, apply, named
        if named:
            parent.keep_identities()

    def reset(self, state: Any | None) -> None:
        self._parent.reset(state)

    def __next__(self) -> Any:
        item = next(self._parent)
        if item is HOLE:
            return HOLE
        return applied(self._apply, item, self._parent.identity()) if self._named else applied(self._apply, item)

    def get_state(self) -> Any:
        return self._parent.get_state()

    def identity(self) -> int:
        return self._parent.identity()


class FilterCursor(Cursor):
    """The elements for which `pred` is true. HOLEs are left out, too. State: the parent's."""

    def __init__(self, parent: Cursor, pred: Callable[[Any], Any]) -> None:
        self.below = (parent,)
        self._parent, self._pred = parent, pred

    def reset(self, state: Any | None) -> None:
        self._parent.reset(state)

    def __next__(self) -> Any:
        while True:
            item = next(self._parent)
            if item is not HOLE and applied(self._pred, item):
                return item

    def get_state(self) -> Any:
        return self._parent.get_state()

    def identity(self) -> int:
        return self._parent.identity()


class CountingCursor(Cursor):
    """`(number, element)`, by the rows of the lane. HOLEs are counted, and pass. State: [the parent's, how many]."""

    def __init__(self, parent: Cursor, lane: Lane) -> None:
        self.below = (parent,)
        self._parent, self._lane = parent, lane
        self._count = 0

    def reset(self, state: Any | None) -> None:
        below, self._count = (None, 0) if state is None else state
        self._parent.reset(below)

    def __next__(self) -> Any:
        item = next(self._parent)
        self._count += 1
        return HOLE if item is HOLE else (self._lane.row(self._count - 1), item)

    def get_state(self) -> Any:
        return [self._parent.get_state(), self._count]

    def identity(self) -> int:
        return self._parent.identity()


class TakeCursor(Cursor):
    """The first `count`. State: [the parent's, how many were given]."""

    def __init__(self, parent: Cursor, count: int) -> None:
        self.below = (parent,)
        self._parent, self._count = parent, count
        self._given = 0

    def reset(self, state: Any | None) -> None:
        below, self._given = (None, 0) if state is None else state
        self._parent.reset(below)

    def __next__(self) -> Any:
        if self._given >= self._count:
            self.close()
            raise StopIteration
        item = next(self._parent)
        self._given += 1
        return item

    def get_state(self) -> Any:
        return [self._parent.get_state(), self._given]

    def identity(self) -> int:
        return self._parent.identity()


class SkipCursor(Cursor):
    """All behind the first `count`, which are read before the first is given. State: [the parent's, how many are
    left]."""

    def __init__(self, parent: Cursor, count: int) -> None:
        self.below = (parent,)
        self._parent, self._count = parent, count
        self._left = count

    def reset(self, state: Any | None) -> None:
        below, self._left = (None, self._count) if state is None else state
        self._parent.reset(below)

    def __next__(self) -> Any:
        while self._left:
            next(self._parent)
            self._left -= 1
        return next(self._parent)

    def get_state(self) -> Any:
        return [self._parent.get_state(), self._left]

    def identity(self) -> int:
        return self._parent.identity()


class RepeatCursor(Cursor):
    """One pass after another, each made by `make(number)`. State: [number, the pass's state, the first of the passes
    that gave nothing so far].

    Where there is no end, and passes give nothing (or HOLEs alone), it would go on for ever: ConfigError, once
    `fruitless(the first of them, the last)` says that there was enough to see.
    """

    def __init__(self, make: Callable[[int], Cursor], times: int | None, fruitless: Callable[[int, int], bool]) -> None:
        self._make, self._times, self._fruitless = make, times, fruitless
        self._number = 0
        self._empty = 0  # the first of the passes that gave nothing so far; the next one, where this one gave something
        self._pass: Cursor | None = None
        self._naming = False

    def _begin(self, number: int, state: Any | None, empty: int) -> None:
        self.close()
        self._number, self._empty, self._pass = number, empty, None
        if self._times is None or number < self._times:
            self._pass = self._make(number)
            if self._naming:
                self._pass.keep_identities()
            self._pass.reset(state)

    def reset(self, state: Any | None) -> None:
        self._begin(*((0, None, 0) if state is None else state))

    def __next__(self) -> Any:
        while self._pass is not None:
            try:
                item = next(self._pass)
            except StopIteration:
                if self._times is None and self._empty <= self._number and self._fruitless(self._empty, self._number):
                    raise ConfigError(
                        f"pass {self._number} of an endless repeat gave nothing, and so would all others",
                        remedy="check the filter below it; where only one lane gets nothing, shuffle below the filter",
                    ) from None
                self._begin(self._number + 1, None, self._empty)
            else:
                if item is not HOLE:
                    self._empty = self._number + 1
                return item
        raise StopIteration

    def get_state(self) -> Any:
        return [self._number, None if self._pass is None else self._pass.get_state(), self._empty]

    def keep_identities(self) -> None:
        self._naming = True

    def identity(self) -> int:
        assert self._pass is not None
        return self._pass.identity()

    def close(self) -> None:
        if self._pass is not None:
            self._pass.close()
