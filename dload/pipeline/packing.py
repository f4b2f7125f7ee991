"""Blocks of tokens for language models, from documents of any length."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from dload.errors import ConfigError
from dload.pipeline.cursors import PlaceCursor
from dload.pipeline.node import Node, finite, pieces, seed_given, walk, whole_number
from dload.pipeline.pack_bins import Binning
from dload.pipeline.pack_blocks import NAMES, BlockMaker
from dload.pipeline.pack_cursors import BinCursor, ConcatCursor, ShareCursor, empty_identity
from dload.pipeline.pack_documents import Document, DocumentReader, dtype_name
from dload.pipeline.pack_plan import (
    BinPlan,
    ConcatPlan,
    Lengths,
    PackPlan,
    SizeRows,
    document_ends,
    is_fixed,
    is_ordered,
    total_tokens,
)
from dload.pipeline.places import AllPlaces
from dload.pipeline.reorder import clipped
from dload.pipeline.running import HOLE, Cursor, Epoch, Need, Run
from dload.pipeline.sources import Samples
from dload.randomness import hash64

MODES = ("concat", "first_fit", "best_fit")
UNSAID: Any = object()
"""Stands for an argument that was left out, and mustn't be."""

_PLANS = 3  # of several epochs that are kept: this one, the next, and epoch 0, which `check` looks at
_STRETCHES, _STRETCH = 8, 32  # documents that an estimate reads


