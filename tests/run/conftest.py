from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from dload.api.pipeline import Pipeline
from dload.cache import ShardCache
from dload.manifest import Manifest
from dload.pipeline.sources import Samples
from dload.store.base import Store
from dload.store.faulty import Faulty
from dload.store.memory import MemoryStore
from dload.testing.shards import made_samples, manifest_of, put_shard


@pytest.fixture
def store() -> Faulty:
    """A store in memory whose calls are recorded."""
    return Faulty(MemoryStore())


@pytest.fixture
def cache(tmp_path: Path) -> ShardCache:
    return ShardCache(tmp_path / "cache")


class Made:
    """Eight shards of ten samples each, in a store."""

    def __init__(self, store: Store) -> None:
        self.samples = [made_samples(number, 10) for number in range(8)]
        self.shards = [put_shard(store, samples) for samples in self.samples]
        self.manifest = manifest_of(self.shards)
        self.all = [sample for samples in self.samples for sample in samples]


@pytest.fixture
def made(store: Faulty) -> Made:
    result = Made(store)
    store.calls.clear()
    return result


Streamed = Callable[..., Pipeline]


@pytest.fixture
def streamed() -> Streamed:
    """The samples of a manifest as a pipeline; `prefetch`: shards that are held at once, the current one included."""

    def make(
        store: Store, cache: ShardCache, manifest: Manifest, prefetch: int = 4, fields: Sequence[str] | None = None
    ) -> Pipeline:
        return Pipeline(Samples(manifest, SimpleNamespace(store=store, cache=cache), fields, prefetch))

    return make
