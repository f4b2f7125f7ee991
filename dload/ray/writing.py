"""A Ray data set as a version."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import ray.data

from dload.api.progress import Progress
from dload.api.repository import Repository
from dload.errors import ConfigError
from dload.importers.columns import META, Column, columns_meta
from dload.manifest import Manifest
from dload.ray import shards
from dload.ray.cluster import cpus
from dload.ray.table import Table, unite
from dload.repo.commit import CommitOptions, packing_for
from dload.repo.history import History
from dload.repo.packing import Part


def write(
    dataset: ray.data.Dataset,
    repo: Repository,
    name: str,
    *,
    key: str | None = None,
    columns: Sequence[str] = (),
    meta: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    target_shard_size: int | None = None,
    progress: Progress | None = None,
    message: str | None = None,
    boundaries: str | None = None,
    codecs: Mapping[str, str] | None = None,
    expect: str | None = None,
) -> Manifest:
    """Make `dataset`, of Ray, the latest version of data set `name` of `repo`: each row a sample, in its order.

    Workers pack the blocks into shards and send them as the data set is executed, which is streamed: it need not fit
    into the cluster's memory. Then one manifest is written, and `latest` swapped; until then nothing is visible. The
    version is that of `repo.commit` of the same samples, on any number of workers, also where some of them die.

    `key`: the column with the keys, text or integers (None: `__key__` where there is one, else the row's number);
    `columns`: only these become fields (none given: all but `__key__`). What a column becomes is what it becomes in an
    import, a tensor is npy, and null is no field; where not all are bytes, meta gets the entry `columns`, as by
    `dload import`. The rest is as in `Repository.commit`.

    Raises ConfigError for a column that has no bytes or has several types, and as `Repository.commit`; what fails in
    the data set's own functions is raised as Ray raises it.
    """
    if not isinstance(dataset, ray.data.Dataset):
        raise ConfigError(
            f"write needs a ray.data.Dataset, got {type(dataset).__name__}",
            remedy="a pipeline of dload is run on Ray by repo.derive(name, pipe, engine='ray')",
        )
    options = CommitOptions(target=target_shard_size, boundaries=boundaries, codecs=codecs)
    packing = packing_for(History(repo.store, repo.cache), name, options)
    described: dict[str, Any] = {}
    found: dict[str, Column] = {}

    def parts() -> Iterator[Part]:
        form = Table(key, columns)
        blocks = _blocks(dataset, form)
        yield from shards.parts(
            repo.store, name, packing, blocks, cpus, form, lambda measure: unite(found, measure.columns)
        )
        if any(column.codec != "bytes" for column in found.values()):
            described[META] = columns_meta(found)
        described.update(meta or {})  # it is read when all parts are there

    return repo.commit_shards(
        name, parts(), meta=described, recipe=recipe, target_shard_size=packing.target, progress=progress,
        message=message, boundaries=packing.boundaries, codecs=packing.codecs, expect=expect,
    )  # fmt: skip


def _blocks(dataset: ray.data.Dataset, form: Table) -> Generator[shards.Block, None, None]:
    """The blocks as they come, in their order, and the tasks that measure them."""
    own = ray.data.Dataset.copy(dataset, _deep_copy=True)  # the caller's goes on having the order that he chose
    own.context.execution_options.preserve_order = True
    there, number = ray.put(form), 0
    for bundle in own.iter_internal_ref_bundles():
        slices = bundle.slices or [None] * len(bundle.block_refs)
        for ref, facts, part in zip(bundle.block_refs, bundle.metadata, slices, strict=True):
            start, stop = (0, facts.num_rows) if part is None else (part.start_offset, part.end_offset)
            if start < stop:
                yield shards.Block(ref, shards.measured.remote(there, ref, start, stop, number), start, number)
            number += stop - start
