"""All samples of a version, streamed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing

from dload.cache import ShardCache
from dload.errors import ConfigError
from dload.manifest import Manifest
from dload.pack import Sample
from dload.run.shard_feed import ShardFeed
from dload.store.base import Store


class SampleStream:
    """The samples of a version in storage order, `(key, {field: bytes})`; each `iter()` begins anew.

    `window`: how many shards at most are pinned at once, the one being read included; the others are fetched ahead on
    threads. `fields`: only these; None: all. Raises ConfigError for a `fields` that isn't several names.
    """

    def __init__(
        self, store: Store, cache: ShardCache, manifest: Manifest, window: int, fields: Collection[str] | None
    ) -> None:
        if isinstance(fields, str):
            raise ConfigError(f"fields is the text {fields!r}, not names of fields", remedy=f"pass [{fields!r}]")
        self.manifest = manifest
        self.fields = fields
        self._feed = ShardFeed(store, cache, manifest.shards, prefetch=max(0, window - 1))

    def __len__(self) -> int:
        return self.manifest.num_samples

    def __iter__(self) -> Iterator[Sample]:
        with closing(iter(self._feed)) as readers:
            for reader in readers:
                yield from reader.samples(self.fields)

    def __repr__(self) -> str:
        return f"SampleStream({self.manifest.name}@{self.manifest.version[:12]}, {len(self)} samples)"
