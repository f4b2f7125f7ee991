"""The grid: which row of a global batch comes from which lane, and which elements of an epoch a lane gets.

A run fixes B rows a step, C columns and m turns. Row i of step k belongs to column i // c, c being B / C, and to turn
k % m. Nothing here knows ranks or workers, so an order is one for any number of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dload.errors import ConfigError

_PASSES = 8


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

    def row_of(self, lane: int, element: int) -> int:
        """The global row that is the lane's element: the inverse of `count`, and of `where`."""
        column, turn = divmod(lane, self.m)
        number, offset = divmod(element, self.c)
        return (number * self.m + turn) * self.B + column * self.c + offset

    def before(self, lane: int, rows: int) -> int:
        """How many of the first `rows` global rows fall to lanes of lower number."""
        column, turn = divmod(lane, self.m)
        step, rest = divmod(rows, self.B)
        rounds, over = divmod(step, self.m)
        left = step * self.c * column + min(rest, column * self.c)
        part = min(max(rest - column * self.c, 0), self.c) if over < turn else 0
        return left + (rounds * turn + min(over, turn)) * self.c + part

    def slice(self, lane: int, low: int, high: int) -> tuple[int, int]:
        """Of a part, elements low to high - 1, that global rows of the same numbers are: where the lane's begin, and
        how many they are."""
        return low + self.before(lane, high) - self.before(lane, low), self.count(lane, high) - self.count(lane, low)

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


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane in a pass that begins at global row `base`; rows are counted from there. Without arguments the only lane
    there is, which gets everything in order."""

    grid: Grid = field(default_factory=lambda: Grid(1))
    number: int = 0
    base: int = 0

    def count(self, rows: int) -> int:
        """How many of the first rows are the lane's."""
        grid = self.grid
        return grid.count(self.number, self.base + rows) - grid.count(self.number, self.base)

    def row(self, element: int) -> int:
        """The row that is the lane's element."""
        grid = self.grid
        return grid.row_of(self.number, grid.count(self.number, self.base) + element) - self.base

    def slice(self, low: int, high: int) -> tuple[int, int]:
        """Where in the part of rows low to high - 1 the lane's slice begins, and how long it is."""
        first, count = self.grid.slice(self.number, self.base + low, self.base + high)
        return first - self.base, count

    def later(self, rows: int) -> Lane:
        """The lane in a pass that begins so many rows later."""
        return Lane(self.grid, self.number, self.base + rows)

    def saw_all(self, rows: int, first: int, last: int) -> bool:
        """Whether passes of so many rows, from number `first` to `last`, gave the lane enough to say that nothing will
        come of others if nothing came of these. The only lane saw all of them; one of several sees its share, which
        may be another each time, and waits for as many rows as several passes have."""
        wanted = rows if self.grid.lanes == 1 else _PASSES * rows
        return self.count((last + 1) * rows) - self.count(first * rows) >= wanted
