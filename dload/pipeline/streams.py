"""Passes over stream-tier nodes that hold nothing: an element in, an element out."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from dload.errors import ConfigError
from dload.pipeline.ahead import Row
from dload.pipeline.cursors import applied
from dload.pipeline.failures import Failed, Guard, Skip, Spared
from dload.pipeline.lanes import Lane
from dload.pipeline.running import HOLE, Cursor, Epoch

if TYPE_CHECKING:
    from dload.pipeline.node import Node


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

    def origin(self, state: Any = None) -> tuple[Node, Epoch, int] | None:
        return self._parent.origin(state)

    def identity(self) -> int:
        return self._parent.identity()


OUT: Any = object()
"""What a function gives for an element that is left out without a trace."""


class GuardedCursor(Cursor):
    """`apply(element)`, or `apply(element, identity)`, by a policy for errors. HOLEs pass, unless it is to `drop` them.
    Of a Row the element is what is promised.

    Where failures leave a HOLE, the state is the parent's. Else it is a dict of the parent's ("below"), how many
    elements were drawn from it ("at"), how many of them were left out ("total"), and which of those from here on were
    left out before the state was taken ("skipped"): these are left out again without a look.
    """

    def __init__(
        self, parent: Cursor, apply: Callable[..., Any], named: bool, guard: Guard, key: Hashable, drop: bool = False
    ) -> None:
        self.below = (parent,)
        self._parent, self._apply, self._named = parent, apply, named
        self._guard, self._key, self._drop = guard, key, drop
        self._skips = guard.policy.skips
        if named or isinstance(guard.policy.how, Spared):
            parent.keep_identities()
        self._begin(0, 0, [])

    def _begin(self, position: int, count: int, skipped: list[int]) -> None:
        self._position, self._count, self._skip = position, count, Skip.chain(skipped)
        self._failing = True  # whether the last element may have failed

    def reset(self, state: Any | None) -> None:
        if not self._skips:
            self._parent.reset(state)
            return
        if state is None:
            state = {"below": None, "at": 0, "total": 0, "skipped": []}
        self._begin(state["at"], state["total"], state["skipped"])
        if state["at"]:
            self._guard.failures.passed(self._key, state["at"] - 1)
        self._parent.reset(state["below"])

    def __next__(self) -> Any:
        while True:
            item = next(self._parent)
            if self._skips and self._is_known():
                continue
            if item is HOLE:
                if self._drop:
                    continue
                return HOLE
            try:
                found = self._found(item)
            except Exception as error:
                self._leave_out(error, item)
                if self._skips:
                    continue
                return HOLE
            if self._failing:
                self._guard.fine()
                self._failing = False
            if found is not OUT:
                return found

    def _found(self, item: Any) -> Any:
        if isinstance(item, Row):
            return item.result()
        return applied(self._apply, item, self._parent.identity()) if self._named else applied(self._apply, item)

    def _is_known(self) -> bool:
        """Whether the element that was drawn was left out before the state was taken that this went on from."""
        following = self._skip.next
        known = following is not None and following.position == self._position
        if following is not None and known:
            self._skip, self._count = following, self._count + 1
            self._guard.failures.passed(self._key, self._position)
        self._position += 1
        return known

    def _leave_out(self, error: Exception, item: Any) -> None:
        """Raises the error, if the policy doesn't leave the element out."""
        count, size = 1, 1
        if isinstance(item, Row):
            count, size = item.promise.failures()
            item = item.item
        self._failing = True
        failed = Failed(error, item, self._parent.origin(), self._parent.identity)
        self._guard.leave_out(failed, size, count, self._is_news if self._skips else None)

    def _is_news(self, _: Failed) -> bool:
        position = self._position - 1
        self._count += 1
        self._skip = self._skip.add(position)
        return self._guard.failures.passed(self._key, position)

    def get_state(self) -> Any:
        below = self._parent.get_state()
        if not self._skips:
            return below
        return {"below": below, "at": self._position, "total": self._count, "skipped": self._skip}

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
