"""Data sets and pipelines for Grain (https://google-grain.readthedocs.io). Needs the extra `grain`.

Grain's threads, worker processes, `device_put` and checkpoints work over them as over its own.
"""

from __future__ import annotations

import json
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

try:
    import grain
except ModuleNotFoundError as error:
    error.add_note("dload.grain needs Grain: pip install 'dload-ml[grain]'")
    raise

from dload.api.dataset import Dataset
from dload.api.pipeline import NOTHING, Pipeline, cache_limits, run_seed
from dload.errors import ConfigError, InfeasiblePipelineError
from dload.pack import Sample
from dload.pipeline.cursors import applied
from dload.pipeline.dealing import Deal
from dload.pipeline.elementwise import Elementwise
from dload.pipeline.fallible import Fallible
from dload.pipeline.lanes import Grid
from dload.pipeline.node import HOLE, Node, Rows, Run, assembled, paths_of, walk
from dload.pipeline.promises import settled
from dload.pipeline.running import Cursor, Feed, Need
from dload.pipeline.state import check_state, make_state
from dload.plan import check
from dload.run.window import ShardWindow

_BEHIND = 1024  # elements that threads may be behind the foremost: their shards are still there
_AHEAD = 4096  # elements that one step forward may take: beyond, it is a jump
_CALM = 32  # reads without a jump, from which on shards are fetched ahead again


def source(ds: Dataset, fields: Sequence[str] | None = None) -> DatasetSource:
    """A data set as Grain's RandomAccessDataSource, for `grain.DataLoader` and `grain.MapDataset.source`.

    `[i]` gives `(key, {field: bytes})`; `fields`: only these. It pickles, and any number of threads may read from it.
    Samples come from the cache where their shard is there, else by ranged reads of just these samples: `ds.fetch()`
    before is what makes random orders fast. Its repr, which Grain's checkpoints compare, names the version.
    """
    return DatasetSource(ds, fields)


class DatasetSource:
    """See `source`."""

    def __init__(self, ds: Dataset, fields: Sequence[str] | None) -> None:
        self.ds = ds
        self._fields = None if fields is None else tuple(fields)

    def __len__(self) -> int:
        return len(self.ds)

    def __getitem__(self, index: int) -> Sample:
        return self._chosen(self.ds[int(index)])

    def _getitems(self, indices: Sequence[int]) -> list[Sample]:
        """Grain's name for reading several at once."""
        return [self[index] for index in indices]

    def _chosen(self, sample: Sample) -> Sample:
        if self._fields is None:
            return sample
        key, values = sample
        return key, {name: values[name] for name in self._fields if name in values}

    def __repr__(self) -> str:
        return f"dload.grain.source({self.ds.name}@{self.ds.version}, fields={self._fields})"


def map_dataset(pipe: Pipeline, *, seed: int | None = None) -> PipelineMapDataset:
    """A pipeline in the index tier as a `grain.MapDataset`: element i is the pipeline's element i in epoch 0, and, as
    Grain has it, element i of a later epoch e is number `e * len + i`, so that `repeat()` shuffles each pass anew.

    The elements are those of `pipe.iter(epoch=e, seed=seed)`. Elements that `filter(holes=True)` leaves out are None,
    which is Grain's sign for the same. A pipeline without an end has the length sys.maxsize.

    Read it in order (Grain's `shuffle` above it works, but shuffling in the pipeline lets shards be fetched ahead and
    costs no more): up to a few thousand elements ahead of and behind each other, on any number of threads. The map
    functions on top of the pipeline run side by side on Grain's threads.

    Raises ConfigError where the pipeline has no places, or draws and `seed` wasn't given in it or here; the first read
    raises InfeasiblePipelineError where it doesn't fit into the cache.
    """
    return PipelineMapDataset(pipe, seed)


class PipelineMapDataset(grain.MapDataset):
    """See `map_dataset`."""

    def __init__(self, pipe: Pipeline, seed: int | None) -> None:
        super().__init__()
        if not pipe.node.indexed:
            raise ConfigError(
                "this pipeline can only be streamed, and a MapDataset has places",
                remedy="use dload.grain.iter_dataset(pipe); or keep places: filter(holes=True), flat_map(fanout=n)",
            )
        self._pipe = pipe
        self._elements = _Elements(pipe.node, _seed(pipe, seed))

    def __len__(self) -> int:
        return sys.maxsize if self._pipe.node.length is None else self._pipe.node.length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Any]:
        """Grain's name for reading several at once."""
        length = len(self)
        if not length:
            raise IndexError("an empty pipeline has no elements")
        numbers = [int(index) % length if index < 0 else int(index) for index in indices]
        return [None if item is HOLE else item for item in self._elements.get(numbers)]

    def __str__(self) -> str:
        return f"dload.grain.map_dataset({self._pipe!r})"


