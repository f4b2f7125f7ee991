"""The index of a shard: which samples it holds, and where their bytes are.

It is columns, not rows, so that a shard of 130,000 samples opens in milliseconds and costs little memory. Format 2, a
msgpack map with its entries in this order:

    keys      list of str
    layouts   list of lists of field names, by first appearance
    layout    bytes, the number of each sample's layout as u16; left out when there is one layout
    lengths   bytes, the stored length of each value as u32, in sample order
    crc       bytes, the crc32 of each sample's stored values as u32
    codecs    map of field name to codec; left out when all fields are raw
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from operator import add
from typing import Any, Generic, TypeVar

from dload.errors import IntegrityError, PackFormatError
from dload.pack import compression, format1, wire
from dload.pack.samples import MAX_KEY_SIZE, MAX_NAME_SIZE

MAX_LAYOUTS = 65_535
_ENTRIES = {"keys", "layouts", "layout", "lengths", "crc", "codecs"}
_OPTIONAL = {"layout", "codecs"}
T = TypeVar("T")


class _Lazy(Generic[T]):
    """A property that is computed at the first need and kept.

    As functools.cached_property from Python 3.12 on. Until then that holds a lock while it computes, and a process
    forked at that moment by another thread would wait for the lock for ever.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        value = self._compute(instance)
        instance.__dict__[self._compute.__name__] = value
        return value


