"""Executable model, part two: the order of an epoch (homes, displacement shuffle), parts, and the mix over the grid.

Standard library only. The `check_` functions check the model itself.
"""

import random
from bisect import bisect_left, bisect_right
from hashlib import blake2b
from itertools import accumulate, pairwise

from tests.models.lanes import Grid


def hash64(*parts: object) -> int:
    """A stable 64-bit integer of the parts, top bit set (so that it always fills two 32-bit words)."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little") | 1 << 63


# ---------------------------------------------------------------- one epoch's order
class Order:
    """place(p) of an epoch: a pure function of (sizes, seed, epoch, homes, n). Lanes are slices of it, nothing else.

    `starts`: first position of each home and, last, T. Displacement stays inside a home, so a home's rows stay its own.
    """

    def __init__(self, sizes: list[int], seed: int, epoch: int, starts: list[int], n: int):
        self.seed, self.epoch, self.starts, self.n = seed, epoch, starts, n
        base = list(range(len(sizes)))
        random.Random(f"{seed} base").shuffle(base)  # once a run: who lives where
        self.units: list[list[tuple[int, int, int]]] = [[] for _ in starts[1:]]
        position = 0
        for shard in base:
            for home, (low, high) in enumerate(pairwise(starts)):
                a, b = max(low, position), min(high, position + sizes[shard])
                if a < b:
                    self.units[home].append((shard, a - position, b - position))
            position += sizes[shard]
        for home, units in enumerate(self.units):
            random.Random(f"{seed} {epoch} {home}").shuffle(units)  # each epoch: inside the home
        self.offsets = [[0, *accumulate(b - a for _, a, b in units)] for units in self.units]
        self.units_read = 0

    def _unit(self, home: int, s: int) -> list[tuple[float, tuple[int, int]]]:
        """(key, (shard, row)) of one unit of z rows that begins at rank q of its home: key = q + z*u + n*v.

        u and v are the first and second z draws of random.Random(64-bit seed with the top bit set); NumPy's
        RandomState over the seed's two 32-bit words gives the same doubles, so the order is one with and without NumPy.
        """
        self.units_read += 1
        shard, low, high = self.units[home][s]
        draw = random.Random(hash64(self.seed, self.epoch, home, shard)).random
        z, q = high - low, self.offsets[home][s]
        u = [draw() for _ in range(z)]
        v = [draw() for _ in range(z)]
        return [(q + z * a + self.n * b, (shard, low + i)) for i, (a, b) in enumerate(zip(u, v, strict=True))]

    def rows(self, p: int, count: int) -> list[tuple[int, int]]:
        """(shard, row) at places p .. p+count-1; keys only the units that can reach these places."""
        out: list[tuple[int, int]] = []
        while count > 0:
            home = bisect_right(self.starts, p) - 1
            offsets, at = self.offsets[home], p - self.starts[home]
            take = min(count, offsets[-1] - at)
            begin = offsets[bisect_right(offsets, at) - 1]  # keys at these places lie in
            end = offsets[bisect_right(offsets, at + take - 1)] + self.n  # [begin, end)
            first = max(
                0, bisect_right(offsets, begin - self.n) - 1
            )  # units that end at or before begin - n come wholly before
            last = bisect_left(offsets, end)  # units that start at or after end come wholly after
            keyed = sorted(x for s in range(first, min(last, len(offsets) - 1)) for x in self._unit(home, s))
            out += [row for _, row in keyed[at - offsets[first] :][:take]]
            p, count = p + take, count - take
        return out


def home_starts(H: int, T: int) -> list[int]:
    """Home h is places [hT/H, (h+1)T/H) of every epoch: no C, m, rank or worker in it."""
    return [h * T // H for h in range(H + 1)]


def dropped(seed: int, epoch: int, T: int, B: int, shuffled: bool) -> tuple[int, int]:
    """(first, count) of the places an epoch leaves out; slot g reads place g, or g + count from `first` on."""
    count = T % B
    return (random.Random(f"{seed} {epoch} drop").randint(0, T - count) if shuffled else T - count), count


# ---------------------------------------------------------------- parts (concat, repeat, stages of a mix)
def part_run(grid: Grid, lane: int, S: list[int], p: int) -> tuple[int, int]:
    """Start and length of a lane's run in part p, parts being global rows [S[p], S[p+1])."""

    def length(x: int) -> int:
        return grid.count(x, S[p + 1]) - grid.count(x, S[p])

    return S[p] + sum(length(x) for x in range(lane)), length(lane)


