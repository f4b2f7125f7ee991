"""The samples that every system writes and reads: pure functions of a row's number, by the standard library alone.

A sample is a key and two fields, a and b. What a system has read is told by its number of samples, how many keys are
different, and the sum of their checksums, which is the same in any order.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

Sample = tuple[str, bytes, bytes]

_OFFSETS = 4093  # a prime: rows begin at so many places of the noise


@dataclass(frozen=True)
class Spec:
    """`count` samples of `size` bytes each: noise, or what is in the file `corpus` (then `size` counts for nothing).
    `source` begins their keys."""

    count: int
    size: int
    source: str = "sample"
    corpus: str = ""

    def sample(self, row: int) -> Sample:
        key = f"{self.source}-{row:08d}"
        if self.corpus:
            texts = _corpus(self.corpus)
            return key, texts[row % len(texts)], row.to_bytes(8, "little")
        noise, at, half = _noise(self.size), row * 37 % _OFFSETS, self.size // 2
        first = row.to_bytes(8, "little") + noise[at : at + half - 8]
        return key, first, noise[at + half : at + self.size]

    def samples(self) -> Iterator[Sample]:
        return map(self.sample, range(self.count))

    @property
    def bytes(self) -> int:
        """Of the two fields of all samples."""
        if not self.corpus:
            return self.count * self.size
        texts = _corpus(self.corpus)
        return sum(len(texts[row % len(texts)]) + 8 for row in range(self.count))


@dataclass
class Seen:
    """What came out of a system."""

    count: int = 0
    distinct: int = 0
    digest: int = 0
    displaced: float = 0.0  # mean distance from the place in storage, as a share of what uniform chance gives

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Seen:
        keys: set[str] = set()
        seen, distance = cls(), 0
        for key, a, b in samples:
            keys.add(key)
            distance += abs(int(key[-8:]) - seen.count)
            seen.count += 1
            seen.digest = (seen.digest + zlib.crc32(b, zlib.crc32(a, zlib.crc32(key.encode())))) & 0xFFFFFFFFFFFF
        seen.distinct = len(keys)
        seen.displaced = 3 * distance / seen.count**2 if seen.count else 0.0
        return seen


@lru_cache(maxsize=4)
def expected(spec: Spec) -> Seen:
    """What must come out of one pass over it."""
    return Seen.of(spec.samples())


@lru_cache(maxsize=4)
def _noise(size: int) -> bytes:
    return random.Random(size).randbytes(size + _OFFSETS)


@lru_cache(maxsize=2)
def _corpus(path: str) -> list[bytes]:
    with Path(path).open("rb") as file:
        sizes = json.loads(file.readline())
        return [file.read(size) for size in sizes]


def write_corpus(path: Path, items: list[bytes]) -> None:
    """A file that a Spec can name: real photographs, say."""
    with path.open("wb") as file:
        file.write(json.dumps([len(item) for item in items]).encode() + b"\n")
        file.writelines(items)
