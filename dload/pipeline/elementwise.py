"""One element in, one element out, in the same place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

from dload.errors import ConfigError
from dload.pipeline.ahead import AheadCursor, Row
from dload.pipeline.batches import BatchRow, begun, called
from dload.pipeline.cursors import applied
from dload.pipeline.failures import Guard, OnError, Origin
from dload.pipeline.fallible import Fallible
from dload.pipeline.node import Node, each, function, seed_given, whole_number
from dload.pipeline.promises import Lazy, Pool, Promise, settled
from dload.pipeline.running import HOLE, Cursor, Epoch, Need, Run
from dload.pipeline.streams import CountingCursor
from dload.pipeline.woven import Woven
from dload.randomness import SplitMix, hash64


class Elementwise(Fallible):
    """Keeps places, units and demand of its parent."""

    workers = 0
    queue = 0

    @cached_property
    def length(self) -> int | None:
        return self.parents[0].length

    @cached_property
    def ahead(self) -> int:
        return max(self.parents[0].ahead, self.queue)

    @property
    def total(self) -> int | None:
        leaves_out = self.on_error is not None and self.on_error.skips
        return None if leaves_out else self.parents[0].total

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        return self.parents[0].identities(run, epoch, places)

    def units(self) -> list[int]:
        return self.parents[0].units()

    def part(self, place: int) -> tuple[int, int | None]:
        return self.parents[0].part(place)

    def woven(self, epoch: Epoch, place: int) -> Woven | None:
        return self.parents[0].woven(epoch, place)

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        return self.parents[0].demand(run, epoch, start, stop)

    @property
    def needs_identity(self) -> bool:
        """Whether `apply` hangs on what an element is, not on its value alone."""
        return False

    def bind(self, run: Run) -> Callable[..., Any]:
        """apply(element), or apply(element, identity) where it is needed."""
        raise NotImplementedError

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        parent, apply = self.parents[0], self.bind(run)
        columns: list[list[Any]] = [parent.fetch(run, epoch, places)]
        if self.needs_identity:
            columns.append(parent.identities(run, epoch, places))
        if self.workers:
            return self._begun(run, epoch, places, apply, *columns)
        if parent.holes or parent.ahead or self.leaves_holes:
            return self.outcomes(run, epoch, places, apply, *columns)
        return each(apply, *columns)

    def _begun(
        self, run: Run, epoch: Epoch, places: Sequence[int], apply: Callable[..., Any], items: list[Any], *more: Any
    ) -> list[Any]:
        """Promises of what threads make of these."""
        pool, guard = self.pool(run), self.guard(run)
        return [
            HOLE
            if item is HOLE
            else self.promised(guard, (self, epoch, place), pool.submit(applied, apply, item, *name), item)
            for place, item, *name in zip(places, settled(items), *more, strict=True)
        ]

    def promised(self, guard: Guard | None, origin: Origin | None, promise: Promise, item: Any) -> Promise:
        """A promise of what becomes of it by the policy."""
        return promise if guard is None else Lazy(partial(self.taken, guard, origin, promise, item))

    def pool(self, run: Run) -> Pool:
        """The threads of this node in a run."""
        return run.workers.pool(run.paths.get(id(self), self.kind), self.workers, self.kind)

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        parent, apply, named = self.parents[0].cursor(run, epoch), self.bind(run), self.needs_identity
        if not self.workers:
            return self.guarded(run, epoch, parent, apply, named)
        pool = self.pool(run)

        def start(items: list[Any], names: list[int]) -> list[Promise]:
            columns = [items, names] if named else [items]
            return [pool.submit(applied, apply, *row) for row in zip(*columns, strict=True)]

        rows = AheadCursor(parent, start, 1, self.queue, run.workers, named)
        return self.guarded(run, epoch, rows, Row.result)


class Map(Elementwise):
    """`fn(element)`; with `rng`, `fn(element, rng)`, whose draws hang on the element's identity, the seed and where
    in the pipeline the map stands (`paths_of`). With `workers`, on so many threads, and at most `queue` elements are
    under way or wait for who asks for them (one in a quarter of that for each of many lanes)."""

    kind = "map"

    def __init__(
        self,
        parent: Node,
        fn: Callable[..., Any],
        *,
        rng: bool = False,
        rng_seed: int | None = None,
        workers: int = 0,
        queue: int | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(parent)
        self.fn = function(fn, "map")
        self.draws = rng
        self.seed = seed_given(rng_seed)
        self.workers, self.queue = threads_given(workers, queue)
        self.on_error = on_error
        if rng_seed is not None and not rng:
            raise ConfigError("rng_seed is given, and rng isn't", remedy="map(fn, rng=True, rng_seed=...)")

    def parameters(self) -> dict[str, Any]:
        return super().parameters() | ({"rng": True} if self.draws else {})

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.fn, *super().functions())

    @property
    def needs_identity(self) -> bool:
        return self.draws

    def bind(self, run: Run) -> Callable[..., Any]:
        fn = self.fn
        if not self.draws:
            return fn
        key = hash64(run.seed if self.seed is None else self.seed, run.paths[id(self)])
        return lambda item, name: fn(item, SplitMix(key ^ name))


def threads_given(workers: object, queue: object) -> tuple[int, int]:
    """How many threads, and how many elements may be under way. Raises ConfigError."""
    threads = whole_number(workers, "workers", 0)
    if queue is None:
        return threads, max(16, 4 * threads) if threads else 0
    if not threads:
        raise ConfigError("queue is given, and workers isn't", remedy="map(fn, workers=2, queue=...)")
    return threads, whole_number(queue, "queue", 1)


class MapBatches(Elementwise):
    """`fn(list of up to size elements)` gives one result for each of them, which is what becomes of that element
    whatever the others are. Where it fails, it is called with each alone."""

    kind = "map_batches"

    def __init__(
        self,
        parent: Node,
        fn: Callable[[list[Any]], Any],
        size: int,
        *,
        workers: int = 0,
        queue: int | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(parent)
        self.fn = function(fn, "map_batches")
        self.size = whole_number(size, "the size of a batch", 1)
        self.workers, most = threads_given(workers, queue)
        self.queue = most if queue is not None else 2 * self.workers * self.size
        self.on_error = on_error

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.fn, *super().functions())

    @cached_property
    def together(self) -> int:
        return max(self.size, self.parents[0].together)

    def bind(self, run: Run) -> Callable[..., Any]:
        return lambda item: called(self.fn, [item]).of(0)

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        guard, pool = self.guard(run), self.pool(run) if self.workers else None
        found = settled(self.parents[0].fetch(run, epoch, places))
        slots = [slot for slot, item in enumerate(found) if item is not HOLE]
        for first in range(0, len(slots), self.size):
            some = slots[first : first + self.size]
            items = [found[slot] for slot in some]
            for slot, item, promise in zip(some, items, begun(self.fn, items, pool), strict=True):
                found[slot] = self.promised(guard, (self, epoch, places[slot]), promise, item)
        return found if self.workers else settled(found)

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        fn, pool = self.fn, self.pool(run) if self.workers else None

        def start(items: list[Any], _: list[int]) -> list[BatchRow]:
            return begun(fn, items, pool)

        parent = self.parents[0].cursor(run, epoch)
        rows = AheadCursor(parent, start, self.size, max(self.size, self.queue), run.workers, False)
        return self.guarded(run, epoch, rows, Row.result)


class StarMap(Elementwise):
    """`fn(*element)`, for tuples."""

    kind = "star_map"

    def __init__(self, parent: Node, fn: Callable[..., Any], *, on_error: OnError | None = None) -> None:
        super().__init__(parent)
        self.fn = function(fn, "star_map")
        self.on_error = on_error

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.fn, *super().functions())

    def bind(self, run: Run) -> Callable[..., Any]:
        fn = self.fn
        return lambda item: fn(*item)


class Tap(Elementwise):
    """Calls `fn(element)` for what it does, and hands the element on."""

    kind = "tap"

    def __init__(self, parent: Node, fn: Callable[[Any], object]) -> None:
        super().__init__(parent)
        self.fn = function(fn, "tap")

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.fn, *super().functions())

    def bind(self, run: Run) -> Callable[..., Any]:
        fn = self.fn

        def apply(item: Any) -> Any:
            fn(item)
            return item

        return apply


class SelectFields(Elementwise):
    """Of each sample only these fields; those that a sample lacks are left out."""

    kind = "select_fields"

    def __init__(self, parent: Node, names: Sequence[str]) -> None:
        super().__init__(parent)
        self.names = tuple(names)
        if not self.names or not all(isinstance(name, str) for name in self.names):
            raise ConfigError(f"select_fields needs names of fields, got {self.names!r}")

    def parameters(self) -> dict[str, Any]:
        return super().parameters() | {"names": list(self.names)}

    def bind(self, run: Run) -> Callable[..., Any]:
        names = self.names

        def apply(item: Any) -> Any:
            key, fields = item
            return key, {name: fields[name] for name in names if name in fields}

        return apply


class FilterHoles(Elementwise):
    """Leaves a HOLE where `pred(element)` is false, so that all places stay what they are."""

    kind = "filter_holes"

    def __init__(self, parent: Node, pred: Callable[[Any], Any], *, on_error: OnError | None = None) -> None:
        super().__init__(parent)
        self.pred = function(pred, "filter")
        self.on_error = on_error

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.pred, *super().functions())

    @property
    def holes(self) -> bool:
        return True

    def bind(self, run: Run) -> Callable[..., Any]:
        pred = self.pred
        return lambda item: item if pred(item) else HOLE


class Maybe(Elementwise):
    """`fn(element)` for a share `p` of the elements, chosen by their identity; the others pass. `p`: a number, a
    function of the element, or None: elements come as `(element, p)`, each with its own."""

    kind = "maybe"
    draws = True

    def __init__(
        self,
        parent: Node,
        fn: Callable[[Any], Any],
        p: float | Callable[[Any], float] | None,
        seed: int | None = None,
        *,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(parent)
        if not (p is None or callable(p) or (isinstance(p, (int, float)) and 0 <= p <= 1)):
            raise ConfigError(f"a probability is a number between 0 and 1 or a function that gives one, got {p!r}")
        self.fn = function(fn, "maybe")
        self.p = p
        self.seed = seed_given(seed)
        self.on_error = on_error

    def parameters(self) -> dict[str, Any]:
        return super().parameters() | ({} if callable(self.p) else {"p": self.p})

    def functions(self) -> tuple[Callable[..., Any], ...]:
        own = (self.fn, self.p) if callable(self.p) else (self.fn,)
        return (*own, *super().functions())

    @property
    def needs_identity(self) -> bool:
        return True

    def bind(self, run: Run) -> Callable[..., Any]:
        fn, p, seed = self.fn, self.p, run.seed_of(self)
        if p is None:
            return lambda pair, name: fn(pair[0]) if SplitMix(seed ^ name).random() < pair[1] else pair[0]
        if callable(p):
            return lambda item, name: fn(item) if SplitMix(seed ^ name).random() < p(item) else item
        return lambda item, name: fn(item) if SplitMix(seed ^ name).random() < p else item


class Enumerate(Elementwise):
    """`(number, element)`, counted from 0 in each epoch."""

    kind = "enumerate"

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        parent = self.parents[0]
        items = parent.fetch(run, epoch, places)
        if parent.holes or parent.ahead:
            return self.outcomes(run, epoch, places, _numbered, items, places)
        return list(zip(places, items, strict=True))

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        return CountingCursor(self.parents[0].cursor(run, epoch), run.lane)


def _numbered(item: Any, place: int) -> tuple[int, Any]:
    return place, item


class Prefetch(Elementwise):
    """A hint: fetch up to `count` shards ahead of those in use. Changes no element."""

    kind = "prefetch"

    def __init__(self, parent: Node, count: int) -> None:
        super().__init__(parent)
        self.count = whole_number(count, "prefetch", 0)

    def parameters(self) -> dict[str, Any]:
        return {"count": self.count}

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        return self.parents[0].fetch(run, epoch, places)

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        return self.parents[0].cursor(run, epoch)
