"""One element in, one element out, in the same place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from dload.errors import ConfigError
from dload.pipeline.node import Node, each, function, seed_given, whole_number
from dload.pipeline.running import HOLE, Cursor, Epoch, Need, Run
from dload.pipeline.streams import CountingCursor, ElementCursor
from dload.pipeline.woven import Woven
from dload.randomness import SplitMix, hash64


class Elementwise(Node):
    """Keeps places, units and demand of its parent."""

    @cached_property
    def length(self) -> int | None:
        return self.parents[0].length

    @property
    def total(self) -> int | None:
        return self.parents[0].total

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
        items = parent.fetch(run, epoch, places)
        if self.needs_identity:
            names = parent.identities(run, epoch, places)
            if not parent.holes:
                return each(apply, items, names)
            return [item if item is HOLE else apply(item, name) for item, name in zip(items, names, strict=True)]
        if not parent.holes:
            return each(apply, items)
        return [item if item is HOLE else apply(item) for item in items]

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        return ElementCursor(self.parents[0].cursor(run, epoch), self.bind(run), self.needs_identity)


class Map(Elementwise):
    """`fn(element)`; with `rng`, `fn(element, rng)`, whose draws hang on the element's identity, the seed and where
    in the pipeline the map stands (`paths_of`)."""

    kind = "map"

    def __init__(self, parent: Node, fn: Callable[..., Any], *, rng: bool = False, rng_seed: int | None = None) -> None:
        super().__init__(parent)
        self.fn = function(fn, "map")
        self.draws = rng
        self.seed = seed_given(rng_seed)
        if rng_seed is not None and not rng:
            raise ConfigError("rng_seed is given, and rng isn't", remedy="map(fn, rng=True, rng_seed=...)")

    def parameters(self) -> dict[str, Any]:
        return {"rng": True} if self.draws else {}

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.fn,)

    @property
    def needs_identity(self) -> bool:
        return self.draws

    def bind(self, run: Run) -> Callable[..., Any]:
        fn = self.fn
        if not self.draws:
            return fn
        key = hash64(run.seed if self.seed is None else self.seed, run.paths[id(self)])
        return lambda item, name: fn(item, SplitMix(key ^ name))


class StarMap(Elementwise):
    """`fn(*element)`, for tuples."""

    kind = "star_map"

    def __init__(self, parent: Node, fn: Callable[..., Any]) -> None:
        super().__init__(parent)
        self.fn = function(fn, "star_map")

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.fn,)

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
        return (self.fn,)

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
        return {"names": list(self.names)}

    def bind(self, run: Run) -> Callable[..., Any]:
        names = self.names

        def apply(item: Any) -> Any:
            key, fields = item
            return key, {name: fields[name] for name in names if name in fields}

        return apply


class FilterHoles(Elementwise):
    """Leaves a HOLE where `pred(element)` is false, so that all places stay what they are."""

    kind = "filter_holes"

    def __init__(self, parent: Node, pred: Callable[[Any], Any]) -> None:
        super().__init__(parent)
        self.pred = function(pred, "filter")

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.pred,)

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
        self, parent: Node, fn: Callable[[Any], Any], p: float | Callable[[Any], float] | None, seed: int | None = None
    ) -> None:
        super().__init__(parent)
        if not (p is None or callable(p) or (isinstance(p, (int, float)) and 0 <= p <= 1)):
            raise ConfigError(f"a probability is a number between 0 and 1 or a function that gives one, got {p!r}")
        self.fn = function(fn, "maybe")
        self.p = p
        self.seed = seed_given(seed)

    def parameters(self) -> dict[str, Any]:
        return {} if callable(self.p) else {"p": self.p}

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.fn, self.p) if callable(self.p) else (self.fn,)

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
        items = self.parents[0].fetch(run, epoch, places)
        if not self.parents[0].holes:
            return list(zip(places, items, strict=True))
        return [item if item is HOLE else (place, item) for place, item in zip(places, items, strict=True)]

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        return CountingCursor(self.parents[0].cursor(run, epoch), run.lane)


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
