"""How the samples of two versions differ, reading only the shards that differ."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from functools import reduce

from dload.manifest import Manifest, SampleDiff, ShardInfo, sample_diff, shard_diff
from dload.pack import ShardIndex, ShardReader
from dload.repo import keys
from dload.repo.footers import read_index
from dload.repo.parallel import ordered
from dload.store.base import Store

_JOBS = 16


def diff(store: Store, old: Manifest, new: Manifest) -> SampleDiff:
    """The keys that came, went, or whose sample is another. Reads the indexes of the shards that only one of them has.

    Samples are compared by their fields' names, lengths and crc32: a change that keeps all three stays unseen, one in
    four billion of those that keep the lengths. A shard of format 1 has no crc32, so it is read whole.
    """
    shards = shard_diff(old, new)
    return sample_diff(_contents(store, old, shards.removed), _contents(store, new, shards.added))


def _contents(store: Store, manifest: Manifest, numbers: Iterable[int]) -> Iterator[tuple[str, Hashable]]:
    shards, view = manifest.shards, manifest.rows
    for number, index in ordered(lambda n: (n, read_index(store, shards[n])), numbers, _JOBS):
        known = index.checksums()
        if known is None:
            known = _computed(store, shards[number], index)
        for row in range(len(index)) if view is None else view.of(number):
            yield index.keys[row], known[row]


def _computed(store: Store, shard: ShardInfo, index: ShardIndex) -> list[Hashable]:
    """What format 2 would say of the samples of a shard of format 1."""
    crc = array("I")
    with ShardReader(store.get(keys.shard_key(shard.digest)).data, name=shard.digest) as reader:
        for _, fields in reader.samples():
            crc.append(reduce(lambda sofar, value: zlib.crc32(value, sofar), fields.values(), 0))
    checksums = replace(index, crc=crc).checksums()
    assert checksums is not None
    return checksums
