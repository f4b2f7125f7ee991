"""The shards that a running pipeline has at hand: fetched ahead by its demand, let go behind it."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Protocol

from dload.cache import Seat, ShardCache
from dload.errors import CacheFullError
from dload.manifest import ShardInfo
from dload.pack import ShardReader
from dload.pipeline.node import Need
from dload.pipeline.sources import Samples
from dload.run.open_shard import OpenShard, open_shard
from dload.store.base import Store

_JOBS = 8  # shards that are fetched side by side at most

Key = tuple[int, str]  # id of the origin, digest


class Origin(Protocol):
    """Where a source is read from."""

    store: Store
    cache: ShardCache


class _GivenUpError(Exception):
    """Ends a download whose shard isn't wanted now."""


class _Entry:
    """One shard in the window. `result` is None while it isn't there; `parked`: there was no room for it, or others
    needed its room, and it isn't tried again before the consumer has moved on or asks for it."""

    __slots__ = ("busy", "info", "origin", "parked", "result")

    def __init__(self, origin: Origin, info: ShardInfo) -> None:
        self.origin = origin
        self.info = info
        self.busy = False
        self.parked = False
        self.result: OpenShard | BaseException | None = None


class ShardWindow:
    """Reads rows of resident shards, and keeps the shards resident that are needed. One thread reads from it.

    Each cursor of the pipeline follows its own demand; together they hold the shards that are due, and up to `ahead` of
    each cursor's next ones, fetched on threads. Rows are copies, so between two reads everything may go: where a cache
    has no room, or other readers need it, less is held, down to the one shard that is being read. Only a shard that
    doesn't fit alone is an error. An error of a fetch is raised where the shard's rows are read. Closing it lets go of
    threads, pins and files.
    """

    def __init__(self, ahead: int) -> None:
        self._asked = self._ahead = ahead
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._feeds: list[_Feed] = []
        self._entries: dict[Key, _Entry] = {}
        self._seats: dict[int, Seat] = {}  # by id of the cache
        self._needed: set[Key] = set()  # by the read under way
        self._waited_for: Key | None = None
        self._reading: Key | None = None
        self._most = _JOBS
        self._threads = 0
        self._idle = 0
        self._closed = False
        self._failure: BaseException | None = None

    # ---- called by the pipeline
    def follow(self, demand: Iterator[Need], later: Callable[[int], Iterator[Need]] | None = None) -> _Feed:
        """Fetch ahead what a cursor will need. `later(0)` gives the same demand again and `later(1)` that of the pass
        after this one, where they are known: from them the cache is told when shards will be needed."""
        self._check_process()
        feed = _Feed(self, demand, later)
        with self._changed:
            self._feeds.append(feed)
            self._start_threads()
            self._changed.notify_all()
        return feed

    def read(self, source: Samples, ordinals: Sequence[int]) -> list[Any]:
        """The samples with these numbers, in this order. Waits for shards that aren't there yet; raises what went wrong
        with them."""
        self._check_process()
        try:
            if isinstance(ordinals, range) and ordinals.step == 1:
                return self._read_run(source, ordinals)
            return self._read_scattered(source, ordinals)
        finally:
            with self._changed:
                self._needed.clear()
            for seat in self._seats.values():
                seat.settled()

    def _read_run(self, source: Samples, ordinals: range) -> list[Any]:
        starts = source.manifest.shards.starts
        parts: list[tuple[int, int, int]] = []  # shard, first row, last row + 1
        at = ordinals.start
        while at < ordinals.stop:
            number = bisect_right(starts, at) - 1
            stop = min(ordinals.stop, starts[number + 1])
            parts.append((number, at - starts[number], stop - starts[number]))
            at = stop
        self._need(source, [number for number, _, _ in parts])
        found: list[Any] = []
        for number, first, last in parts:
            found += self._copied(source, number, partial(_between, source.fields, first, last))
        return found

    def _read_scattered(self, source: Samples, ordinals: Sequence[int]) -> list[Any]:
        """In storage order, shard by shard, and back into the order that was asked for."""
        starts = source.manifest.shards.starts
        order = sorted(range(len(ordinals)), key=ordinals.__getitem__)
        in_order = [ordinals[place] for place in order]
        parts: list[tuple[int, int, int]] = []  # shard, and what of `in_order` is in it
        low = 0
        while low < len(order):
            number = bisect_right(starts, in_order[low]) - 1
            high = bisect_right(in_order, starts[number + 1] - 1, low)
            parts.append((number, low, high))
            low = high
        self._need(source, [number for number, _, _ in parts])
        result: list[Any] = [None] * len(order)
        for number, low, high in parts:
            rows = [place - starts[number] for place in in_order[low:high]]
            samples = self._copied(source, number, partial(_some, source.fields, rows))
            for place, sample in zip(order[low:high], samples, strict=True):
                result[place] = sample
        return result

    def close(self) -> None:
        """Let go of everything. In a process forked from the one it was made in, there is nothing to let go of."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._closed = True
            self._feeds.clear()
            for entry in self._entries.values():
                _dispose(entry)
            self._entries.clear()
            self._changed.notify_all()
        for seat in self._seats.values():
            seat.close()

    def _check_process(self) -> None:
        if self._process != os.getpid():  # its lock may have been held at the fork: don't touch it
            raise RuntimeError("a pipeline's iterator can't go on in a process forked from its own: iterate anew")

    # ---- one shard for the read under way
    def _need(self, source: Samples, numbers: Sequence[int]) -> None:
        shards = source.manifest.shards
        with self._changed:
            self._needed = {(id(source.origin), shards.digests[number]) for number in numbers}

    def _copied(self, source: Samples, number: int, copy: Callable[[ShardReader], Iterable[Any]]) -> list[Any]:
        """What `copy` takes from the shard's reader, which stays open meanwhile."""
        info = source.manifest.shards[number]
        key = (id(source.origin), info.digest)
        with self._changed:
            opened = self._take(key, source.origin, info)
            self._reading = key
        try:
            return list(copy(opened.reader))
        finally:
            with self._changed:
                self._reading = None

    def _take(self, key: Key, origin: Origin, info: ShardInfo) -> OpenShard:
        """The shard, waited for where it isn't there. The condition is held."""
        entry = self._entry(key, origin, info)
        if not isinstance(entry.result, OpenShard):
            entry.parked = False
            self._waited_for = key
            self._start_threads()
            self._changed.notify_all()
            try:
                while (entry := self._entry(key, origin, info)).result is None:
                    if self._closed or self._failure is not None:
                        raise self._failure or RuntimeError("the iterator was closed while it was waiting")
                    self._changed.wait()
            finally:
                self._waited_for = None
        if isinstance(entry.result, BaseException):
            del self._entries[key]  # who asks again gets another try
            raise entry.result
        assert entry.result is not None
        return entry.result

    def _entry(self, key: Key, origin: Origin, info: ShardInfo) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(origin, info)
            if id(origin.cache) not in self._seats:
                self._seats[id(origin.cache)] = origin.cache.seat(self._give_up)
                self._most = min(self._most, origin.cache.downloads(_JOBS))
        return entry

    # ---- letting go; all with the condition held, but for `_give_up`
    def _forget_unneeded(self) -> None:
        """Let go of the shards that no cursor needs any more, or may be fetched so far ahead."""
        held = {_key(need)[0] for feed in self._feeds for need in feed.held(self._ahead)}
        for key, entry in list(self._entries.items()):
            entry.parked = False  # the consumer has moved on
            if key not in held and not entry.busy and not self._in_use(key):
                del self._entries[key]
                _dispose(entry, self._next_use(key))

    def _in_use(self, key: Key) -> bool:
        return key in (self._reading, self._waited_for)

    def _next_use(self, key: Key) -> float | None:
        """Seconds until a shard is needed again, as far as any cursor knows."""
        known = [feed.seconds_until(key) for feed in self._feeds]
        return min((seconds for seconds in known if seconds is not None), default=None)

    def _drop(self) -> bool:
        """Let go of all that isn't in use this moment, for a while; says whether that was anything."""
        dropped = self._ahead > 0
        self._ahead = 0
        for key, entry in self._entries.items():
            if isinstance(entry.result, OpenShard) and not self._in_use(key):
                _dispose(entry, self._next_use(key))
                entry.parked = dropped = True
        return dropped

    def _give_up(self) -> None:
        """Other readers need the room. Called by the cache, from any thread."""
        if self._process == os.getpid():
            with self._changed:
                self._drop()

    # ---- called by the threads
    def _start_threads(self) -> None:
        if self._threads < self._most and not self._idle and not self._closed:
            self._threads += 1
            threading.Thread(target=_work, args=(self,), name=f"dload-fetch-{self._threads}", daemon=True).start()

    def _next(self) -> tuple[Key, _Entry] | None:
        """The shard to fetch now: the one that is waited for, then what is due, then what comes next."""
        if self._waited_for is not None:
            entry = self._entries[self._waited_for]
            if entry.result is None and not entry.busy and not entry.parked:
                return self._waited_for, entry
        for needs in zip_longest(*[feed.held(self._ahead) for feed in self._feeds]):
            for need in filter(None, needs):  # the nearest of each cursor before the next of any
                key, origin, info = _key(need)
                entry = self._entry(key, origin, info)
                if entry.result is None and not entry.busy and not entry.parked:
                    return key, entry
        return None

    def _ended(self, key: Key, entry: _Entry, result: OpenShard | BaseException) -> None:
        if isinstance(result, CacheFullError) and not self._closed:
            result = _GivenUpError() if self._make_way(key, entry) else result
        entry.busy = False
        entry.result = None if isinstance(result, _GivenUpError) else result
        if self._closed or self._entries.get(key) is not entry:
            _dispose(entry)
        self._changed.notify_all()

    def _make_way(self, key: Key, entry: _Entry) -> bool:
        """No room for a shard. Says whether it is tried again, now or when the consumer has moved on."""
        if key != self._waited_for:
            self._ahead = max(0, self._ahead - 1)
            entry.parked = True
            return True
        again = self._drop()
        while not self._closed and any(other.busy for other in self._entries.values() if other is not entry):
            self._changed.wait()  # what others are fetching is given up now, and then there may be room
            again = True
        return self._drop() or again

    def pause(self, key: Key, seconds: float) -> None:
        """Called while a fetch waits for room (or, with 0, as bytes come): raises to give up what isn't wanted."""
        with self._changed:
            if seconds and not self._closed:
                self._changed.wait(seconds)
            if self._closed or not (key == self._waited_for or self._is_held(key)):
                raise _GivenUpError

    def _is_held(self, key: Key) -> bool:
        return any(_key(need)[0] == key for feed in self._feeds for need in feed.held(self._ahead))

    def urgent(self, key: Key) -> bool:
        """Whether the consumer stands still, and the read that it is in needs this shard."""
        return self._waited_for is not None and key in self._needed


