"""Which documents are in which block, where their sizes are known beforehand, and what a block needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from dload import randomness
from dload.pipeline.combine import Concat
from dload.pipeline.elementwise import Prefetch, SelectFields
from dload.pipeline.node import Node, finite
from dload.pipeline.pack_bins import Binning, Part
from dload.pipeline.reorder import Repeat, Shuffle, Skip, Take
from dload.pipeline.running import Epoch, Feed, Need, Run
from dload.pipeline.sources import Samples

Lengths = Callable[[Samples], Sequence[int] | None]
"""How many tokens each sample of a source has, in storage order; None where that isn't known without reading them."""

_RUN = 1 << 16  # places that are looked at together
_WINDOWS = 4  # whose bins are kept


# ---------------------------------------------------------------- sizes
def is_ordered(node: Node) -> bool:
    """Whether a pipeline gives samples as they are stored, in one order: of these sizes are known in all modes."""
    if isinstance(node, Samples):
        return True
    kinds = (SelectFields, Prefetch, Take, Skip, Concat, Repeat)
    return isinstance(node, kinds) and node.indexed and node.length is not None and all(map(is_ordered, node.parents))


def is_fixed(node: Node) -> bool:
    """Whether each epoch has the same samples as they are stored, in any order: of these all tokens are known."""
    if is_ordered(node):
        return True
    kinds = (SelectFields, Prefetch, Concat, Shuffle)
    return isinstance(node, kinds) and node.indexed and node.length is not None and all(map(is_fixed, node.parents))


class SizeRows:
    """Reads of each sample its size: `(size, {})`."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths

    def read(self, source: Samples, ordinals: Sequence[int]) -> list[Any]:
        lengths = self._lengths(source)
        assert lengths is not None
        nothing: dict[str, bytes] = {}
        return [(lengths[ordinal], nothing) for ordinal in ordinals]

    def follow(self, demand: Iterator[Need], later: Any = None) -> Feed:
        raise AssertionError("sizes are at hand")


def document_ends(node: Node, run: Run, epoch: Epoch, lengths: Lengths, eos: bool) -> array[int]:
    """Behind which token of all each document ends, in the pipeline's order, with an eos behind each that isn't
    empty."""
    if isinstance(node, Samples):
        sizes = lengths(node)
        assert sizes is not None
        return _ends(sizes, eos)
    run = replace(run, rows=SizeRows(lengths))
    total, found = finite(node, "pack"), array("q")
    for start in range(0, total, _RUN):
        found.extend(size for size, _ in node.fetch(run, epoch, range(start, min(total, start + _RUN))))
    return _ends(found, eos)


def _ends(sizes: Sequence[int], eos: bool) -> array[int]:
    if randomness.HAVE_NUMPY:
        import numpy as np

        column = np.array(sizes, dtype=np.int64)
        if eos:
            column += column > 0
        return array("q", np.cumsum(column).tobytes())
    return array("q", accumulate(size + 1 if size and eos else size for size in sizes))


def total_tokens(node: Node, lengths: Lengths, eos: bool) -> int:
    """All tokens of an epoch, of a pipeline that is fixed."""
    if is_ordered(node):
        ends = document_ends(node, Run(0, SizeRows(lengths)), (0,), lengths, eos)
        return ends[-1] if ends else 0
    return sum(total_tokens(parent, lengths, eos) for parent in node.parents)


# ---------------------------------------------------------------- plans
class PackPlan(ABC):
    """The blocks of an epoch. `ends`: of all documents, see `document_ends`."""

    count: int
    """How many blocks there are."""

    def __init__(self, ends: array[int]) -> None:
        self.ends = ends
        self.total = ends[-1] if ends else 0

    @abstractmethod
    def parts(self, block: int, epoch: Epoch) -> list[Part]:
        """What a block is made of."""

    @abstractmethod
    def documents(self, start: int, stop: int) -> tuple[int, int]:
        """The documents that blocks start to stop - 1 may need: the first, and the last + 1."""

    @abstractmethod
    def blocks(self, first: int, last: int) -> tuple[int, int]:
        """The blocks that may need documents first to last - 1."""

    def begin(self, document: int) -> int:
        """The number of a document's first token among all."""
        return self.ends[document - 1] if document else 0

    def units(self, sizes: Sequence[int]) -> list[int]:
        """How many blocks belong to each of the units of documents, rounded up at their borders."""
        borders = [0]
        for document in accumulate(sizes):
            borders.append(max(borders[-1], self.blocks(0, document)[1]))
        return [last - first for first, last in pairwise(borders) if last > first]


