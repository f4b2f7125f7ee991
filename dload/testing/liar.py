"""A store that says what isn't so, by plan: other bytes, other sizes, listings that lack objects or name those that are
gone. Everything that is written is done as it should be."""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import TypeVar

from dload.store.base import Body, ObjectInfo, Store
from dload.store.faulty import Call, Faulty

PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"


class Lie(enum.Enum):
    """What is said in place of the truth. One that makes no sense for a call isn't told."""

    FLIPPED = "flipped"  # one bit of the bytes
    SHORT = "short"  # half of the bytes, as if that were all; of a listing, every other object
    LONG = "long"  # a byte more
    OTHER = "other"  # another object; of a look, another one's size
    PAGE = "page"  # a text of something in between
    STALE = "stale"  # what was there before; a listing lacks the newest object
    ABSENT = "absent"  # there is nothing
    GHOST = "ghost"  # there is what isn't: any other object in its place


_T = TypeVar("_T")
Lies = Callable[[Call], Lie | None]


class Liar(Faulty):
    """The store `inner`; of each call, counted as by Faulty, `lies` says whether to lie. `past`: bodies that keys had
    before, with the ETags of then."""

    def __init__(self, inner: Store, lies: Lies, past: dict[str, Body] | None = None) -> None:
        super().__init__(inner, self._asked)
        self._lies = lies
        self._past = past or {}
        self._lie: Lie | None = None
        self.told = 0

    def _asked(self, call: Call) -> None:
        self._lie = self._lies(call)

    def get(self, key: str) -> Body:
        body = super().get(key) if self.inner.head(key) is not None else self._nothing("get", key)
        match self._taken():
            case Lie.STALE if key in self._past:
                return self._tell(self._past[key])
            case Lie.ABSENT:
                self.told += 1
                return self.inner.get(f"{key}-absent")
            case Lie.OTHER:  # with its own ETag, as a reply that belongs to another request has it
                return self._tell(self.inner.get(self._other(key)))
            case lie:
                return replace(body, data=self._bytes(key, body.data, lie))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = super().get_range(key, start, length)
        lie = self._taken()
        if lie is Lie.OTHER:
            other = self.inner.get(self._other(key)).data
            return self._tell((other[start:] + bytes(length))[:length])
        return self._bytes(key, data, lie) if lie is Lie.FLIPPED else data

    def stream(self, key: str, start: int = 0) -> Generator[bytes, None, None]:
        data = b"".join(super().stream(key, start))
        yield self._bytes(key, data, self._taken())

    def head(self, key: str) -> ObjectInfo | None:
        found = super().head(key)
        match self._taken():
            case Lie.ABSENT if found is not None:
                return self._tell(None)
            case Lie.GHOST if found is None:
                other = self.inner.head(self._other(key))
                return self._tell(replace(other, key=key)) if other else None
            case Lie.LONG | Lie.SHORT | Lie.OTHER as lie if found is not None:
                more = {Lie.LONG: 1, Lie.SHORT: -(found.size // 2), Lie.OTHER: 1000}[lie]
                return self._tell(replace(found, size=found.size + more))
        return found

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found = [*super().list(prefix)]
        match self._taken():
            case Lie.STALE if found:
                newest = max(found, key=lambda info: info.modified)
                found = self._tell([info for info in found if info is not newest])
            case Lie.SHORT if found:
                found = self._tell(found[::2])
            case Lie.ABSENT if found:
                found = self._tell([])
            case Lie.GHOST if found:
                found = self._tell([*found, replace(found[0], key=_other_name(found[0].key))])
        yield from found

    def list_folders(self, prefix: str) -> Iterator[str]:
        found = [*super().list_folders(prefix)]
        lie = self._taken()
        if lie in (Lie.SHORT, Lie.STALE) and found:
            found = self._tell(found[::2] if lie is Lie.SHORT else found[:-1])
        elif lie is Lie.GHOST:
            found = self._tell([*found, "ghost"])
        yield from found

    # ---- what to say
    def _nothing(self, operation: str, key: str) -> Body:
        """Count the call; then a ghost, or the truth, which is NotFoundError."""
        self._begin(operation, key)
        if self._lie is Lie.GHOST:
            self._lie = None
            return self._tell(self.inner.get(self._other(key)))
        self._lie = None
        return self.inner.get(key)

    def _taken(self) -> Lie | None:
        lie, self._lie = self._lie, None
        return lie

    def _tell(self, what: _T) -> _T:
        self.told += 1
        return what

    def _bytes(self, key: str, data: bytes, lie: Lie | None) -> bytes:
        match lie:
            case Lie.FLIPPED if data:
                at = len(data) // 3
                return self._tell(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            case Lie.SHORT:
                return self._tell(data[: len(data) // 2])
            case Lie.LONG:
                return self._tell(data + b"?")
            case Lie.PAGE:
                return self._tell(PAGE)
            case Lie.OTHER:
                return self._tell(self.inner.get(self._other(key)).data)
        return data

    def _other(self, key: str) -> str:
        """An object as near as can be: the same kind, of this data set or another."""
        all_keys = sorted(info.key for info in self.inner.list("") if info.key != key)
        folder, kind = key.rpartition("/")[0], key.split("/", maxsplit=1)[0]
        return max(all_keys, key=lambda each: (each.startswith(folder), each.startswith(kind), each))


def _other_name(key: str) -> str:
    """The same, but for one digit of its id."""
    name = key.rpartition("/")[2]
    digit = "0" if name[:1] != "0" else "1"
    return key[: len(key) - len(name)] + digit + name[1:]
