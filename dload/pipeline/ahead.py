"""Passes over the stream tier that read ahead of who asks, for functions on threads and functions of lists."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dload.pipeline.promises import Promise, Workers
from dload.pipeline.running import HOLE, Cursor, Epoch

if TYPE_CHECKING:
    from dload.pipeline.node import Node


class Row(NamedTuple):
    """An element on its way: what went in, and a promise of what comes out."""

    item: Any
    promise: Promise

    def result(self) -> Any:
        """What comes out. Waits for it; raises what making it raises."""
        return self.promise.result()


Start = Callable[[list[Any], list[int]], Sequence[Promise]]
"""start(elements, their identities or nothing): begins to work on them."""


class AheadCursor(Cursor):
    """Each element as a Row, in order; HOLEs pass. Up to `most` are read ahead, and work on them is begun `size` at a
    time.

    What the parent raises comes in its place. State: the parent's before the row that comes next.
    """

    def __init__(self, parent: Cursor, start: Start, size: int, most: int, workers: Workers, named: bool) -> None:
        self.below = (parent,)
        self._parent, self._start, self._size, self._most = parent, start, size, most
        self._workers, self._named = workers, named
        self._naming = named
        self._begin()
        if named:
            parent.keep_identities()

    def keep_identities(self) -> None:
        self._naming = True
        super().keep_identities()

    def _begin(self) -> None:
        self._rows: deque[tuple[Any, Any, int]] = deque()  # (the parent's state before it, row or HOLE, identity)
        self._end: BaseException | None = None  # what the parent raised, in the end
        self._name = 0
        self._last: Any = None  # the parent's state before the row that came last

    def reset(self, state: Any | None) -> None:
        self._begin()
        self._workers.enter(self)
        self._parent.reset(state)

    def __next__(self) -> Any:
        most = max(self._size, self._workers.share(self._most))
        while self._end is None and (not self._rows or len(self._rows) + self._size <= most):
            self._read()
        if not self._rows:
            assert self._end is not None
            raise self._end
        self._last, row, self._name = self._rows.popleft()
        return row

    def _read(self) -> None:
        """The next `size` elements that aren't HOLEs."""
        found: list[tuple[Any, Any, int]] = []
        items: list[Any] = []
        try:
            while len(items) < self._size:
                state = self._parent.get_state()
                item = next(self._parent)
                if item is not HOLE:
                    items.append(item)
                found.append((state, item, self._parent.identity() if self._naming else 0))
        except BaseException as error:
            self._end = error
            if not isinstance(error, Exception):
                raise
        names = [name for _, item, name in found if item is not HOLE] if self._named else []
        promises = iter(self._start(items, names) if items else ())
        for state, item, name in found:
            self._rows.append((state, item if item is HOLE else Row(item, next(promises)), name))

    def get_state(self) -> Any:
        return self._rows[0][0] if self._rows else self._parent.get_state()

    def origin(self, state: Any = None) -> tuple[Node, Epoch, int] | None:
        return self._parent.origin(self._last if state is None else state)

    def identity(self) -> int:
        return self._name

    def close(self) -> None:
        self._rows.clear()
        self._workers.leave(self)
        super().close()
