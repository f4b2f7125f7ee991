"""The shards that a running pipeline has at hand: fetched ahead by its demand, let go behind it."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice, zip_longest
from typing import Any, Protocol

from dload.cache import ShardCache
from dload.errors import CacheFullError
from dload.manifest import ShardInfo
from dload.pack import Sample
from dload.pipeline.node import Need
from dload.pipeline.sources import Samples
from dload.run.shard_feed import OpenShard, open_shard
from dload.store.base import Store

_JOBS = 8  # shards that are fetched side by side at most


class Origin(Protocol):
    """Where a source is read from."""

    store: Store
    cache: ShardCache


class _GivenUpError(Exception):
    """Ends a download whose shard isn't wanted now."""


class _Entry:
    """One shard in the window. `result` is None while it isn't there yet; `parked`: there was no room for it, and
    nothing has changed since."""

    __slots__ = ("busy", "info", "origin", "parked", "result")

    def __init__(self, origin: Origin, info: ShardInfo) -> None:
        self.origin = origin
        self.info = info
        self.busy = False
        self.parked = False
        self.result: OpenShard | BaseException | None = None


Key = tuple[int, str]  # id of the origin, digest


class ShardWindow:
    """Reads rows of resident shards, and keeps the shards resident that are needed.

    Each cursor of the pipeline follows its own demand; together they hold the shards that are due, and up to `ahead` of
    each cursor's next ones, fetched on threads. Where a cache has no room, less is fetched ahead, down to nothing;
    only a shard that is due and still doesn't fit is an error. An error of a fetch is raised where the shard's rows
    are read. Closing it, or forgetting it, lets go of threads, pins and files.
    """

    def __init__(self, ahead: int) -> None:
        self._asked = self._ahead = ahead
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._feeds: list[_Feed] = []
        self._entries: dict[Key, _Entry] = {}
        self._waited_for: Key | None = None
        self._reading: set[Key] = set()
        self._threads = 0
        self._idle = 0
        self._closed = False

    # ---- called by the pipeline
    def follow(self, demand: Iterator[Need], later: Callable[[], Iterator[Need]] | None = None) -> _Feed:
        """Fetch ahead what a cursor will need. `later` gives the demand of the pass after this one, where it is
        known: by it the cache is told when a shard that is let go will be needed again."""
        feed = _Feed(self, demand, later)
        with self._changed:
            self._feeds.append(feed)
            self._start_threads()
            self._changed.notify_all()
        return feed

    def read(self, source: Samples, ordinals: Sequence[int]) -> list[Any]:
        """The samples with these numbers, in this order. Waits for shards that aren't there yet; raises what went
        wrong with them."""
        try:
            if isinstance(ordinals, range) and ordinals.step == 1:
                return self._read_run(source, ordinals)
            return self._read_scattered(source, ordinals)
        finally:
            self._reading.clear()

    def _read_run(self, source: Samples, ordinals: range) -> list[Any]:
        starts, shards = source.manifest.shards.starts, source.manifest.shards
        found: list[Sample] = []
        at = ordinals.start
        while at < ordinals.stop:
            number = bisect_right(starts, at) - 1
            stop = min(ordinals.stop, starts[number + 1])
            reader = self._take(source.origin, shards[number]).reader
            found += reader.samples(source.fields, at - starts[number], stop - starts[number])
            at = stop
        return found

    def _read_scattered(self, source: Samples, ordinals: Sequence[int]) -> list[Any]:
        """In storage order, shard by shard, and back into the order that was asked for."""
        starts, shards, fields = source.manifest.shards.starts, source.manifest.shards, source.fields
        order = sorted(range(len(ordinals)), key=ordinals.__getitem__)
        in_order = [ordinals[place] for place in order]
        result: list[Any] = [None] * len(order)
        low = 0
        while low < len(order):
            number = bisect_right(starts, in_order[low]) - 1
            start, end = starts[number], starts[number + 1]
            high = low
            while high < len(order) and in_order[high] < end:
                high += 1
            reader = self._take(source.origin, shards[number]).reader
            rows = reader.read_many([place - start for place in in_order[low:high]], fields)
            for place, sample in zip(order[low:high], rows, strict=True):
                result[place] = sample
            low = high
        return result

    def close(self) -> None:
        """Let go of everything. In a process that was forked from the one it was made in, there is nothing to let go
        of."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._closed = True
            self._feeds.clear()
            for entry in self._entries.values():
                _dispose(entry)
            self._entries.clear()
            self._changed.notify_all()

    def _take(self, origin: Origin, info: ShardInfo) -> OpenShard:
        key = (id(origin), info.digest)
        self._reading.add(key)
        entry = self._entries.get(key)
        if entry is not None and isinstance(entry.result, OpenShard):
            return entry.result
        if self._process != os.getpid():
            raise RuntimeError(
                "a pipeline's iterator can't be used in a process that was forked from its own: iterate anew"
            )
        with self._changed:
            entry = self._entry(key, origin, info)
            entry.parked = False
            self._waited_for = key
            self._start_threads()
            self._changed.notify_all()
            while entry.result is None:
                self._changed.wait()
            self._waited_for = None
            result = entry.result
        if isinstance(result, BaseException):
            with self._changed:
                self._entries.pop(key, None)  # who asks again gets another try
            raise result
        return result

    # ---- called with the condition held
    def _entry(self, key: Key, origin: Origin, info: ShardInfo) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(origin, info)
        return entry

    def _start_threads(self) -> None:
        if self._threads < _JOBS and not self._idle and not self._closed:
            self._threads += 1
            threading.Thread(target=_work, args=(self,), name=f"dload-fetch-{self._threads}", daemon=True).start()

    def _next(self) -> tuple[Key, _Entry] | None:
        """The shard to fetch now: the one that is waited for, then what is due, then what comes next."""
        if self._waited_for is not None:
            entry = self._entries.get(self._waited_for)
            if entry is not None and entry.result is None and not entry.busy and not entry.parked:
                return self._waited_for, entry
        held = [feed.held(self._ahead) for feed in self._feeds]
        for needs in zip_longest(*held):  # the nearest of each cursor before the next of any
            for need in filter(None, needs):
                key, origin, info = _key(need)
                entry = self._entry(key, origin, info)
                if entry.result is None and not entry.busy and not entry.parked:
                    return key, entry
        return None

    def _forget_unneeded(self) -> None:
        """Let go of the shards that no cursor needs any more, or may be fetched so far ahead."""
        needed = {_key(need)[0] for feed in self._feeds for need in feed.held(self._ahead)}
        for key, entry in list(self._entries.items()):
            entry.parked = False  # there may be room now
            if key not in needed and key not in self._reading and not entry.busy:
                del self._entries[key]
                _dispose(entry, self._next_use(key))

    def _next_use(self, key: Key) -> float | None:
        """Seconds until a shard is needed again, as far as any cursor knows."""
        return min((seconds for feed in self._feeds if (seconds := feed.seconds_until(key)) is not None), default=None)

    def _ended(self, key: Key, entry: _Entry, result: OpenShard | BaseException) -> None:
        entry.busy = False
        if self._closed or self._entries.get(key) is not entry:
            entry.result = result
            _dispose(entry)
            entry.result = None
        elif isinstance(result, _GivenUpError):
            pass  # begun again when it is wanted again
        elif isinstance(result, CacheFullError) and self._make_way(key):
            entry.parked = key != self._waited_for
        else:
            entry.result = result
        self._changed.notify_all()

    def _make_way(self, key: Key) -> bool:
        """No room for a shard: fetch less far ahead. Says whether it is tried again, now or when something has
        changed."""
        shrunk = self._ahead > 0
        if shrunk:
            self._ahead -= 1
            self._forget_unneeded()
        if key != self._waited_for:
            return True
        while not self._closed and any(entry.busy for entry in self._entries.values()):
            self._changed.wait()  # what others are fetching now may be given up, and then there is room
            shrunk = True
        return shrunk

    def pause(self, key: Key, seconds: float) -> None:
        """Called while a fetch waits for room (or, with 0, as bytes come): raises to give up what isn't wanted."""
        with self._changed:
            if seconds and key == self._waited_for and self._ahead:
                self._ahead = 0
                self._forget_unneeded()
            if seconds and not self._closed:
                self._changed.wait(seconds)
            wanted = key == self._waited_for or any(
                _key(need)[0] == key for feed in self._feeds for need in feed.held(self._ahead)
            )
            if self._closed or not wanted:
                raise _GivenUpError