def iter_dataset(
    pipe: Pipeline, *, epoch: int = 0, seed: int | None = None, index: int = 0, count: int = 1
) -> PipelineIterDataset:
    """A pipeline of either tier as a `grain.IterDataset` over one epoch, with checkpoints.

    Every `iter()` of it gives that epoch anew, which is what Grain expects; `pipe.repeat()` gives further passes, each
    shuffled anew. `index` and `count`: only this share, elements index, index + count, ... of a pipeline with places,
    one of `count` lanes of another (see DESIGN.md). Grain's worker processes (`mp_prefetch`) share it further in the
    same way, and put the elements of a pipeline with places together in their order.

    Where shares end isn't known in the stream tier: give several processes that must end together an endless pipeline,
    or use `dload.Loader`. The state is the pipeline's as one JSON text; it fits the same pipeline, seed, epoch and
    share.

    Raises ConfigError where `index` is none of `count`, or the pipeline draws and `seed` wasn't given in it or here;
    the first `next` raises InfeasiblePipelineError where it doesn't fit into the cache.
    """
    return PipelineIterDataset(pipe, epoch, seed, index, count)


class PipelineIterDataset(grain.IterDataset):
    """See `iter_dataset`."""

    def __init__(self, pipe: Pipeline, epoch: int, seed: int | None, index: int, count: int) -> None:
        super().__init__()
        if not 0 <= index < count:
            raise ConfigError(f"share {index} is not one of {count}", remedy=f"shares are 0 to {count - 1}")
        self._pipe, self._epoch, self._seed = pipe, epoch, _seed(pipe, seed)
        self._share = index, count

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Called by Grain in each worker process, for the worker's share."""
        if sequential_slice:
            raise ValueError("a pipeline is shared by turns: leave out sequential_slice")
        index, count = self._share
        self._share = index + count * sl.start, count * sl.step

    def __iter__(self) -> PipelineDatasetIterator:
        return PipelineDatasetIterator(self._pipe, self._epoch, self._seed, *self._share)

    def __str__(self) -> str:
        return f"dload.grain.iter_dataset({self._pipe!r})"


