"""Passes over stream-tier nodes with several parents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dload.errors import ConfigError
from dload.pipeline.cursors import applied
from dload.pipeline.running import HOLE, Cursor
from dload.randomness import hash64


class ConcatCursor(Cursor):
    """One after the other. State: [which, its state]."""

    def __init__(self, parents: Sequence[Cursor]) -> None:
        self.below = tuple(parents)
        self._part = 0

    def reset(self, state: Any | None) -> None:
        self.close()
        self._part, below = (0, None) if state is None else state
        if self._part < len(self.below):
            self.below[self._part].reset(below)

    def __next__(self) -> Any:
        while self._part < len(self.below):
            try:
                return next(self.below[self._part])
            except StopIteration:
                self.reset((self._part + 1, None))
        raise StopIteration

    def get_state(self) -> Any:
        return [self._part, self.below[self._part].get_state() if self._part < len(self.below) else None]

    def identity(self) -> int:
        return hash64(self._part, self.below[self._part].identity())


class ZipCursor(Cursor):
    """`join(tuple of one element of each)`, as long as each has one; HOLE where one is. State: all their states."""

    def __init__(self, parents: Sequence[Cursor], join: Callable[[tuple[Any, ...]], Any]) -> None:
        self.below = tuple(parents)
        self._join = join

    def reset(self, state: Any | None) -> None:
        for cursor, below in zip(self.below, state or [None] * len(self.below), strict=True):
            cursor.reset(below)

    def __next__(self) -> Any:
        # Not a comprehension in a call of tuple(): that would take a StopIteration for the end of the tuple.
        items = []
        for cursor in self.below:
            try:
                items.append(next(cursor))
            except StopIteration:
                self.close()
                raise
        return HOLE if any(item is HOLE for item in items) else applied(self._join, tuple(items))

    def get_state(self) -> Any:
        return [cursor.get_state() for cursor in self.below]

    def identity(self) -> int:
        return hash64("zip", *[cursor.identity() for cursor in self.below])


class SelectCursor(Cursor):
    """The next of the pass whose number `index` gives. Ends when either does; a HOLE for a number is a HOLE.

    State: [the index's, the others', whether it has ended].
    """

    def __init__(self, index: Cursor, others: Sequence[Cursor]) -> None:
        self.below = (index, *others)
        self._index, self._others = index, tuple(others)
        self._ended = False
        self._chosen: int | None = None

    def reset(self, state: Any | None) -> None:
        index, others, self._ended = (None, [None] * len(self._others), False) if state is None else state
        for cursor, below in zip(self.below, [index, *others], strict=True):
            cursor.reset(below)

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        try:
            self._chosen = self._number(next(self._index))
            return HOLE if self._chosen is None else next(self._others[self._chosen])
        except StopIteration:
            self._ended = True
            self.close()
            raise

    def _number(self, item: Any) -> int | None:
        if item is HOLE:
            return None
        try:
            number = item.__index__()
        except (AttributeError, TypeError):
            number = -1
        if not 0 <= number < len(self._others):
            raise ConfigError(f"select needs numbers from 0 to {len(self._others) - 1}, got {item!r}")
        return int(number)

    def get_state(self) -> Any:
        return [self._index.get_state(), [cursor.get_state() for cursor in self._others], self._ended]

    def identity(self) -> int:
        if self._chosen is None:
            return self._index.identity()
        return hash64(self._chosen, self._others[self._chosen].identity())
