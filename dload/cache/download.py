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

ATTEMPTS = 3  # how often a body that is wrong, or none at all, is fetched before that is an error

_CHUNK = 1 << 20
# Of a write: what was just hashed is still near the processor. Written by 2 MiB, which Linux then keeps in pages as
# large, a file is read a fifth faster, but to find such pages costs a download half as much again.
_SLICE = 1 << 18
_FULL = {errno.ENOSPC, errno.EDQUOT}


def fill(
    descriptor: int, digest: str, size: int, open_stream: OpenStream, *, name: str, relieve: Callable[[], int],
    again: Callable[[], object] = lambda: None,
) -> None:  # fmt: skip
    """Bring the open file to `size` bytes whose sha256 is `digest`; what it holds already is kept if it fits.

    Nothing is ever written past `size`. On a full disk `relieve` is called; while it frees bytes, writing
    goes on, then the OSError is raised. What `open_stream` raises passes through, and the file keeps what has
    come. A body that ends early is continued for as long as something comes; one that is long or wrong is fetched
    again (`again` is called), a few times, then IntegrityError. `name` is what messages call it.
    """
    got = ""
    file = _Growing(descriptor, size, relieve)
    attempt = 0
    while attempt < ATTEMPTS:
        before = file.length
        if before < size:
            file.append(open_stream(before))
        if before < file.length < size and not file.overlong:
            continue
        found = file.sha256.hexdigest()
        if file.length == size and not file.overlong and found == digest:
            return
        attempt += 1
        if file.overlong:
            got = f"more than {size} bytes"
        elif file.length < size:
            got = f"{file.length} bytes"
        else:
            got = f"sha256 {found}"
        if file.overlong or file.length == size:
            file.clear()
            again()
    file.clear()
    raise IntegrityError(
        f"{name} is damaged: expected {size} bytes with sha256 {digest}, got {got} in {ATTEMPTS} attempts",
        remedy="check what is stored with: dload verify --read-data",
        key=name, expected=digest, got=got,
    )  # fmt: skip


class _Growing:
    """A partial file that is hashed as it grows. Making one hashes what an earlier download left."""

    def __init__(self, descriptor: int, size: int, relieve: Callable[[], int]) -> None:
        self._descriptor = descriptor
        if os.fstat(descriptor).st_size > size:
            self.clear()
        self.sha256, self.length = _hash(descriptor)
        self.overlong = False
        self._size = size
        self._relieve = relieve

    def clear(self) -> None:
        """Begin anew."""
        os.ftruncate(self._descriptor, 0)
        self.sha256, self.length, self.overlong = hashlib.sha256(), 0, False

    def append(self, stream: Iterator[bytes]) -> None:
        """Write what comes, up to `size`; `overlong` if there is more."""
        try:
            for chunk in stream:
                if self.length + len(chunk) > self._size:
                    self.overlong = True
                    return
                for at in range(0, len(chunk), _SLICE):
                    piece = memoryview(chunk)[at : at + _SLICE]
                    self.sha256.update(piece)
                    self._write(piece)
        finally:
            if isinstance(stream, Generator):
                stream.close()

    def _write(self, view: memoryview) -> None:
        while view:
            try:
                written = os.pwrite(self._descriptor, view, self.length)
            except OSError as error:
                if error.errno not in _FULL or self._relieve() == 0:
                    raise
                continue
            view = view[written:]
            self.length += written


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
