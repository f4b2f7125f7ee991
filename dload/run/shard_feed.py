"""Shards in order, fetched ahead of who reads them."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from functools import partial

from dload.cache import ShardCache
from dload.errors import CacheFullError
from dload.manifest import ShardList
from dload.pack import ShardReader
from dload.run.open_shard import OpenShard, open_shard
from dload.store.base import Store

__all__ = ["OpenShard", "ShardFeed", "open_shard"]


class ShardFeed:
    """The readers of `shards`, in order; while one is read, up to `prefetch` shards behind it are fetched and
    opened.

    Each iteration begins anew. A reader is closed when the next one is asked for. Where the cache has no room
    for that many at once, fewer are fetched ahead; one shard must fit. An error in the background is raised
    where its shard would have come. An iterator that is closed, exhausted or forgotten lets go of its
    threads, pins and files.
    """

    def __init__(self, store: Store, cache: ShardCache, shards: ShardList, *, prefetch: int = 3) -> None:
        self._store = store
        self._cache = cache
        self._shards = shards
        self._prefetch = prefetch

    def __len__(self) -> int:
        return len(self._shards)

    def __iter__(self) -> Generator[ShardReader, None, None]:
        window = self._window(0)
        try:
            for number in range(len(self._shards)):
                if window.process != os.getpid():  # forked meanwhile: the threads stayed with the parent
                    window = self._window(number)
                opened = window.take(number)
                try:
                    yield opened.reader
                finally:
                    window.give_back(opened)
        finally:
            window.close()

    def _window(self, first: int) -> _Window:
        return _Window(self._store, self._cache, self._shards, self._prefetch, first)


class _GivenUpError(Exception):
    """Ends a background download whose shard isn't wanted now."""


class _Window:
    """The shards from the one that is read to the farthest that is fetched ahead, and the threads that fetch
    them.

    `_current` is the shard that the consumer reads or waits for; those up to `_current + _ahead` may be
    fetched, the first one first. Where the cache has no room, `_ahead` shrinks, and what was fetched beyond
    is given up: it must not stand in the way of the shard that is waited for. It grows again as the consumer
    moves on.
    """

    def __init__(self, store: Store, cache: ShardCache, shards: ShardList, prefetch: int, first: int) -> None:
        self.process = os.getpid()
        self._store = store
        self._cache = cache
        self._shards = shards
        self._prefetch = prefetch
        self._changed = threading.Condition()
        self._current = first
        self._ahead = prefetch
        self._dropped: set[int] = set()  # were begun, must be begun again
        self._next = first  # the first that was never begun
        self._under_way: set[int] = set()
        self._ready: dict[int, OpenShard | BaseException] = {}
        self._closed = False
        self._threads = 0
        self._waiting = False  # whether the consumer stands still without the current shard
        self._seat = cache.seat(self._give_up)

    # ---- called by the consumer

    def take(self, number: int) -> OpenShard:
        """Wait for a shard; raises what went wrong with it."""
        with self._changed:
            if number > self._current:
                self._current = number
                self._ahead = min(self._prefetch, self._ahead + 1)
            self._start_threads()
            self._changed.notify_all()
            self._waiting = True
            while number not in self._ready:
                self._changed.wait()
            result = self._ready.pop(number)
            self._waiting = False
        self._seat.settled()
        if isinstance(result, BaseException):
            raise result
        return result

    def give_back(self, opened: OpenShard) -> None:
        opened.close()
        if self.process == os.getpid():  # else a thread of the parent may have held the lock at the fork
            with self._changed:
                self._changed.notify_all()

    def close(self) -> None:
        if self.process != os.getpid():
            return
        self._seat.close()
        with self._changed:
            self._closed = True
            for number in list(self._ready):
                _dispose(self._ready.pop(number))
            self._changed.notify_all()

    def _start_threads(self) -> None:
        most = self._cache.downloads(min(max(1, self._prefetch), len(self._shards) - self._current))
        while self._threads < most:
            self._threads += 1
            threading.Thread(target=self._work, name=f"dload-feed-{self._threads}", daemon=True).start()

    # ---- called by the threads

    def _work(self) -> None:
        while (number := self._begin()) is not None:
            self._end(number, self._fetch(number))  # kept in no variable here: a thread that waits holds nothing

    def _fetch(self, number: int) -> OpenShard | BaseException:
        try:
            pause = partial(self._pause, number)
            return open_shard(
                self._store, self._cache, self._shards[number], pause=pause, seat=self._seat,
                urgent=partial(self._urgent, number),
            )  # fmt: skip
        except BaseException as error:
            return error

    def _begin(self) -> int | None:
        """The next shard to fetch, when there is one to be fetched; None when the window is closed."""
        with self._changed:
            while not self._closed:
                number = min(self._dropped, default=self._next)
                if number < len(self._shards) and number <= self._current + self._ahead:
                    self._dropped.discard(number)
                    self._next = max(self._next, number + 1)
                    self._under_way.add(number)
                    return number
                self._changed.wait()
            return None

    def _end(self, number: int, result: OpenShard | BaseException) -> None:
        with self._changed:
            self._under_way.discard(number)
            if isinstance(result, _GivenUpError) or (isinstance(result, CacheFullError) and self._make_way(number)):
                self._dropped.add(number)
            elif self._closed or number > self._current + self._ahead:
                _dispose(result)
                self._dropped.add(number)
            else:
                self._ready[number] = result
            self._changed.notify_all()

    def _make_way(self, number: int) -> bool:
        """No room for a shard: fetch less far ahead. Says whether it can be tried again later."""
        in_the_way = bool(self._under_way) or any(isinstance(it, OpenShard) for it in self._ready.values())
        self._shrink(max(0, number - self._current - 1))
        while self._under_way and number == self._current and not self._closed:
            self._changed.wait()
        return number > self._current or in_the_way

    def _shrink(self, ahead: int) -> None:
        self._ahead = min(self._ahead, ahead)
        for number in [number for number in self._ready if number > self._current + self._ahead]:
            _dispose(self._ready.pop(number))
            self._dropped.add(number)

    def _urgent(self, number: int) -> bool:
        return self._waiting and number == self._current

    def _give_up(self) -> None:
        """Others need the room: let go of all but what the consumer reads or waits for."""
        with self._changed:
            self._shrink(0)

    def _pause(self, number: int, seconds: float) -> None:
        """Wait for others to make room (0: just look whether the shard is still wanted).

        The shard that is read next doesn't wait for others while its own successors hold some."""
        with self._changed:
            if seconds and number == self._current:
                self._shrink(0)
            if seconds and not self._closed:
                self._changed.wait(seconds)
            if self._closed or number > self._current + self._ahead:
                raise _GivenUpError


def _dispose(result: OpenShard | BaseException) -> None:
    if isinstance(result, OpenShard):
        result.close()
