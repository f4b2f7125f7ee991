"""One pass over a pipeline, element by element, that can say where it stands."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from inspect import GEN_CLOSED, GEN_RUNNING, getgeneratorstate
from itertools import chain
from operator import length_hint
from types import TracebackType
from typing import Any

from dload.pipeline.cursors import PlaceCursor, SteadyCursor
from dload.pipeline.node import HOLE, Cursor, Node, Run
from dload.pipeline.state import make_state
from dload.run.at_exit import close_at_exit
from dload.run.window import ShardWindow


class _Position:
    """What was handed out. In the index tier elements come in chunks: `items` is what is left of the present one."""

    def __init__(self, cursor: Cursor, step: int, lane: Any | None) -> None:
        self.cursor = cursor
        self.lane = lane  # where the cursor begins, until it has begun
        self.begun = False
        self.step = step  # elements handed out before the present chunk
        self.start = 0  # the place of the chunk's first element
        self.places: list[int] | None = None  # of its elements, where there are holes between them
        self.count = 0
        self.items: Iterable[Any] = iter(())

    def handed(self) -> int:
        return self.count - length_hint(self.items)

    def lane_state(self) -> Any | None:
        return self.cursor.get_state() if self.begun else self.lane

    def place(self) -> int:
        """The place that comes next, in the index tier."""
        handed = self.handed()
        if self.places is None or not handed:
            return self.start + handed
        return self.places[handed - 1] + 1

    def end(self) -> None:
        """Nothing more is handed out."""
        self.count = self.handed()
        for _ in self.items:
            pass


class PipelineIterator(chain[Any]):
    """The elements of one epoch. Made by `Pipeline.iter`.

    `get_state()` gives a small JSON value: what was handed out so far, also after an error or `close()`. `close()`, or
    forgetting it, lets go of pins, threads and files; it is a context manager, too. An element's error comes out in its
    place, and ends it.
    """

    # A chain goes from element to element without running any Python of ours: what costs most with small samples.
    top: Node
    run: Run
    epoch: int
    _let_go: Callable[[], None]
    _position: _Position
    _elements: Generator[Iterable[Any], None, None]

    def get_state(self) -> dict[str, Any]:
        """Where it stands, to go on by `pipe.iter(state=...)`."""
        position = self._position
        plan = {"B": 1, "C": 1, "m": 1, "H": self.run.homes, "seed": self.run.seed, "ends": "ragged", "steps": None}
        if self.top.indexed:
            return make_state(self.top, plan, self.epoch, position.place(), None)
        step = position.step + position.handed()
        try:
            return make_state(self.top, plan, self.epoch, step, [[0, 0, [position.lane_state()]]])
        finally:
            if getgeneratorstate(self._elements) == GEN_CLOSED:  # to say where it stands it may have had to read again
                self._let_go()

    def close(self) -> None:
        """End it now, also while another thread waits for an element. Closing twice is fine."""
        self._let_go()
        if getgeneratorstate(self._elements) != GEN_RUNNING:
            self._elements.close()
            self._position.end()

    def __enter__(self) -> PipelineIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def iterate(
    top: Node, run: Run, window: ShardWindow, epoch: int, step: int = 0, lane: Any | None = None
) -> PipelineIterator:
    """A pass over `top` in that epoch, from the start or from where a state says: `step`, and in the stream tier the
    state of its one lane. The run's window and its threads are closed at the end."""
    cursor = top.cursor(run, (epoch,)) if top.indexed else SteadyCursor(top.cursor(run, (epoch,)))
    position = _Position(cursor, step, lane)

    def let_go() -> None:
        window.close()
        run.workers.close()

    elements = _by_place(top, position, cursor, let_go, step) if top.indexed else _one_by_one(position, cursor, let_go)
    found = PipelineIterator.from_iterable(elements)
    assert isinstance(found, PipelineIterator)
    found.top, found.run, found.epoch = top, run, epoch
    found._let_go, found._position, found._elements = let_go, position, elements
    position.start = step
    close_at_exit(found)
    return found


def _by_place(
    top: Node, position: _Position, cursor: Cursor, let_go: Callable[[], None], place: int
) -> Generator[Iterable[Any], None, None]:
    assert isinstance(cursor, PlaceCursor)
    try:
        cursor.reset(place)
        while True:
            start, chunk = cursor.chunk()
            if not chunk:
                return
            places = None
            if top.holes and any(item is HOLE for item in chunk):
                places = [start + at for at, item in enumerate(chunk) if item is not HOLE]
                chunk = [item for item in chunk if item is not HOLE]
            position.start, position.places, position.count = start, places, len(chunk)
            position.items = iter(chunk)
            del chunk  # what was handed out is gone before more is read, into memory that is still near the processor
            yield position.items
    finally:
        let_go()


def _one_by_one(
    position: _Position, cursor: Cursor, let_go: Callable[[], None]
) -> Generator[Iterable[Any], None, None]:
    try:
        cursor.reset(position.lane)
        position.begun = True
        while True:
            try:
                item = next(cursor)
            except StopIteration:
                return
            if item is not HOLE:
                position.step += position.count
                position.count, position.items = 1, iter((item,))
                del item  # as above
                yield position.items
    finally:
        let_go()
