"""Where the values of samples are in their shard, found for one sample or for many at once."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain, compress, repeat
from mmap import mmap
from struct import Struct
from typing import Any

from dload import randomness

_FEW = 32  # to look fewer up one by one costs less than NumPy
_MANY = 256  # are looked up at once: their bytes stay in the processor's cache until they are copied
_LINE = 64  # bytes of a processor's cache line
_LONG = 1536  # bytes of a sample, of which a processor reads ahead by itself, seeing where it leads


class Locator:
    """Finds the wanted fields of samples that all have the same fields.

    `spans` is a shard's (ShardIndex.spans); `names` are the samples' fields; `fields` those that are wanted, None: all.
    What it finds for a sample are the offsets where its values begin and end, by turns, in the order of `self.names`.
    """

    def __init__(self, spans: array[int], names: tuple[str, ...], fields: Collection[str] | None) -> None:
        self._spans = spans
        self._wanted = tuple([fields is None or name in fields for name in names])
        self.names = tuple(compress(names, self._wanted))
        self._row = _row(self._wanted, spans.typecode)

    def sample(self, first: int) -> tuple[int, ...]:
        """The offsets of the sample whose first value is the shard's value number `first`."""
        return self._row.unpack_from(self._spans, 2 * self._spans.itemsize * first)

    def samples(self, rows: Sequence[int], buffer: bytes | mmap | None = None) -> Iterable[Sequence[int]]:
        """The offsets of each of these samples of a shard whose samples all have these fields. Negative rows count from
        the end; those that aren't there must not be asked for. `buffer`: what the values will be cut out of next.
        """
        if randomness.HAVE_NUMPY and self.names and len(rows) >= _FEW:
            pieces = (rows[start : start + _MANY] for start in range(0, len(rows), _MANY))
            return chain.from_iterable(self._at_once(piece, buffer) for piece in pieces)
        size = self._row.size
        return map(self._row.unpack_from, repeat(self._spans), [row * size for row in rows])

    def _at_once(self, rows: Sequence[int], buffer: bytes | mmap | None) -> list[list[int]]:
        import numpy as np

        table = np.frombuffer(self._spans, self._spans.typecode).reshape(-1, 2 * len(self._wanted))
        found = table[np.array(rows)]
        if not all(self._wanted):
            found = found[:, np.repeat(self._wanted, 2)]
        if buffer is not None:
            _touch(buffer, found)
        offsets: list[list[int]] = found.tolist()
        return offsets


@lru_cache(256)
def _row(wanted: tuple[bool, ...], kind: str) -> Struct:
    """A sample's part of a table of spans."""
    skipped = 2 * array(kind).itemsize
    return Struct("@" + "".join(f"2{kind}" if want else f"{skipped}x" for want in wanted))


def _touch(buffer: bytes | mmap, spans: Any) -> None:
    """Read a byte of each line of memory that samples begin in.

    Samples in random order are spread over more memory than any cache has. Copied one by one they are waited for one by
    one, which takes longer than all else; in a loop as tight as this one the processor waits for many side by side.
    """
    import numpy as np

    starts, stops = spans[:, 0].astype(np.intp), spans[:, -1].astype(np.intp)
    lengths = stops - starts
    if lengths.mean() < _LONG:
        lines = np.arange(0, min(int(lengths.max()), _LONG), _LINE)
        np.frombuffer(buffer, np.uint8)[np.minimum(starts[:, None] + lines, stops[:, None] - 1)]