class PipelineDatasetIterator(grain.DatasetIterator):
    """One share of an epoch. An error of an element leaves it in front of the element."""

    def __init__(self, pipe: Pipeline, epoch: int, seed: int, index: int, count: int) -> None:
        super().__init__()
        self._pipe, self._epoch, self._index, self._count = pipe, epoch, index, count
        self._plan: dict[str, Any] = {"B": 1, "C": 1, "m": 1, "H": 1, "seed": seed, "ends": "ragged", "steps": None}
        self._plan["share"] = [index, count]
        self._step = 0
        self._lane: Any = None  # where the cursor begins, until it has begun
        self._cursor: Cursor | None = None
        self._run: Run | None = None
        self._ended = False

    def __next__(self) -> Any:
        if self._ended:
            raise ValueError("this iterator is closed")
        if self._cursor is None:
            self._begin()
        assert self._cursor is not None
        while True:
            item = next(self._cursor)
            self._step += 1
            if item is not HOLE:
                return item

    def _begin(self) -> None:
        node, seed = self._pipe.node, self._plan["seed"]
        self._run = run = Run(seed, _window(node, seed), paths=paths_of(node))
        if node.indexed:
            deal = Deal(node, Grid(1), "agree")
            cursor = deal.lane_cursor(run, self._epoch, 0, first=self._index, stride=self._count)
            cursor.reset(self._step)
        else:
            deal = Deal(node, Grid(1, 1, self._count), "ragged")
            cursor = deal.lane_cursor(run, self._epoch, self._index)
            cursor.reset(self._lane)
        self._cursor = cursor

    def get_state(self) -> dict[str, str]:
        """Where it stands. Always one text, so that frameworks that look at shapes find the same ones."""
        lanes = None
        if not self._pipe.node.indexed:
            lane = self._lane if self._cursor is None else self._cursor.get_state()
            lanes = [[self._index, self._index, [lane]]]
        return {"dload": json.dumps(make_state(self._pipe.node, self._plan, self._epoch, self._step, lanes))}

    def set_state(self, state: dict[str, str]) -> None:
        """Go on there. Raises ValueError, naming both values, where the state is of another pipeline, seed or share."""
        found = check_state(json.loads(state["dload"]), self._pipe.node, self._pipe.explain)
        for key, own in (("plan", self._plan), ("epoch", self._epoch)):
            if found[key] != own:
                raise ValueError(f"the state has {key} {found[key]}, this iterator {own}: make it with the same")
        self._let_go()
        self._step = found["step"]
        self._lane = None if found["lanes"] is None else found["lanes"][0][2][0]

    def _let_go(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
        if self._run is not None:
            _let_go(self._run)

    def close(self) -> None:
        """Let go of threads, pins and files."""
        super().close()
        self._ended = True
        self._let_go()


class _Elements:
    """A pipeline's elements by number, over epochs, for any number of threads.

    One thread at a time goes down to where the functions that each keep to one element begin: nodes and windows are
    made for one. What comes from there goes through these functions outside of the lock.
    """

    def __init__(self, top: Node, seed: int) -> None:
        self._top, self._seed = top, seed
        self._base, self._above = _split(top)
        self._guarded = any(isinstance(node, Fallible) and node.leaves_holes for _, node in walk(top))
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._feed: Feed | None = None
        self._feed_from = 0  # the number of the first element of the epoch that it is about
        self._at = 0  # the foremost number that was asked for
        self._calm = _CALM

    def get(self, numbers: Sequence[int]) -> list[Any]:
        """The elements with these numbers; HOLEs among them."""
        with self._lock:
            if self._run is None:
                self._run = self._opened()
            self._follow(self._run, min(numbers), max(numbers))
            items = assembled(numbers, self._epoch_of, self._items)
            if self._guarded:  # what counts failures isn't made for several threads either
                items = settled(items)
            named = any(node.needs_identity for node in self._above)
            names = assembled(numbers, self._epoch_of, self._names) if named else [0] * len(items)
        return [self._through(item, name) for item, name in zip(settled(items), names, strict=True)]

    def _opened(self) -> Run:
        run = Run(self._seed, _window(self._top, self._seed), paths=paths_of(self._top))
        self._bound = [(node.bind(run), node.needs_identity) for node in self._above]
        weakref.finalize(self, _let_go, run)
        return run

    def _through(self, item: Any, name: int) -> Any:
        for apply, named in self._bound:
            if item is HOLE:
                return HOLE
            item = applied(apply, item, name) if named else applied(apply, item)
        return item

    # ---- numbers of epochs
    def _epoch_of(self, number: int) -> tuple[int, int, int]:
        length = self._base.length
        if length is None:
            return 0, 0, sys.maxsize
        epoch = number // length
        return epoch, epoch * length, (epoch + 1) * length

    def _items(self, epoch: int, places: Sequence[int]) -> list[Any]:
        assert self._run is not None
        return self._base.fetch(self._run, (epoch,), places)

    def _names(self, epoch: int, places: Sequence[int]) -> list[Any]:
        assert self._run is not None
        return self._base.identities(self._run, (epoch,), places)

    # ---- fetching ahead
    def _follow(self, run: Run, first: int, last: int) -> None:
        """Fetch ahead what comes behind these, if reading goes forward."""
        if not (self._at - _BEHIND <= first and last <= self._at + _AHEAD):
            self._unfollow()
            self._calm, self._at = 0, last
        self._at = max(self._at, last)
        self._calm += 1
        epoch, begin, _ = self._epoch_of(self._at)
        if self._feed is not None and begin != self._feed_from:
            self._unfollow()
        if self._feed is None and self._calm > _CALM:
            place = max(0, min(first, self._at) - begin)
            later = partial(_demand, self._base, run, epoch, place)
            self._feed = run.rows.follow(later(0), None if self._base.length is None else later)
            self._feed_from = begin
        elif self._feed is not None:
            self._feed.advance(max(0, self._at - _BEHIND - begin))

    def _unfollow(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    # ---- copies
    def __getstate__(self) -> dict[str, Any]:
        return {"top": self._top, "seed": self._seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["top"], state["seed"])  # type: ignore[misc]


def _demand(node: Node, run: Run, epoch: int, place: int, ahead: int) -> Iterator[Need]:
    """What an epoch needs from a place on (0), or the epoch so many after it."""
    return node.demand(
        run, (epoch + ahead,), 0 if ahead else place, sys.maxsize if node.length is None else node.length
    )


def _split(top: Node) -> tuple[Node, list[Elementwise]]:
    """Where the nodes begin that need more than one element, or have threads or a policy of their own, and what is
    above, from there to the top."""
    above: list[Elementwise] = []
    while isinstance(top, Elementwise) and type(top).fetch is Elementwise.fetch and not (top.workers or top.on_error):
        above.insert(0, top)
        top = top.parents[0]
    return top, above


def _window(node: Node, seed: int) -> ShardWindow:
    """What the pipeline reads with, if it fits. Raises InfeasiblePipelineError."""
    rows: Rows = NOTHING
    report = check(node, Run(seed, rows, paths=paths_of(node)), cache_limits())
    if not report.ok:
        raise InfeasiblePipelineError(report.message)
    return ShardWindow(report.prefetch)


def _let_go(run: Run) -> None:
    assert isinstance(run.rows, ShardWindow)
    run.rows.close()
    run.workers.close()


def _seed(pipe: Pipeline, given: int | None) -> int:
    """The run's seed. None is drawn: worker processes and a run that goes on need the same."""
    return run_seed(pipe, alone=False) if given is None else given