# ---------------------------------------------------------------- mix, decided by the global row
M = 1 << 32
STEP = 2654435769  # M / golden ratio, odd


def floor_sum(n: int, m: int, a: int, b: int) -> int:
    """sum of (a*i + b) // m for i < n, in O(log m); all arguments >= 0."""
    total = 0
    while True:
        total += (n * (n - 1) // 2) * (a // m) + n * (b // m)
        a, b = a % m, b % m
        y = a * n + b
        if y < m:
            return total
        n, b = divmod(y, m)
        m, a = a, m


class Mix:
    """Row G comes from the child whose weight interval holds the point (STEP*G + start) mod M."""

    def __init__(self, weights: list[int], seed: int):
        total = sum(weights)
        self.edges = [x * M // total for x in accumulate([0, *weights])]
        self.start = random.Random(f"{seed} mix").randrange(M)

    def child(self, G: int) -> int:
        return bisect_right(self.edges, (STEP * G + self.start) % M) - 1

    def _hits(self, i: int, n: int, first: int, stride: int) -> int:
        """How many of rows first, first+stride, ... (n of them) come from child i."""
        a, b = STEP * stride % M, (STEP * first + self.start) % M

        def below(x: int) -> int:
            return floor_sum(n, M, a, b + M) - floor_sum(n, M, a, b + M - x)

        return below(self.edges[i + 1]) - below(self.edges[i])

    def count(self, i: int, G: int) -> int:
        """How many of the first G rows come from child i."""
        return self._hits(i, G, 0, 1)

    def row_of(self, i: int, d: int) -> int:
        """The global row that is child i's d-th draw (bisection; also gives the length of 'first' and 'cycle')."""
        low, high = 0, 1
        while self.count(i, high) <= d:
            high *= 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.count(i, middle) <= d else (low, middle)
        return low

    def lane_count(self, grid: Grid, lane: int, i: int, G: int) -> int:
        """N(lane, G) restricted to child i: how many of the first G rows are in `lane` and come from child i."""
        column, turn = divmod(lane, grid.m)
        step, rest = divmod(G, grid.B)
        whole = max(0, -(-(step - turn) // grid.m))
        hits = sum(self._hits(i, whole, turn * grid.B + column * grid.c + o, grid.m * grid.B) for o in range(grid.c))
        if step % grid.m == turn:
            part = min(max(rest - column * grid.c, 0), grid.c)
            hits += self._hits(i, part, step * grid.B + column * grid.c, 1)
        return hits

    def child_run(self, grid: Grid, lane: int, i: int, e: int, T: int) -> tuple[int, int]:
        """Start and length of the lane's slice of child i's pass e (T rows), by the restricted count."""
        low, high = self.row_of(i, e * T), self.row_of(i, (e + 1) * T)

        def length(x: int) -> int:
            return self.lane_count(grid, x, i, high) - self.lane_count(grid, x, i, low)

        return sum(length(x) for x in range(lane)), length(lane)


def length_first(mix: Mix, T: list[int]) -> int:
    """until='first': ends when a child that has ended is due."""
    return min(mix.row_of(i, t) for i, t in enumerate(T) if mix.edges[i] < mix.edges[i + 1])


def length_cycle(mix: Mix, T: list[int]) -> int:
    """until='cycle': ends with the row by which every child has been read once."""
    return max(mix.row_of(i, t - 1) + 1 for i, t in enumerate(T) if t and mix.edges[i] < mix.edges[i + 1])


# ---------------------------------------------------------------- checks
def check_order() -> None:
    rng = random.Random(0)
    for _ in range(150):
        C = rng.choice([1, 2, 4, 6, 12])
        grid = Grid(C * rng.randint(1, 3), C, rng.randint(1, 3))
        H = rng.choice([h for h in range(1, C + 1) if C % h == 0])
        sizes = [rng.randint(1, 40) for _ in range(rng.randint(1, 25))]
        T, n, epoch = sum(sizes), rng.choice([1, 5, 40, 1000]), rng.randint(0, 3)
        order = Order(sizes, 7, epoch, home_starts(H, T), n)
        whole = order.rows(0, T)
        assert sorted(whole) == [(s, r) for s, z in enumerate(sizes) for r in range(z)]
        for _ in range(20):
            p = rng.randrange(T)
            w = rng.randint(1, T - p)
            assert order.rows(p, w) == whole[p : p + w]
        slices = [order.rows(*grid.run(lane, epoch, T)) for lane in range(grid.lanes)]
        assert [x for s in slices for x in s] == whole  # plain iteration = the lanes one after another
    big = Order([1300] * 400, 1, 0, [0, 520_000], 4096)
    big.rows(260_000, 1)
    print(
        f"exact cover, exact seek, lanes are slices; one seek at n=4096, 1,300 rows a shard keys {big.units_read} units"
    )


def check_mix() -> None:
    rng = random.Random(1)
    for _ in range(15):
        C = rng.choice([1, 2, 4])
        grid = Grid(C * rng.randint(1, 4), C, rng.randint(1, 3))
        weights = [rng.choice([0, 1, 2, 7, 50]) for _ in range(rng.randint(1, 4))] + [3]
        mix, T = Mix(weights, rng.random()), [rng.randint(1, 60) for _ in weights]
        drawn, seen = [0] * len(weights), {}
        slot = {}
        for G in range(400):
            step, row = divmod(G, grid.B)
            lane, i = grid.where(step, row)[0], mix.child(G)
            assert mix.count(i, G) == drawn[i] and mix.row_of(i, drawn[i]) == G
            k = slot.get((lane, i), 0)
            assert mix.lane_count(grid, lane, i, G) == k
            e = drawn[i] // T[i]  # the pass is right in global time, too
            start, length = mix.child_run(grid, lane, i, e, T[i])
            offset = k - mix.lane_count(grid, lane, i, mix.row_of(i, e * T[i]))
            assert 0 <= offset < length
            seen.setdefault((i, e), []).append(start + offset)
            drawn[i] += 1
            slot[lane, i] = k + 1
        for (i, e), got in seen.items():
            if (e + 1) * T[i] <= drawn[i]:
                assert sorted(got) == list(range(T[i]))
        for until in (length_first, length_cycle):
            counts, want = [0] * len(weights), None
            for G in range(10**6):
                i = mix.child(G)
                if until is length_first and counts[i] == T[i]:
                    want = G
                    break
                counts[i] += 1
                if until is length_cycle and all(c >= t for c, t, w in zip(counts, T, weights, strict=True) if w):
                    want = G + 1
                    break
            assert until(mix, T) == want
    worst = 0.0
    for weights in ([1] * 10, [7, 2, 1], [333, 333, 1, 50]):
        mix = Mix(weights, 5)
        for k in range(600):
            got = [0] * len(weights)
            for G in range(k * 64, k * 64 + 64):
                got[mix.child(G)] += 1
            worst = max(worst, *(abs(x - 64 * w / sum(weights)) for x, w in zip(got, weights, strict=True)))
    print(f"mix: counts, lanes, passes and lengths exact; a batch of 64 is within {worst:.2f} rows of every weight")


def check_parts() -> None:
    for S in ([0, 50, 50, 130], [0, 7, 200]):  # parts of unequal length
        grid = Grid(12, 6, 2)
        for p in range(len(S) - 1):
            runs = [part_run(grid, lane, S, p) for lane in range(grid.lanes)]
            assert [x for a, k in runs for x in range(a, a + k)] == list(range(S[p], S[p + 1]))
    print("parts: global rows [S[p], S[p+1]) are exactly part p")