class ConcatPlan(PackPlan):
    """Block i has the tokens from i * length on."""

    def __init__(self, ends: array[int], length: int) -> None:
        super().__init__(ends)
        self._length = length
        self.count = -(-self.total // length)

    def parts(self, block: int, epoch: Epoch) -> list[Part]:
        token, stop = block * self._length, min(self.total, (block + 1) * self._length)
        document = bisect_right(self.ends, token)
        found = []
        while token < stop:
            begin, end = self.begin(document), self.ends[document]
            if end > token:
                found.append((document, token - begin, min(end, stop) - begin))
                token = min(end, stop)
            document += 1
        return found

    def documents(self, start: int, stop: int) -> tuple[int, int]:
        last = min(self.total, stop * self._length)
        return bisect_right(self.ends, start * self._length), bisect_left(self.ends, last) + 1

    def blocks(self, first: int, last: int) -> tuple[int, int]:
        start, stop = self.begin(first), self.begin(last)
        return (start // self._length, -(-stop // self._length)) if start < stop else (0, 0)


class BinPlan(PackPlan):
    """Windows of documents, each with bins of its own. Making it places every document once."""

    def __init__(self, ends: array[int], binning: Binning) -> None:
        super().__init__(ends)
        self._binning = binning
        self._windows = array("q", [0])  # the first document of each and, last, the number of documents
        self._blocks = array("q", [0])  # the first block of each and, last, the number of blocks
        self._kept: dict[int, list[list[Part]]] = {}
        while self.begin(self._windows[-1]) < self.total:
            number, first = len(self._windows) - 1, self._windows[-1]
            goal = min(self.total, self.begin(first) + binning.window)
            self._windows.append(bisect_left(ends, goal, lo=first) + 1)
            self._blocks.append(self._blocks[-1] + len(self._bins(number)))
        self.count = self._blocks[-1]

    def _bins(self, window: int) -> list[list[Part]]:
        bins = self._kept.get(window)
        if bins is None:
            first, last = self._windows[window], self._windows[window + 1]
            bins = self._binning.bins([self.ends[at] - self.begin(at) for at in range(first, last)])
            self._kept = {**dict(list(self._kept.items())[1 - _WINDOWS :]), window: bins}
        return bins

    def _window_of(self, block: int) -> int:
        return bisect_right(self._blocks, block) - 1

    def parts(self, block: int, epoch: Epoch) -> list[Part]:
        window = self._window_of(block)
        bins, first = self._bins(window), self._windows[window]
        order = self._binning.order(len(bins), epoch, 0, window)
        return [(first + at, start, stop) for at, start, stop in bins[order[block - self._blocks[window]]]]

    def documents(self, start: int, stop: int) -> tuple[int, int]:
        return self._windows[self._window_of(start)], self._windows[self._window_of(stop - 1) + 1]

    def blocks(self, first: int, last: int) -> tuple[int, int]:
        if self.begin(first) == self.begin(last):
            return 0, 0
        windows = range(len(self._windows) - 1)
        low = bisect_right(self._windows, first, hi=len(windows)) - 1
        high = bisect_left(self._windows, last)
        return self._blocks[low], self._blocks[min(high, len(windows))]
