"""A data set version in memory: frozen, small to pickle, and workable with a million shards."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, overload

from dload.sizes import format_size

if TYPE_CHECKING:
    from dload.manifest.rows import ShardRows

NAME_RULE = "1 to 100 letters, digits, dots, dashes and underscores, the first one a letter or a digit"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")

_LIMIT = 2**63  # of the bytes of all shards together, and of their samples: fits 64 bits, signed or not
_UNKNOWN = 2**64 - 1  # stands in the column of index sizes for None
_CHUNK = 4096  # digests turned into text at a time


def is_name(text: str) -> bool:
    """Whether a data set or a tag may be called that: see NAME_RULE."""
    return _NAME.fullmatch(text) is not None


def is_version(text: str) -> bool:
    """Whether it has the form of a full version id (or of a shard's digest): a sha256 in lower-case hex."""
    return _SHA256.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard: `digest`, the sha256 of its bytes (hex), `size`, their number, `num_samples`, and `index_size`, how
    many bytes its index has.

    `index_size` is None for a shard of format 1, whose manifest doesn't tell.
    """

    digest: str
    size: int
    num_samples: int
    index_size: int | None = None


class Digests(Sequence[str]):
    """sha256 digests in hex, kept as 32 bytes each."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __len__(self) -> int:
        return len(self.raw) // 32

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Digests: ...
    def __getitem__(self, index: int | slice) -> str | Digests:
        if isinstance(index, slice):
            return Digests(_take(self.raw, range(len(self))[index]))
        start = range(len(self))[index] * 32
        return self.raw[start : start + 32].hex()

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self.raw), 32 * _CHUNK):
            text = self.raw[start : start + 32 * _CHUNK].hex()
            yield from [text[at : at + 64] for at in range(0, len(text), 64)]


class ShardList(Sequence[ShardInfo]):
    """The shards of a version in order, as columns: 56 bytes a shard. A ShardInfo is made when asked for.

    Immutable. Slices and sums are ShardLists; two are equal if all their shards are.
    """

    def __init__(self, digests: Digests, sizes: array[int], counts: array[int], index_sizes: array[int]) -> None:
        """Takes columns as they are: use `of` or `of_columns`, which check them."""
        self._digests = digests
        self._sizes = sizes
        self._counts = counts
        self._index_sizes = index_sizes

    @classmethod
    def of(cls, rows: Iterable[ShardInfo]) -> ShardList:
        """The list of these shards. Raises ValueError where one of them can't be."""
        if isinstance(rows, ShardList):
            return rows
        rows = list(rows)
        return cls.of_columns(
            [row.digest for row in rows], [row.size for row in rows],
            [row.num_samples for row in rows], [row.index_size for row in rows],
        )  # fmt: skip

    @classmethod
    def of_columns(
        cls,
        digests: Sequence[str],
        sizes: Sequence[int],
        counts: Sequence[int],
        index_sizes: Sequence[int | None],
    ) -> ShardList:
        """The list with these columns, which may come from anywhere. Raises ValueError: what is wrong."""
        raw = _raw_digests(digests)
        known = [_UNKNOWN if size is None else size for size in index_sizes]
        size_column = _column("size", sizes, len(digests))
        count_column = _column("num_samples", counts, len(digests))
        index_column = _column("index_size", known, len(digests))
        for name, column in (("size", size_column), ("num_samples", count_column)):
            if sum(column) >= _LIMIT:
                raise ValueError(f"the values of {name} add up to {sum(column)}, more than 2**63")
        for index_size, size in zip(index_sizes, sizes, strict=True):
            if index_size is not None and index_size > size:
                raise ValueError(f"a shard of {size} bytes can't have an index of {index_size} bytes")
        return cls(Digests(raw), size_column, count_column, index_column)

    @property
    def digests(self) -> Digests:
        """The sha256 of each shard, in hex."""
        return self._digests

    @property
    def sizes(self) -> Sequence[int]:
        """The bytes of each shard."""
        return self._sizes

    @property
    def counts(self) -> Sequence[int]:
        """The samples of each shard."""
        return self._counts

    @property
    def index_sizes(self) -> list[int | None]:
        """The bytes of each shard's index, None where that isn't known. Made anew each time."""
        return [None if size == _UNKNOWN else size for size in self._index_sizes]

    @cached_property
    def starts(self) -> Sequence[int]:
        """The ordinal of each shard's first sample, and after them the number of all samples."""
        return array("Q", accumulate(self._counts, initial=0))

    def locate(self, ordinal: int) -> tuple[int, int]:
        """The number of the shard that holds the sample `ordinal`, and its row there. Raises IndexError."""
        if not 0 <= ordinal < self.starts[-1]:
            raise IndexError(f"sample {ordinal} of {self.starts[-1]}")
        shard = bisect_right(self.starts, ordinal) - 1
        return shard, ordinal - self.starts[shard]

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, index: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, index: slice) -> ShardList: ...
    def __getitem__(self, index: int | slice) -> ShardInfo | ShardList:
        if isinstance(index, slice):
            return ShardList(self._digests[index], self._sizes[index], self._counts[index], self._index_sizes[index])
        index_size = None if self._index_sizes[index] == _UNKNOWN else self._index_sizes[index]
        return ShardInfo(self._digests[index], self._sizes[index], self._counts[index], index_size)

    def __iter__(self) -> Iterator[ShardInfo]:
        for digest, size, count, index_size in zip(
            self._digests, self._sizes, self._counts, self._index_sizes, strict=True
        ):
            yield ShardInfo(digest, size, count, None if index_size == _UNKNOWN else index_size)

    def __add__(self, other: ShardList) -> ShardList:
        return ShardList(
            Digests(self._digests.raw + other._digests.raw),
            self._sizes + other._sizes,
            self._counts + other._counts,
            self._index_sizes + other._index_sizes,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardList):
            return NotImplemented
        return (
            self._digests.raw == other._digests.raw
            and self._sizes == other._sizes
            and self._counts == other._counts
            and self._index_sizes == other._index_sizes
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._digests.raw, self._sizes, self._counts, self._index_sizes)

    def __repr__(self) -> str:
        return f"ShardList({len(self)} shards, {sum(self._counts)} samples, {format_size(sum(self._sizes))})"


