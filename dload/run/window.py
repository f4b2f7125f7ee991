"""The shards that a running pipeline has at hand: fetched ahead by its demand, let go behind it."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from dload.cache import Seat
from dload.errors import CacheFullError, DiskFullError
from dload.manifest import ShardInfo
from dload.pack import ShardReader
from dload.pipeline.node import Need
from dload.pipeline.sources import Samples
from dload.run.counters import Tally
from dload.run.demand import Demand, Key, Origin, Outlook, Pace, key_of, shard_of
from dload.run.entry import Entry
from dload.run.open_shard import OpenShard, open_shard
from dload.run.parts import consecutive, scattered

_JOBS = 32  # shards that are fetched side by side at most
_FEW = 6  # fetches that leave a line to spare
_STANDSTILL = 1.0  # seconds after which a shard is hastened on any line: its connection may be a slow one
_PATIENCE = 60.0  # seconds in which other readers of this process may keep what they hold
_LOOK = 0.02  # seconds until it is looked again whether they do
_HOLDS = 1.0  # seconds for which an error stands; who asks for the shard later gets another try


class _GivenUpError(Exception):
    """Ends a fetch whose shard isn't wanted now."""


class ShardWindow:
    """Reads rows of resident shards, and keeps the shards resident that are needed. One thread reads from it.

    Each cursor of the pipeline follows its own demand; together they hold the shards that are due, and up to `ahead` of
    each cursor's next ones, fetched on threads. Rows are copies, so between two reads everything may go: where a cache
    has no room, or other readers need it, less is held, down to the one shard that is being read. Only a shard that
    doesn't fit alone is an error. An error of a fetch is raised where the shard's rows are read. Closing it lets go of
    threads, pins and files; following a cursor opens it again.
    """

    def __init__(self, ahead: int, tally: Tally | None = None) -> None:
        self._asked = ahead
        self._tally = tally or Tally()
        self._tally.at_hand = self._at_hand
        self._feeds: list[_Feed] = []
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        """Nothing is there: at first, and in a forked child, whose parent has kept the threads, pins and files."""
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._ahead = self._asked
        self._entries: dict[Key, Entry] = {}
        self._held: dict[Key, Need] = {}  # what is to be there
        self._queue: deque[Key] = deque()  # what of it may not be there yet, in the order in which it is needed
        self._hints: deque[Callable[[], None]] = deque()
        self._seats: dict[Path, Seat] = {}  # by the folder of the cache
        self._needed: dict[Key, Entry] = {}  # by the read under way, still
        self._waited_for: Key | None = None
        self._since = 0.0  # when that began
        self._reading: Key | None = None
        self._making_way = False  # for the one that is waited for: nothing else is fetched
        self._started = False  # the first read is done
        self._busy = 0  # fetches under way
        self._most = _JOBS
        self._threads = 0
        self._idle = 0
        self._telling = 0  # threads that tell a cache something
        self._failure: BaseException | None = None

    def _here(self) -> threading.Condition:
        """The condition. In a forked child another one: a thread of the parent may have held this at the fork."""
        if self._process != os.getpid():
            self._begin()
            with self._changed:
                self._replan()
        return self._changed

    # ---- called by the pipeline
    def follow(self, demand: Iterator[Need], later: Callable[[int], Iterator[Need]] | None = None) -> _Feed:
        """Fetch ahead what a cursor will need. `later(0)` gives the same demand again and `later(1)` that of the pass
        after this one, where they are known: from them the cache is told when shards will be needed."""
        feed = _Feed(self, Demand(demand), None if later is None else Outlook(later))
        with self._here():
            feed.demand.look(self._ahead)
            self._closed = False
            self._feeds.append(feed)
            self._replan()
        return feed

    def read(self, source: Samples, ordinals: Sequence[int]) -> list[Any]:
        """The samples with these numbers, in this order. Waits for shards that aren't there yet; raises what went wrong
        with them."""
        self._here()
        if self._closed:
            raise RuntimeError("this iterator is closed")
        try:
            self._tally.read(source.manifest.name, len(ordinals), source.mean_bytes)
            if isinstance(ordinals, range) and ordinals.step == 1:
                return self._read_run(source, ordinals)
            return self._read_scattered(source, ordinals)
        finally:
            with self._changed:
                self._needed = {}
                if not self._started:
                    self._started = True
                    self._changed.notify_all()
            for seat in list(self._seats.values()):
                seat.settled()

    def _read_run(self, source: Samples, ordinals: range) -> list[Any]:
        view = source.manifest.rows
        parts = consecutive(source.manifest.starts, ordinals)
        entries = self._need(source, [number for number, _, _ in parts])
        found: list[Any] = []
        for entry, (number, first, last) in zip(entries, parts, strict=True):
            if view is None:
                found += self._copied(entry, partial(_between, source.fields, first, last))
            else:
                found += self._copied(entry, partial(_some, source.fields, view.of(number)[first:last]))
        return found

    def _read_scattered(self, source: Samples, ordinals: Sequence[int]) -> list[Any]:
        view = source.manifest.rows
        parts = scattered(source.manifest.starts, ordinals)
        entries = self._need(source, [number for number, _, _ in parts])
        found: list[Any] = [None] * len(ordinals)
        for entry, (number, rows, places) in zip(entries, parts, strict=True):
            if view is not None:
                rows = list(map(view.of(number).__getitem__, rows))  # noqa: PLW2901 - as the shard numbers them
            samples = self._copied(entry, partial(_some, source.fields, rows))
            if len(parts) == 1:
                return samples
            for place, sample in zip(places, samples, strict=True):
                found[place] = sample
        return found

    def close(self) -> None:
        """Let go of everything. In a process forked from the one it was made in, there is nothing to let go of."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._closed = True
            self._feeds.clear()
            for key, entry in self._entries.items():
                if key != self._reading:
                    entry.dispose()
            self._entries, self._held, self._needed = {}, {}, {}
            self._queue.clear()
            self._hints.clear()
            seats, self._seats = self._seats, {}
            self._changed.notify_all()
        for seat in seats.values():
            seat.close()

    # ---- one shard for the read under way
    def _need(self, source: Samples, numbers: Sequence[int]) -> list[Entry]:
        """The entries of the shards that a read is about to copy from, in its order."""
        origin, shards = source.origin, source.manifest.shards
        with self._changed:
            entries = [
                self._entries.get(key) or self._entry(key, origin, shards[number])
                for number in numbers
                for key in [(id(origin), shards.digests[number])]
            ]
            self._needed = {entry.key: entry for entry in entries}
        return entries

    def _copied(self, entry: Entry, copy: Callable[[ShardReader], Iterable[Any]]) -> list[Any]:
        """What `copy` takes from the shard's reader, which stays open meanwhile."""
        with self._changed:
            entry = self._needed[entry.key] = self._entries.setdefault(entry.key, entry)
            if isinstance(entry.result, BaseException) and time.monotonic() - entry.ended > _HOLDS:
                entry.result = None
            if entry.result is None:
                self._wait_for(entry)
            if not isinstance(entry.result, OpenShard):
                assert entry.result is not None
                raise entry.result
            self._reading, reader = entry.key, entry.result.reader
        try:
            found = list(copy(reader))
            entry.left -= len(found)
            return found
        finally:
            with self._changed:
                self._reading = None
                self._needed.pop(entry.key, None)
                if self._closed:
                    entry.dispose()

    def _wait_for(self, entry: Entry) -> None:
        """Until it has a result. The condition is held."""
        entry.parked = entry.failed = False
        entry.blocked = None
        begin = time.perf_counter()
        try:
            self._waited_for, self._since = entry.key, begin
            self._begin_work()
            self._changed.notify_all()
            while entry.result is None:
                if self._closed or self._failure is not None:
                    raise self._failure or RuntimeError("the iterator was closed while it was waiting")
                self._changed.wait()
        finally:
            self._waited_for = None
            self._tally.fetch_time += time.perf_counter() - begin

    def _at_hand(self) -> int:
        """How many samples of resident shards weren't read yet."""
        with self._here():
            return sum(max(0, entry.left) for entry in self._entries.values() if isinstance(entry.result, OpenShard))

    def _entry(self, key: Key, origin: Origin, info: ShardInfo) -> Entry:
        seat = self._seats.get(origin.cache.root)
        if seat is None:
            seat = self._seats[origin.cache.root] = origin.cache.seat(self._give_up)
        self._most = min(self._most, origin.cache.downloads(_JOBS))  # of each cache: two may have one folder
        entry = self._entries[key] = Entry(key, origin, info, seat)
        return entry

    # ---- what is to be there; all with the condition held, but for `_give_up`
    def _moved_on(self) -> None:
        """A cursor has come to where other shards are needed."""
        self._ahead = min(self._asked, self._ahead + 1)
        for entry in self._entries.values():
            entry.parked = False
        for feed in self._feeds:
            feed.demand.look(self._ahead)
        self._replan()

    def _replan(self) -> None:
        """What is to be there now that cursors, or `_ahead`, have changed; let go of the rest."""
        self._held = {}
        for needs in zip_longest(*[feed.demand.held(self._ahead) for feed in self._feeds]):
            for need in filter(None, needs):  # the nearest of each cursor before the next of any
                self._held.setdefault(key_of(need), need)
        self._queue = deque(self._held)
        for key, entry in list(self._entries.items()):
            if not entry.busy and not self._is_wanted(key):
                del self._entries[key]
                entry.dispose(self._next_use(key))
        self._begin_work()
        self._changed.notify_all()

    def _is_wanted(self, key: Key) -> bool:
        return key in self._held or key in self._needed or self._is_in_use(key)

    def _is_in_use(self, key: Key) -> bool:
        return key in (self._reading, self._waited_for)

    def _next_use(self, key: Key) -> float | None:
        """Seconds until a shard is needed again, as far as any cursor knows."""
        known = [feed.seconds_until(key) for feed in self._feeds]
        return min((seconds for seconds in known if seconds is not None), default=None)

    def _drop(self, but: Seat | None = None) -> bool:
        """Let go of all that isn't in use this moment, until the consumer moves on; says whether that was anything.
        `but`: not in this cache."""
        dropped = False
        for key, entry in self._entries.items():
            if isinstance(entry.result, OpenShard) and entry.seat is not but and not self._is_in_use(key):
                entry.dispose(self._next_use(key))
                entry.parked = dropped = True
        if self._ahead:
            self._ahead = 0
            self._replan()
        return dropped

    def _give_up(self) -> None:
        """Other readers need the room. Called by the cache, from any thread."""
        if self._process == os.getpid():
            with self._changed:
                self._drop()

    def _hint(self, hint: Callable[[], None]) -> None:
        """Something for a thread to tell a cache, when it has nothing to fetch."""
        with self._changed:
            if not self._closed:
                self._hints.append(hint)
                self._begin_work()
                self._changed.notify_all()

    def _begin_work(self) -> None:
        """See to it that there is a thread. It starts another where it comes to something slow: what is there already
        one thread opens faster than several."""
        if self._threads == self._telling:
            self._start_thread()

    # ---- called by the threads
    def _start_thread(self) -> None:
        if self._threads < self._most and not self._idle and not self._closed:
            try:
                threading.Thread(target=self._work, name=f"dload-fetch-{self._threads + 1}", daemon=True).start()
                self._threads += 1
            except RuntimeError:  # no more threads to be had: those that are there do it all
                if not self._threads:
                    raise

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                job()
                del job  # a thread that waits holds nothing
        except BaseException as error:  # the consumer must not wait for ever
            with self._changed:
                self._failure = error
                self._threads -= 1
                self._changed.notify_all()

    def _next(self) -> Callable[[], None] | None:
        """What there is to do, when there is something; None when the window is closed. The thread doesn't count any
        more then: who opens it again starts another."""
        with self._changed:
            while not self._closed:
                entry = self._choose()
                if entry is not None:
                    entry.busy = True
                    self._busy += 1
                    return partial(self._bring, entry)
                if self._hints:
                    self._telling += 1
                    return partial(self._tell, self._hints.popleft())
                self._idle += 1
                try:
                    self._changed.wait()
                finally:
                    self._idle -= 1
            self._threads -= 1
            return None

    def _choose(self) -> Entry | None:
        """The shard to fetch now: the one that is waited for, what else is being read, then what comes next."""
        waited = self._needed.get(self._waited_for) if self._waited_for is not None else None
        if waited is not None and waited.to_fetch:
            return waited
        if self._making_way:
            return None
        for entry in islice(self._needed.values(), self._ahead + 1):
            if entry.to_fetch:
                return entry
        while self._queue:
            key = self._queue[0]
            entry = self._entries.get(key) or self._entry(key, self._held[key].source.origin, shard_of(self._held[key]))
            if entry.to_fetch and not self._started and self._busy >= _FEW:
                return None  # the first shards are to have the line: what comes ahead of them would only delay them
            self._queue.popleft()
            if entry.to_fetch:
                return entry
        return None

    def _tell(self, hint: Callable[[], None]) -> None:
        with suppress(OSError):  # a hint that is lost costs a worse choice of what to evict
            hint()
        with self._changed:
            self._telling -= 1

    def _bring(self, entry: Entry) -> None:
        result = self._fetch(entry)
        with self._changed:
            if isinstance(result, CacheFullError | DiskFullError) and self._make_way(entry, result):
                result = _GivenUpError()
            entry.busy, entry.ended = False, time.monotonic()
            self._busy -= 1
            if isinstance(result, OpenShard):
                entry.result = result
            elif entry.key != self._waited_for:
                entry.parked, entry.failed = True, not isinstance(result, _GivenUpError)
            elif not isinstance(result, _GivenUpError):
                entry.result = result
            if self._entries.get(entry.key) is not entry:
                entry.dispose()
            elif not self._is_wanted(entry.key):
                del self._entries[entry.key]
                entry.dispose(self._next_use(entry.key))
            closed = self._closed
            self._changed.notify_all()
        if closed:
            entry.seat.close()  # again: this thread may have taken the turn since

    def _fetch(self, entry: Entry) -> OpenShard | BaseException:
        try:
            return open_shard(
                entry.origin.store,
                entry.origin.cache,
                entry.info,
                pause=partial(self._pause, entry),
                seat=entry.seat,
                urgent=partial(self._is_urgent, entry.key),
                hasten=partial(self._is_hastened, entry.key),
            )
        except BaseException as error:
            return error

    def _pause(self, entry: Entry, seconds: float) -> None:
        """Called while a fetch waits for room (or, with 0, before it hashes or downloads, and as bytes come): raises to
        give up what isn't wanted."""
        key = entry.key
        with self._changed:
            self._start_thread()  # for the next shard
            if seconds and key == self._waited_for:
                self._drop(but=entry.seat)  # who waits for room in one cache mustn't hold any in another
            if seconds and not self._closed and not self._making_way:
                self._changed.wait(seconds)
            if self._closed or (key != self._waited_for and (self._making_way or not self._is_wanted(key))):
                raise _GivenUpError

    def _is_urgent(self, key: Key) -> bool:
        """Whether the consumer stands still, and the read that it is in needs this shard."""
        return self._waited_for is not None and key in self._needed

    def _is_hastened(self, key: Key) -> bool:
        """Whether a shard should come over several connections: the consumer stands still without it, or without
        another while all that he is going to need is under way. A line that many fetches share has nothing to spare:
        there it is only for whom he has stood still too long."""
        if self._waited_for is None:
            return False
        if self._busy <= _FEW:
            return key in self._needed or not self._queue
        return key in self._needed and time.perf_counter() - self._since > _STANDSTILL

    def _make_way(self, entry: Entry, error: CacheFullError | DiskFullError) -> bool:
        """No room for a shard. Says whether it is tried again: now, or when the consumer has moved on."""
        if entry.key != self._waited_for:
            if self._ahead:
                self._ahead -= 1
                self._replan()
            return True
        self._making_way = True
        try:
            dropped = self._drop()
            self._changed.notify_all()
            while not self._closed and any(other.busy for other in self._entries.values() if other is not entry):
                self._changed.wait()  # until what others are fetching is given up
                dropped = True
        finally:
            self._making_way = False
        return self._drop() or dropped or self._is_blocked_by_others(entry, error)

    def _is_blocked_by_others(self, entry: Entry, error: CacheFullError | DiskFullError) -> bool:
        """Whether it is other readers of this process that hold the room, and might let it go. Waits a moment then."""
        held = error.details.get("held", 0)
        now = time.monotonic()
        if entry.blocked is None or entry.blocked[0] != held:
            entry.blocked = held, now
        if not held or now - entry.blocked[1] > _PATIENCE:
            return False
        self._changed.wait(_LOOK)
        return True


