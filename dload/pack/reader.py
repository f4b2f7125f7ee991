"""Reading one shard."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable, Iterator, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import overload

from dload.errors import PackFormatError
from dload.pack import wire
from dload.pack.layout import ShardIndex
from dload.pack.samples import Sample

# Samples are read in chunks: enough at once that the work for each chunk doesn't count, few enough to stay in
# the processor's cache.
_CHUNK_ROWS = 64
_CHUNK_BYTES = 1 << 20
# Below this mean size of a value, a chunk is cheaper copied whole and then cut up.
_SMALL = 1 << 12


class ShardReader:
    """The samples of one shard, from a file or from bytes. Samples are copies: they outlive the reader.

    Opening reads the trailer and the index and checks the index's crc. A single sample (`read`, `reader[i]`,
    `reader["key"]`) is checked against its crc; slices, `read_many` and `samples` aren't, for speed: the
    shard as a whole is checked by its digest before it is read. May be used from several threads. """

    def __init__(self, buffer: bytes | bytearray | memoryview | mmap.mmap, *, name: str = "in memory") -> None:
        """Read a shard's bytes, or a map of its file, which stays its owner's to close. Bytes that may change
        are copied.

        `name` is for messages. Raises PackFormatError or IntegrityError.
        """
        self._buffer = buffer if isinstance(buffer, bytes | mmap.mmap) else bytes(buffer)
        self._owned: mmap.mmap | None = None
        size = len(self._buffer)
        trailer = wire.read_trailer(self._buffer[-wire.TRAILER_SIZE :], size, name)
        data = self._buffer[trailer.payload_size : trailer.payload_size + trailer.index_size]
        trailer.check(data, name)
        self.index = ShardIndex.parse(data, payload_size=trailer.payload_size, name=name, format=trailer.format)

    @classmethod
    def open(cls, path: Path, *, name: str | None = None) -> ShardReader:
        """Map a shard's file and read its index. The reader keeps one descriptor, the map's own.

        `name`, for messages, is the path unless given. Raises OSError, PackFormatError, IntegrityError.
        """
        label = str(path) if name is None else name
        with path.open("rb") as file:
            try:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise PackFormatError(f"shard {label} is an empty file", shard=label) from None
        try:
            reader = cls(mapped, name=label)
        except BaseException:
            mapped.close()
            raise
        reader._owned = mapped
        return reader

    def close(self) -> None:
        """Let go of the file. Samples that were read stay; reading more raises ValueError."""
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ShardReader({self.index.name}, {len(self)} samples)"

    def __len__(self) -> int:
        return len(self.index)

    @property
    def keys(self) -> list[str]:
        """The samples' keys, in order. Not to be changed."""
        return self.index.keys

    @overload
    def __getitem__(self, at: int) -> Sample: ...
    @overload
    def __getitem__(self, at: slice) -> list[Sample]: ...
    @overload
    def __getitem__(self, at: str) -> dict[str, bytes]: ...
    def __getitem__(self, at: int | slice | str) -> Sample | list[Sample] | dict[str, bytes]:
        """A sample by number, a list of samples by slice, or the fields of the sample with a key
        (KeyError)."""
        if isinstance(at, str):
            return self.read(self.index.row(at))[1]
        if isinstance(at, slice):
            return self.read_many(range(*at.indices(len(self))))
        return self.read(at)

    def __iter__(self) -> Iterator[Sample]:
        return self.samples()

    def read(self, row: int, fields: Collection[str] | None = None) -> Sample:
        """Sample `row` (negative: from the end), checked; with `fields`, those of them that it has.

        Raises IndexError, IntegrityError.
        """
        row = range(len(self))[row]
        start, length = self.index.span(row)
        return self.index.keys[row], self.index.decode(row, self._buffer[start : start + length], fields)

    def check(self, row: int) -> None:
        """Raise IntegrityError unless the bytes of sample `row` have their crc. Format 1 has none to
        check."""
        self.read(row, ())

    def read_many(self, rows: Sequence[int], fields: Collection[str] | None = None) -> list[Sample]:
        """Samples by number, in the order given, unchecked; with `fields`, those of them that each has.
        IndexError."""
        every = range(len(self))
        return self._cut(list(map(every.__getitem__, rows)), fields)

    def samples(
        self, fields: Collection[str] | None = None, start: int = 0, stop: int | None = None
    ) -> Iterator[Sample]:
        """The samples from `start` up to `stop`, in order, unchecked; with `fields`, those of them that each
        has."""
        return chain.from_iterable(self._chunks(range(len(self))[start:stop], fields))

    def _chunks(self, rows: range, fields: Collection[str] | None) -> Iterator[list[Sample]]:
        """The samples of `rows` in lists of bounded size."""
        index = self.index
        first, lengths = index.first_values, index.lengths
        whole = fields is None and index.starts is None
        position = sum(lengths[: first[rows.start]])
        row = rows.start
        while row < rows.stop:
            end = min(row + _CHUNK_ROWS, rows.stop)
            chunk = lengths[first[row] : first[end]]
            while (size := sum(chunk)) > _CHUNK_BYTES and end - row > 1:
                end = (row + end) // 2
                chunk = lengths[first[row] : first[end]]
            if whole and size <= _SMALL * len(chunk):
                read = BytesIO(self._buffer[position : position + size]).read
                yield self._deal(range(row, end), map(read, chunk))
            else:
                yield self._cut(range(row, end), fields)
            position += size
            row = end

    def _deal(self, span: range, values: Iterator[bytes]) -> list[Sample]:
        """Samples made of all stored values of consecutive rows, in order."""
        index = self.index
        keys = index.keys[span.start : span.stop]
        if index.layout is None:
            names = index.layouts[0]
            return self._decoded(_samples(keys, names, [values] * len(names)))
        layouts = index.layouts
        numbers = index.layout[span.start : span.stop]
        rows = zip(keys, numbers, strict=True)
        return self._decoded([(key, dict(zip(layouts[number], values, strict=False))) for key, number in rows])

    def _cut(self, rows: Sequence[int], fields: Collection[str] | None) -> list[Sample]:
        """Samples of any rows, value by value."""
        index, buffer = self.index, self._buffer
        starts, ends = index.value_starts, index.value_ends
        keys = list(map(index.keys.__getitem__, rows))
        firsts = list(map(index.first_values.__getitem__, rows))
        if index.layout is None:
            chosen = _choose(index.layouts[0], fields) if keys else []
            columns = [[buffer[starts[v + at] : ends[v + at]] for v in firsts] for at, _ in chosen]
            return self._decoded(_samples(keys, [name for _, name in chosen], columns))
        numbers = list(map(index.layout.__getitem__, rows))
        choices = {number: _choose(index.layouts[number], fields) for number in set(numbers)}
        return self._decoded(
            [
                (key, {name: buffer[starts[v + at] : ends[v + at]] for at, name in choices[number]})
                for key, v, number in zip(keys, firsts, numbers, strict=True)
            ]
        )

    def _decoded(self, samples: list[Sample]) -> list[Sample]:
        if self.index.codecs:
            for key, fields in samples:
                self.index.decode_values(key, fields)
        return samples


def _choose(names: Sequence[str], fields: Collection[str] | None) -> list[tuple[int, str]]:
    """Which of a layout's fields are wanted, with their places."""
    return [(at, name) for at, name in enumerate(names) if fields is None or name in fields]


def _samples(keys: list[str], names: Sequence[str], columns: Sequence[Iterable[bytes]]) -> list[Sample]:
    """Samples of the same fields from a column of values for each.

    Dict displays are three times as fast as `dict(zip(...))`, and building dicts is most of what reading
    costs. """
    rows = zip(keys, *columns, strict=False)
    match names:
        case [a]:
            return [(key, {a: x}) for key, x in rows]
        case [a, b]:
            return [(key, {a: x, b: y}) for key, x, y in rows]
        case [a, b, c]:
            return [(key, {a: x, b: y, c: z}) for key, x, y, z in rows]
        case [a, b, c, d]:
            return [(key, {a: x, b: y, c: z, d: w}) for key, x, y, z, w in rows]
        case _:
            return [(key, dict(zip(names, values, strict=True))) for key, *values in rows]
