"""Fill a partial file from a stream: continue where it was cut off, hash as it comes, check."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any

from dload.errors import IntegrityError

OpenStream = Callable[[int], Iterator[bytes]]
"""Opens the bytes from a position to the end, in chunks."""

ATTEMPTS = 3  # how often a body that isn't what it should be is fetched before that is an error

_CHUNK = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT}


def fill(
    descriptor: int, digest: str, size: int, open_stream: OpenStream, *, name: str, relieve: Callable[[], int]
) -> None:
    """Bring the open file to `size` bytes whose sha256 is `digest`; what it holds already is kept if it fits.

    Nothing is ever written past `size`. On a full disk `relieve` is called; while it frees bytes, writing
    goes on, then the OSError is raised. What `open_stream` raises passes through, and the file keeps what has
    come. A body that is short, long or wrong is fetched again, a few times, then IntegrityError. `name` is
    what messages call it.
    """
    got = ""
    for _ in range(ATTEMPTS):
        file = _Growing(descriptor, size, relieve)
        if file.length < size:
            file.append(open_stream(file.length))
        found = file.sha256.hexdigest()
        if file.length == size and not file.overlong and found == digest:
            return
        got = f"sha256 {found}" if file.length == size else f"{file.length} bytes"
        if file.overlong:
            got = f"more than {size} bytes"
        if file.overlong or file.length == size:
            os.ftruncate(descriptor, 0)
    os.ftruncate(descriptor, 0)
    raise IntegrityError(
        f"{name} is damaged: expected {size} bytes with sha256 {digest}, got {got} in {ATTEMPTS} attempts",
        remedy="check what is stored with: dload verify --read-data",
        key=name, expected=digest, got=got,
    )  # fmt: skip


class _Growing:
    """A partial file that is hashed as it grows. Making one hashes what an earlier download left."""

    def __init__(self, descriptor: int, size: int, relieve: Callable[[], int]) -> None:
        if os.fstat(descriptor).st_size > size:
            os.ftruncate(descriptor, 0)
        self.sha256, self.length = _hash(descriptor)
        self.overlong = False
        self._descriptor = descriptor
        self._size = size
        self._relieve = relieve

    def append(self, stream: Iterator[bytes]) -> None:
        """Write what comes, up to `size`; `overlong` if there is more."""
        try:
            for chunk in stream:
                if self.length + len(chunk) > self._size:
                    self.overlong = True
                    return
                self.sha256.update(chunk)
                self._write(chunk)
                self.length += len(chunk)
        finally:
            if isinstance(stream, Generator):
                stream.close()

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        position = self.length
        while view:
            try:
                written = os.pwrite(self._descriptor, view, position)
            except OSError as error:
                if error.errno not in _FULL or self._relieve() == 0:
                    raise
                continue
            view = view[written:]
            position += written


def sha256_of(descriptor: int) -> str:
    """The digest of an open file's bytes, whatever its position."""
    digest: str = _hash(descriptor)[0].hexdigest()
    return digest


def _hash(descriptor: int) -> tuple[Any, int]:
    sha256 = hashlib.sha256()
    length = 0
    while chunk := os.pread(descriptor, _CHUNK, length):
        sha256.update(chunk)
        length += len(chunk)
    return sha256, length
