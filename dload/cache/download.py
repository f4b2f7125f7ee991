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

    Nothing is ever written past `size`. On a full disk `relieve` is called; while it frees bytes, writing goes on, then
    the OSError is raised. What `open_stream` raises passes through, and the file keeps what has come. A body that is
    short, long or wrong is fetched again, a few times, then IntegrityError. `name` is what messages call it.
    """
    got = ""
    for _ in range(ATTEMPTS):
        sha256, have = _hash_prefix(descriptor, size)
        have = _append(descriptor, sha256, have, size, open_stream, relieve)
        found = sha256.hexdigest()
        if have == size and found == digest:
            return
        got = f"sha256 {found}" if have == size else f"more than {size} bytes" if have > size else f"{have} bytes"
        if have >= size:
            os.ftruncate(descriptor, 0)
    os.ftruncate(descriptor, 0)
    raise IntegrityError(
        f"{name} is damaged: expected {size} bytes with sha256 {digest}, got {got} in {ATTEMPTS} attempts",
        remedy="check what is stored with: dload verify --read-data",
        key=name, expected=digest, got=got,
    )  # fmt: skip


def _hash_prefix(descriptor: int, size: int) -> tuple[Any, int]:
    """Hash what an earlier download left."""
    sha256 = hashlib.sha256()
    if os.fstat(descriptor).st_size > size:
        os.ftruncate(descriptor, 0)
    have = 0
    while chunk := os.pread(descriptor, _CHUNK, have):
        sha256.update(chunk)
        have += len(chunk)
    return sha256, have


def _append(
    descriptor: int, sha256: Any, have: int, size: int, open_stream: OpenStream, relieve: Callable[[], int]
) -> int:
    """Append the stream's bytes; returns the length reached, which is past `size` if the body was too long."""
    if have == size:
        return have
    stream = open_stream(have)
    try:
        for chunk in stream:
            if have + len(chunk) > size:
                return size + 1
            sha256.update(chunk)
            _write(descriptor, chunk, have, relieve)
            have += len(chunk)
    finally:
        if isinstance(stream, Generator):
            stream.close()
    return have


def _write(descriptor: int, chunk: bytes, position: int, relieve: Callable[[], int]) -> None:
    view = memoryview(chunk)
    while view:
        try:
            written = os.pwrite(descriptor, view, position)
        except OSError as error:
            if error.errno not in _FULL or relieve() == 0:
                raise
            continue
        view = view[written:]
        position += written


def sha256_of(descriptor: int) -> str:
    """The digest of an open file's bytes, whatever its position."""
    sha256 = hashlib.sha256()
    position = 0
    while chunk := os.pread(descriptor, _CHUNK, position):
        sha256.update(chunk)
        position += len(chunk)
    return sha256.hexdigest()
