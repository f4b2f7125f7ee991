"""The mix: which child each global row comes from, by arithmetic, so that it can be counted and sought.

Global row G comes from the child whose interval of cumulative weight holds the point (A*G + b) mod 2**64, A being
2**64 divided by the golden ratio and b drawn from the seed. Any N successive rows hold each child's share within
1 + 0.42 * ln(N) rows: 2.7 of 64, 3.1 of 256, 6.6 of a million. `floor_sum` counts in O(log) how many of the first G
rows a child gave. (Points of 32 bits would follow the golden ratio for 65,536 rows only: 9 rows off in 8 million.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from math import gcd, isfinite, lcm
from numbers import Rational, Real
from typing import Any

from dload.errors import ConfigError
from dload.pipeline.lanes import Lane
from dload.randomness import hash64

STAGE_ROWS = 1 << 16  # of a schedule that is a function

_M = 1 << 64
_STEP = 0x9E3779B97F4A7C15
_LANES = 1024  # of which counts are kept
_FOUND = 1 << 14  # rows whose places are kept: each pass asks several times for the same ones
_NEAR = 64  # rows: no share is further off than this
_LOOKED_AT = 1 << 32  # rows of a schedule that is a function: what doesn't end within so many is taken to have no end


# ---------------------------------------------------------------- weights
def whole_weights(weights: Sequence[Any], where: str = "the mix") -> tuple[int, ...]:
    """The weights as integers in exactly the same proportions. `where` is for messages.

    Raises ConfigError, naming the weight, where one isn't a number, is not finite, negative or too small beside the
    others, and where all are 0 or there are none.
    """
    fractions = [_fraction(weight, number, where) for number, weight in enumerate(weights)]
    if not any(fractions):
        raise ConfigError(f"{where} has no weight above 0", remedy="give one of its pipelines a positive weight")
    scale = lcm(*(fraction.denominator for fraction in fractions))
    whole = [int(fraction * scale) for fraction in fractions]
    common = gcd(*whole)
    total = sum(whole)
    for number, weight in enumerate(whole):
        if 0 < weight * _M < total:
            raise ConfigError(
                f"weight {number} of {where} is less than a row in 2**64: {weights[number]!r}",
                remedy="give it 0, or more",
            )
    return tuple(weight // common for weight in whole)


def _fraction(weight: Any, number: int, where: str) -> Fraction:
    if isinstance(weight, Rational):
        exact = Fraction(int(weight.numerator), int(weight.denominator))
    elif isinstance(weight, Real) and isfinite(float(weight)):
        exact = Fraction(float(weight))
    else:
        raise ConfigError(f"weight {number} of {where} is {weight!r}", remedy="weights are finite numbers, 0 or more")
    if exact < 0:
        raise ConfigError(f"weight {number} of {where} is negative: {weight!r}", remedy="weights are 0 or more")
    return exact


def _edges(weights: Sequence[int]) -> tuple[int, ...]:
    """Child i's interval is edges[i] to edges[i + 1]."""
    total = sum(weights)
    return tuple(edge * _M // total for edge in accumulate(weights, initial=0))


class Schedule:
    """Weights by row: one list for all rows, a list of (first row, weights), or a function of row // 65,536.

    A function is called once for each 65,536 rows, when they are first reached. Raises ConfigError as `whole_weights`
    does, and where first rows don't begin at 0 and ascend, or the number of weights isn't `children`.
    """

    def __init__(self, weights: Any, children: int) -> None:
        self.children = children
        self._function: Callable[[int], Sequence[Any]] | None = weights if callable(weights) else None
        self._latest: tuple[int, tuple[int, ...]] | None = None
        self._firsts: list[int] = []
        self._weights: list[tuple[int, ...]] = []
        if self._function is not None:
            return
        for first, stage in _staged(weights):
            where = f"the mix from row {first:,} on" if first else "the mix"
            self._firsts.append(first)
            self._weights.append(self._checked(stage, where))

    @property
    def is_function(self) -> bool:
        """Whether the weights of later rows aren't known beforehand."""
        return self._function is not None

    def _checked(self, weights: Sequence[Any], where: str) -> tuple[int, ...]:
        whole = whole_weights(weights, where)
        if len(whole) != self.children:
            raise ConfigError(
                f"{where} has {len(whole)} weights for {self.children} pipelines",
                remedy="give one weight for each pipeline",
            )
        return whole

    def at(self, row: int) -> tuple[tuple[int, ...], int | None]:
        """The weights at a row, and the row where they end (None: never)."""
        if self._function is None:
            stage = bisect_right(self._firsts, row) - 1
            return self._weights[stage], self._firsts[stage + 1] if stage + 1 < len(self._firsts) else None
        block = row // STAGE_ROWS
        if self._latest is None or self._latest[0] != block:
            where = f"the mix from row {block * STAGE_ROWS:,} on"
            self._latest = block, self._checked(list(self._function(block)), where)
        return self._latest[1], (block + 1) * STAGE_ROWS


def _staged(weights: Any) -> list[tuple[int, Sequence[Any]]]:
    """(first row, weights) of each stage of a schedule that is a list, or weights."""
    wrong = "the weights of a mix are {}"
    remedy = "give one number for each pipeline, or pairs of a first row and such weights, rows from 0 on ascending"
    if not isinstance(weights, Iterable) or isinstance(weights, str | bytes):
        raise ConfigError(wrong.format(repr(weights)), remedy=remedy)
    given = list(weights)
    if not given or not isinstance(given[0], Sequence):
        return [(0, given)]
    if not all(isinstance(stage, Sequence) and len(stage) == 2 and isinstance(stage[0], int) for stage in given):
        raise ConfigError(wrong.format(repr(given)), remedy=remedy)
    firsts = [first for first, _ in given]
    if firsts[0] != 0 or any(a >= b for a, b in pairwise(firsts)):
        raise ConfigError(f"stages of a mix begin at rows {firsts}", remedy=remedy)
    return [(first, stage) for first, stage in given]


# ---------------------------------------------------------------- counting
def floor_sum(n: int, m: int, a: int, b: int) -> int:
    """The sum of (a*i + b) // m over i from 0 to n - 1, in O(log m). No argument is negative."""
    total = 0
    while True:
        total += (n * (n - 1) // 2) * (a // m) + n * (b // m)
        a, b = a % m, b % m
        top = a * n + b
        if top < m:
            return total
        n, b = divmod(top, m)
        m, a = a, m


def first_within(a: int, m: int, low: int, high: int) -> int:
    """The least k, from 0 on, with low <= a*k % m <= high, in O(log m). There is one, and 0 <= low <= high < m."""
    if low == 0:
        return 0
    if 2 * a > m:  # the other way round the circle
        return first_within(m - a, m, m - high, m - low)
    k = -(-low // a)
    if a * k <= high:
        return k
    # Else it is in the first round that steps over `low`: seen from multiples of a, rounds are steps of m.
    rounds = first_within(m % a, a, -high % a, -low % a)
    return -(-(low + m * rounds) // a)


@dataclass(frozen=True, slots=True)
class _Stage:
    """Rows with the same weights. `before`: how many rows each child gave before its first."""

    first: int
    edges: tuple[int, ...]
    before: tuple[int, ...]

    def draws_from(self, i: int) -> bool:
        return self.edges[i] < self.edges[i + 1]


class Weave:
    """A mix's rows: the child of each, and which of that child's rows it is.

    `length` is how many rows there are, None where they have no end. With `lengths` given, a child that has been read
    whole leaves the mix, and the rest share its rows. Stages are made as rows are reached. For one thread at a time.
    """

    def __init__(self, schedule: Schedule, seed: int, lengths: Sequence[int | None] | None = None) -> None:
        self.children = schedule.children
        self.length: int | None = None
        self._schedule = schedule
        self._lengths = lengths
        self._b = hash64(seed, "mix") % _M
        self._stages: list[_Stage] = []
        self._known: int | None = 0  # rows below have their stages; None: all have
        self._next: tuple[int, list[int]] = (-1, [])
        self._lane_counts: dict[tuple[Lane, int], list[int]] = {}
        self._found: dict[tuple[int, int], int] = {}  # (child, row of it) -> row
        self._drawn: dict[tuple[int, int], int] = {}  # (child, length) -> rows

    # ---- stages
    @property
    def stages(self) -> list[tuple[int, tuple[int, ...]]]:
        """(first row, how many rows each child gave before it) of the stages that are known so far."""
        return [(stage.first, stage.before) for stage in self._stages]

    def grow(self) -> bool:
        """Learn the weights of more rows; False where all are known."""
        row = self._known
        if row is None:
            return False
        weights, until = self._due(row)
        if not any(weights):
            self.length, self._known = row, None
            return False
        edges = _edges(weights)
        if not self._stages or self._stages[-1].edges != edges:
            self._stages.append(_Stage(row, edges, self._counts(row)))
        stage = self._stages[-1]
        for i, length in enumerate(self._lengths or ()):
            if length is not None and stage.draws_from(i):
                end = self._row_in(stage, i, length - 1) + 1
                until = end if until is None else min(until, end)
        self._known = until
        return True

    def grow_below(self, row: int | None) -> bool:
        """`grow`, but False from a row on where the schedule is a function, which would never end."""
        if self._schedule.is_function and row is not None and (self._known or 0) >= row:
            return False
        return self.grow()

    def _due(self, row: int) -> tuple[Sequence[int], int | None]:
        """The weights from a row on, of the children that haven't ended, and where these weights end.

        Where only ended ones have weights, those of the next stage that names others are due at once.
        """
        if self._lengths is None:
            return self._schedule.at(row)
        counts = self._counts(row)
        left = [length is None or done < length for done, length in zip(counts, self._lengths, strict=True)]
        at: int | None = row
        while at is not None and any(left) and at < row + _LOOKED_AT:
            weights, at = self._schedule.at(at)
            due = [weight if there else 0 for weight, there in zip(weights, left, strict=True)]
            if any(due):
                return due, at
        return [0] * self.children, None

    def _stage_at(self, row: int) -> int:
        """The number of the stage that a row is in. Raises IndexError where there is no such row."""
        while self.length is None and self._known is not None and row >= self._known:
            self.grow()
        if row < 0 or (self.length is not None and row >= self.length):
            raise IndexError(f"row {row} of a mix of {self.length}")
        return bisect_right(self._stages, row, key=lambda stage: stage.first) - 1

    def stage_of(self, row: int) -> tuple[int, int | None]:
        """The first row of a row's stage, and where it ends (None: never). Where weights are a function, a stage also
        ends where it is asked again. Raises IndexError where there is no such row."""
        number = self._stage_at(row)
        begin, end = self._stages[number].first, self.length
        if self._schedule.is_function:
            block = row // STAGE_ROWS * STAGE_ROWS
            begin, end = max(begin, block), block + STAGE_ROWS if end is None else min(end, block + STAGE_ROWS)
        while number + 1 == len(self._stages) and not (end is not None and (self._known or 0) >= end) and self.grow():
            pass
        following = self._stages[number + 1].first if number + 1 < len(self._stages) else None
        if following is None:
            return begin, self.length if end is None else end
        return begin, following if end is None else min(end, following)

    def _hits(self, edges: tuple[int, ...], i: int, n: int, first: int, stride: int = 1) -> int:
        """How many of rows first, first + stride, ... (n of them) are child i's by these weights."""
        if edges[i] == edges[i + 1]:
            return 0
        a, b = _STEP * stride % _M, (_STEP * first + self._b) % _M
        # A point below x is one that doesn't carry past 2**64 when 2**64 - x is added to it.
        return floor_sum(n, _M, a, b + _M - edges[i]) - floor_sum(n, _M, a, b + _M - edges[i + 1])

    def _counts(self, row: int) -> tuple[int, ...]:
        """How many of the rows before this one each child gave. They must be known."""
        if not self._stages:
            return (0,) * self.children
        stage = self._stages[bisect_right(self._stages, row, key=lambda stage: stage.first) - 1]
        return tuple(
            before + self._hits(stage.edges, i, row - stage.first, stage.first) for i, before in enumerate(stage.before)
        )

    # ---- questions
    def child(self, row: int) -> int:
        """The child that a global row comes from. Raises IndexError where there is no such row."""
        edges = self._stages[self._stage_at(row)].edges
        return bisect_right(edges, (_STEP * row + self._b) % _M) - 1

    def count(self, i: int, row: int) -> int:
        """How many of the first `row` rows come from child i. Raises IndexError where there are fewer."""
        if row == 0:
            return 0
        stage = self._stages[self._stage_at(row - 1)]
        return stage.before[i] + self._hits(stage.edges, i, row - stage.first, stage.first)

    def rows(self, start: int, stop: int) -> list[tuple[int, int]]:
        """(child, which of its rows, from 0 on, over all passes) of rows start to stop - 1.

        Successive ranges go on where the last one ended. Raises IndexError where there are fewer rows.
        """
        if not 0 <= start <= stop:
            raise IndexError(f"rows {start} to {stop - 1} of a mix")
        if start == stop:
            return []
        self._stage_at(stop - 1)
        counts = self._next[1] if self._next[0] == start else [self.count(i, start) for i in range(self.children)]
        out = []
        point = (_STEP * start + self._b) % _M
        for number in range(self._stage_at(start), len(self._stages)):
            edges = self._stages[number].edges
            end = min(stop, self._stages[number + 1].first) if number + 1 < len(self._stages) else stop
            for _ in range(start, end):
                i = bisect_right(edges, point) - 1
                d = counts[i]
                out.append((i, d))
                counts[i] = d + 1
                point = point + _STEP & _M - 1
            start = end
            if start == stop:
                break
        self._next = stop, counts
        return out

    def row_of(self, i: int, d: int) -> int | None:
        """The global row that is child i's row d, from 0 on; None where the mix ends before it or never draws it."""
        begun = self._known or 0
        while (row := self.known_row_of(i, d)) is None:
            known, length = self._known, self.length
            if known is None or known >= begun + _LOOKED_AT or (length is not None and known >= length):
                return None
            self.grow()
        return row

    def known_row_of(self, i: int, d: int) -> int | None:
        """`row_of` among the rows whose stages are known so far."""
        number = bisect_right(self._stages, d, key=lambda stage: stage.before[i]) - 1
        if number < 0 or not self._stages[number].draws_from(i):
            return None
        end = self._stages[number + 1].first if number + 1 < len(self._stages) else self._known
        if self.length is not None:
            end = self.length if end is None else min(end, self.length)
        row = self._found.get((i, d))
        if row is None:
            row = self._row_in(self._stages[number], i, d, end)
            if end is None or row < end:
                while len(self._found) >= _FOUND:
                    del self._found[next(iter(self._found))]
                self._found[i, d] = row
        return row if end is None or row < end else None

    def _row_in(self, stage: _Stage, i: int, d: int, end: int | None = None) -> int:
        """The global row of child i's row d if the stage had no end. The child draws in it, and d isn't before it.

        A row that is surely at or behind `end` isn't looked for further.
        """
        rank, width = d - stage.before[i], stage.edges[i + 1] - stage.edges[i]
        if end is not None and stage.first + (rank - _NEAR) * _M // width >= end:
            return end
        # The row is near where the share says: from there, or a little before, from hit to hit.
        row = stage.first + rank * _M // width
        while (done := self._hits(stage.edges, i, row - stage.first, stage.first)) > rank:
            row = max(stage.first, row - (done - rank + 1) * _M // width)
        for _ in range(rank - done):
            row = self._next_hit(stage.edges, i, row) + 1
        return self._next_hit(stage.edges, i, row)

    def _next_hit(self, edges: tuple[int, ...], i: int, row: int) -> int:
        """The first row from this one on that is child i's by these weights. It has one."""
        low = (edges[i] - _STEP * row - self._b) % _M
        high = low + edges[i + 1] - edges[i] - 1
        return row if high >= _M else row + first_within(_STEP, _M, low, high)

    def draws(self, i: int) -> int | None:
        """How many rows child i gives in all; None where that has no end or isn't known."""
        if self.length is not None:
            if (i, self.length) not in self._drawn:
                self._drawn[i, self.length] = self.count(i, self.length)
            return self._drawn[i, self.length]
        last = self._stages[-1] if self._stages else None
        return last.before[i] if last is not None and self._known is None and not last.draws_from(i) else None

    def positions_of(self, i: int, a: int, b: int) -> tuple[int, int]:
        """The global rows, first and last + 1, within which child i's rows a to b - 1 come; (0, 0) where none does."""
        total = self.draws(i)
        if total is not None:
            b = min(b, total)
        first = self.row_of(i, a) if a < b else None
        if first is None:
            return 0, 0
        last = self.row_of(i, b - 1)
        if last is None and (total := self.draws(i)) is not None:  # now all stages are known
            last = self.row_of(i, min(b, total) - 1)
        return first, (last if last is not None else self._known or first) + 1

    # ---- lanes
    def lane_count(self, lane: Lane, i: int, row: int) -> int:
        """How many of the first `row` rows are in the lane and come from child i."""
        if row == 0:
            return 0
        number = self._stage_at(row - 1)
        done = self._lane_counts.get((lane, i))  # of the stages before
        if done is None:
            while len(self._lane_counts) >= _LANES:
                del self._lane_counts[next(iter(self._lane_counts))]
            done = self._lane_counts[lane, i] = [0]
        while len(done) <= number:
            s = len(done) - 1
            edges, first, end = self._stages[s].edges, self._stages[s].first, self._stages[s + 1].first
            done.append(done[-1] + self._lane_hits(edges, lane, i, end) - self._lane_hits(edges, lane, i, first))
        stage = self._stages[number]
        return (
            done[number]
            + self._lane_hits(stage.edges, lane, i, row)
            - self._lane_hits(stage.edges, lane, i, stage.first)
        )

    def _lane_hits(self, edges: tuple[int, ...], lane: Lane, i: int, row: int) -> int:
        """`lane_count` as if all rows had these weights; where the pass doesn't begin at global row 0, more by a number
        that is the same for all rows."""
        grid, base = lane.grid, lane.base
        if grid.lanes == 1:
            return self._hits(edges, i, row, 0)
        column, turn = divmod(lane.number, grid.m)
        step, rest = divmod(base + row, grid.B)
        whole, begin, stride = grid.steps(lane.number, step), column * grid.c, grid.m * grid.B
        first = turn * grid.B + begin - base
        if whole < grid.c:
            hits = sum(self._hits(edges, i, grid.c, first + k * stride) for k in range(whole))
        else:
            hits = sum(self._hits(edges, i, whole, first + offset, stride) for offset in range(grid.c))
        part = min(max(rest - begin, 0), grid.c) if step % grid.m == turn else 0
        return hits + self._hits(edges, i, part, step * grid.B + begin - base)

    def before(self, lane: Lane, i: int, row: int) -> int:
        """How many of the first `row` rows are in lanes of lower number and come from child i."""
        return sum(self.lane_count(Lane(lane.grid, x, lane.base), i, row) for x in range(lane.number))


# ---------------------------------------------------------------- where mixes end
def until_first(weights: Any, lengths: Sequence[int | None], seed: int) -> Weave:
    """Ends when a child that has ended is due. `weights` as of Schedule; `lengths`: None is endless.

    Raises ConfigError for weights, and for an empty child that would be due.
    """
    weave = Weave(Schedule(weights, len(lengths)), seed)
    stop = _LOOKED_AT if None in lengths else None
    ends = any(length is not None for length in lengths)
    while ends and weave.length is None and weave.grow_below(stop):
        due = [row for i, length in enumerate(lengths) if (row := _read_row(weave, i, length, length)) is not None]
        weave.length = min(due, default=None)
    return weave


def until_cycle(weights: Any, lengths: Sequence[int | None], seed: int) -> Weave:
    """Ends with the row by which every finite child has been read whole; the others begin again meanwhile.

    Children that are never drawn from don't count. Raises ConfigError as `until_first`.
    """
    weave = Weave(Schedule(weights, len(lengths)), seed)
    ends: dict[int, int] = {}
    finite = [i for i, length in enumerate(lengths) if length is not None]
    while len(ends) < len(finite) and weave.grow_below(_LOOKED_AT):
        for i in finite:
            length = lengths[i]
            if i not in ends and (row := _read_row(weave, i, length, (length or 1) - 1)) is not None:
                ends[i] = row + 1
    if ends and all(i in ends or weave.draws(i) == 0 for i in finite):
        weave.length = max(ends.values())
    return weave


def until_all(weights: Any, lengths: Sequence[int | None], seed: int) -> Weave:
    """Ends when all children have been read whole: each leaves when it has, and the rest share its rows.

    With an endless child it has no end. Raises ConfigError for weights.
    """
    schedule = Schedule(weights, len(lengths))
    weave = Weave(schedule, seed, lengths)
    while (None not in lengths or not schedule.is_function) and weave.grow():
        pass
    return weave


def _read_row(weave: Weave, i: int, length: int | None, d: int | None) -> int | None:
    """Where a finite child's row d comes, if that is known."""
    row = None if length is None or d is None else weave.known_row_of(i, d)
    if row is not None and length == 0:
        raise ConfigError(
            f"pipeline {i} of the mix is empty, and would be due at row {row:,}",
            remedy='leave it out, give it weight 0, or mix with until="all"',
        )
    return row
