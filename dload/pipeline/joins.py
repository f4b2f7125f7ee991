"""Passes over stream-tier nodes with several parents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dload.errors import ConfigError
from dload.pipeline.cursors import applied
from dload.pipeline.lanes import Lane
from dload.pipeline.mixing import Schedule, Weave
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
        self._ended = False

    def reset(self, state: Any | None) -> None:
        self._ended = False
        for cursor, below in zip(self.below, state or [None] * len(self.below), strict=True):
            cursor.reset(below)

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        # Not a comprehension in a call of tuple(): that would take a StopIteration for the end of the tuple.
        items = []
        for cursor in self.below:
            try:
                items.append(next(cursor))
            except StopIteration:
                self._ended = True
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


class MixCursor(Cursor):
    """Rows of several passes, woven as `Weave` does, by the rows of the lane. An end shows when that pass is due again;
    see `Mix` for what follows.

    `make(which, pass)` gives a pass; `ends`: which of them can end and are drawn from; `fruitless(which, first, last)`:
    whether passes that gave nothing were enough to say that all will. State: [how many were given, of each its pass,
    the state there and the first of its passes that gave nothing so far (null where it left), which have ended, the
    weights', whether all has].
    """

    _LOOKED_AT = 1 << 32  # rows of a schedule, for weights of one that is left

    def __init__(
        self,
        make: Callable[[int, int], Cursor],
        ends: Sequence[bool],
        weights: Schedule | Cursor,
        seed: int,
        until: str,
        lane: Lane,
        fruitless: Callable[[int, int, int], bool],
    ) -> None:
        self._make, self._ends, self._weights, self._seed, self._until = make, ends, weights, seed, until
        self._lane, self._fruitless = lane, fruitless
        self._naming = False
        self._passes: list[_Pass | None] = []
        self._weave: tuple[Sequence[Any], Weave] | None = None
        self._last = 0

    def keep_identities(self) -> None:
        self._naming = True

    def _begin(self, which: int, number: int, state: Any | None, empty: int) -> _Pass:
        cursor = self._make(which, number)
        if self._naming:
            cursor.keep_identities()
        cursor.reset(state)
        return _Pass(number, cursor, empty)

    def reset(self, state: Any | None) -> None:
        self.close()
        count = len(self._ends)
        if state is None:
            state = [0, [[0, None, 0]] * count, [False] * count, None, False]
        self._given, passes, ended, weights, self._done = state
        self._ended = list(ended)
        self._passes = [None if at is None else self._begin(which, *at) for which, at in enumerate(passes)]
        if isinstance(self._weights, Cursor):
            self._weights.reset(weights)

    def __next__(self) -> Any:
        row = self._lane.row(self._given)
        given = next(self._weights, None) if isinstance(self._weights, Cursor) and not self._done else None
        while not self._done:
            which = self._due(row, given)
            at = None if which is None else self._passes[which]
            if which is None or at is None:
                break
            try:
                item = next(at.cursor)
            except StopIteration:
                self._end(which, at)
            else:
                if item is not HOLE:
                    at.empty = at.number + 1
                self._given, self._last = self._given + 1, which
                return item
        self._done = True
        self.close()
        raise StopIteration

    def _due(self, row: int, given: Any) -> int | None:
        """Which pass a row comes from, `given` being its weights if they come one by one; None: from none."""
        if not isinstance(self._weights, Cursor):
            at: int | None = row
            while at is not None and at < row + self._LOOKED_AT:
                weights, at = self._weights.at(at)
                if (which := self._drawn(row, weights)) is not None:
                    return which
            return None
        if given is None:
            return None
        if len(given) != len(self._ends):
            raise ConfigError(f"a mix of {len(self._ends)} pipelines was given the weights {given!r}")
        return self._drawn(row, given)

    def _drawn(self, row: int, weights: Sequence[Any]) -> int | None:
        left = [0 if at is None else weight for at, weight in zip(self._passes, weights, strict=True)]
        if self._weave is None or self._weave[0] != left:
            if any(at is None for at in self._passes) and not any(left):
                return None
            self._weave = left, Weave(Schedule(left, len(left)), self._seed)
        return self._weave[1].child(row)

    def _end(self, which: int, at: _Pass) -> None:
        """That pass has ended, and was due."""
        self._ended[which] = True
        if self._until == "all":
            self._passes[which] = None
        elif self._until == "first" or all(
            ended or not ends for ended, ends in zip(self._ended, self._ends, strict=True)
        ):
            self._done = True
        elif at.empty > at.number or not self._fruitless(which, at.empty, at.number):
            self._passes[which] = self._begin(which, at.number + 1, None, at.empty)
        else:
            raise ConfigError(f"pipeline {which} of a mix that goes round gave nothing in pass {at.number}")

    def get_state(self) -> Any:
        passes = [None if at is None else [at.number, at.cursor.get_state(), at.empty] for at in self._passes]
        weights = self._weights.get_state() if isinstance(self._weights, Cursor) else None
        return [self._given, passes, list(self._ended), weights, self._done]

    def identity(self) -> int:
        at = self._passes[self._last]
        assert at is not None
        return hash64(self._last, at.cursor.identity())

    def close(self) -> None:
        for at in self._passes:
            if at is not None:
                at.cursor.close()
        if isinstance(self._weights, Cursor):
            self._weights.close()


@dataclass(slots=True)
class _Pass:
    number: int
    cursor: Cursor
    empty: int  # the first of the passes that gave nothing so far; the next one, where this one gave something
