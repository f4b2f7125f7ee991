"""Passes over the index tier, and what all passes share."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from operator import length_hint
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dload.pipeline.places import Places, places_of
from dload.pipeline.plain import NoState, exported, exported_or_none
from dload.pipeline.promises import ClosedError, settled
from dload.pipeline.running import HOLE, Cursor, Epoch, Feed, Need, Run

if TYPE_CHECKING:
    from dload.pipeline.node import Node

# To read from a source costs the same for a sample as for many of them; but many are more than fit into the processor's
# cache, where they are still when they are used:
_MOST_SAMPLES = 256  # two containers each stay below what makes the garbage collector look at them all
_OF_ANOTHER = 64  # of each source beyond the first
_FAST, _SLOW = 0.002, 0.008  # seconds a source that a chunk may take before chunks stop growing, before they shrink
_SLOWEST = 0.05  # of however many sources
_MOST_BYTES = 4 << 20


class PlaceCursor(Cursor):
    """A pass over an index-tier node, place by place, or over those of its places that the run's lane gets. Its state
    is the number of the next element: the place, where there is one lane.

    Elements are fetched in chunks, that begin with one element (so the first comes at once) and grow as long as they
    are quick. Where functions run ahead, several chunks are asked for before the first is given. Where a chunk fails
    its elements are fetched one by one: those before the bad one come out, and the error in its place. It then stands
    before the bad one, and may be asked again.
    """

    def __init__(self, node: Node, run: Run, epoch: Epoch, places: Places | None = None) -> None:
        self._node, self._run, self._epoch = node, run, epoch
        self._places = places_of(node, run.lane) if places is None else places
        self._stop = sys.maxsize if self._places.length is None else self._places.length
        self._least = node.together
        samples = _MOST_SAMPLES + _OF_ANOTHER * (node.sources - 1)
        most = min(samples / max(1.0, node.mean_samples), _MOST_BYTES / max(1.0, node.mean_bytes))
        self._most = max(self._least, int(most))
        self._fast, self._slow = (min(_SLOWEST, node.sources * seconds) for seconds in (_FAST, _SLOW))
        self._feed: Feed | None = None
        self._begin(0)

    def _begin(self, place: int) -> None:
        self._next = place  # the first place that isn't fetched
        self._items: Iterator[Any] = iter(())
        self._chunks: deque[tuple[int, list[Any]]] = deque()  # asked for ahead: the last place + 1, promises
        self._asked = place  # the first place that isn't asked for
        self._size = self._least
        self._careful = 0  # below this place one by one: something here fails
        self._names: list[int] = []
        self._named = place  # the place of the first of them

    def reset(self, state: Any | None) -> None:
        place = 0 if state is None else state
        if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place <= self._stop:
            end = "without an end" if self._places.length is None else f"of {self._stop} elements"
            raise ValueError(f"{place!r} is no place in this pipeline, {end}: the state is of another one")
        self._go(place)

    def _go(self, place: int) -> None:
        self.close()
        self._begin(place)
        if self._node.ahead:
            self._run.workers.enter(self)
        if place < self._stop:
            finite = self._places.length is not None
            self._feed = self._run.rows.follow(self._demand(place, 0), partial(self._demand, place) if finite else None)

    def _demand(self, place: int, ahead: int) -> Iterator[Need]:
        """Of this pass from a place on (0), or of the pass so many after it."""
        epoch = (self._epoch[0] + ahead, *self._epoch[1:])
        return self._places.demand(self._run, epoch, 0 if ahead else place)

    @property
    def place(self) -> int:
        """The place of the next element."""
        return self._next - length_hint(self._items)

    def get_state(self) -> Any:
        return self.place

    def __next__(self) -> Any:
        for item in self._items:
            return item
        items = self._fetch()
        if not items:
            raise StopIteration
        self._items = iter(items)
        return next(self._items)

    def chunk(self) -> tuple[int, list[Any]]:
        """The place of the next element, and as many elements from there as are at hand or quickly fetched; none at the
        end. The cursor then stands behind them."""
        place = self.place
        return place, list(self._items) or self._fetch()

    def _fetch(self) -> list[Any]:
        """The next chunk. Raises what the element at `_next` raises, if it does."""
        start = self._next
        if start >= self._stop:
            self.close()
            return []
        while True:
            alone = start < self._careful
            stop = self._chunks[0][0] if self._chunks else min(self._stop, start + (1 if alone else self._size))
            began, streaks = perf_counter(), dict(self._run.failures.streaks)
            try:
                if self._node.ahead and not alone:
                    stop, items = self._promised()
                else:
                    stop, items = self._read(start, stop)
                    items = settled(items) if self._node.ahead else items
                    self._adapt(perf_counter() - began)
                break
            except ClosedError:
                raise
            except Exception as error:
                if self._asked > start:
                    self._go(start)  # back to where it stands: what was asked for ahead is forgotten
                self._run.failures.streaks = streaks
                if stop - start > 1:
                    self._careful, self._size = stop, self._least
                    continue
                if isinstance(error, StopIteration):
                    raise RuntimeError("a function of the pipeline raised StopIteration") from error
                raise
        self._next = stop
        return items

    def _adapt(self, taken: float) -> None:
        """Chunks grow or shrink by how long one has taken."""
        if taken < self._fast:
            self._size = min(2 * self._size, self._most)
        elif taken > self._slow:
            self._size = max(self._least, self._size // 2)

    def _read(self, start: int, stop: int) -> tuple[int, list[Any]]:
        """(stop, elements) of places from `start` on, at most up to `stop`."""
        places = self._places.at(self._epoch, start, stop)
        items = self._node.fetch(self._run, self._epoch, places)
        self._asked = start + len(places)
        if self._feed is not None:
            self._feed.advance(self._asked)
        return self._asked, items

    def _promised(self) -> tuple[int, list[Any]]:
        """(stop, elements) of the next chunk; functions work on those behind it meanwhile. An error ahead of its place
        only ends the looking ahead."""
        most = self._run.workers.share(self._node.ahead)
        while self._asked < self._stop:
            size = min(self._size, self._stop - self._asked)
            if self._chunks and self._asked + size - self._next > most:
                break
            try:
                self._chunks.append(self._read(self._asked, self._asked + size))
            except Exception:
                if not self._chunks:
                    raise
                break
            self._size = max(self._least, min(2 * self._size, most // 4))
        stop, items = self._chunks[0]
        found = settled(items)
        self._chunks.popleft()
        return stop, found

    def origin(self, state: Any = None) -> tuple[Node, Epoch, int] | None:
        number = self.place - 1 if state is None else state
        return self._node, self._epoch, self._places.at(self._epoch, number, number + 1)[0]

    def identity(self) -> int:
        last = self.place - 1
        if not self._named <= last < self._named + len(self._names):
            self._named = last
            places = self._places.at(self._epoch, last, self._next)
            self._names = self._node.identities(self._run, self._epoch, places)
        return self._names[last - self._named]

    def close(self) -> None:
        self._chunks.clear()
        self._run.workers.leave(self)
        if self._feed is not None:
            self._feed.close()
            self._feed = None


class SteadyCursor(Cursor):
    """For the top of a pipeline in the stream tier: an error leaves it in front of the element that raised it.

    Cursors that draw from several others, or hold elements, are in disorder after an error. This one remembers a state
    from at most 64 elements ago, and goes forward from there again when it is asked for its state or the next element.
    Its own states are plain JSON, checked: ConfigError says why where there can be none.
    """

    _EVERY = 64

    def __init__(self, cursor: Cursor) -> None:
        self.below = (cursor,)
        self._cursor = cursor
        self._base: Any = None
        self._count = 0  # elements since `_base`
        self._broken = False

    def reset(self, state: Any | None) -> None:
        if isinstance(state, NoState):
            raise state.error()
        self._base, self._count, self._broken = state, 0, False
        self._cursor.reset(state)

    def __next__(self) -> Any:
        self._mend()
        try:
            item = next(self._cursor)
        except StopIteration:
            raise
        except BaseException:
            self._broken = True
            raise
        self._count += 1
        if self._count % self._EVERY == 0:
            self._remember()
        return item

    def _remember(self) -> None:
        try:
            self._base, self._count = exported(self._cursor.get_state()), 0
        except Exception:  # whoever asks for a state is told why there is none; an older one will do here
            return

    def _mend(self) -> None:
        if self._broken:
            self._cursor.reset(self._base)
            for _ in range(self._count):
                next(self._cursor)
            self._broken = False

    def get_state(self) -> Any:
        self._mend()
        return exported(self._cursor.get_state())

    def standing(self) -> Any:
        self._mend()
        return exported_or_none(self._cursor.get_state())

    def identity(self) -> int:
        return self._cursor.identity()


def drained(cursor: Cursor) -> Iterator[Any]:
    """The elements that are left, without HOLEs. Closes the cursor at its end, and where it is given up."""
    try:
        for item in cursor:
            if item is not HOLE:
                yield item
    finally:
        cursor.close()


def applied(fn: Callable[..., Any], *arguments: Any) -> Any:
    """`fn(*arguments)`. A StopIteration that gets out of a user's function is a mistake there, not the end of a
    stream."""
    try:
        return fn(*arguments)
    except StopIteration as error:
        raise RuntimeError(f"{fn!r} raised StopIteration") from error
