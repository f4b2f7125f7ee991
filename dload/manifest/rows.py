"""Which rows of its shards a view holds: a bitmap for each shard.

A bitmap is a sixth of a byte of JSON for each row of the shards that a view touches, however many rows it holds: next
to nothing beside the samples, which have to be fetched to read it. There is one bitmap for one choice of rows, its
length is the shard's, and a count of its bits is all that opening it takes.
"""

from __future__ import annotations

import base64
import binascii
from array import array
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, compress
from typing import Any

from dload.manifest.model import ShardList

_DECODED = 32  # shards whose rows are kept as numbers: a few bytes each
_DIGITS = bytes.maketrans(b"\0\1", b"01")
_FLAGS = str.maketrans({"0": "\0", "1": "\1"})


class ShardRows:
    """Of each shard of a view the rows that belong to it, at least one. Immutable.

    `bitmaps`: one a shard, row r being bit r % 8 of byte r // 8; empty for all rows. `counts`: how many rows each has.
    """

    def __init__(self, bitmaps: Sequence[bytes], counts: array[int]) -> None:
        """Takes bitmaps as they are: use `chosen` or `from_texts`, which check them."""
        self.bitmaps = tuple(bitmaps)
        self.counts: Sequence[int] = counts
        self._decoded: dict[int, Sequence[int]] = {}

    @classmethod
    def from_texts(cls, texts: Sequence[str], shards: ShardList) -> ShardRows:
        """From the column of a manifest, which may come from anywhere. Raises ValueError: what is wrong."""
        if len(texts) != len(shards):
            raise ValueError(f"{len(texts)} values of rows for {len(shards)} shards")
        bitmaps, counts = [], array("Q")
        for text, total in zip(texts, shards.counts, strict=True):
            bitmap = _bitmap(text)
            chosen = _check(bitmap, total) if bitmap else total
            bitmaps.append(bitmap)
            counts.append(chosen)
        return cls(bitmaps, counts)

    @property
    def texts(self) -> list[str]:
        """The column of a manifest: each bitmap in base64. Made anew each time."""
        return [base64.b64encode(bitmap).decode() for bitmap in self.bitmaps]

    @cached_property
    def starts(self) -> Sequence[int]:
        """The ordinal, in the view, of each shard's first row, and after them the number of all rows."""
        return array("Q", accumulate(self.counts, initial=0))

    def of(self, shard: int) -> Sequence[int]:
        """The rows of one shard, ascending, as it numbers them."""
        bitmap = self.bitmaps[shard]
        if not bitmap:
            return range(self.counts[shard])
        rows = self._decoded.get(shard)
        if rows is None:
            flags = format(int.from_bytes(bitmap, "little"), "b")[::-1].translate(_FLAGS).encode()
            rows = array("I", compress(range(len(flags)), flags))
            if len(self._decoded) >= _DECODED:
                self._decoded = {}
            self._decoded[shard] = rows
        return rows

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardRows):
            return NotImplemented
        return self.bitmaps == other.bitmaps and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardRows, (self.bitmaps, self.counts)


def chosen(shards: ShardList, rows: ShardRows | None, flags: bytes | bytearray) -> tuple[ShardList, ShardRows]:
    """The shards and rows of a view of these, or of a view of a view: `flags` has a byte for each sample, 1 for those
    that stay, else 0."""
    starts = shards.starts if rows is None else rows.starts
    numbers, bitmaps, counts = [], [], array("Q")
    for number, total in enumerate(shards.counts):
        own = flags[starts[number] : starts[number + 1]]
        count = own.count(1)
        if not count:
            continue
        if rows is not None and rows.bitmaps[number]:
            whole = bytearray(total)
            for row in compress(rows.of(number), own):
                whole[row] = 1
            own = whole
        numbers.append(number)
        bitmaps.append(b"" if count == total else _of_flags(own))
        counts.append(count)
    return ShardList.of([shards[number] for number in numbers]), ShardRows(bitmaps, counts)


def _of_flags(flags: bytes | bytearray) -> bytes:
    return int(flags[::-1].translate(_DIGITS), 2).to_bytes((len(flags) + 7) // 8, "little")


def _bitmap(text: object) -> bytes:
    if type(text) is not str:
        raise ValueError(f"a value of rows is a {type(text).__name__}, not a string")
    try:
        bitmap = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"a value of rows is not base64: {text[:100]!r}") from error
    if base64.b64encode(bitmap).decode() != text:
        raise ValueError(f"a value of rows is not base64 as it is written: {text[:100]!r}")
    return bitmap


def _check(bitmap: bytes, total: int) -> int:
    """How many rows it has. Raises ValueError where it isn't the one bitmap for its rows of a shard of so many."""
    if len(bitmap) != (total + 7) // 8:
        raise ValueError(f"rows of {len(bitmap)} bytes for a shard of {total} samples")
    bits = int.from_bytes(bitmap, "little")
    if bits >> total or not 0 < bits.bit_count() < total:
        raise ValueError(f"rows that a shard of {total} samples hasn't, none, or all of them spelled out")
    return bits.bit_count()
