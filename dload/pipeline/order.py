"""The order of an epoch's elements under a shuffle: a pure function of sizes, seed, epoch and homes.

Units are permuted, and each of a unit's z rows gets the key q + z*u + n*v: q is the unit's first rank in its home, u
and v are uniform in [0, 1). Rows come by key, ties by place. So rows are permuted inside their unit and spread over the
n ranks behind it, and the rows around any position come from the few units that can reach it: finding them reads no
data and keys no other unit.

Homes: home h of H holds places [hT/H, (h+1)T/H) of a base order of the units that is drawn once from the seed, or
those that it is given. Each epoch permutes and spreads inside the homes, so that what a machine has cached stays its
own from epoch to epoch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil, inf, sqrt
from random import Random
from typing import Any, Protocol

from dload import randomness
from dload.randomness import Permutation, hash64, random_order

# (first position, last position + 1, unit, its first row, its last row + 1)
Use = tuple[int, int, int, int, int]

_BLOCK = 1024
_BLOCKS = 128  # kept for scattered positions
_CURSORS = 64  # at most, and fewer where windows are large: together they hold about so many rows
_CURSOR_ROWS = 1 << 19


Homes = int | tuple[int, ...]
"""How many homes there are; or, for orders of one length, the first position of each and, last, that length."""


def home_starts(homes: Homes, length: int) -> list[int]:
    """The first position of each home and, last, the length."""
    if isinstance(homes, tuple):
        if homes[-1] == length:
            return list(homes)
        homes = len(homes) - 1
    return [home * length // homes for home in range(homes + 1)]


@lru_cache(64)
def left_out(seed: int, epoch: tuple[int, ...], length: int, batch: int, homes: Homes) -> tuple[tuple[int, int], ...]:
    """The places that an epoch of whole batches under a shuffle leaves out, as stretches (first, count) in order; they
    are length % batch in all. The number of homes divides `batch`.

    Each home leaves out its own, from a place drawn for each epoch, so that all keep equally many: then no lane, which
    is a slice of what is kept, reads of another home.
    """
    borders = home_starts(homes, length)
    each = (length - length % batch) // (len(borders) - 1)
    place = hash64(seed, epoch, "drop") % (each + 1)
    return tuple((first + place, stop - first - each) for first, stop in pairwise(borders) if stop - first > each)


class _Window(Protocol):
    """Rows that have their keys and haven't had their turn."""

    def add(self, q: int, place: int, z: int, seed: int) -> None:
        """Key the z rows of a unit that begins at rank q of its home, and at a place of the parent."""

    def take(self, limit: float) -> list[int]:
        """Remove the rows with keys below the limit; their places, in the order of the keys."""

    def forget(self, limit: float) -> int:
        """Remove the rows with keys below the limit; how many they were."""


class _PlainWindow:
    def __init__(self, n: int) -> None:
        self._n = float(n)
        self._rows: list[tuple[float, int]] = []

    def add(self, q: int, place: int, z: int, seed: int) -> None:
        self._rows += _keyed(q, place, z, seed, self._n)

    def take(self, limit: float) -> list[int]:
        rows = sorted([row for row in self._rows if row[0] < limit])
        self._rows = [row for row in self._rows if row[0] >= limit]
        return [place for _, place in rows]

    def forget(self, limit: float) -> int:
        before = len(self._rows)
        self._rows = [row for row in self._rows if row[0] >= limit]
        return before - len(self._rows)


def _keyed(q: int, place: int, z: int, seed: int, n: float) -> Iterator[tuple[float, int]]:
    """(key, place) of a unit's rows. First come the z draws of u, then those of v."""
    draw = Random(seed).random
    us = [draw() for _ in range(z)]
    start, size = float(q), float(z)
    return ((start + size * u + n * draw(), row) for row, u in enumerate(us, place))


