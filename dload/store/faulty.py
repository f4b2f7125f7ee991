"""A store that fails on purpose, by plan: for tests of everything that stands on a store."""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dload.errors import DloadError, UnavailableError
from dload.store.base import Body, ObjectInfo, Store

_T = TypeVar("_T")


class Fault(enum.Enum):
    """What goes wrong with a call. All but SHORT raise UnavailableError."""

    BEFORE = "before"  # nothing was done
    AFTER = "after"  # it was done, and the reply was lost
    TORN = "torn"  # a stream breaks off in the middle; of other calls, as BEFORE
    SHORT = "short"  # a stream ends in the middle as if that were all; of other calls, none


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a store: its number from 1, the method's name, the key (or prefix, or a list's first key)."""

    number: int
    operation: str
    key: str


Plan = Callable[[Call], "Fault | DloadError | None"]


def fail_at(number: int, fault: Fault | DloadError = Fault.BEFORE) -> Plan:
    """The plan in which only the call of this number (from 1) fails."""
    return lambda call: fault if call.number == number else None


class Faulty:
    """The store `inner`, each of whose calls is counted and asks `plan` for its fault (an error: raised
    before)."""

    def __init__(self, inner: Store, plan: Plan = lambda _: None) -> None:
        self.inner = inner
        self.plan = plan
        self.calls: list[Call] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def count(self) -> Counter[str]:
        """How often each operation was called."""
        return Counter(call.operation for call in self.calls)

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def staging(self) -> Path | None:
        return self.inner.staging

    def get(self, key: str) -> Body:
        return self._call("get", key, lambda: self.inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._call("get_range", key, lambda: self.inner.get_range(key, start, length))

    def stream(self, key: str, start: int = 0) -> Generator[bytes, None, None]:
        fault = self._begin("stream", key)
        chunks = self.inner.stream(key, start)
        if fault in (Fault.TORN, Fault.SHORT):
            data = b"".join(chunks)
            yield data[: len(data) // 2]
        else:
            yield from chunks
        if fault in (Fault.TORN, Fault.AFTER):
            raise _broken("stream", key)

    def put(self, key: str, data: bytes) -> str:
        return self._call("put", key, lambda: self.inner.put(key, data))

    def put_file(self, key: str, path: Path, *, move: bool = False) -> str:
        return self._call("put_file", key, lambda: self.inner.put_file(key, path, move=move))

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        return self._call("put_if", key, lambda: self.inner.put_if(key, data, etag=etag))

    def conditional(self, *, refresh: bool = False) -> bool:
        return self._call("conditional", "", lambda: self.inner.conditional(refresh=refresh))

    def head(self, key: str) -> ObjectInfo | None:
        return self._call("head", key, lambda: self.inner.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from self._call("list", prefix, lambda: [*self.inner.list(prefix)])

    def list_folders(self, prefix: str) -> Iterator[str]:
        yield from self._call("list_folders", prefix, lambda: [*self.inner.list_folders(prefix)])

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self.inner.delete(key))

    def delete_many(self, keys: Iterable[str]) -> None:
        wanted = [*keys]
        self._call("delete_many", wanted[0] if wanted else "", lambda: self.inner.delete_many(wanted))

    def abort_unfinished(
        self, before: float, *, mine: Callable[[str], bool] = lambda _: True, dry_run: bool = False
    ) -> int:
        drop = partial(self.inner.abort_unfinished, before, mine=mine, dry_run=dry_run)
        return self._call("abort_unfinished", "", drop)

    def clock(self) -> float:
        return self._call("clock", "", self.inner.clock)

    def _begin(self, operation: str, key: str) -> Fault | None:
        """Count a call; its fault, unless that is one that strikes before anything is done."""
        with self._lock:
            call = Call(len(self.calls) + 1, operation, key)
            self.calls.append(call)
        fault = self.plan(call)
        if isinstance(fault, DloadError):
            raise fault
        if fault is Fault.BEFORE or (fault is Fault.TORN and operation != "stream"):
            raise _broken(operation, key)
        return fault

    def _call(self, operation: str, key: str, action: Callable[[], _T]) -> _T:
        fault = self._begin(operation, key)
        result = action()
        if fault is Fault.AFTER:
            raise _broken(operation, key)
        return result


def _broken(operation: str, key: str) -> UnavailableError:
    return UnavailableError(f"{operation} {key}: a fault by plan", key=key)
