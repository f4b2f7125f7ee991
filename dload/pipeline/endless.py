"""The order of elements under a shuffle of something without an end."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from dload.randomness import hash64

_BLOCK = 1024


class EndlessOrder:
    """The element at the parent's place p gets the key p + n*v, v uniform in [0, 1), and elements come by key, ties
    by place.

    There are no units to permute. So an element comes at most n positions before or behind its own place, and the
    elements at positions [a, b) are among the places [a - n, b + n): finding them keys those alone.
    """

    def __init__(self, seed: int, epoch: tuple[int, ...], n: int) -> None:
        self._seed, self._epoch, self._n = seed, epoch, n
        # So many positions are sorted at a time, with 2n more: few more than are needed, and never very many.
        self._span = max(_BLOCK, min(4 * n, max(n, 1 << 16)))
        self._spans: dict[int, list[int]] = {}

    def places(self, start: int, stop: int) -> list[int]:
        """The parent's places at positions start to stop - 1."""
        found: list[int] = []
        while start < stop:
            number, offset = divmod(start, self._span)
            part = self._sorted(number)[offset : offset + stop - start]
            found += part
            start += len(part)
        return found

    def at(self, positions: Sequence[int]) -> list[int]:
        """The parent's places at any positions."""
        found = []
        for position in positions:
            number, offset = divmod(position, self._span)
            found.append(self._sorted(number)[offset])
        return found

    def _sorted(self, number: int) -> list[int]:
        span = self._spans.get(number)
        if span is None:
            start = number * self._span
            first = max(0, start - self._n)  # what is before this comes before `start` whatever its key
            keyed = sorted(self._keyed(first, start + self._span + self._n))
            span = [place for _, place in keyed[start - first : start - first + self._span]]
            self._spans = {**dict(list(self._spans.items())[-3:]), number: span}
        return span

    def _keyed(self, start: int, stop: int) -> list[tuple[float, int]]:
        keyed: list[tuple[float, int]] = []
        for block in range(start // _BLOCK, -(-stop // _BLOCK)):
            draw = Random(hash64(self._seed, self._epoch, "endless", block)).random
            base = block * _BLOCK
            keyed += [(place + self._n * draw(), place) for place in range(base, base + _BLOCK)]
        return keyed[start % _BLOCK : len(keyed) - (-stop % _BLOCK)]
