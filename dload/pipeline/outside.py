"""Passes that hold something of the user's: a folded value, an iterator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from itertools import islice
from typing import Any

from dload.pipeline.cursors import applied, drained
from dload.pipeline.lanes import Lane
from dload.pipeline.plain import frozen, thawed
from dload.pipeline.running import HOLE, Cursor, Epoch
from dload.randomness import hash64

_Own = tuple[Callable[[], Any], Callable[[Any], None]]  # how to ask an iterator for its state, and how to set it


class ScanCursor(Cursor):
    """`value = fn(value, element)`, given each time. HOLEs pass. State: [the parent's, a copy of the value]."""

    def __init__(self, parent: Cursor, fn: Callable[[Any, Any], Any], init: Any) -> None:
        self.below = (parent,)
        self._parent, self._fn, self._init = parent, fn, init
        self._value = init

    def reset(self, state: Any | None) -> None:
        if state is None:
            below, self._value = None, deepcopy(self._init)
        else:
            below, self._value = state[0], thawed(state[1])
        self._parent.reset(below)

    def __next__(self) -> Any:
        item = next(self._parent)
        if item is HOLE:
            return HOLE
        self._value = applied(self._fn, self._value, item)
        return self._value

    def get_state(self) -> Any:
        return [self._parent.get_state(), frozen(self._value, "what scan folds")]

    def identity(self) -> int:
        return self._parent.identity()


class OutsideCursor(Cursor):
    """A pass over what a user's function makes, from nothing or (`parent`) from the elements of another pass.

    Where the iterator, or the iterable that it comes from, has `get_state` and `set_state`, or `state_dict` and
    `load_state_dict`, the state is [[that one's], the parent's, how many were given]. Else only that number: going on
    begins anew and leaves out as many, which a warning says. With `dealt`, rows of other lanes are left out.
    """

    def __init__(
        self,
        make: Callable[..., Iterable[Any]],
        epoch: Epoch,
        lane: Lane,
        parent: Cursor | None = None,
        dealt: bool = False,
    ) -> None:
        self.below = () if parent is None else (parent,)
        self._make, self._epoch, self._lane, self._parent = make, epoch, lane, parent
        self._dealt = dealt
        self._items: Iterator[Any] = iter(())
        self._own: _Own | None = None
        self._count = 0

    def reset(self, state: Any | None) -> None:
        own, below, count = (None, None, 0) if state is None else state
        self.close()
        self._own = None
        if self._parent is None:
            made = applied(self._make)
        else:
            self._parent.reset(below)
            made = applied(self._make, drained(self._parent))
        self._items = iter(made)
        self._own = _stateful(self._items) or _stateful(made)
        self._count = count
        if own is not None:
            if self._own is None:
                raise ValueError("the state is of an iterator with a state of its own, and this one has none")
            self._own[1](thawed(own[0]))
        elif count:
            warnings.warn(
                f"{self._make!r} gives an iterator without get_state and set_state: it goes on by going over the "
                f"{count} elements before once more",
                stacklevel=2,
            )
            for _ in islice(self._items, count):
                pass

    def __next__(self) -> Any:
        if self._dealt:
            due = self._lane.row(self._lane.count(self._count))  # the lane's next
            while self._count < due:
                next(self._items)
                self._count += 1
        item = next(self._items)
        self._count += 1
        return item

    def get_state(self) -> Any:
        if self._own is None:
            return [None, None, self._count]
        below = None if self._parent is None else self._parent.get_state()
        return [[frozen(self._own[0](), "the state of the iterator")], below, self._count]

    def identity(self) -> int:
        position = self._count - 1
        return hash64("outside", self._epoch, position if self._dealt else self._lane.row(position))

    def close(self) -> None:
        self._items = iter(())  # a generator that nobody holds any more ends now, and closes what it drew from
        super().close()


def _stateful(value: Any) -> _Own | None:
    """How to ask it for its state and how to set it, if it can do both."""
    for get, put in (("get_state", "set_state"), ("state_dict", "load_state_dict")):
        if callable(getattr(value, get, None)) and callable(getattr(value, put, None)):
            return getattr(value, get), getattr(value, put)
    return None