class _NumpyWindow:
    """The same doubles from NumPy: see `randomness.twister`. Units below `_FEW` rows are cheaper without it."""

    _FEW = 64

    def __init__(self, n: int) -> None:
        import numpy as np

        self._np = np
        self._n = float(n)
        self._twister = randomness.twister(1 << 63)
        self._few: list[tuple[float, int]] = []
        self._keys = [np.empty(0)]
        self._places = [np.empty(0, dtype=np.int64)]

    def add(self, q: int, place: int, z: int, seed: int) -> None:
        if z < self._FEW:
            self._few += _keyed(q, place, z, seed, self._n)
            return
        self._twister.seed(randomness.words(seed))
        draws = self._twister.random_sample(2 * z)
        self._keys.append(float(q) + float(z) * draws[:z] + self._n * draws[z:])
        self._places.append(self._np.arange(place, place + z, dtype=self._np.int64))

    def _split(self, limit: float) -> tuple[Any, Any]:
        """Remove and give the keys and places below the limit, in no order."""
        np = self._np
        if self._few:
            self._keys.append(np.array([key for key, _ in self._few]))
            self._places.append(np.array([place for _, place in self._few], dtype=np.int64))
            self._few = []
        keys, places = np.concatenate(self._keys), np.concatenate(self._places)
        below = keys < limit
        self._keys, self._places = [keys[~below]], [places[~below]]
        return keys[below], places[below]

    def take(self, limit: float) -> list[int]:
        keys, places = self._split(limit)
        order = keys.argsort()
        ascending = keys[order]
        if (ascending[1:] == ascending[:-1]).any():
            order = self._np.lexsort((places, keys))
        result: list[int] = places[order].tolist()
        return result

    def forget(self, limit: float) -> int:
        return len(self._split(limit)[0])


class _Home:
    """The units of one home in an epoch's order. `offsets`: the rank at which each begins and, last, their sum."""

    def __init__(self, first: int, units: list[int], sizes: list[int], clips: dict[int, int]) -> None:
        self.first = first
        self.units = units
        self.clips = clips  # unit -> its first row in this home, where that isn't 0
        self.offsets = list(accumulate(sizes, initial=0))
        self.length = self.offsets[-1]

    def piece(self, s: int) -> tuple[int, int, int]:
        """Unit, first row, last row + 1."""
        unit = self.units[s]
        low = self.clips.get(unit, 0)
        return unit, low, low + self.offsets[s + 1] - self.offsets[s]


