"""Trying again: what makes a store survive overload, broken connections and outages of a minute."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dload.errors import PreconditionFailedError, UnavailableError
from dload.store.base import Body, ObjectInfo, Store

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def _chance() -> float:
    """From 0 to 1. (A function of its own, since `random.random` would be pickled with its generator's state.)"""
    return random.random()


@dataclass(frozen=True)
class Backoff:
    """How to wait for a store that may answer later. Times are in seconds.

    The pauses double from `first` to `longest`, each shortened by chance to as little as half, so that many
    clients don't come back all at once. After `patience` without success the error comes out. A server that
    has never answered is more likely misspelt than down, and has `first_contact` seconds."""

    patience: float = 180.0
    first_contact: float = 10.0
    first: float = 0.1
    longest: float = 8.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = _chance

    def call(self, action: Callable[[], _T]) -> _T:
        """What `action` returns, tried again for as long as it raises UnavailableError."""
        tries = Tries(self)
        while True:
            try:
                return action()
            except UnavailableError as error:
                tries.wait(error)


class Tries:
    """One task's attempts."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self.restart()

    def restart(self) -> None:
        """There was progress: patience begins anew."""
        self._failed = 0
        self._since = self._backoff.clock()

    def wait(self, error: UnavailableError) -> None:
        """Sleep before the next attempt, or raise the error if that would be too late."""
        backoff = self._backoff
        self._failed += 1
        longest = min(backoff.longest, backoff.first * 2 ** min(self._failed - 1, 30))
        pause = longest * (1 + backoff.random()) / 2
        elapsed = backoff.clock() - self._since
        patience = backoff.patience
        if error.details.get("answered") is False:
            patience = min(patience, backoff.first_contact)
        if elapsed + pause > patience:
            if self._failed == 1:
                raise error
            raise UnavailableError(
                f"{error.message} (tried {self._failed} times in {elapsed:.0f} s)",
                remedy=error.remedy, **error.details,
            ) from error  # fmt: skip
        level = logging.WARNING if elapsed > 5 else logging.INFO
        _log.log(level, "%s; trying again for up to %.0f s", error.message, patience - elapsed)
        backoff.sleep(pause)


class Retrying:
    """A store that tries again whatever may succeed later (UnavailableError), and gives up on the rest at
    once.

    Streams go on by range from where they broke. A listing is tried again until its first object has come;
    its later pages are the inner store's to repeat."""

    def __init__(self, inner: Store, backoff: Backoff | None = None) -> None:
        self.inner = inner
        self._backoff = backoff or Backoff()

    def __repr__(self) -> str:
        return f"Retrying({self.inner!r})"

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def staging(self) -> Path | None:
        return self.inner.staging

    def get(self, key: str) -> Body:
        return self._backoff.call(lambda: self.inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._backoff.call(lambda: self.inner.get_range(key, start, length))

    def stream(self, key: str, start: int = 0) -> Generator[bytes, None, None]:
        tries = Tries(self._backoff)
        while True:
            try:
                with closing(self.inner.stream(key, start)) as chunks:
                    for chunk in chunks:
                        start += len(chunk)
                        yield chunk
                        tries.restart()
                return
            except UnavailableError as error:
                tries.wait(error)

    def put(self, key: str, data: bytes) -> str:
        return self._backoff.call(lambda: self.inner.put(key, data))

    def put_file(self, key: str, path: Path, *, move: bool = False) -> str:
        return self._backoff.call(lambda: self.inner.put_file(key, path, move=move))

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        """As the protocol says. If an attempt's reply was lost and the next one finds the condition broken by
        these very bytes, it was that attempt which wrote them: that is success."""
        tries = Tries(self._backoff)
        unclear = False
        while True:
            try:
                return self.inner.put_if(key, data, etag=etag)
            except UnavailableError as error:
                unclear = True
                tries.wait(error)
            except PreconditionFailedError:
                found = self.get(key) if unclear and self.head(key) else None
                if found is None or found.data != data:
                    raise
                return found.etag

    def conditional(self, *, refresh: bool = False) -> bool:
        return self._backoff.call(lambda: self.inner.conditional(refresh=refresh))

    def head(self, key: str) -> ObjectInfo | None:
        return self._backoff.call(lambda: self.inner.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from self._from_first(lambda: self.inner.list(prefix))

    def list_folders(self, prefix: str) -> Iterator[str]:
        yield from self._from_first(lambda: self.inner.list_folders(prefix))

    def delete(self, key: str) -> None:
        self._backoff.call(lambda: self.inner.delete(key))

    def delete_many(self, keys: Iterable[str]) -> None:
        wanted = [*keys]
        self._backoff.call(lambda: self.inner.delete_many(wanted))

    def abort_unfinished(
        self, before: float, *, mine: Callable[[str], bool] = lambda _: True, dry_run: bool = False
    ) -> int:
        return self._backoff.call(lambda: self.inner.abort_unfinished(before, mine=mine, dry_run=dry_run))

    def clock(self) -> float:
        return self._backoff.call(self.inner.clock)

    def _from_first(self, begin: Callable[[], Iterator[_T]]) -> Iterator[_T]:
        def first() -> tuple[Iterator[_T], tuple[_T, ...]]:
            found = begin()
            return found, tuple(itertools.islice(found, 1))

        rest, start = self._backoff.call(first)
        yield from start
        yield from rest
