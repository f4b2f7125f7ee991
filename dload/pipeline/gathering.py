"""Passes over stream-tier nodes that hold elements: windows, groups, and the children of one."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from random import Random
from typing import Any

from dload.pipeline.cursors import applied
from dload.pipeline.running import HOLE, Cursor, Epoch
from dload.randomness import hash64


class BufferCursor(Cursor):
    """A shuffle without places: the element at position p has the key p + size*v, v uniform in [0, 1), and they come
    by key.

    So an element is due when its key is at most the position that is read next, and at most `size` are held. Draws hang
    on the position alone. State: [the parent's at the last multiple of 64 at or before the oldest that is held, that
    position, the position of the element that was given last]. Going on from there reads what is held again; of what
    comes, all that has a key up to that of the last was given before.
    """

    _BLOCK = 64

    def __init__(self, parent: Cursor, size: int, seed: int, epoch: Epoch) -> None:
        self.below = (parent,)
        self._parent, self._size = parent, size
        self._seed, self._epoch = seed, epoch
        self._naming = False
        self._begin(0, None)

    def keep_identities(self) -> None:
        self._naming = True
        super().keep_identities()

    def _begin(self, position: int, last: int | None) -> None:
        self._position = position  # what is read next
        self._last = last
        self._given = (-1.0, -1) if last is None else (self._key(last), last)
        self._held: list[tuple[float, int, Any, int]] = []  # a heap of (key, position, element, identity)
        self._marks: deque[list[Any]] = deque()  # [the parent's state, its position, how many from there on are held]
        self._draws: list[float] = []
        self._ended = False
        self._name = 0

    def _drawn(self, block: int) -> list[float]:
        draw = Random(hash64(self._seed, self._epoch, block)).random
        return [draw() for _ in range(self._BLOCK)]

    def _key(self, position: int) -> float:
        block, offset = divmod(position, self._BLOCK)
        return position + self._size * self._drawn(block)[offset]

    def reset(self, state: Any | None) -> None:
        below, position, last = (None, 0, None) if state is None else state
        self._begin(position, last)
        self._parent.reset(below)

    def __next__(self) -> Any:
        while not self._ended and not (self._held and self._held[0][0] <= self._position):
            self._read()
        if not self._held:
            raise StopIteration
        key, position, item, self._name = heapq.heappop(self._held)
        self._given, self._last = (key, position), position
        self._marks[position // self._BLOCK - self._marks[0][1] // self._BLOCK][2] -= 1
        while len(self._marks) > 1 and not self._marks[0][2]:
            self._marks.popleft()
        return item

    def _read(self) -> None:
        position = self._position
        block, offset = divmod(position, self._BLOCK)
        if not offset:
            self._marks.append([self._parent.get_state(), position, 0])
            while len(self._marks) > 1 and not self._marks[0][2]:
                self._marks.popleft()
            self._draws = self._drawn(block)
        try:
            item = next(self._parent)
        except StopIteration:
            self._ended = True
            return
        self._position += 1
        key = position + self._size * self._draws[offset]
        if (key, position) > self._given:
            name = self._parent.identity() if self._naming else 0
            heapq.heappush(self._held, (key, position, item, name))
            self._marks[-1][2] += 1

    def get_state(self) -> Any:
        if not self._marks:
            return [self._parent.get_state(), self._position, self._last]
        state, position, _ = self._marks[0]
        return [state, position, self._last]

    def identity(self) -> int:
        return self._name


class ExpandCursor(Cursor):
    """Each element's children, lazily. State: [the parent's before the element, how many of its children were
    given]."""

    def __init__(self, parent: Cursor, children: Callable[[Any], Iterable[Any]]) -> None:
        self.below = (parent,)
        self._parent, self._of = parent, children
        self._before: Any = None
        self._offset = 0
        self._children: Iterator[Any] | None = None

    def reset(self, state: Any | None) -> None:
        self._before, self._offset = (None, 0) if state is None else state
        self._children = None
        self._parent.reset(self._before)
        if self._offset:
            children = iter(applied(self._of, next(self._parent)))
            self._children = islice(children, self._offset, None)

    def __next__(self) -> Any:
        while True:
            if self._children is not None:
                for child in self._children:
                    self._offset += 1
                    return child
                self._children = None
            before = self._parent.get_state()
            item = next(self._parent)
            children = iter(applied(self._of, item))
            self._before, self._offset, self._children = before, 0, children

    def get_state(self) -> Any:
        return [self._parent.get_state(), 0] if self._children is None else [self._before, self._offset]

    def identity(self) -> int:
        return hash64(self._parent.identity(), self._offset - 1)


class GroupCursor(Cursor):
    """Lists of `size`, each beginning `stride` behind the one before; see `Windows` for the last. HOLEs keep their
    place in a list, and are left out of what is given; a list of HOLEs alone is a HOLE.

    State: [the parent's at the first element held, how many are to be left out before the next list, whether one was
    given].
    """

    def __init__(
        self, parent: Cursor, size: int, stride: int, drop_last: bool, collate: Callable[[list[Any]], Any] | None
    ) -> None:
        self.below = (parent,)
        self._parent, self._size, self._stride = parent, size, stride
        self._drop_last, self._collate = drop_last, collate
        self._naming = False
        self._begin(0, False)

    def keep_identities(self) -> None:
        self._naming = True
        super().keep_identities()

    def _begin(self, gap: int, gave: bool) -> None:
        self._gap, self._gave, self._ended = gap, gave, False
        self._held: list[Any] = []  # its first element is always the first of the next list
        self._names: list[int] = []
        self._marks: deque[Any] = deque()  # the parent's states at every `stride`th element held
        self._name = 0

    def reset(self, state: Any | None) -> None:
        below, gap, gave = (None, 0, False) if state is None else state
        self._begin(gap, gave)
        self._parent.reset(below)

    def __next__(self) -> Any:
        while not self._ended and len(self._held) < self._size:
            try:
                self._read()
            except StopIteration:
                self._ended = True
        full = len(self._held) == self._size
        if not full and (not self._held or self._drop_last or (self._gave and self._stride < self._size)):
            self._held, self._names = [], []
            self._marks.clear()
            raise StopIteration
        items, names = self._held, self._names
        if full and self._stride < self._size:
            self._held, self._names = items[self._stride :], names[self._stride :]
            self._marks.popleft()
        else:
            self._held, self._names, self._gap = [], [], self._stride - self._size if full else 0
            self._marks.clear()
        self._gave = True
        if self._naming:
            self._name = hash64(*names)
        return grouped(items, self._collate)

    def _read(self) -> None:
        while self._gap:
            next(self._parent)
            self._gap -= 1
        if len(self._held) % self._stride == 0:
            mark = self._parent.get_state()
            self._held.append(next(self._parent))
            self._marks.append(mark)
        else:
            self._held.append(next(self._parent))
        if self._naming:
            self._names.append(self._parent.identity())

    def get_state(self) -> Any:
        return [self._marks[0] if self._marks else self._parent.get_state(), self._gap, self._gave]

    def identity(self) -> int:
        return self._name


def grouped(items: list[Any], collate: Callable[[list[Any]], Any] | None) -> Any:
    """What a batch or window gives for these elements."""
    if any(item is HOLE for item in items):
        items = [item for item in items if item is not HOLE]
        if not items:
            return HOLE
    return items if collate is None else applied(collate, items)