class Pack(Node):
    """Blocks of `size` tokens. Each is a dict: `input_ids`, `doc_ids` (0 at the block's first document, one more at
    each that begins in it), `positions` (from 0 at each document's first token in the block), `loss_mask` (true where
    there is no padding), all of shape (size,), and `valid`, how many tokens are no padding; and the columns `aligned`.
    They are NumPy arrays of int64 (the mask of bool), or, where NumPy isn't installed, arrays of type "q" ("b").

    `lengths`: see `pack_plan`. Where it knows all sources, and their samples come unchanged, the node is in the index
    tier: "concat" over the samples of an epoch in any order, the others in storage order. Else it is in the stream
    tier, and each lane packs the documents that it gets.

    `blocks`: so many in each epoch, exactly; "auto": about as many as there are, estimated in the stream tier.
    """

    kind = "pack"

    def __init__(
        self,
        parent: Node,
        size: int,
        *,
        tokens: str = "tokens",
        aligned: Sequence[str] | Mapping[str, Any] = (),
        dtype: Any = None,
        eos_id: int | None = UNSAID,
        pad_id: int = UNSAID,
        mode: str = "concat",
        max_documents: int | None = None,
        blocks: int | str | None = None,
        seed: int | None = None,
        lengths: Lengths | None = None,
    ) -> None:
        super().__init__(parent)
        self.size = whole_number(size, "the length of a block", 1)
        self.mode = _one_of_modes(mode)
        self.eos_id = _token("eos_id", eos_id, none_means="the documents bring their own")
        pad = _token("pad_id", pad_id)
        assert pad is not None
        self.pad_id = pad
        self.columns = _columns(tokens, dtype, aligned)
        self.max_documents = None if max_documents is None else whole_number(max_documents, "max_documents", 1)
        if mode == "concat" and max_documents is not None:
            raise ConfigError("max_documents goes with mode='first_fit' or 'best_fit': concat cuts documents anyhow")
        self.seed = seed_given(seed)
        self.blocks = blocks if blocks in (None, "auto") else whole_number(blocks, "blocks_per_epoch (or 'auto')", 1)
        self.lengths = lengths
        self._planned = self.plannable and lengths is not None and _all_known(parent, lengths)
        self._plans: dict[Any, PackPlan] = {}
        self._estimates: dict[Any, int] = {}
        if blocks == "auto" and not self._planned and not (parent.indexed and parent.length is not None):
            raise ConfigError(
                "blocks_per_epoch='auto' looks at documents here and there, and this pipeline can only be streamed",
                remedy="give the number of blocks, or keep places below pack(): filter(holes=True)",
            )

    @property
    def plannable(self) -> bool:
        """Whether blocks can be known beforehand, if the lengths of all samples are: tokens are raw numbers of a known
        type, and their order (or in concat mode, that all come) is known, too."""
        parent = self.parents[0]
        return self.columns[0][1] is not None and (is_fixed(parent) if self.mode == "concat" else is_ordered(parent))

    def parameters(self) -> dict[str, Any]:
        return {
            "length": self.size, "columns": [list(column) for column in self.columns], "eos_id": self.eos_id,
            "pad_id": self.pad_id, "mode": self.mode, "max_documents": self.max_documents,
            "blocks_per_epoch": self.blocks, "planned": self._planned,
        }  # fmt: skip

    @property
    def indexed(self) -> bool:
        return self._planned

    @property
    def holes(self) -> bool:
        return False

    @property
    def endless(self) -> bool:
        return not self._planned and self.blocks is None and super().endless

    @property
    def total(self) -> int | None:
        return self.length if self._planned else self.blocks if isinstance(self.blocks, int) else None

    @cached_property
    def span(self) -> int | None:
        return super().span if self.total is None else self.total

    @property
    def factor(self) -> float:
        return finite(self.parents[0], "pack") / max(1, self._count) if self._planned else 1.0

    # ---- parts of it
    @cached_property
    def _binning(self) -> Binning:
        return Binning(self.size, self.mode, self.max_documents, self.seed)

    def _reader(self) -> DocumentReader:
        return DocumentReader(*zip(*self.columns, strict=True))

    def _maker(self) -> BlockMaker:
        return BlockMaker(self.size, self.eos_id, self.pad_id, [name for name, _ in self.columns[1:]])

    # ---- the index tier
    def _plan(self, run: Run, epoch: Epoch) -> PackPlan:
        """Where documents don't come in one order, an epoch's plan looks at all of them once, 8 bytes each."""
        parent, lengths = self.parents[0], self.lengths
        assert lengths is not None
        key = None if is_ordered(parent) else (run.seed, run.homes, epoch)
        plan = self._plans.get(key)
        if plan is None:
            ends = document_ends(parent, run, epoch, lengths, self.eos_id is not None)
            plan = ConcatPlan(ends, self.size) if self.mode == "concat" else BinPlan(ends, self._binning)
        others = [(other, kept) for other, kept in self._plans.items() if other != key]
        self._plans = {**dict(others[1 - _PLANS :]), key: plan}
        return plan

    def _only_plan(self) -> PackPlan:
        """The plan, where it is that of all runs and epochs."""
        assert self.lengths is not None
        return self._plan(Run(0, SizeRows(self.lengths)), (0,))

    @cached_property
    def _count(self) -> int:
        """How many blocks the documents fill."""
        lengths = self.lengths
        assert lengths is not None
        if self.mode != "concat":
            return self._only_plan().count
        return -(-total_tokens(self.parents[0], lengths, self.eos_id is not None) // self.size)

    @cached_property
    def length(self) -> int | None:
        return self.blocks if isinstance(self.blocks, int) else self._count

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        plan, count, maker = self._plan(run, epoch), self._count, self._maker()
        parts = [plan.parts(place, epoch) if place < count else [] for place in places]
        needed = sorted({number for block in parts for number, _, _ in block})
        held = dict(zip(needed, self._documents(run, epoch, needed), strict=True))
        return [maker.block([(held[number], start, stop) for number, start, stop in block]) for block in parts]

    def _documents(self, run: Run, epoch: Epoch, numbers: list[int]) -> list[Document]:
        dense = bool(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1
        below: Sequence[int] = range(numbers[0], numbers[-1] + 1) if dense else numbers
        read = self._reader().read
        return [read(item) for item in self.parents[0].fetch(run, epoch, below)]

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        plan, count = self._plan(run, epoch), self._count
        first = [plan.parts(place, epoch)[0] if place < count else None for place in places]
        documents = [part[0] for part in first if part is not None]
        names = dict(zip(documents, self.parents[0].identities(run, epoch, documents), strict=True))
        return [
            empty_identity(epoch, place) if part is None else hash64(names[part[0]], part[1])
            for place, part in zip(places, first, strict=True)
        ]

    def units(self) -> list[int]:
        length, parent = finite(self, "pack"), self.parents[0]
        if not is_ordered(parent):
            return pieces(length)
        sizes = clipped(self._only_plan().units(parent.units()), 0, length)
        return sizes + pieces(length - sum(sizes))

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        stop = min(stop, self._count)  # behind it are empty blocks
        if start >= stop:
            return
        plan = self._plan(run, epoch)
        for need in self.parents[0].demand(run, epoch, *plan.documents(start, stop)):
            first, last = plan.blocks(need.first, need.last)
            first, last = max(first, start), min(last, stop)
            if first < last:
                yield Need(first, last, need.source, need.shard)

    # ---- the stream tier
    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        parent, lane = self.parents[0].cursor(run, epoch), run.lane
        reader, maker = self._reader(), self._maker()
        cursor: Cursor
        if self.mode == "concat":
            cursor = ConcatCursor(parent, reader, maker, self.size)
        else:
            cursor = BinCursor(parent, reader, maker, self._binning, (epoch, lane.number))
        if self.blocks is None:
            return cursor
        lanes = lane.grid.lanes
        self.check_lanes(lanes)
        if isinstance(self.blocks, int):
            return ShareCursor(cursor, lane.count(self.blocks), maker, lane.row, epoch)
        blocks = self._estimated(run)
        return ShareCursor(cursor, lane.count(max(lanes, blocks - blocks % lanes)), maker, lane.row, epoch)

    def check_lanes(self, lanes: int) -> None:
        super().check_lanes(lanes)
        blocks = self.blocks
        if not self._planned and isinstance(blocks, int) and blocks % lanes:
            raise ConfigError(
                f"blocks_per_epoch={blocks} can't be shared evenly by {lanes} lanes",
                remedy=f"give a multiple of {lanes}, as {blocks - blocks % lanes or lanes}",
            )

    def _estimated(self, run: Run) -> int:
        """About how many blocks an epoch has, from documents in several stretches of epoch 0: the same in all processes
        of a run. Reads them once a process, and says so."""
        key = (run.seed, run.homes)
        if key not in self._estimates:
            parent = self.parents[0]
            total = finite(parent, "pack")
            seed = hash64(run.seed if self.seed is None else self.seed, "auto")
            sizes = [size for first in _stretches(total, seed) for size in self._sizes(run, first)]
            if self.mode == "concat":
                blocks: float = sum(sizes) / self.size
            else:
                blocks = len(self._binning.bins(sizes))
            self._estimates[key] = round(blocks / max(1, len(sizes)) * total)
            warnings.warn(
                f"blocks_per_epoch='auto': about {self._estimates[key]:,} blocks of {self.size:,} tokens, estimated "
                f"from {len(sizes):,} of {total:,} documents",
                stacklevel=2,
            )
        return self._estimates[key]

    def _sizes(self, run: Run, first: int) -> list[int]:
        """Of one stretch of documents."""
        reader, maker = self._reader(), self._maker()
        cursor = PlaceCursor(self.parents[0], run, (0,), AllPlaces(self.parents[0]))
        cursor.reset(first)
        items = list(islice(cursor, _STRETCH))
        cursor.close()
        return [0 if item is HOLE else maker.size(reader.read(item)) for item in items]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}  # large, and quickly made again


def _one_of_modes(mode: str) -> str:
    if mode not in MODES:
        raise ConfigError(f"mode is {mode!r}, and must be one of {', '.join(MODES)}")
    return mode


def _token(name: str, value: Any, none_means: str | None = None) -> int | None:
    """A token that must be said. Raises ConfigError."""
    if value is UNSAID:
        remedy = f"{name}=<token>" + (f", or {name}=None where {none_means}" if none_means else "")
        raise ConfigError(f"pack() needs {name}", remedy=f"pass {remedy}")
    if value is None and none_means:
        return None
    return whole_number(value, name)


def _columns(tokens: str, dtype: Any, aligned: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """(name, dtype of raw bytes) of the tokens and of what is cut alike."""
    if isinstance(aligned, str):
        raise ConfigError(f"aligned is the text {aligned!r}, not names of fields", remedy=f"pass [{aligned!r}]")
    others = dict(aligned) if isinstance(aligned, Mapping) else dict.fromkeys(aligned)
    taken = sorted(others.keys() & {*NAMES, tokens})
    if taken:
        raise ConfigError(f"{taken[0]!r} can't be the name of an aligned field: blocks have or are made of that")
    return [(name, dtype_name(of, name)) for name, of in [(tokens, dtype), *others.items()]]


def _all_known(top: Node, lengths: Lengths) -> bool:
    return all(lengths(node) is not None for _, node in walk(top) if isinstance(node, Samples))


def _stretches(total: int, seed: int) -> Sequence[int]:
    """Where stretches of documents begin that an estimate looks at."""
    if total <= _STRETCHES * _STRETCH:
        return range(0, total, _STRETCH)
    return [hash64(seed, number) % (total - _STRETCH + 1) for number in range(_STRETCHES)]
