"""Passes over a stream of documents that give blocks. Their states point at documents, and hold no tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dload.pipeline.pack_bins import Binning, Part
from dload.pipeline.pack_blocks import BlockMaker, Piece
from dload.pipeline.pack_documents import Document, DocumentReader
from dload.pipeline.running import HOLE, Cursor, Epoch
from dload.randomness import hash64

_Held = tuple[Document, int, int]  # a document, its size in blocks, its identity


class _Documents:
    """The documents of a cursor, without HOLEs and empty ones."""

    def __init__(self, parent: Cursor, reader: DocumentReader, maker: BlockMaker) -> None:
        self._parent, self._reader, self._maker = parent, reader, maker
        self.naming = False

    def next(self) -> _Held:
        """The next one. Raises StopIteration."""
        while True:
            item = next(self._parent)
            if item is not HOLE:
                document = self._reader.read(item)
                size = self._maker.size(document)
                if size:
                    return document, size, self._parent.identity() if self.naming else 0


class ConcatCursor(Cursor):
    """All documents one after the other, cut into blocks. State: [the parent's before the document in which the next
    block begins, the offset in its tokens]. So going on reads one document again."""

    def __init__(self, parent: Cursor, reader: DocumentReader, maker: BlockMaker, length: int) -> None:
        self.below = (parent,)
        self._parent, self._maker, self._length = parent, maker, length
        self._documents = _Documents(parent, reader, maker)
        self._begin(None)

    def _begin(self, before: Any) -> None:
        self._before, self._offset = before, 0
        self._held: _Held | None = None  # the document that the next block begins in, if it was read
        self._name = 0

    def keep_identities(self) -> None:
        self._documents.naming = True
        super().keep_identities()

    def reset(self, state: Any | None) -> None:
        before, offset = (None, 0) if state is None else state
        self._begin(before)
        self._parent.reset(before)
        if offset:
            self._held, self._offset = self._documents.next(), offset

    def __next__(self) -> dict[str, Any]:
        pieces: list[Piece] = []
        room = self._length
        while room:
            if self._held is None:
                self._before, self._offset = self._parent.get_state(), 0
                try:
                    self._held = self._documents.next()
                except StopIteration:
                    break
            document, size, name = self._held
            if not pieces and self._documents.naming:
                self._name = hash64(name, self._offset)
            stop = min(size, self._offset + room)
            pieces.append((document, self._offset, stop))
            room -= stop - self._offset
            self._offset = stop
            if stop == size:
                self._held = None
        if not pieces:
            raise StopIteration
        return self._maker.block(pieces)

    def get_state(self) -> Any:
        return [self._parent.get_state(), 0] if self._held is None else [self._before, self._offset]

    def identity(self) -> int:
        return self._name


class BinCursor(Cursor):
    """Whole documents in bins, window by window. State: [the parent's before the window, its number, how many of its
    blocks were given]. Going on reads the window again, while any of its blocks are left."""

    def __init__(
        self, parent: Cursor, reader: DocumentReader, maker: BlockMaker, binning: Binning, key: tuple[Any, ...]
    ) -> None:
        self.below = (parent,)
        self._parent, self._maker, self._binning, self._key = parent, maker, binning, key
        self._documents = _Documents(parent, reader, maker)
        self._begin(None, 0)

    def _begin(self, before: Any, number: int) -> None:
        self._before, self._number, self._given = before, number, 0
        self._held: list[_Held] = []
        self._bins: list[list[Part]] = []
        self._order: Sequence[int] = ()
        self._name = 0

    def keep_identities(self) -> None:
        self._documents.naming = True
        super().keep_identities()

    def reset(self, state: Any | None) -> None:
        before, number, given = (None, 0, 0) if state is None else state
        self._begin(before, number)
        self._parent.reset(before)
        if given:
            self._fill()
            self._given = given

    def _fill(self) -> None:
        """Read the window that begins here."""
        self._before, self._held, self._given = self._parent.get_state(), [], 0
        left = self._binning.window
        while left > 0:
            try:
                self._held.append(self._documents.next())
            except StopIteration:
                break
            left -= self._held[-1][1]
        self._bins = self._binning.bins([size for _, size, _ in self._held])
        self._order = self._binning.order(len(self._bins), *self._key, self._number)

    def __next__(self) -> dict[str, Any]:
        if not self._bins:
            self._fill()
            if not self._bins:
                raise StopIteration
        parts = self._bins[self._order[self._given]]
        held = self._held
        if self._documents.naming:
            number, start, _ = parts[0]
            self._name = hash64(held[number][2], start)
        block = self._maker.block([(held[number][0], start, stop) for number, start, stop in parts])
        self._given += 1
        if self._given == len(self._bins):
            self._held, self._bins = [], []
            self._number += 1
        return block

    def get_state(self) -> Any:
        return [self._before, self._number, self._given] if self._bins else [self._parent.get_state(), self._number, 0]

    def identity(self) -> int:
        return self._name


class ShareCursor(Cursor):
    """Exactly `count` blocks: where the parent has fewer, empty ones behind them; where it has more, these stay out.
    State: [the parent's, how many were given]."""

    def __init__(self, parent: Cursor, count: int, maker: BlockMaker, row: Callable[[int], int], epoch: Epoch) -> None:
        self.below = (parent,)
        self._parent, self._count, self._maker = parent, count, maker
        self._row, self._epoch = row, epoch  # row(number): which of all lanes' blocks it is
        self._given, self._dry = 0, False

    def reset(self, state: Any | None) -> None:
        below, self._given = (None, 0) if state is None else state
        self._dry = False
        self._parent.reset(below)

    def __next__(self) -> dict[str, Any]:
        if self._given >= self._count:
            self.close()
            raise StopIteration
        block = None
        if not self._dry:
            block = next(self._parent, None)
            self._dry = block is None
        self._given += 1
        return self._maker.block([]) if block is None else block

    def get_state(self) -> Any:
        return [self._parent.get_state(), self._given]

    def identity(self) -> int:
        return empty_identity(self._epoch, self._row(self._given - 1)) if self._dry else self._parent.identity()


def empty_identity(epoch: Epoch, number: int) -> int:
    """The name of a block that holds nothing."""
    return hash64("empty block", epoch, number)