class _Feed:
    """One cursor in the window."""

    def __init__(self, window: ShardWindow, demand: Demand, outlook: Outlook | None) -> None:
        self._window = window
        self.demand = demand
        self._outlook = outlook  # until it is complete
        self._known: Outlook | None = None  # then
        self._pace = Pace()

    def advance(self, place: int) -> None:
        """Places below `place` are done with: shards that only they needed are let go."""
        self.demand.place = place
        pace = self._pace.at(place)
        if place >= self.demand.border:
            with self._window._here():
                self._window._moved_on()
            self._look_out(place, pace)

    def _look_out(self, place: int, pace: float | None) -> None:
        outlook = self._outlook
        if outlook is not None and not outlook.look() and pace is not None:
            self._outlook, self._known = None, outlook
            self._window._hint(partial(outlook.tell, place, pace))

    def seconds_until(self, key: Key) -> float | None:
        """An estimate of when the cursor needs a shard, in this pass or the next."""
        place = self.demand.place
        distance = self.demand.distance(key)
        if distance is None and self._known is not None:
            distance = self._known.distance(key, place)
        pace = self._pace.at(place)
        return None if distance is None or pace is None else distance * pace

    def close(self) -> None:
        """Nothing of it is needed any more."""
        window = self._window
        with window._here():
            if self in window._feeds:
                self.demand.end()
                window._replan()
                window._feeds.remove(self)


def _between(fields: Sequence[str] | None, first: int, last: int, reader: ShardReader) -> Iterable[Any]:
    return reader.samples(fields, first, last)


def _some(fields: Sequence[str] | None, rows: Sequence[int], reader: ShardReader) -> Iterable[Any]:
    return reader.read_many(rows, fields)
