"""Deriving on the cluster: a pipeline's output is computed in stretches, and becomes shards there."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import ray

from dload.api.pipeline import Pipeline, run_seed
from dload.api.repository import Repository
from dload.errors import InfeasiblePipelineError
from dload.manifest import Packing
from dload.pack import Sample
from dload.pipeline.node import Run, paths_of
from dload.ray import shards
from dload.ray.cluster import cpus
from dload.ray.stretches import Parallel, parallel, stretches
from dload.repo.packing import Part
from dload.run.iterate import iterate
from dload.run.window import ShardWindow

STRETCH_BYTES = 128 << 20  # of samples that a stretch is made of, at most: a shard as it is by default
_LEAST = 4  # stretches for each processor


class Engine:
    """What `repo.derive(..., engine=)` takes; "ray" stands for it.

    Each task computes a stretch of the pipeline, through the cache of its node, and leaves its samples in the object
    store. Where shards end is decided where `derive` runs, and tasks pack and send them. The version is that of the
    serial derivation, on any number of workers, also where some of them die.

    Parallel is what has places, and above that map, filter, flat_map and all else that looks at one element alone;
    another node is refused. `fail_after` counts in each stretch by itself.
    """

    def parts(self, repo: Repository, name: str, pipe: Pipeline, packing: Packing) -> Iterator[Part]:
        """Epoch 0 of `pipe` as parts of data set `name`, cut as `packing` says, in the store of `repo`; what `derive`
        asks for. Raises ConfigError for what isn't parallel, InfeasiblePipelineError, and what the pipeline's functions
        raise."""
        plan = parallel(pipe.node)
        report = pipe.check()
        if not report.ok:
            raise InfeasiblePipelineError(report.message)
        blocks = _blocks(plan, run_seed(pipe), report.prefetch)
        yield from shards.parts(repo.store, name, packing, blocks, lambda: 2 * cpus(), shards.Listed())


def _blocks(plan: Parallel, seed: int, ahead: int) -> Generator[shards.Block, None, None]:
    """Begins a stretch each time that one is asked for."""
    base = plan.base
    assert base.length is not None
    size = max(1, min(int(STRETCH_BYTES / max(1.0, base.mean_bytes)), -(-base.length // (_LEAST * cpus()))))
    there = ray.put((plan, seed, ahead))
    for start, stop in stretches(base.units(), size):
        block, measure = _computing.remote(there, start, stop)
        yield shards.Block(block, measure)


def _computed(work: tuple[Parallel, int, int], start: int, stop: int) -> tuple[list[Sample], Any]:
    plan, seed, ahead = work
    top = plan.stretch(start, stop)
    window = ShardWindow(ahead)
    with iterate(top, Run(seed, window, paths=paths_of(top)), window, 0) as items:
        samples = shards.valid(items, f" of those made of places {start} to {stop - 1}")
    return samples, shards.measure(samples, {})


_computing = ray.remote(num_returns=2)(_computed)
