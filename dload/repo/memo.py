"""What shards came out of which files, remembered on this machine, so that a folder committed again isn't read
again."""

from __future__ import annotations

import threading
from pathlib import Path

import msgpack

from dload.errors import DiskFullError
from dload.files.atomic import write_atomic
from dload.pack import PackedShard

_FORMAT = 1
_MAX_BYTES = 1 << 28


class FileMemo:
    """A PackMemo in one file. It only ever saves work: a damaged or missing file means that everything is read.

    Used as a context manager; what this commit asked for or put is what the file remembers after it, also after an
    error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[bytes, PackedShard] = {}
        self._used: dict[bytes, PackedShard] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> FileMemo:
        self._known = _read(self.path)
        return self

    def __exit__(self, *exc: object) -> None:
        if exc[0] is not None:  # cut off: what wasn't reached is still true
            self._used = {**self._known, **self._used}
        if not self._used or self._used == self._known:
            return
        rows = [(stamp, s.digest, s.size, s.num_samples, s.index_size, s.fields) for stamp, s in self._used.items()]
        try:
            write_atomic(self.path, msgpack.packb([_FORMAT, rows]))
        except (OSError, DiskFullError):
            return  # the next commit reads the files again

    def get(self, stamp: bytes) -> PackedShard | None:
        return self._known.get(stamp)

    def put(self, stamp: bytes, shard: PackedShard) -> None:
        with self._lock:
            self._used[stamp] = shard


def _read(path: Path) -> dict[bytes, PackedShard]:
    try:
        form, rows = msgpack.unpackb(path.read_bytes(), max_buffer_size=_MAX_BYTES)
        if form != _FORMAT:
            return {}
        return {
            stamp: PackedShard(
                digest, size, num_samples, index_size, {name: (count, total) for name, (count, total) in fields.items()}
            )
            for stamp, digest, size, num_samples, index_size, fields in rows
        }
    except (OSError, ValueError, TypeError, AttributeError, msgpack.UnpackException):
        return {}
