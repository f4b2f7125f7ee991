"""Which documents go into which block: arithmetic on their sizes alone."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from dload.randomness import hash64, random_order

Part = tuple[int, int, int]
"""Tokens [start, stop) of the document of a number."""

WINDOW = 64
"""Documents go into bins window by window: a window ends with the document that brings it to so many blocks' tokens.
That is what is held at most, and read again on going on: 64 blocks' tokens and one document."""


class Binning:
    """How whole documents become blocks of `length` tokens: "first_fit" or "best_fit", with at most `most` documents a
    block, in the order of `seed` (None: as they were begun)."""

    def __init__(self, length: int, mode: str, most: int | None, seed: int | None) -> None:
        self.length, self.mode, self.most, self.seed = length, mode, most, seed
        self.window = WINDOW * length

    def bins(self, sizes: Sequence[int]) -> list[list[Part]]:
        """The bins of one window, in the order in which they were begun. Documents longer than a block are cut into
        blocks first, of which the last may be shorter."""
        put = _FirstFit(self.length, self.most) if self.mode == "first_fit" else _BestFit(self.length, self.most)
        for number, size in enumerate(sizes):
            for start in range(0, size, self.length):
                put.add((number, start, min(size, start + self.length)))
        return put.bins

    def order(self, count: int, *window: object) -> Sequence[int]:
        """The order in which the bins of a window come; `window`: what tells it from others."""
        return range(count) if self.seed is None else random_order(count, hash64(self.seed, "bins", *window))


class _FirstFit:
    """Into the first bin with room (Johnson 1973)."""

    def __init__(self, length: int, most: int | None) -> None:
        self.bins: list[list[Part]] = []
        self._length, self._most = length, most
        self._open: list[int] = []  # bins that aren't full, in the order of their numbers
        self._room: list[int] = []  # of each of these

    def add(self, part: Part) -> None:
        size = part[2] - part[1]
        at = next((at for at, room in enumerate(self._room) if room >= size), None)
        if at is None:
            at = len(self._open)
            self._open.append(len(self.bins))
            self._room.append(self._length)
            self.bins.append([])
        members = self.bins[self._open[at]]
        members.append(part)
        self._room[at] -= size
        if not self._room[at] or len(members) == self._most:
            del self._open[at], self._room[at]


class _BestFit:
    """Into the bin with the least room that is enough; of several alike, the first."""

    def __init__(self, length: int, most: int | None) -> None:
        self.bins: list[list[Part]] = []
        self._length, self._most = length, most
        self._open: list[tuple[int, int]] = []  # (room, number) of bins that aren't full, ascending

    def add(self, part: Part) -> None:
        size = part[2] - part[1]
        at = bisect_left(self._open, (size, -1))
        if at < len(self._open):
            room, number = self._open.pop(at)
        else:
            room, number = self._length, len(self.bins)
            self.bins.append([])
        members = self.bins[number]
        members.append(part)
        if room > size and len(members) != self._most:
            insort(self._open, (room - size, number))
