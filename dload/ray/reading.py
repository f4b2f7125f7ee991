"""A version as a Ray data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from dload.api.dataset import Dataset
from dload.cache import ShardCache
from dload.errors import ConfigError
from dload.importers.columns import KEY
from dload.manifest import Manifest, ShardInfo
from dload.ray.stretches import equal
from dload.repo.footers import read_indexes
from dload.repo.keys import shard_key
from dload.run.open_shard import open_shard
from dload.store.base import Store

_CHUNK = 16 << 20  # bytes of samples that are in one table, about


def read(dataset: Dataset, fields: Sequence[str] | None = None, **options: Any) -> ray.data.Dataset:
    """`dataset`, a version, as a Ray data set: a row a sample, its key in the column `__key__`, and a column of bytes
    for each field, null where a sample lacks it. `fields`: only these.

    One task reads one shard, or where there are fewer shards than Ray wants tasks a part of one, through the cache of
    the node that it runs on. Schema, rows and bytes are known from the manifest, before anything is read; only for the
    names of fields of a view, or of a version of format 1, the shards' indexes are read, unless `fields` are given.
    Rows are in the data set's order where Ray keeps order (`execution_options.preserve_order`). `options` are those of
    `ray.data.read_datasource`. Raises ConfigError where a field is called `__key__`.
    """
    found: ray.data.Dataset = ray.data.read_datasource(ShardSource(dataset, fields), **options)
    return found


class ShardSource(Datasource):
    """The samples of a version as a source of Ray Data: see `read`."""

    def __init__(self, dataset: Dataset, fields: Sequence[str] | None = None) -> None:
        super().__init__()
        if isinstance(fields, str):
            raise ConfigError(f"fields is the text {fields!r}, not names of fields", remedy=f"pass [{fields!r}]")
        self._store, self._cache = dataset.repo.store, dataset.repo.cache
        self._manifest = dataset.manifest
        names = _names(self._store, self._manifest) if fields is None else list(dict.fromkeys(fields))
        if KEY in names:
            raise ConfigError(
                f"{dataset.name} has a field {KEY!r}, where the key goes", remedy="pass fields= without that one"
            )
        self._fields = None if fields is None else tuple(fields)
        self._schema = pa.schema([(KEY, pa.string()), *((name, pa.large_binary()) for name in names)])

    def get_name(self) -> str:
        return f"dload:{self._manifest.name}"

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of the wanted fields, and about 32 for each key."""
        known = self._manifest.fields
        if not known:
            return self._whole()
        wanted = self._schema.names[1:]
        return sum(known[name].bytes for name in wanted if name in known) + 32 * self._manifest.num_samples

    def _whole(self) -> int:
        """The bytes of all rows, all of their fields together."""
        return sum(map(self._share, range(len(self._manifest.shards)), self._manifest.counts))

    def _share(self, number: int, rows: int) -> int:
        """The bytes of so many rows of a shard, all of its fields together."""
        shard = self._manifest.shards[number]
        return shard.size * rows // max(1, shard.num_samples)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One for each shard, more where Ray wants more."""
        manifest, total = self._manifest, max(1, self._manifest.num_samples)
        wanted = self.estimate_inmemory_data_size() / max(1, self._whole())
        tasks = []
        for number, (shard, count) in enumerate(zip(manifest.shards, manifest.counts, strict=True)):
            for start, stop in equal(0, count, -(-parallelism * count // total)) if count else ():
                rows = range(start, stop) if manifest.rows is None else manifest.rows.of(number)[start:stop]
                work = partial(_tables, self._store, self._cache, shard, rows, self._fields, self._schema)
                size = int(self._share(number, stop - start) * wanted)
                where = f"{self._store.url}/{shard_key(shard.digest)}"
                facts = BlockMetadata(num_rows=stop - start, size_bytes=size, input_files=(where,), exec_stats=None)
                tasks.append(ReadTask(work, facts, schema=self._schema, per_task_row_limit=per_task_row_limit))
        if not tasks:  # Ray knows no data set without tasks, and this one has a schema
            nothing = BlockMetadata(num_rows=0, size_bytes=0, input_files=None, exec_stats=None)
            tasks.append(ReadTask(partial(_nothing, self._schema), nothing, schema=self._schema))
        return tasks


def _names(store: Store, manifest: Manifest) -> list[str]:
    """The names of all fields, sorted."""
    if manifest.fields or not manifest.num_samples:
        return sorted(manifest.fields)
    return sorted({name for index in read_indexes(store, manifest.shards) for name in index.field_stats()})


def _tables(
    store: Store,
    cache: ShardCache,
    shard: ShardInfo,
    rows: Sequence[int],
    fields: Sequence[str] | None,
    schema: Any,
) -> Iterator[Any]:
    """These rows of a shard, about 16 MiB at a time."""
    size = max(1, _CHUNK * shard.num_samples // max(1, shard.size))
    with closing(open_shard(store, cache, shard)) as opened:
        for start in range(0, len(rows), size):
            samples = opened.reader.read_many(rows[start : start + size], fields)
            columns: list[list[Any]] = [[key for key, _ in samples]]
            columns += [[values.get(name) for _, values in samples] for name in schema.names[1:]]
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            yield pa.Table.from_arrays(arrays, schema=schema)


def _nothing(schema: Any) -> Iterator[Any]:
    yield schema.empty_table()
