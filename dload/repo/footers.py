"""The index of a shard without its payload: what names, lengths and checksums are in it, by one or two ranged reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dload.errors import IntegrityError, PackFormatError
from dload.manifest import ShardInfo
from dload.pack import TRAILER_SIZE, ShardIndex
from dload.repo import keys
from dload.repo.parallel import ordered
from dload.store.base import Store

_TRIES = 3  # the damage may be the network's
_GUESS = 1 << 16  # bytes to ask for where the index's size isn't known: the indexes of most small shards fit


def read_index(store: Store, shard: ShardInfo) -> ShardIndex:
    """A shard's index: one ranged GET where the manifest tells its size (format 2), else up to two.

    Raises NotFoundError; PackFormatError or IntegrityError where the shard is damaged, three times in a row.
    """
    for left in reversed(range(_TRIES)):
        try:
            return _read(store, shard)
        except (PackFormatError, IntegrityError):
            if not left:
                raise
    raise AssertionError("unreachable")


def _read(store: Store, shard: ShardInfo) -> ShardIndex:
    key, name = keys.shard_key(shard.digest), shard.digest
    want = _GUESS if shard.index_size is None else shard.index_size + TRAILER_SIZE
    want = max(1, min(shard.size, want))
    tail = store.get_range(key, shard.size - want, want)
    needed = ShardIndex.footer_size(tail, shard.size, name)
    if needed > len(tail):
        tail = store.get_range(key, shard.size - needed, needed)
    return ShardIndex.from_footer(tail, shard.size, name)


def read_indexes(store: Store, shards: Iterable[ShardInfo], jobs: int = 16) -> Iterator[ShardIndex]:
    """The indexes of many shards, in their order, `jobs` requests at a time."""
    return ordered(lambda shard: read_index(store, shard), shards, jobs)
