"""From blocks of samples on the cluster to parts of a commit: measured side by side, cut here, packed side by side.

Where shards end is decided in one place, by who commits, from keys, sizes and names of fields in their order. So it
hangs on the samples alone: not on blocks, on tasks, or on how many work. Shards are named by what is in them: a task
that is done again, since its worker died, finds in the store what it had sent, and its part is the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import ray

from dload.errors import DloadError
from dload.importers.columns import Column
from dload.manifest import Packing
from dload.pack import Cutter, Sample, sample_size, validate_sample
from dload.ray.cluster import cpus, in_turn, result
from dload.repo.packing import Part, as_sample
from dload.repo.parts import pack_part
from dload.repo.uniqueness import key_hash
from dload.store.base import Store

PART_BYTES = 64 << 20  # whole shards that one task packs have this together, about: a lease is two requests


class Form(Protocol):
    """How blocks hold samples. It pickles."""

    columns: dict[str, Column]
    """What the columns of the blocks that were read become, where they are a table's."""

    def samples(self, block: Any, start: int, stop: int, number: int) -> Iterator[Sample]:
        """The samples of the rows [start, stop) of a block, the first of which is number `number` of all."""
        ...


class Listed:
    """Blocks that are lists of samples."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}

    def samples(self, block: list[Sample], start: int, stop: int, number: int) -> Iterator[Sample]:
        return iter(block[start:stop])


@dataclass(frozen=True, slots=True)
class Measure:
    """What of a block's samples decides where shards end, in their order."""

    keys: list[str]
    sizes: array[int]  # `sample_size`
    layouts: list[tuple[str, ...]]
    layout: array[int]  # which of these
    hashes: bytes  # `key_hash`
    columns: dict[str, Column]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows [start, start + as many as were measured) of a block in the object store; the first is number `number`."""

    ref: Any
    measure: Any  # the task that gives the Measure
    start: int = 0
    number: int = 0


@dataclass(slots=True)
class _Group:
    """Whole shards for one task: of which rows of which blocks they are, and what must come out."""

    refs: list[Any] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)  # start, stop, number
    counts: list[int] = field(default_factory=list)  # samples of each shard
    hashes: bytearray = field(default_factory=bytearray)
    size: int = 0
    open: int = 0  # samples of the shard that has no end yet
    task: Any = None

    def add(self, block: Block, measure: Measure, first: int, last: int) -> None:
        if first < last:
            self.refs.append(block.ref)
            self.spans.append((block.start + first, block.start + last, block.number + first))
            self.hashes += measure.hashes[8 * first : 8 * last]

    def end_shard(self) -> None:
        self.counts.append(self.open)
        self.open = 0


def valid(items: Iterable[Any], where: str = "") -> list[Sample]:
    """The items as samples that can be stored. SampleError names what isn't one by its number and `where`."""
    samples = (as_sample(item, f"{number}{where}") for number, item in enumerate(items))
    return [(key, validate_sample(key, fields)) for key, fields in samples]


def measure(found: list[Sample], columns: dict[str, Column]) -> Measure:
    """What of these samples decides where shards end."""
    layouts: dict[tuple[str, ...], int] = {}
    layout = array("L", [layouts.setdefault(tuple(fields), len(layouts)) for _, fields in found])
    return Measure(
        [key for key, _ in found],
        array("Q", [sample_size(key, fields) for key, fields in found]),
        list(layouts),
        layout,
        b"".join([key_hash(key) for key, _ in found]),
        columns,
    )


def _measured(form: Form, block: Any, start: int, stop: int, number: int) -> Measure:
    samples = valid(form.samples(block, start, stop, number))
    return measure(samples, form.columns)


def _packed(
    store: Store, name: str, packing: Packing, form: Form, spans: list[tuple[int, int, int]], *blocks: Any
) -> Part:
    samples = (form.samples(block, *span) for block, span in zip(blocks, spans, strict=True))
    return pack_part(store, name, chain.from_iterable(samples), packing)


# They ask for no processor: one that a task of Ray Data holds, while it waits for its output to be taken, would never
# get free. Ray brings them to where their blocks are, and never more than there are processors are under way.
measured = ray.remote(num_cpus=0)(_measured)
_packing = ray.remote(num_cpus=0)(_packed)


def parts(
    store: Store,
    name: str,
    packing: Packing,
    blocks: Generator[Block, None, None],
    ahead: Callable[[], int],
    form: Form,
    see: Callable[[Measure], object] | None = None,
) -> Iterator[Part]:
    """The samples of all blocks, in their order, as parts that are in the store. `ahead()` blocks are under way at a
    time; `see` is shown the measure of each.

    Raises what measuring and packing raise, and DloadError where a block has changed in between.
    """
    there = ray.put(store), ray.put(packing), ray.put(form)

    def begun(blocks: Iterable[Block]) -> Generator[_Group, None, None]:
        for group in _groups(blocks, packing, see):
            group.task = _packing.remote(there[0], name, there[1], there[2], group.spans, *group.refs)
            yield group

    with (
        closing(in_turn(blocks, lambda block: block.measure, ahead)) as coming,
        closing(in_turn(begun(coming), lambda group: group.task, cpus)) as groups,
    ):
        for group in groups:
            yield _checked(result(group.task), group)


def _checked(part: Part, group: _Group) -> Part:
    if [shard.num_samples for shard in part.shards] != group.counts or part.hashes != bytes(group.hashes):
        raise DloadError(
            "samples changed between measuring and packing: a block that was lost came out differently when it was "
            "made again",
            remedy="give random steps a seed, or materialize() the data set before",
        )
    return part


def _groups(blocks: Iterable[Block], packing: Packing, see: Callable[[Measure], object] | None) -> Iterator[_Group]:
    """Whole shards, in order, about PART_BYTES together."""
    cutter, group = Cutter(packing.target, packing.boundaries), _Group()
    for block in blocks:
        found: Measure = result(block.measure)
        if see is not None:
            see(found)
        first = 0
        for row, (key, size, layout) in enumerate(zip(found.keys, found.sizes, found.layout, strict=True)):
            if cutter.begins(key, size, found.layouts[layout]):
                group.end_shard()
                if group.size >= PART_BYTES:
                    group.add(block, found, first, row)
                    yield group
                    group, first = _Group(), row
            group.size += size
            group.open += 1
        group.add(block, found, first, len(found.keys))
    if group.open:
        group.end_shard()
        yield group
