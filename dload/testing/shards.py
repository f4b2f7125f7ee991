"""Made-up shards and manifests for tests of what reads them."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Collection, Iterable, Mapping

from dload.manifest import Manifest, ShardInfo, ShardList
from dload.pack import PackedShard, Sample, ShardWriter
from dload.repo.keys import shard_key
from dload.store.base import Store


def made_samples(shard: int, count: int, size: int = 1000) -> list[Sample]:
    """Samples with fields `image`, of that size, and `label`; they depend on the arguments alone."""
    rng = random.Random(shard)
    return [
        (f"shard{shard}/sample{number}", {"image": rng.randbytes(size), "label": str(number).encode()})
        for number in range(count)
    ]


def with_fields(samples: Iterable[Sample], fields: Collection[str] | None) -> list[Sample]:
    """The same samples with these fields only; None is all."""
    return [
        (key, {name: value for name, value in found.items() if fields is None or name in fields})
        for key, found in samples
    ]


def packed_shard(samples: Iterable[Sample], codecs: Mapping[str, str] | None = None) -> tuple[bytes, PackedShard]:
    """The bytes of a shard with these samples, and what its writer says of it."""
    file = io.BytesIO()
    writer = ShardWriter(file, codecs=codecs)
    for key, fields in samples:
        writer.add(key, fields)
    packed = writer.finish()
    return file.getvalue(), packed


def put_shard(store: Store, samples: Iterable[Sample]) -> ShardInfo:
    """Pack samples and put the shard where a repository has it."""
    data, packed = packed_shard(samples)
    store.put(shard_key(packed.digest), data)
    return ShardInfo(packed.digest, packed.size, packed.num_samples, packed.index_size)


def manifest_of(shards: Iterable[ShardInfo], name: str = "made") -> Manifest:
    """A manifest of these shards, with a version that no store knows."""
    listed = ShardList.of(shards)
    return Manifest(name, hashlib.sha256("".join(listed.digests).encode()).hexdigest(), listed)