class _Cursor:
    """Goes through a home from a position on, and keys each unit once.

    Rows with keys below the q of the next unit have had all their rivals: they are ready.
    """

    def __init__(self, order: DisplacedOrder, home: int, at: int) -> None:
        # Not the order itself, which has its cursors: it is large, and would wait for the garbage collector.
        self._draw = order.seed, order.epoch, home
        self._starts = order.starts
        self._home = order.home(home)
        self._n = n = order.n
        self._window: _Window = _NumpyWindow(n) if randomness.HAVE_NUMPY else _PlainWindow(n)
        offsets = self._home.offsets
        inside = bisect_right(offsets, at) - 1
        # The row at a position has its key at or above the q of the unit around that position, so units that end n
        # before it come wholly before.
        self._next = first = max(0, bisect_left(offsets, offsets[inside] - n) - 1)
        self._key(max(offsets[inside + 1], at + n // 2))
        passed = offsets[first] + self._window.forget(offsets[inside])
        self._ready = self._window.take(self._limit())
        self._taken = at - passed  # may be more than are ready yet
        self._rows = 256

    def _key(self, goal: int) -> None:
        """Key units until those that are left begin at rank `goal` or later."""
        home, offsets = self._home, self._home.offsets
        while self._next < len(home.units) and offsets[self._next] < goal:
            unit, low, high = home.piece(self._next)
            seed = hash64(*self._draw, unit)
            self._window.add(offsets[self._next], self._starts[unit] + low, high - low, seed)
            self._next += 1

    def _limit(self) -> float:
        return inf if self._next == len(self._home.units) else float(self._home.offsets[self._next])

    def take(self, count: int) -> list[int]:
        """The next places, which must be there. Few rows are keyed at a time at first, then as many as pay."""
        while len(self._ready) - self._taken < count:
            self._key(self._home.offsets[self._next] + self._rows)
            self._rows = min(2 * self._rows, max(self._n, _BLOCK))
            done = min(self._taken, len(self._ready))
            self._ready = self._ready[done:] + self._window.take(self._limit())
            self._taken -= done
        self._taken += count
        return self._ready[self._taken - count : self._taken]


class DisplacedOrder:
    """The order of one epoch under `shuffle(n, seed)`.

    `sizes`: the lengths of the units, contiguous pieces of the parent's places. Positions are those of the shuffled
    order, 0 to the sum of sizes. Successive ranges go on where the last one ended or a little further; any other
    position is sought, which keys the units within n rows of it. For one thread at a time.
    """

    def __init__(self, sizes: Sequence[int], seed: int, epoch: tuple[int, ...], homes: Homes, n: int) -> None:
        self.sizes, self.seed, self.epoch, self.n = sizes, seed, epoch, n
        self.starts = list(accumulate(sizes, initial=0))
        self.length = self.starts[-1]
        self._borders = home_starts(homes, self.length)
        self._base: list[int] | None = None
        self._base_starts: list[int] = []
        self._homes: dict[int, _Home] = {}
        self._cursors: OrderedDict[int, _Cursor] = OrderedDict()  # by the position that they are at
        self._most_cursors = max(1, min(_CURSORS, _CURSOR_ROWS // (n + _BLOCK)))
        self._blocks: OrderedDict[int, list[int]] = OrderedDict()
        # A row with a given key has, up to chance, `_before(key)` rows before it: the sum of independent draws, one for
        # each of at most n + 2 * max(sizes) rows whose keys may be on either side. By Hoeffding's inequality it is
        # further off than this once in 2**60 times.
        self._slack = 4.7 * sqrt(n + 2 * max(sizes, default=0)) + 1

    def __len__(self) -> int:
        return self.length

    def home(self, number: int) -> _Home:
        """A home's units, in this epoch's order."""
        if number in self._homes:
            return self._homes[number]
        if self._base is None:
            self._base = random_order(len(self.sizes), hash64(self.seed, "base"))
            self._base_starts = list(accumulate(map(self.sizes.__getitem__, self._base), initial=0))
        first, stop = self._borders[number], self._borders[number + 1]
        begin = bisect_right(self._base_starts, first) - 1
        end = bisect_left(self._base_starts, stop)
        sizes, clips = {}, {}
        for at in range(begin, end):
            low = max(first, self._base_starts[at])
            size = min(stop, self._base_starts[at + 1]) - low
            if size > 0:
                sizes[self._base[at]] = size
            if low > self._base_starts[at]:
                clips[self._base[at]] = low - self._base_starts[at]
        members = list(sizes)
        units = [members[i] for i in random_order(len(members), hash64(self.seed, self.epoch, number))]
        home = self._homes[number] = _Home(first, units, [sizes[unit] for unit in units], clips)
        return home

    def places(self, start: int, stop: int) -> list[int]:
        """The parent's places at positions start to stop - 1. Raises IndexError where these aren't all positions."""
        _check_range(start, stop, self.length)
        out: list[int] = []
        while start < stop:
            number = bisect_right(self._borders, start) - 1
            end = self._borders[number + 1]
            cursor = self._cursor(start, number)
            part = cursor.take(min(stop, end) - start)
            out = out + part if out else part
            start += len(part)
            if start < end:
                self._cursors[start] = cursor
        while len(self._cursors) > self._most_cursors:
            self._cursors.popitem(last=False)
        return out

    def _cursor(self, start: int, number: int) -> _Cursor:
        """One that stands at a position of a home. Who leaves out a few, as one of several workers does, goes on."""
        first = self._borders[number]
        least = max(first, start - self.n - _BLOCK)  # to go over so many keys fewer rows than to seek
        near = max((at for at in self._cursors if least <= at <= start), default=None)
        if near is None:
            return _Cursor(self, number, start - first)
        cursor = self._cursors.pop(near)
        cursor.take(start - near)
        return cursor

    def at(self, positions: Sequence[int]) -> list[int]:
        """The parent's places at any positions. Works in blocks, and keeps the latest. Raises IndexError."""
        out = []
        for position in positions:
            if not 0 <= position < self.length:
                _check_range(position, position + 1, self.length)
            block, offset = divmod(position, _BLOCK)
            places = self._blocks.pop(block, None)
            if places is None:
                places = self.places(block * _BLOCK, min(self.length, (block + 1) * _BLOCK))
            self._blocks[block] = places
            out.append(places[offset])
            if len(self._blocks) > _BLOCKS:
                self._blocks.popitem(last=False)
        return out

    def demand(self, start: int, stop: int) -> Iterator[Use]:
        """Which rows of which units serve positions [start, stop), in the order of their first possible position.

        Lazy; nothing is keyed. A unit's rows have keys from q to q + z + n. Where those come is known up to chance:
        the windows are as wide as chance needs it once in 2**60 units, and clipped to the home and to the range. They
        overlap as the resident set does, by about n rows and two units.
        """
        _check_range(start, stop, self.length)
        for number in range(bisect_right(self._borders, start) - 1, len(self._borders) - 1):
            first = self._borders[number]
            if first >= stop:
                return
            if first < self._borders[number + 1]:
                yield from self._demand_of(self.home(number), max(start, first), stop)

    def _demand_of(self, home: _Home, start: int, stop: int) -> Iterator[Use]:
        first, length, offsets = home.first, home.length, home.offsets

        def last(s: int) -> int:
            return first + min(length, ceil(self._before(offsets[s + 1] + self.n) + self._slack))

        for s in range(bisect_right(range(len(home.units)), start, key=last), len(home.units)):
            begin = max(start, first + int(self._before(offsets[s]) - self._slack))
            if begin >= stop:
                return
            yield begin, min(last(s), stop), *home.piece(s)

    def _before(self, key: int) -> float:
        """How many of a home's rows have keys below this one, on average; not fewer, for keys past all ranks.

        q + z*u is uniform over the unit's own ranks, so over all units there is one such row per rank x, and it counts
        with the chance that x + n*v is below the key: min(1, (key - x) / n), summed up.
        """
        n = self.n
        return key * key / (2 * n) if key < n else key - n / 2


class FullOrder:
    """The order of one epoch under `shuffle(full=True)`: the places of each home in uniform order, by arithmetic.

    With one home, of all places. Everything may be needed at any position.
    """

    def __init__(self, n: int, seed: int, epoch: tuple[int, ...], homes: Homes) -> None:
        self.length = n
        self._borders = home_starts(homes, n)
        self._permutations = [
            Permutation(stop - start, hash64(seed, epoch, home))
            for home, (start, stop) in enumerate(zip(self._borders, self._borders[1:], strict=False))
        ]

    def __len__(self) -> int:
        return self.length

    def places(self, start: int, stop: int) -> list[int]:
        """The parent's places at positions start to stop - 1. Raises IndexError where these aren't all positions."""
        _check_range(start, stop, self.length)
        out: list[int] = []
        for permutation, first in zip(self._permutations, self._borders, strict=False):
            low, high = max(start - first, 0), min(stop - first, len(permutation))
            if low < high:
                out += [first + place for place in permutation.many(range(low, high))]
        return out

    def at(self, positions: Sequence[int]) -> list[int]:
        """The parent's places at any positions. Raises IndexError."""
        out = [0] * len(positions)
        by_home: dict[int, list[int]] = {}
        for number, position in enumerate(positions):
            if not 0 <= position < self.length:
                _check_range(position, position + 1, self.length)
            by_home.setdefault(bisect_right(self._borders, position) - 1, []).append(number)
        for home, numbers in by_home.items():
            first = self._borders[home]
            places = self._permutations[home].many([positions[number] - first for number in numbers])
            for number, place in zip(numbers, places, strict=True):
                out[number] = first + place
        return out

    def demand(self, start: int, stop: int) -> Iterator[Use]:
        """Every row of the homes that positions [start, stop) are in, as one unit, from their first position on."""
        _check_range(start, stop, self.length)
        for first, end in zip(self._borders, self._borders[1:], strict=False):
            if max(first, start) < min(end, stop):
                yield max(first, start), min(end, stop), 0, first, end


def _check_range(start: int, stop: int, length: int) -> None:
    if not 0 <= start <= stop <= length:
        raise IndexError(f"positions {start} to {stop - 1} of an order of {length}")
