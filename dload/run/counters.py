"""What goes on in a running pipeline: counted by those who build its steps, summed by who takes them.

Each builder has a row of figures of its own in bytes that all processes share (see `SharedBytes`), and alone writes
there: nothing is locked on the way, nothing has a name. Figures are added up a chunk at a time.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dload.files.shared import SharedBytes
from dload.pipeline.failures import Failures

_LIST = 1 << 15  # bytes for what a builder lists
_FIGURES = ("rows_built", "rows_skipped", "bytes_loaded", "fetch_time", "build_time")
_AT_HAND = len(_FIGURES)  # the place of the only figure that isn't added up


@dataclass(slots=True)
class Tally:
    """What one builder counts, in its process. One thread at a time has to do with it."""

    failures: Failures = field(default_factory=Failures)
    rows: dict[str, int] = field(default_factory=dict)
    """Samples that were read, by data set."""
    bytes: dict[str, float] = field(default_factory=dict)
    """Theirs, at the mean of their data set."""
    rows_built: int = 0
    fetch_time: float = 0.0
    """Seconds in which it stood still for a shard."""
    build_time: float = 0.0
    """Seconds in which it built steps, those among them."""
    at_hand: Callable[[], int] = int
    """How many samples are there that nobody has read yet."""
    write: Callable[[Tally], None] | None = None

    def read(self, name: str, rows: int, mean_bytes: float) -> None:
        """So many samples of a data set were read."""
        self.rows[name] = self.rows.get(name, 0) + rows
        self.bytes[name] = self.bytes.get(name, 0.0) + rows * mean_bytes

    def built(self, rows: int, seconds: float) -> None:
        """A step was built."""
        self.rows_built += rows
        self.build_time += seconds
        if self.write is not None:
            self.write(self)


class Counters:
    """The rows of figures of several builders. Pickled as an argument of a new process, it is shared with that."""

    def __init__(self, builders: int, sources: Sequence[str]) -> None:
        self._builders, self._sources = builders, list(sources)
        self._figures = struct.Struct(f"<{_AT_HAND + 1 + 2 * len(self._sources)}d")
        self._size = self._figures.size + 4 + _LIST
        self._shared = SharedBytes(builders * self._size)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_figures"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._figures = struct.Struct(f"<{_AT_HAND + 1 + 2 * len(self._sources)}d")

    def tally(self, builder: int) -> Tally:
        """For the builder of that number, in its process. It goes on from what the one before it has counted."""
        row = _Row(self, builder, self._row(builder), self._listed(builder))
        return Tally(write=row.write)

    def _row(self, builder: int) -> tuple[float, ...]:
        return self._figures.unpack(self._shared.read(self._figures.size, builder * self._size))

    def put(self, builder: int, figures: Sequence[float]) -> None:
        """A builder's figures, in the order of a row."""
        self._shared.write(self._figures.pack(*figures), builder * self._size)

    def _listed(self, builder: int) -> list[dict[str, str]]:
        at = builder * self._size + self._figures.size
        with self._shared.alone():
            size = int.from_bytes(self._shared.read(4, at), "little")
            data = self._shared.read(size, at + 4)
        found: list[dict[str, str]] = json.loads(data or b"[]")
        return found

    def put_list(self, builder: int, listed: Sequence[dict[str, str]]) -> None:
        """What a builder lists, as much of it as there is room for."""
        data = json.dumps(listed).encode()
        while len(data) > _LIST:
            listed = listed[: len(listed) // 2]
            data = json.dumps(listed).encode()
        at = builder * self._size + self._figures.size
        with self._shared.alone():
            self._shared.write(len(data).to_bytes(4, "little") + data, at)

    def read(self) -> dict[str, Any]:
        """The sums over all builders: _FIGURES, `raw_queue_depth`, `skipped` and `sources`."""
        rows = [self._row(builder) for builder in range(self._builders)]
        sums = [sum(figures) for figures in zip(*rows, strict=True)]
        found: dict[str, Any] = {name: _plain(name, value) for name, value in zip(_FIGURES, sums, strict=False)}
        found["raw_queue_depth"] = int(sums[_AT_HAND])
        listed = [entry for builder in range(self._builders) for entry in self._listed(builder)]
        found["skipped"] = list({tuple(entry.items()): entry for entry in listed}.values())  # each once
        pairs = iter(sums[_AT_HAND + 1 :])
        found["sources"] = {
            name: {"rows_read": int(rows_read), "bytes_loaded": int(size)}
            for name, rows_read, size in zip(self._sources, pairs, pairs, strict=True)
        }
        return found

    def layout(self, tally: Tally) -> Iterator[float]:
        """A tally's figures in the order of a row."""
        yield tally.rows_built
        yield tally.failures.rows
        yield sum(tally.bytes.values())
        yield tally.fetch_time
        yield tally.build_time
        yield tally.at_hand()
        for name in self._sources:
            yield tally.rows.get(name, 0)
            yield tally.bytes.get(name, 0.0)


class _Row:
    """Where a tally is written to: on top of what was there."""

    def __init__(
        self, counters: Counters, builder: int, before: tuple[float, ...], listed: list[dict[str, str]]
    ) -> None:
        self._counters, self._builder = counters, builder
        self._before, self._listed = list(before), listed
        self._before[_AT_HAND] = 0
        self._count = 0

    def write(self, tally: Tally) -> None:
        figures = self._counters.layout(tally)
        self._counters.put(self._builder, [old + new for old, new in zip(self._before, figures, strict=True)])
        if len(tally.failures.listed) > self._count:
            self._count = len(tally.failures.listed)
            self._counters.put_list(self._builder, self._listed + tally.failures.listed)


def _plain(name: str, value: float) -> float:
    return value if name.endswith("_time") else int(value)