class _Feed:
    """One cursor's demand: the needs from its place on, as far as they were looked at."""

    def __init__(
        self, window: ShardWindow, demand: Iterator[Need], later: Callable[[int], Iterator[Need]] | None
    ) -> None:
        self._window = window
        self._demand = demand
        self._later = later
        self._needs: deque[Need] = deque()
        self._place = 0
        self._begun: tuple[int, float] | None = None  # the first place that was told, and when
        self._again: dict[Key, int] = {}  # how many places after this pass's end the next needs each shard
        self._length = 0

    def advance(self, place: int) -> None:
        """Places below `place` are done with: shards that only they needed are let go."""
        window = self._window
        window._check_process()
        with window._changed:
            self._place = place
            if self._begun is None:
                self._begun = place, time.monotonic()
            if not any(need.last <= place for need in self._needs):
                return
            self._needs = deque(need for need in self._needs if need.last > place)
            window._ahead = min(window._asked, window._ahead + 1)
            window._forget_unneeded()
            window._start_threads()
            window._changed.notify_all()

    def close(self) -> None:
        """Nothing of it is needed any more."""
        window = self._window
        if window._process != os.getpid():
            return
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

    def _look_further(self) -> bool:
        need = next(self._demand, None)
        if need is not None:
            self._needs.append(need)
        return need is not None

    # ---- when shards will be needed again
    def pace(self) -> float | None:
        """Seconds a place, so far."""
        if self._begun is None or self._place <= self._begun[0]:
            return None
        return (time.monotonic() - self._begun[1]) / (self._place - self._begun[0])

    def seconds_until(self, key: Key) -> float | None:
        """An estimate of when the next pass needs a shard."""
        pace = self.pace()
        if pace is None or key not in self._again:
            return None
        return max(0, self._length - self._place + self._again[key]) * pace

    def claim_outlook(self) -> Callable[[int], Iterator[Need]] | None:
        """What `look_out` needs, once, when the pace is known."""
        later = self._later if self.pace() is not None else None
        if later is not None:
            self._later = None
        return later

    def look_out(self, later: Callable[[int], Iterator[Need]]) -> None:
        """Find out when this pass and the next need each shard, and tell the caches. Takes a while for many shards,
        so it is done once a pass, on a thread that has nothing to fetch, without the condition."""
        pace, place = self.pace() or 0.0, self._place
        uses: dict[Key, tuple[Origin, int]] = {}
        length = 0
        for need in later(0):
            length = max(length, need.last)
            key, origin, _ = _key(need)
            uses.setdefault(key, (origin, need.first - place))
        again: dict[Key, int] = {}
        for need in later(1):
            key, origin, _ = _key(need)
            again.setdefault(key, need.first)
            if uses.get(key, (origin, -1))[1] < 0:  # not again in this pass
                uses[key] = origin, length - place + need.first
        self._again, self._length = again, length
        caches = {id(origin.cache): origin.cache for origin, _ in uses.values()}
        for number, cache in caches.items():
            cache.expect(
                (digest, max(0, distance) * pace)
                for (_, digest), (origin, distance) in uses.items()
                if id(origin.cache) == number
            )


