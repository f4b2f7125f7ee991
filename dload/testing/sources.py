"""A source of made-up shards for tests of the cache: a folder of files, with a log of every body that was
asked for.

Many processes can share one. Each call of an opened stream appends a line to the log, so that a test can
count them.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Get:
    """One body that was asked for: which, from where, by whom."""

    digest: str
    start: int
    pid: int


@dataclass(frozen=True, slots=True)
class LoggedSource:
    """`folder` holds the bodies and the log; `delay` seconds pass before each chunk of `chunk` bytes."""

    folder: Path
    delay: float = 0.0
    chunk: int = 1 << 16

    def make(self, number: int, size: int) -> str:
        """Make a body of `size` bytes that depends on `number` alone; returns its digest."""
        data = random.Random(number).randbytes(size)
        digest = hashlib.sha256(data).hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / digest).write_bytes(data)
        return digest

    def body(self, digest: str) -> bytes:
        return (self.folder / digest).read_bytes()

    def opener(self, digest: str) -> Callable[[int], Iterator[bytes]]:
        """What ShardCache.ensure wants: opens the body from a position."""

        def open_stream(start: int) -> Iterator[bytes]:
            return self._stream(digest, start)

        return open_stream

    def gets(self) -> list[Get]:
        """Every body that was asked for so far, by any process."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [Get(words[0], int(words[1]), int(words[2])) for words in map(str.split, lines)]

    def _stream(self, digest: str, start: int) -> Iterator[bytes]:
        log = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(log, f"{digest} {start} {os.getpid()}\n".encode())
        finally:
            os.close(log)
        with (self.folder / digest).open("rb") as file:
            file.seek(start)
            while chunk := file.read(self.chunk):
                time.sleep(self.delay)
                yield chunk
