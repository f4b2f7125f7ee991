"""Reading one shard."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable, Iterator, Sequence
from io import BytesIO
from itertools import chain
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import TypeVar, overload

from dload.errors import PackFormatError
from dload.pack import wire
from dload.pack.contents import Contents, InFile, InMemory
from dload.pack.layout import ShardIndex
from dload.pack.locate import Locator
from dload.pack.samples import Sample

T = TypeVar("T")

# So many samples, or about so many bytes of them, share the work that is done once a chunk. Where their values are
# small on average, a chunk is copied whole and then cut up, which is cheaper than cutting values out one by one; and a
# file of such is mapped.
_CHUNK, _CHUNK_BYTES = 64, 4 << 20
_SMALL = 1 << 14


class ShardReader:
    """The samples of one shard, from a file or from bytes. Samples are copies: they outlive the reader.

    Opening reads the trailer and the index and checks the index's crc. A single sample (`read`, `reader[i]`,
    `reader["key"]`) is checked against its crc; slices, `read_many` and `samples` aren't, for speed: a shard as a whole
    is checked by its digest before it is read. May be used from several threads.
    """

    def __init__(
        self, source: bytes | bytearray | memoryview | mmap.mmap | InFile, *, name: str = "in memory",
        index: ShardIndex | None = None,
    ) -> None:  # fmt: skip
        """Read a shard's bytes, or a map of its file, which stays its owner's to close. What may change is copied.

        `name` is for messages; `index` is the shard's, where that is known already. Raises PackFormatError or
        IntegrityError.
        """
        contents: Contents
        match source:
            case InFile():
                contents = source
            case bytes() | mmap.mmap():
                contents = InMemory(source)
            case _:
                contents = InMemory(bytes(source))
        self._contents = contents
        self._reached = (0, 0)  # where `samples` came to: a value's number, its offset. Who goes on needs no table
        self.index = _index(contents, name) if index is None else index

    @classmethod
    def open(cls, path: Path, *, name: str | None = None, index: ShardIndex | None = None) -> ShardReader:
        """Open a shard's file and read its index, if it isn't given. The reader keeps one descriptor.

        `name`, for messages, is the path unless given. Raises OSError, PackFormatError, IntegrityError.
        """
        label = str(path) if name is None else name
        file = InFile(path, label)
        try:
            if not file.size:
                raise PackFormatError(f"shard {label} is an empty file", shard=label)
            reader = cls(file, name=label, index=index)
            if reader.index.payload_size < _SMALL * len(reader.index.lengths):
                reader._contents = file.mapped()
                file.close()
        except BaseException:
            file.close()
            raise
        return reader

    def close(self) -> None:
        """Let go of the file. Samples that were read stay; reading more raises ValueError."""
        self._contents.close()

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
        """A sample by number, a list of samples by slice, or the fields of the sample with a key (KeyError)."""
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
        return self.index.keys[row], self.index.decode(row, self._contents.cut(start, start + length), fields)

    def check(self, row: int) -> None:
        """Raise IntegrityError unless the bytes of sample `row` have their crc. Format 1 has none to check."""
        self.read(row, ())

    def read_many(self, rows: Sequence[int], fields: Collection[str] | None = None) -> list[Sample]:
        """Samples by number, in the order given, unchecked; with `fields`, those of them that each has.

        Raises IndexError; IntegrityError where a codec can't decode a value.
        """
        return list(self._cut(rows, fields))

    def samples(
        self, fields: Collection[str] | None = None, start: int = 0, stop: int | None = None
    ) -> Iterator[Sample]:
        """The samples from `start` up to `stop`, in order, unchecked; with `fields`, those of them that each has.

        Raises IntegrityError where a codec can't decode a value.
        """
        return chain.from_iterable(self._chunks(range(len(self))[start:stop], fields))

    def _chunks(self, rows: range, fields: Collection[str] | None) -> Iterator[Iterable[Sample]]:
        """The samples of consecutive rows, a chunk at a time."""
        if not rows:
            return
        index = self.index
        first, lengths = index.first_values, index.lengths
        number, position = self._reached
        if number != first[rows.start] and index.starts is None:
            number = first[rows.start]
            position = index.spans[2 * number] if number < len(lengths) else index.payload_size
        step = max(1, min(_CHUNK, _CHUNK_BYTES * len(self) // max(1, index.payload_size)))
        for start in range(rows.start, rows.stop, step):
            chunk = range(start, min(start + step, rows.stop))
            sizes = lengths[first[chunk.start] : first[chunk.stop]]
            size = sum(sizes)
            if index.starts is None and size <= _SMALL * len(sizes):
                read = BytesIO(self._contents.cut(position, position + size)).read
                yield self._deal(chunk, map(read, sizes), fields)
            else:
                yield self._cut(chunk, fields)
            position += size
            self._reached = first[chunk.stop], position

    def _deal(self, rows: range, values: Iterator[bytes], fields: Collection[str] | None) -> Iterable[Sample]:
        """Samples of consecutive rows from all their stored values, in order."""
        index = self.index
        keys = index.keys[rows.start : rows.stop]
        if index.layout is None:
            names = index.layouts[0]
            columns: list[Iterable[bytes]] = [values] * len(names)
            if fields is not None:
                every, wanted = list(values), [at for at, name in enumerate(names) if name in fields]
                columns = [every[at :: len(names)] for at in wanted]
                names = tuple([names[at] for at in wanted])
            return self._decoded(_samples(keys, names, columns))
        layouts = map(index.layouts.__getitem__, index.layout[rows.start : rows.stop])
        wholes = ((key, dict(zip(names, values, strict=False))) for key, names in zip(keys, layouts, strict=True))
        if fields is None:
            return self._decoded(wholes)
        return self._decoded((key, {name: whole[name] for name in whole if name in fields}) for key, whole in wholes)

    def _cut(self, rows: Sequence[int], fields: Collection[str] | None) -> Iterable[Sample]:
        """Samples of any rows, value by value. Negative rows count from the end."""
        if not rows:
            return ()
        index = self.index
        keys = _picked(index.keys, rows)
        if index.layout is None:
            located = Locator(index.spans, index.layouts[0], fields)
            return self._decoded(self._sliced(keys, located.names, located.samples(rows, self._contents.buffer)))
        numbers = _picked(index.layout, rows)
        located_as = {number: Locator(index.spans, index.layouts[number], fields) for number in set(numbers)}
        firsts = _picked(index.first_values, _picked(range(len(self)), rows))
        return self._decoded(
            (key, self._fields(located_as[number], first))
            for key, number, first in zip(keys, numbers, firsts, strict=True)
        )

    def _fields(self, located: Locator, first: int) -> dict[str, bytes]:
        spans = located.sample(first)
        return dict(zip(located.names, self._contents.cuts(spans[::2], spans[1::2]), strict=True))

    def _sliced(self, keys: Iterable[str], names: Sequence[str], spans: Iterable[Sequence[int]]) -> Iterable[Sample]:
        """Samples of the same fields, from where the values of each begin and end."""
        buffer = self._contents.buffer
        if buffer is not None:  # cut as the sample is built, they need no iterator and no slice object
            rows = zip(keys, spans, strict=True)
            match names:
                case [a]:
                    return ((key, {a: buffer[i:j]}) for key, (i, j) in rows)
                case [a, b]:
                    return ((key, {a: buffer[i:j], b: buffer[m:n]}) for key, (i, j, m, n) in rows)
        flat = list(chain.from_iterable(spans))
        values = self._contents.cuts(flat[::2], flat[1::2])
        return _samples(keys, names, [values] * len(names))

    def _decoded(self, samples: Iterable[Sample]) -> Iterable[Sample]:
        return map(self._decode, samples) if self.index.codecs else samples

    def _decode(self, sample: Sample) -> Sample:
        self.index.decode_values(*sample)
        return sample


def _index(contents: Contents, name: str) -> ShardIndex:
    size = contents.size
    tail = contents.cut(max(0, size - wire.TRAILER_SIZE), size)
    footer = contents.cut(size - ShardIndex.footer_size(tail, size, name), size)
    return ShardIndex.from_footer(footer, size, name)


def _picked(column: Sequence[T], numbers: Sequence[int]) -> Sequence[T]:
    """The entries with these numbers, all in one call: twice as fast as one by one."""
    if len(numbers) < 2:
        return [column[number] for number in numbers]
    entries: tuple[T, ...] = itemgetter(*numbers)(column)
    return entries


def _samples(keys: Iterable[str], names: Sequence[str], columns: Sequence[Iterable[bytes]]) -> Iterable[Sample]:
    """Samples of the same fields from a column of values for each; or all from one iterator, in their order.

    Dict displays are three times as fast as `dict(zip(...))`, and building dicts is most of what reading costs.
    """
    rows = zip(keys, *columns, strict=False)
    match names:
        case []:
            return ((key, {}) for key in keys)
        case [a]:
            return ((key, {a: x}) for key, x in rows)
        case [a, b]:
            return ((key, {a: x, b: y}) for key, x, y in rows)
        case [a, b, c]:
            return ((key, {a: x, b: y, c: z}) for key, x, y, z in rows)
        case [a, b, c, d]:
            return ((key, {a: x, b: y, c: z, d: w}) for key, x, y, z, w in rows)
        case _:
            wide = zip(keys, zip(*columns, strict=False), strict=False)
            return ((key, dict(zip(names, values, strict=False))) for key, values in wide)
