"""Executable model of the lane grid: which row of a global batch comes from which lane, and which rows a lane gets.

Standard library only. The real code is tested against this; it is written to be read, not to be fast.
`check_grid` checks the model itself.
"""

import random


class Grid:
    """A run's fixed shape: B rows a step, C columns, m turns (1 where every node is in the index tier)."""

    def __init__(self, B: int, C: int, m: int = 1):
        if B % C:
            raise ValueError(f"columns ({C}) must divide the global batch ({B})")
        self.B, self.C, self.m = B, C, m
        self.c = B // C
        self.lanes = C * m

    def where(self, step: int, row: int) -> tuple[int, int]:
        """(step, row of the global batch) -> (lane, element of that lane)."""
        column, offset = divmod(row, self.c)
        return column * self.m + step % self.m, (step // self.m) * self.c + offset

    def count(self, lane: int, rows: int) -> int:
        """How many of the first `rows` global rows fall to `lane`."""
        column, turn = divmod(lane, self.m)
        step, rest = divmod(rows, self.B)
        whole = max(0, -(-(step - turn) // self.m)) * self.c
        part = min(max(rest - column * self.c, 0), self.c) if step % self.m == turn else 0
        return whole + part

    def run(self, lane: int, epoch: int, T: int) -> tuple[int, int]:
        """Start and length of `lane`'s run of rows in an epoch of T rows."""

        def length(x: int) -> int:
            return self.count(x, (epoch + 1) * T) - self.count(x, epoch * T)

        return sum(length(x) for x in range(lane)), length(lane)

    def locate(self, lane: int, element: int, T: int) -> tuple[int, int]:
        """Element of an endless lane -> (epoch, offset inside that epoch's run)."""
        low, high = 0, (element + 2) * self.lanes * self.c // T + self.m * self.B // T + 4
        while low < high:
            middle = (low + high + 1) // 2
            if self.count(lane, middle * T) <= element:
                low = middle
            else:
                high = middle - 1
        return low, element - self.count(lane, low * T)

    def rows_of_rank(self, rank: int, world: int) -> range:
        """The rows of every global batch that `rank` of `world` delivers, in order."""
        if self.B % world:
            raise ValueError(f"the global batch ({self.B}) must divide by the world size ({world})")
        return range(rank * self.B // world, (rank + 1) * self.B // world)


def global_row(grid: Grid, step: int, row: int, T: int) -> tuple[int, int]:
    """(epoch, position in that epoch's row order) of one row of one step, for endless iteration over T rows."""
    lane, element = grid.where(step, row)
    epoch, offset = grid.locate(lane, element, T)
    start, length = grid.run(lane, epoch, T)
    assert 0 <= offset < length
    return epoch, start + offset


def check_grid() -> None:
    rng = random.Random(0)
    for _ in range(300):
        C, c, m = rng.choice([1, 2, 3, 4, 6, 8]), rng.randint(1, 4), rng.randint(1, 4)
        grid, T, epochs = Grid(C * c, C, m), rng.randint(1, 120), 3
        seen: dict[int, list[int]] = {}
        for g in range(epochs * T):
            epoch, position = global_row(grid, *divmod(g, grid.B), T)
            assert epoch == g // T
            seen.setdefault(epoch, []).append(position)
        assert all(sorted(seen[e]) == list(range(T)) for e in range(epochs))
    print("every epoch is exactly its own rows, for any length and any grid")
