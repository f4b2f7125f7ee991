"""A part of a file that reads as a file of its own."""

from __future__ import annotations

import os


class FileSlice:
    """`length` bytes of an open file from `start`. Slices of one descriptor may be read in several
    threads."""

    def __init__(self, descriptor: int, start: int, length: int) -> None:
        self._descriptor = descriptor
        self._start = start
        self._length = length
        self._at = 0

    def __len__(self) -> int:
        return self._length

    def read(self, size: int | None = None) -> bytes:
        rest = self._length - self._at
        wanted = rest if size is None or size < 0 else min(size, rest)
        data = os.pread(self._descriptor, wanted, self._start + self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at
