"""A store in memory: the model that the others are compared with, and the fast one for tests."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dload.errors import IntegrityError, NotFoundError, PreconditionFailedError, UnsafeStoreError
from dload.store.base import Body, ObjectInfo, check_key, check_prefix

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    etag: str
    modified: float


class MemoryStore:
    """Objects in a dict. `clock` is the store's clock; with `conditions=False` it is a store that ignores
    them.

    A pickle is a copy: it holds the objects as they are, and from then on goes its own way.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time, conditions: bool = True) -> None:
        self._clock = clock
        self._conditions = conditions
        self._objects: dict[str, _Object] = {}
        self._writes = itertools.count(1)
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return self.__dict__ | {"_objects": dict(self._objects), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._objects)} objects)"

    @property
    def url(self) -> str:
        return "memory://"

    @property
    def staging(self) -> Path | None:
        return None

    def get(self, key: str) -> Body:
        found = self._find(key)
        return Body(found.data, found.etag, found.modified)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = self._find(key).data
        if len(data) < start + length:
            raise IntegrityError(
                f"{self.url}{key} is too short: {start + length:,} bytes expected, {len(data):,} found",
                key=key, expected=start + length, got=len(data),
            )  # fmt: skip
        return data[start : start + length]

    def stream(self, key: str, start: int = 0) -> Generator[bytes, None, None]:
        data = self._find(key).data
        if start > len(data):
            what = f"{len(data):,} bytes; asked for those from {start:,} on"
            raise IntegrityError(f"{self.url}{key} has {what}", key=key)
        for at in range(start, len(data), _CHUNK):
            yield data[at : at + _CHUNK]

    def put(self, key: str, data: bytes) -> str:
        with self._lock:
            return self._write(key, data)

    def put_file(self, key: str, path: Path, *, move: bool = False) -> str:
        return self.put(key, path.read_bytes())

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        if not self._conditions:
            raise UnsafeStoreError(f"{self.url} ignores conditions", remedy="make it with conditions=True")
        with self._lock:
            found = self._objects.get(check_key(key))
            if (found.etag if found else None) != etag:
                raise PreconditionFailedError(
                    f"{self.url}{key} was changed by someone else first: expected {etag or 'no object'}, "
                    f"found {found.etag if found else 'none'}", key=key,
                )  # fmt: skip
            return self._write(key, data)

    def conditional(self, *, refresh: bool = False) -> bool:
        return self._conditions

    def head(self, key: str) -> ObjectInfo | None:
        found = self._objects.get(check_key(key))
        return _info(key, found) if found else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            found = [_info(key, value) for key, value in self._objects.items() if key.startswith(prefix)]
        yield from found

    def list_folders(self, prefix: str) -> Iterator[str]:
        rests = (found.key.removeprefix(prefix) for found in self.list(prefix))
        yield from dict.fromkeys(rest.partition("/")[0] for rest in rests if "/" in rest)

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key), None)

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)

    def abort_unfinished(
        self, before: float, *, mine: Callable[[str], bool] = lambda _: True, dry_run: bool = False
    ) -> int:
        return 0

    def clock(self) -> float:
        return self._clock()

    def _find(self, key: str) -> _Object:
        found = self._objects.get(check_key(key))
        if found is None:
            raise NotFoundError(f"can't read {self.url}{key}: there is no such object", key=key)
        return found

    def _write(self, key: str, data: bytes) -> str:
        etag = f"{next(self._writes)}"
        self._objects[check_key(key)] = _Object(bytes(data), etag, self._clock())
        return etag


def _info(key: str, found: _Object) -> ObjectInfo:
    return ObjectInfo(key, len(found.data), found.etag, found.modified)
