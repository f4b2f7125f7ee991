"""Whether the keys of a commit are unique, however many they are, in bounded memory, a microsecond a key.

Each key becomes a 64-bit hash. Hashes and ordinals are dealt by their first byte into 256 parts, which go to
a temporary file as memory fills. Equal hashes are then in one part, and each part is small enough to be looked at
as a set. Equal hashes are only candidates: the caller, who can get at the keys, compares them exactly.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from dload.files.atomic import disk_full

_PARTS = 256
_EARLY = 100  # candidates that are told of before the end, at most, each time that memory is full
_NONE: Sequence[tuple[int, int]] = ()


class KeyCheck:
    """Collects keys with `add`, then tells with `finish` whose hashes are equal. A context manager.

    Memory: about 100 bytes for each of `limit` keys, and 32 for each of a 256th of all. Disk: 16 bytes a key
    in `folder` (None: the system's temporary folder), in a file without a name: it is gone with the process,
    however that ends. Raises DiskFullError.
    """

    def __init__(self, folder: Path | None = None, *, limit: int = 1 << 20) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._limit = limit
        self._parts = [bytearray() for _ in range(_PARTS)]
        self._held = 0
        self._file: IO[bytes] | None = None
        self._runs: list[list[tuple[int, int]]] = [[] for _ in range(_PARTS)]  # (offset, length) of each part

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back memory and disk."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._parts, self._runs = [], []

    def add(self, key: str, ordinal: int) -> Sequence[tuple[int, int]]:
        """Take a key with its number (0 to 2**64 - 1).

        Returns candidates found on the way, nearly always none: when memory is full, pairs of numbers whose
        keys have equal hashes in it. `finish` gives them again.
        """
        digest = key_hash(key)
        self._parts[digest[0]] += digest + ordinal.to_bytes(8, sys.byteorder)
        self._held += 1
        return self._spill() if self._held >= self._limit else _NONE

    def add_hashes(self, hashes: bytes, first: int) -> None:
        """Take keys by their `key_hash`, one after another, numbered from `first`."""
        parts = self._parts
        for ordinal, at in enumerate(range(0, len(hashes), 8), first):
            digest = hashes[at : at + 8]
            parts[digest[0]] += digest + ordinal.to_bytes(8, sys.byteorder)
            self._held += 1
            if self._held >= self._limit:
                self._spill()

    def finish(self) -> Iterator[tuple[int, int]]:
        """Every pair of numbers whose keys have equal hashes, the smaller number first, in no particular order."""
        for part, runs in zip(self._parts, self._runs, strict=True):
            yield from self._pairs(b"".join([*map(self._read, runs), part]))

    def _spill(self) -> Sequence[tuple[int, int]]:
        pairs = itertools.chain.from_iterable(map(self._pairs, self._parts))
        early = list(itertools.islice(pairs, _EARLY))
        with disk_full(self._folder, self._held * 16):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - `close` closes it
            at = self._file.seek(0, os.SEEK_END)
            for part, runs in zip(self._parts, self._runs, strict=True):
                self._file.write(part)
                runs.append((at, len(part)))
                at += len(part)
                part.clear()
            self._file.flush()  # here, where a full disk is told as such
        self._held = 0
        return early

    def _read(self, run: tuple[int, int]) -> bytes:
        assert self._file is not None
        self._file.seek(run[0])
        return self._file.read(run[1])

    def _pairs(self, part: bytes | bytearray) -> Iterator[tuple[int, int]]:
        columns = array("Q")
        columns.frombytes(part)
        hashes, ordinals = columns[0::2], columns[1::2]
        ways = -(-len(hashes) // self._limit)
        if ways <= 1:
            yield from _equal(hashes, ordinals)
            return
        for way in range(ways):  # too many for one set: several, each of those whose middle bits agree
            chosen = [row for row, value in enumerate(hashes) if (value >> 32) % ways == way]
            yield from _equal([hashes[row] for row in chosen], [ordinals[row] for row in chosen])


def key_hash(key: str) -> bytes:
    """What stands for a key, valid or not: 8 bytes."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _equal(hashes: Sequence[int], ordinals: Sequence[int]) -> Iterator[tuple[int, int]]:
    seen = set(hashes)
    if len(seen) == len(hashes):
        return
    groups: dict[int, list[int]] = {}
    for value, ordinal in zip(hashes, ordinals, strict=True):
        if value in seen:
            seen.remove(value)  # its first
            groups[value] = [ordinal]
        else:
            groups[value].append(ordinal)
    for group in groups.values():
        yield from itertools.combinations(sorted(group), 2)