@dataclass(frozen=True, repr=False)
class ShardIndex:
    """What a shard holds. Lengths and checksums speak of stored (encoded) bytes; offsets count from the shard's start.

    `layout`: the number of each sample's layout, None when there is at most one. `crc` is None in format 1, which has
    no checksums. `starts`: the offset of each value, None when they follow one another, as they always do in format 2.
    `size`: the bytes of the index alone, without the trailer, where it was read from bytes.
    """

    name: str
    payload_size: int
    keys: list[str]
    layouts: list[tuple[str, ...]]
    layout: array[int] | None
    lengths: array[int]
    crc: array[int] | None
    codecs: dict[str, str]
    starts: array[int] | None = None
    size: int = field(default=0, compare=False)

    @staticmethod
    def footer_size(tail: bytes | memoryview, file_size: int, name: str) -> int:
        """How many bytes at the end of a shard hold its index and trailer, from its last `TRAILER_SIZE` bytes or more.

        Raises PackFormatError.
        """
        return file_size - wire.read_trailer(tail, file_size, name).payload_size

    @staticmethod
    def from_footer(tail: bytes | memoryview, file_size: int, name: str) -> ShardIndex:
        """The index of a shard of `file_size` bytes, of which `tail` is the end: index and trailer at least.

        Raises PackFormatError or IntegrityError.
        """
        trailer = wire.read_trailer(tail, file_size, name)
        start = len(tail) - (file_size - trailer.payload_size)
        if start < 0:
            raise PackFormatError(
                f"index and trailer of shard {name} take {file_size - trailer.payload_size:,} bytes, "
                f"got its last {len(tail):,}",
                shard=name,
            )
        with memoryview(tail) as view, view[start : start + trailer.index_size] as data:
            trailer.check(data, name)
            return ShardIndex.parse(data, payload_size=trailer.payload_size, name=name, of_format=trailer.format)

    @staticmethod
    def parse(data: bytes | memoryview, *, payload_size: int, name: str, of_format: int = 2) -> ShardIndex:
        """The index of a shard from the bytes of its msgpack map, checked against the payload's size.

        Raises PackFormatError for anything that doesn't add up.
        """
        if of_format == 1:
            return ShardIndex(name, payload_size, *format1.parse(data, payload_size, name), size=len(data))
        entries = _unpack(data, name)
        keys, layouts = entries["keys"], [tuple(names) for names in entries["layouts"]]
        _check_texts(keys, layouts, name)
        layout = None
        if "layout" in entries:
            layout = wire.column("H", entries["layout"], name, "layout")
            if len(layout) != len(keys) or max(layout, default=0) >= len(layouts):
                raise wire.damaged(
                    name, f"{len(layout)} layout numbers for {len(keys)} keys and {len(layouts)} layouts"
                )
        elif keys and len(layouts) != 1:
            raise wire.damaged(name, f"it has {len(layouts)} layouts and doesn't say which samples have which")
        index = ShardIndex(
            name, payload_size, keys, layouts, layout,
            wire.column("I", entries["lengths"], name, "lengths"), wire.column("I", entries["crc"], name, "crc"),
            _codecs(entries.get("codecs", {}), name), size=len(data),
        )  # fmt: skip
        index._check_sums()
        return index

    def encode(self) -> bytes:
        """The bytes of the msgpack map of format 2. The same index gives the same bytes everywhere."""
        assert self.crc is not None
        entries: dict[str, Any] = {"keys": self.keys, "layouts": self.layouts}
        if self.layout is not None:
            entries["layout"] = wire.column_bytes(self.layout)
        entries["lengths"] = wire.column_bytes(self.lengths)
        entries["crc"] = wire.column_bytes(self.crc)
        if self.codecs:
            entries["codecs"] = self.codecs
        return wire.pack(entries)

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"ShardIndex({self.name}, {len(self)} samples, {self.payload_size} B)"

    # ---- where things are

    @_Lazy
    def rows(self) -> dict[str, int]:
        """The number of the sample with each key. Built at the first need."""
        return {key: row for row, key in enumerate(self.keys)}

    def row(self, key: str) -> int:
        """The number of the sample with that key. Raises KeyError."""
        return self.rows[key]

    @_Lazy
    def first_values(self) -> Sequence[int]:
        """The number of each sample's first value, and one more: the number of values."""
        if self.layout is None:
            width = len(self.layouts[0]) if self.layouts else 0
            values = width * len(self)
            return range(0, values + 1, width) if width else array("Q", bytes(8 * (len(self) + 1)))
        widths = [len(names) for names in self.layouts]
        return array("Q", accumulate(map(widths.__getitem__, self.layout), initial=0))

    @_Lazy
    def spans(self) -> array[int]:
        """Where each value's bytes begin and where they end, by turns, so that what is known of a sample lies together;
        as u32 where they fit, since looking up samples in any order is waiting for memory."""
        kind = "I" if self.payload_size >> 32 == 0 else "Q"
        lengths = self.lengths
        starts = array(kind, accumulate(lengths, initial=0))[:-1] if self.starts is None else array(kind, self.starts)
        spans = array(kind, bytes(2 * starts.itemsize * len(starts)))
        spans[::2], spans[1::2] = starts, array(kind, map(add, starts, lengths))
        return spans

    def names(self, row: int) -> tuple[str, ...]:
        """The field names of sample `row`, in its order."""
        return self.layouts[0 if self.layout is None else self.layout[row]]

    def span(self, row: int) -> tuple[int, int]:
        """The offset and length of the bytes that hold all of sample `row` (the length may be 0)."""
        return _extent(self._spans(row))

    def _spans(self, row: int) -> array[int]:
        return self.spans[2 * self.first_values[row] : 2 * self.first_values[row + 1]]

    def decode(self, row: int, stored: bytes, fields: Collection[str] | None = None) -> dict[str, bytes]:
        """The fields of sample `row` (only those in `fields`, if given) from the bytes of its span, checked.

        Raises IntegrityError where they have another length or checksum than the index says, ConfigError where a
        codec's extra is missing.
        """
        spans = self._spans(row)
        start, length = _extent(spans)
        key = self.keys[row]
        if len(stored) != length:
            raise self._mismatch(key, f"{length} bytes", f"{len(stored)}")
        if self.crc is not None and zlib.crc32(stored) != self.crc[row]:
            raise self._mismatch(key, f"crc32 {self.crc[row]:08x}", f"{zlib.crc32(stored):08x}")
        found = {}
        for name, first, last in zip(self.names(row), spans[::2], spans[1::2], strict=True):
            if fields is None or name in fields:
                found[name] = stored[first - start : last - start]
        self.decode_values(key, found)
        return found

    @_Lazy
    def decoders(self) -> dict[str, Callable[[bytes], bytes]]:
        """How to decode the fields that have a codec."""
        return {name: compression.decoder(codec) for name, codec in self.codecs.items()}

    def decode_values(self, key: str, fields: dict[str, bytes]) -> None:
        """Decode the stored values of a sample in place. Raises IntegrityError for what its codec refuses."""
        for name in self.decoders.keys() & fields.keys():
            try:
                fields[name] = self.decoders[name](fields[name])
            except ValueError as error:
                raise IntegrityError(
                    f"field {name!r} of sample {key!r} in shard {self.name} is damaged: {error}",
                    shard=self.name, key=key,
                ) from error  # fmt: skip

    # ---- what it says of its content

    def checksums(self) -> list[Hashable] | None:
        """Per sample something that equals another sample's exactly when (but for collisions of crc32) their stored
        fields are the same. None in format 1, which has no checksums.
        """
        if self.crc is None:
            return None
        kinds = [tuple((name, self.codecs.get(name)) for name in names) for names in self.layouts]
        numbers = self.layout or [0] * len(self)
        first = self.first_values
        return [
            (kinds[number], tuple(self.lengths[first[row] : first[row + 1]]), crc)
            for row, (number, crc) in enumerate(zip(numbers, self.crc, strict=True))
        ]

    def field_stats(self) -> dict[str, tuple[int, int]]:
        """Per field name how many samples have it and its stored bytes in all, by first appearance."""
        if self.layout is None:
            names = self.layouts[0] if self.keys else ()
            return {name: (len(self), sum(self.lengths[at :: len(names)])) for at, name in enumerate(names)}
        stats: dict[str, tuple[int, int]] = {}
        lengths = iter(self.lengths)
        for number in self.layout:
            for name in self.layouts[number]:
                samples, size = stats.get(name, (0, 0))
                stats[name] = (samples + 1, size + next(lengths))
        return stats

    def _check_sums(self) -> None:
        """That the columns are as long as they should be and the values fill the payload exactly."""
        values = self.first_values[-1]
        if len(self.lengths) != values:
            raise wire.damaged(self.name, f"expected {values} lengths of values, got {len(self.lengths)}")
        if self.crc is not None and len(self.crc) != len(self):
            raise wire.damaged(self.name, f"expected {len(self)} checksums, got {len(self.crc)}")
        total = sum(self.lengths)
        if total != self.payload_size:
            raise wire.damaged(
                self.name, f"its values add up to {total:,} bytes, its payload has {self.payload_size:,}"
            )

    def _mismatch(self, key: str, expected: str, got: str) -> IntegrityError:
        return IntegrityError(
            f"sample {key!r} of shard {self.name} is damaged: expected {expected}, got {got}",
            shard=self.name, key=key,
        )  # fmt: skip


