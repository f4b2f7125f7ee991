"""The grid: which row of a global batch comes from which lane, and which elements of an epoch a lane gets.

A run fixes B rows a step, C columns and m turns. Row i of step k belongs to column i // c, c being B / C, and to turn
k % m. Nothing here knows ranks or workers, so an order is one for any number of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from dload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Grid:
    """A run's fixed shape: B rows a step, C columns, m turns. Raises ConfigError where C doesn't divide B."""

    B: int
    C: int = 1
    m: int = 1

    def __post_init__(self) -> None:
        for name, value in (("the global batch", self.B), ("columns", self.C), ("turns", self.m)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.B % self.C:
            raise ConfigError(
                f"{self.C} columns don't divide a global batch of {self.B} rows",
                remedy="give columns= a divisor of the global batch",
            )

    @property
    def c(self) -> int:
        """Rows that a column gives to a step."""
        return self.B // self.C

    @property
    def lanes(self) -> int:
        """Lane j*m + t is column j at turn t."""
        return self.C * self.m

    def where(self, step: int, row: int) -> tuple[int, int]:
        """(step, row of its global batch) -> (lane, element of that lane)."""
        column, offset = divmod(row, self.c)
        return column * self.m + step % self.m, (step // self.m) * self.c + offset

    def count(self, lane: int, rows: int) -> int:
        """How many of the first `rows` global rows fall to the lane."""
        column, turn = divmod(lane, self.m)
        step, rest = divmod(rows, self.B)
        part = min(max(rest - column * self.c, 0), self.c) if step % self.m == turn else 0
        return self.steps(lane, step) * self.c + part

    def steps(self, lane: int, steps: int) -> int:
        """How many of the first `steps` steps are the lane's turn."""
        return max(0, -(-(steps - lane % self.m) // self.m))

    def slice(self, lane: int, borders: Sequence[int], part: int) -> tuple[int, int]:
        """Where the lane's elements of a part begin among all elements, and how many they are.

        Part p is elements borders[p] to borders[p + 1], and global rows of the same numbers. Equal parts of T elements
        are `range(0, ..., T)`.
        """
        low, high = borders[part], borders[part + 1]
        before = sum(self.count(other, high) - self.count(other, low) for other in range(lane))
        return low + before, self.count(lane, high) - self.count(lane, low)

    def locate(self, lane: int, element: int, borders: Sequence[int]) -> tuple[int, int]:
        """Which part the lane's element is in, and how far in the lane's slice of it. See `slice`."""
        part = bisect_right(borders, element, key=lambda border: self.count(lane, border)) - 1
        return part, element - self.count(lane, borders[part])

    def rows_of_rank(self, rank: int, world: int) -> range:
        """The rows of each global batch that a rank delivers, in order. Raises ConfigError where B % world isn't 0."""
        if not 0 <= rank < world:
            raise ConfigError(f"rank {rank} is not one of {world}", remedy=f"ranks are 0 to {world - 1}")
        if self.B % world:
            raise ConfigError(
                f"a global batch of {self.B} rows can't be shared evenly by {world} ranks",
                remedy="give global_batch a multiple of the number of ranks",
            )
        return range(rank * self.B // world, (rank + 1) * self.B // world)
