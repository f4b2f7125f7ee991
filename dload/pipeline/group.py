"""Several elements as one, and one as several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from operator import getitem
from typing import Any

from dload.errors import ConfigError
from dload.pipeline.failures import OnError
from dload.pipeline.fallible import Fallible
from dload.pipeline.gathering import ExpandCursor, GroupCursor, grouped
from dload.pipeline.node import Node, each, finite, function, whole_number
from dload.pipeline.order import home_starts
from dload.pipeline.outside import OutsideCursor, ScanCursor
from dload.pipeline.promises import Lazy
from dload.pipeline.reorder import Take
from dload.pipeline.running import HOLE, Cursor, Epoch, Need, Run
from dload.pipeline.streams import OUT, FilterCursor
from dload.randomness import hash64


class Windows(Node):
    """Lists of `size` elements in a row, each list beginning `stride` behind the one before; `batch` is stride = size.

    A last, shorter list is given where its elements were in no full one (stride >= size, or fewer than `size` in all),
    unless `drop_last`. `collate(list)` gives the element instead of the list. HOLEs keep their place when lists are
    made, and are left out of them; where nothing is left there is a HOLE.
    """

    kind = "window"

    def __init__(
        self,
        parent: Node,
        size: int,
        stride: int | None = None,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__(parent)
        self.size = whole_number(size, "the size of a batch or window", 1)
        self.stride = self.size if stride is None else whole_number(stride, "the stride of a window", 1)
        self.drop_last = drop_last
        self.collate = None if collate is None else function(collate, "collate")

    def parameters(self) -> dict[str, Any]:
        return {"size": self.size, "stride": self.stride, "drop_last": self.drop_last}

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return () if self.collate is None else (self.collate,)

    @property
    def plain(self) -> bool:
        """Whether the elements are those of the lists, one after the other."""
        return self.stride == self.size and self.collate is None

    @property
    def factor(self) -> float:
        return self.size

    @cached_property
    def length(self) -> int | None:
        below = self.parents[0].length
        if below is None:
            return None
        full = (below - self.size) // self.stride + 1 if below >= self.size else 0
        rest = below > full * self.stride and (self.stride >= self.size or not full)
        return full + (1 if rest and not self.drop_last else 0)

    @property
    def total(self) -> int | None:
        """In the stream tier each lane makes lists of its own, so that only full ones are sure to come to this many."""
        below = self.parents[0].total
        if self.indexed or below is None:
            return super().total
        return below // self.size if self.drop_last and self.stride == self.size else None

    def _below(self, run: Run) -> Run:
        """The run in what lists are made of: homes begin where lists do."""
        own, below = self.length, self.parents[0].length
        if run.homes == 1 or own is None or below is None:
            return run
        starts = [min(start * self.stride, below) for start in home_starts(run.homes, own)[:-1]]
        return replace(run, homes=(*starts, below))

    def _members(self, place: int) -> range:
        start, below = place * self.stride, self.parents[0].length
        return range(start, start + self.size if below is None else min(below, start + self.size))

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        groups, run = [self._members(place) for place in places], self._below(run)
        if self.stride == self.size and isinstance(places, range) and places.step == 1 and groups:
            items = self.parents[0].fetch(run, epoch, range(groups[0].start, groups[-1].stop))
        else:
            items = self.parents[0].fetch(run, epoch, list(chain.from_iterable(groups)))
        lists, at = [], 0
        for group in groups:
            lists.append(items[at : at + len(group)])
            at += len(group)
        if self.parents[0].ahead:
            return [Lazy(self._grouped, *items) for items in lists]
        if self.parents[0].holes:
            return [grouped(items, self.collate) for items in lists]
        return lists if self.collate is None else each(self.collate, lists)

    def _grouped(self, *items: Any) -> Any:
        return grouped(list(items), self.collate)

    @cached_property
    def ahead(self) -> int:
        """With the one that is being used, enough to be worked on meanwhile."""
        below = self.parents[0].ahead
        return below and max(2, -(-below // self.size))

    @cached_property
    def together(self) -> int:
        return -(-self.parents[0].together // self.size)

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        run = self._below(run)
        return [hash64(*self.parents[0].identities(run, epoch, self._members(place))) for place in places]

    def units(self) -> list[int]:
        """The parent's, their borders rounded up."""
        found, at, done = [], 0, 0
        assert self.length is not None
        for size in self.parents[0].units():
            at += size
            border = min(self.length, -(-at // self.stride))
            if border > done:
                found.append(border - done)
                done = border
        return found

    def part(self, place: int) -> tuple[int, int | None]:
        """The parent's, its borders rounded up."""
        first, last = self.parents[0].part(place * self.stride)
        if last is None:
            return -(-first // self.stride), None
        end = -(-last // self.stride)
        return -(-first // self.stride), end if self.length is None else min(end, self.length)

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        if start >= stop:
            return
        low, high = start * self.stride, self._members(stop - 1).stop
        for need in self.parents[0].demand(self._below(run), epoch, low, high):
            first = max(start, -(-(need.first - self.size + 1) // self.stride))
            last = min(stop, (need.last - 1) // self.stride + 1)
            if first < last:
                yield Need(first, last, need.source, need.shard)

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        return GroupCursor(self.parents[0].cursor(run, epoch), self.size, self.stride, self.drop_last, self.collate)


class Expand(Fallible):
    """Each element becomes those that `fn(element)` gives. With `fanout`, always that many, and places stay known.

    Under a policy for errors the elements of one are made before the first is given: one that fails gives none, or with
    `fanout` as many HOLEs.
    """

    kind = "flat_map"

    def __init__(
        self,
        parent: Node,
        fn: Callable[[Any], Iterable[Any]],
        fanout: int | None = None,
        *,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(parent)
        self.fn = function(fn, "flat_map")
        self.fanout = None if fanout is None else whole_number(fanout, "fanout", 1)
        self.on_error = on_error

    def parameters(self) -> dict[str, Any]:
        return super().parameters() | {"fanout": self.fanout}

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.fn, *super().functions())

    @property
    def indexed(self) -> bool:
        return self.fanout is not None and super().indexed

    @property
    def holes(self) -> bool:
        return self.fanout is not None and super().holes

    @cached_property
    def ahead(self) -> int:
        return self.parents[0].ahead * (self.fanout or 1)

    @cached_property
    def together(self) -> int:
        below = self.parents[0].together
        return below * (self.fanout or 1) if below > 1 else 1

    @property
    def factor(self) -> float:
        return 1 / (self.fanout or 1)

    @cached_property
    def _each(self) -> int:
        assert self.fanout is not None
        return self.fanout

    @cached_property
    def length(self) -> int | None:
        below = self.parents[0].length
        return None if below is None else below * self._each

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        parent, size = self.parents[0], self._each
        if isinstance(places, range) and places.step == 1 and places:
            whole: Sequence[int] = range(places.start // size, -(-places.stop // size))
        else:
            whole = list(dict.fromkeys(place // size for place in places))
        families = self.outcomes(run, epoch, whole, self._made, parent.fetch(run, epoch, whole))
        if parent.ahead:
            lists = {number: Lazy(self._children, family) for number, family in zip(whole, families, strict=True)}
            return [Lazy(getitem, lists[place // size], place % size) for place in places]
        children = {number: self._children(family) for number, family in zip(whole, families, strict=True)}
        return [children[place // size][place % size] for place in places]

    def _made(self, item: Any) -> list[Any]:
        """The children of one element, `fanout` of them where that is given."""
        children = list(self.fn(item))
        if self.fanout is not None and len(children) != self.fanout:
            raise ConfigError(
                f"flat_map(fanout={self.fanout}) expected {self.fanout} elements of {self.fn!r}, got {len(children)}",
                remedy="leave out the fanout where their number varies",
            )
        return children

    def _children(self, family: Any) -> list[Any]:
        """What stands for the children of one element: themselves, or HOLEs for a HOLE."""
        return [HOLE] * (self.fanout or 0) if family is HOLE else list(family)

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        wanted = [divmod(place, self._each) for place in places]
        names = self.parents[0].identities(run, epoch, [number for number, _ in wanted])
        return [hash64(name, child) for name, (_, child) in zip(names, wanted, strict=True)]

    def units(self) -> list[int]:
        return [size * self._each for size in self.parents[0].units()]

    def part(self, place: int) -> tuple[int, int | None]:
        first, last = self.parents[0].part(place // self._each)
        return first * self._each, None if last is None else last * self._each

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        each = self._each
        if start >= stop:
            return
        for need in self.parents[0].demand(run, epoch, start // each, -(-stop // each)):
            yield Need(max(start, need.first * each), min(stop, need.last * each), need.source, need.shard)

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        parent = self.parents[0].cursor(run, epoch)
        if self.fanout is not None or self.guard(run) is not None:
            return ExpandCursor(self.guarded(run, epoch, parent, self._made), self._children)
        return ExpandCursor(parent, lambda item: () if item is HOLE else self.fn(item))


class Filter(Fallible):
    """The elements for which `pred(element)` is true; how many that is shows as they come."""

    kind = "filter"

    def __init__(self, parent: Node, pred: Callable[[Any], Any], *, on_error: OnError | None = None) -> None:
        super().__init__(parent)
        self.pred = function(pred, "filter")
        self.on_error = on_error

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.pred, *super().functions())

    @property
    def indexed(self) -> bool:
        return False

    @property
    def holes(self) -> bool:
        return self.leaves_holes

    def _kept(self, item: Any) -> Any:
        return item if self.pred(item) else OUT

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        parent = self.parents[0].cursor(run, epoch)
        if self.guard(run) is not None:
            return self.guarded(run, epoch, parent, self._kept, drop=True)
        return FilterCursor(parent, self.pred)


class Scan(Node):
    """A fold that gives each state: `state = fn(state, element)`, from `init`."""

    kind = "scan"

    def __init__(self, parent: Node, fn: Callable[[Any, Any], Any], init: Any) -> None:
        super().__init__(parent)
        self.fn = function(fn, "scan")
        self.init = init

    def parameters(self) -> dict[str, Any]:
        return {"init": self.init}

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.fn,)

    @property
    def indexed(self) -> bool:
        return False

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        return ScanCursor(self.parents[0].cursor(run, epoch), self.fn, self.init)


class Through(Node):
    """The whole stream through `fn(iterator) -> iterator`."""

    kind = "through"

    def __init__(self, parent: Node, fn: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        super().__init__(parent)
        self.fn = function(fn, "through")

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.fn,)

    @property
    def indexed(self) -> bool:
        return False

    @property
    def holes(self) -> bool:
        return False

    @property
    def endless(self) -> bool:
        return False

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        return OutsideCursor(self.fn, epoch, run.lane, self.parents[0].cursor(run, epoch))


def unbatch(node: Node) -> Node:
    """The elements of each list, one by one. Where the lists came from `batch`, that is what they were made of."""
    if isinstance(node, Windows) and node.plain:
        parent = node.parents[0]
        if not node.drop_last or (parent.indexed and parent.length is None):
            return parent
        if parent.indexed:
            return Take(parent, finite(node, "unbatch") * node.size)
    return Expand(node, iter)
