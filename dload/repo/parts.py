"""Work that is shared: whoever packs some of a version's samples gives a part, and one commit makes the version of all.

A part ends a shard. So the version is that of the serial commit of the same samples exactly where its shards end where
the parts do: cut the samples first (`dload.pack.cuts` needs keys, sizes and names of fields alone), and give each part
whole groups. Else it is the version of these parts: the same, whoever packs them, in which order and how often.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dload.manifest import Packing
from dload.repo.commit import staging
from dload.repo.group import Item
from dload.repo.leases import Lease
from dload.repo.packing import Part, ShardSender
from dload.repo.uniqueness import key_hash
from dload.store.base import Store


def pack_part(store: Store, name: str, samples: Iterable[Item], packing: Packing, *, workers: int = 1) -> Part:
    """Cut, pack and send samples, on whatever machine; what the store has already is not sent.

    Give it to `commit` as one of its `packed`, which must have begun before, since its lease is what keeps the shards
    from gc. Doing it again gives the same part. Raises what `commit` raises for samples and the store.
    """
    hashes = bytearray()
    with Lease(store, name, None) as lease, staging(store) as folder:
        sender = ShardSender(store, lease, folder, packing)
        shards = [done.shard for done in sender.send(_hashed(samples, hashes), workers)]
    return Part(shards, bytes(hashes))


def _hashed(samples: Iterable[Item], hashes: bytearray) -> Iterator[Item]:
    """The samples, the hashes of their keys noted on the way."""
    for item in samples:
        key = item[0] if isinstance(item, tuple) and item else getattr(item, "key", None)
        if isinstance(key, str):  # whatever isn't a sample is refused where samples are cut
            hashes += key_hash(key)
        yield item