def _between(fields: Sequence[str] | None, first: int, last: int, reader: ShardReader) -> Iterable[Any]:
    return reader.samples(fields, first, last)


def _some(fields: Sequence[str] | None, rows: Sequence[int], reader: ShardReader) -> Iterable[Any]:
    return reader.read_many(rows, fields)


def _work(window: ShardWindow) -> None:
    while True:
        feed, later = None, None
        with window._changed:
            if window._closed:
                return
            found = _choose(window)
            if found is None:
                feed, later = next(
                    ((feed, later) for feed in window._feeds if (later := feed.claim_outlook())), (None, None)
                )
            if found is None and feed is None:
                window._idle += 1
                window._changed.wait()
                window._idle -= 1
                continue
            if found is not None:
                found[1].busy = True
                window._start_threads()
        if found is not None:
            result = _fetch(window, *found)
            with window._changed:
                window._ended(*found, result)
            del result, found  # a thread that waits holds nothing
        elif feed is not None and later is not None:
            _look_out(window, feed, later)


def _choose(window: ShardWindow) -> tuple[Key, _Entry] | None:
    """What to fetch. A demand that raises ends the window: the consumer gets the error."""
    try:
        return window._next()
    except BaseException as error:
        window._failure = error
        window._feeds.clear()
        window._changed.notify_all()
        return None


def _look_out(window: ShardWindow, feed: _Feed, later: Callable[[int], Iterator[Need]]) -> None:
    try:
        feed.look_out(later)
    except BaseException as error:
        with window._changed:
            window._failure = error
            window._changed.notify_all()


def _fetch(window: ShardWindow, key: Key, entry: _Entry) -> OpenShard | BaseException:
    origin = entry.origin
    try:
        return open_shard(
            origin.store,
            origin.cache,
            entry.info,
            pause=lambda seconds: window.pause(key, seconds),
            seat=window._seats[id(origin.cache)],
            urgent=lambda: window.urgent(key),
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