def _rebuilt(raw: bytes, sizes: array[int], counts: array[int], index_sizes: array[int]) -> ShardList:
    return ShardList(Digests(raw), sizes, counts, index_sizes)


def _take(raw: bytes, rows: range) -> bytes:
    if rows.step == 1:
        return raw[rows.start * 32 : rows.stop * 32]
    return b"".join([raw[row * 32 : row * 32 + 32] for row in rows])


def _raw_digests(digests: Sequence[str]) -> bytes:
    """The digests as bytes. Checked as a whole, which is fast, and one by one only to say which is bad."""
    if set(map(type, digests)) <= {str} and set(map(len, digests)) <= {64}:
        text = "".join(digests)
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raw = b""
        if raw.hex() == text:  # fromhex lets white space and capitals pass
            return raw
    bad = next(digest for digest in digests if type(digest) is not str or not is_version(digest))
    shown = repr(bad[:100]) if isinstance(bad, str) else type(bad).__name__
    raise ValueError(f"a digest is not a sha256 in lower-case hex: {shown}")


def _column(name: str, values: Sequence[int], length: int) -> array[int]:
    if len(values) != length:
        raise ValueError(f"{len(values)} values of {name} for {length} digests")
    if not set(map(type, values)) <= {int}:
        raise ValueError(f"the values of {name} are not all integers")
    try:
        return array("Q", values)
    except OverflowError as error:
        raise ValueError(f"a value of {name} is negative or larger than 2**64") from error


@dataclass(frozen=True, slots=True)
class FieldStats:
    """What a version holds of one field: how many samples have it, and its raw bytes in all of them."""

    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Packing:
    """How samples become shards: target size in bytes, where a shard ends, codecs of fields that have one."""

    target: int = 134217728
    boundaries: str = "content"  # or "size"
    codecs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Manifest:
    """A version of data set `name`. `version` is the sha256 of its canonical bytes: the same data, meta, recipe
    and packing have the same version, whoever commits them and whenever. `shards` are in the samples' order.

    `created` (ISO time, UTC) comes from the history, not the manifest, and takes no part in comparisons.
    `fields` is empty in format 1, which doesn't count them. A view has `rows`: of its shards these alone.
    """

    name: str
    version: str
    shards: ShardList
    fields: Mapping[str, FieldStats] = field(default_factory=dict)
    packing: Packing = field(default_factory=Packing)
    meta: Mapping[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    format: int = 2
    created: str | None = field(default=None, compare=False)
    rows: ShardRows | None = None

    @property
    def counts(self) -> Sequence[int]:
        """How many samples of each shard belong to the version: all of them, but for a view."""
        return self.shards.counts if self.rows is None else self.rows.counts

    @property
    def starts(self) -> Sequence[int]:
        """The ordinal of each shard's first sample, and after them the number of all samples."""
        return self.shards.starts if self.rows is None else self.rows.starts

    def locate(self, ordinal: int) -> tuple[int, int]:
        """The number of the shard that holds the sample `ordinal`, and its row there. Raises IndexError."""
        if self.rows is None:
            return self.shards.locate(ordinal)
        if not 0 <= ordinal < self.num_samples:
            raise IndexError(f"sample {ordinal} of {self.num_samples}")
        shard = bisect_right(self.rows.starts, ordinal) - 1
        return shard, self.rows.of(shard)[ordinal - self.rows.starts[shard]]

    @cached_property
    def num_samples(self) -> int:
        """The samples of the version."""
        return sum(self.counts)

    @cached_property
    def total_bytes(self) -> int:
        """The bytes of all shards: what it takes to have the version here."""
        return sum(self.shards.sizes)

    def with_created(self, text: str | None) -> Manifest:
        """The same version, with the time at which it came to be (`text`, ISO)."""
        return replace(self, created=text)

    def __hash__(self) -> int:
        return hash(self.version)

    def __repr__(self) -> str:
        return (
            f"Manifest({self.name}@{self.version[:12]}, {self.num_samples} samples, "
            f"{len(self.shards)} shards, {format_size(self.total_bytes)})"
        )