def _extent(spans: array[int]) -> tuple[int, int]:
    """The first offset and the length from there to the last; in format 1 values may have any places."""
    start = min(spans, default=0)
    return start, max(spans, default=0) - start


def _unpack(data: bytes | memoryview, name: str) -> dict[str, Any]:
    """The entries of an index, each of the right type. Allocates little more than an honest index of that length."""
    # Only the index and its codecs are maps, only its keys and layouts are lists. A hostile index of a million empty
    # ones, which would take eighty times its bytes, ends here.
    maps, lists = count(1), count(1)

    def unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        entries = dict(pairs)
        if next(maps) > 2 or len(entries) != len(pairs) or not set(map(type, entries)) <= {str}:
            raise ValueError("too many maps, or a map with repeated or odd names")
        return entries

    def few(items: list[Any]) -> list[Any]:
        if next(lists) > MAX_LAYOUTS + 2:
            raise ValueError("too many lists")
        return items

    entries = wire.unpack(data, name, list_hook=few, object_pairs_hook=unique, max_str_len=MAX_KEY_SIZE)
    if type(entries) is not dict or not _ENTRIES - _OPTIONAL <= entries.keys() <= _ENTRIES:
        found = list(entries)[:10] if type(entries) is dict else type(entries).__name__
        raise wire.damaged(name, f"its index must hold {sorted(_ENTRIES - _OPTIONAL)}, got {found!r:.200}")
    keys, layouts = entries["keys"], entries["layouts"]
    if type(keys) is not list or type(layouts) is not list or not all(type(names) is list for names in layouts):
        raise wire.damaged(name, "its keys must be a list and its layouts a list of lists")
    return entries


def _check_texts(keys: list[str], layouts: list[tuple[str, ...]], name: str) -> None:
    """That keys and field names are texts of an allowed size (the unpacker has seen to the longest)."""
    if not set(map(type, keys)) <= {str} or not all(keys):
        raise wire.damaged(name, "a key is no text or empty")
    if len(layouts) > MAX_LAYOUTS:
        raise wire.damaged(name, f"it has {len(layouts)} layouts, at most {MAX_LAYOUTS} are allowed")
    seen: set[Any] = set()
    for names in layouts:
        if not set(map(type, names)) <= {str} or len(set(names)) != len(names):
            raise wire.damaged(name, "a layout holds a field twice, or something that is no text")
        seen.update(names)
    if not all(0 < len(text.encode()) <= MAX_NAME_SIZE for text in seen):
        raise wire.damaged(name, f"a field name is empty or longer than {MAX_NAME_SIZE} bytes")


def _codecs(codecs: Any, name: str) -> dict[str, str]:
    if type(codecs) is not dict:
        raise wire.damaged(name, "its codecs must be a map")
    for codec in codecs.values():
        if codec not in compression.CODECS:
            raise PackFormatError(
                f"shard {name} uses the codec {codec!r:.100}; this dload knows: {', '.join(compression.CODECS)}",
                remedy="upgrade dload", shard=name,
            )  # fmt: skip
    return codecs
