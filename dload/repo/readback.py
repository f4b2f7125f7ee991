"""A shard's bytes from somewhere, in a temporary file, checked."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from dload.errors import IntegrityError
from dload.files.atomic import disk_full
from dload.manifest import ShardInfo

Body = Callable[[], Iterator[bytes]]

_TRIES = 3  # a bad body may be the network's, or a server's that is being mended
_SHORT = 4  # more of those that ended early: an object that is cut off is known by its listing, too


@contextmanager
def fetched(shard: ShardInfo, body: Body, folder: Path, where: str) -> Iterator[Path]:
    """A file in `folder` with the bytes of a shard, hashed as they come; it goes at the end.

    `body` gives the bytes anew at each call. Raises IntegrityError, naming `where`, if they aren't the shard's a few
    times in a row; DiskFullError; and what `body` raises.
    """
    path = folder / f"shard-{secrets.token_hex(8)}"
    try:
        bad = short = 0
        while True:
            got, size = _write(body(), path, shard.size, folder)
            if got == shard.digest:
                break
            if size < shard.size and short < _SHORT:
                short += 1
                continue
            bad += 1
            if bad == _TRIES:
                raise IntegrityError(
                    f"{where} is damaged: expected {shard.size} bytes with the sha256 {shard.digest}, "
                    f"got {size} with {got}",
                    key=where,
                    expected=shard.digest,
                    got=got,
                )
        yield path
    finally:
        path.unlink(missing_ok=True)


def _write(chunks: Iterator[bytes], path: Path, limit: int, folder: Path) -> tuple[str, int]:
    """The sha256 and size of what came; what is longer than `limit` is read no further than its first chunk beyond."""
    digest, size = sha256(), 0
    with disk_full(folder, limit), path.open("wb") as file:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            if size > limit:
                break
            file.write(chunk)
    return digest.hexdigest(), size