class _Feed:
    """One cursor's demand: the needs from its place on, as far as they were looked at."""

    def __init__(self, window: ShardWindow, demand: Iterator[Need], later: Callable[[], Iterator[Need]] | None) -> None:
        self._window = window
        self._demand = demand
        self._later = later
        self._needs: deque[Need] = deque()
        self._place = 0
        self._begun: tuple[int, float] | None = None  # the first place that was told, and when

    def advance(self, place: int) -> None:
        """Places below `place` are done with: shards that only they needed are let go."""
        if place == self._place:
            return
        self._place = place
        if self._begun is None:
            self._begun = place, time.monotonic()
        if not any(need.last <= place for need in self._needs):
            return
        window = self._window
        with window._changed:
            self._needs = deque(need for need in self._needs if need.last > place)
            window._ahead = min(window._asked, window._ahead + 1)
            window._forget_unneeded()
            window._start_threads()
            window._changed.notify_all()

    def close(self) -> None:
        window = self._window
        with window._changed:
            if self in window._feeds:
                window._feeds.remove(self)
                window._forget_unneeded()

    def held(self, ahead: int) -> list[Need]:
        """The needs whose shards are to be there: those that are due (at least one), and the next `ahead`."""
        while (not self._needs or self._needs[-1].first <= self._place) and self._look_further():
            pass
        due = max(1, sum(1 for need in self._needs if need.first <= self._place))
        while len(self._needs) < due + ahead and self._look_further():
            pass
        return list(islice(self._needs, due + ahead))

    @cached_property
    def _again(self) -> tuple[dict[Key, int], int]:
        """When the next pass first needs each shard, in its places, and how many places this pass has."""
        first: dict[Key, int] = {}
        length = 0
        for need in self._later() if self._later is not None else ():
            first.setdefault(_key(need)[0], need.first)
            length = max(length, need.last)
        return first, length

    def seconds_until(self, key: Key) -> float | None:
        """An estimate of when the next pass needs a shard, at the pace so far."""
        if self._begun is None or self._place <= self._begun[0]:
            return None
        first, length = self._again
        if key not in first:
            return None
        pace = (time.monotonic() - self._begun[1]) / (self._place - self._begun[0])
        return max(0, length - self._place + first[key]) * pace

    def _look_further(self) -> bool:
        need = next(self._demand, None)
        if need is not None:
            self._needs.append(need)
        return need is not None


def _work(window: ShardWindow) -> None:
    while True:
        with window._changed:
            if window._closed:
                return
            found = window._next()
            if found is None:
                window._idle += 1
                window._changed.wait()
                window._idle -= 1
                continue
            key, entry = found
            entry.busy = True
            window._start_threads()
        result = _fetch(window, key, entry)
        with window._changed:
            window._ended(key, entry, result)
        del result, entry, found  # a thread that waits holds nothing


def _fetch(window: ShardWindow, key: Key, entry: _Entry) -> OpenShard | BaseException:
    try:
        return open_shard(
            entry.origin.store, entry.origin.cache, entry.info, pause=lambda seconds: window.pause(key, seconds)
        )
    except BaseException as error:
        return error


def _key(need: Need) -> tuple[Key, Origin, ShardInfo]:
    origin = need.source.origin
    info = need.source.manifest.shards[need.shard]
    return (id(origin), info.digest), origin, info


def _dispose(entry: _Entry, next_use: float | None = None) -> None:
    if isinstance(entry.result, OpenShard):
        entry.result.close(next_use)
    entry.result = None
