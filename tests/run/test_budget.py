"""What a plan says is needed is enough, and a byte less is refused before anything is done."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dload
from dload.api.pipeline import Pipeline
from dload.cache import ShardCache
from dload.cache.inventory import scan
from dload.errors import InfeasiblePipelineError
from dload.manifest import Manifest
from dload.pack import Sample
from dload.pipeline.sources import Samples
from dload.store.faulty import Faulty
from dload.store.memory import MemoryStore
from dload.testing.shards import made_samples, manifest_of, put_shard

OWN = 76  # bytes of a cache's own files

STORE = Faulty(MemoryStore())
SHARDS = [put_shard(STORE, made_samples(number, 1 + 7 * number % 12, size=200)) for number in range(24)]

# A recipe is a source (its shards, and in which of two caches), or an operation over recipes.
Recipe = tuple[Any, ...]
sources = st.tuples(
    st.just("samples"),
    st.lists(st.integers(0, len(SHARDS) - 1), min_size=1, max_size=10).map(tuple),
    st.integers(0, 1),
    st.integers(0, 4),
)


def above(below: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
    sized = st.tuples(st.sampled_from(["shuffle", "batch", "window", "take", "skip"]), st.integers(1, 30), below)
    plain = st.tuples(st.sampled_from(["full", "filter", "holes", "repeat"]), below)
    several = st.tuples(st.sampled_from(["concat", "zip", "mix"]), st.lists(below, min_size=2, max_size=3).map(tuple))
    return sized | plain | several


recipes = st.recursive(sources, above, max_leaves=4)


def kept(item: Any) -> bool:
    return len(repr(item)) % 3 != 0


SIZED: dict[str, Callable[[Pipeline, int], Pipeline]] = {
    "shuffle": lambda pipe, n: pipe.shuffle(n, seed=n),
    "batch": Pipeline.batch,
    "window": lambda pipe, n: pipe.window(n, 2),
    "take": Pipeline.take,
    "skip": Pipeline.skip,
}
PLAIN: dict[str, Callable[[Pipeline], Pipeline]] = {
    "full": lambda pipe: pipe.shuffle(full=True, seed=1) if pipe.node.indexed else pipe.shuffle(5, seed=1),
    "filter": lambda pipe: pipe.filter(kept),
    "holes": lambda pipe: pipe.filter(kept, holes=True),
    "repeat": lambda pipe: pipe.repeat(2),
}
SEVERAL: dict[str, Callable[[Sequence[Pipeline]], Pipeline]] = {
    "concat": dload.concat,
    "zip": lambda pipes: dload.zip(*pipes),
    "mix": lambda pipes: dload.mix(pipes, seed=3, until="all"),
}


def build(recipe: Recipe, caches: Sequence[ShardCache]) -> Pipeline:
    what = recipe[0]
    if what == "samples":
        _, numbers, cache, prefetch = recipe
        manifest: Manifest = manifest_of([SHARDS[number] for number in numbers], f"data{len(numbers)}")
        return Pipeline(Samples(manifest, SimpleNamespace(store=STORE, cache=caches[cache]), None, prefetch))
    if what in SIZED:
        return SIZED[what](build(recipe[2], caches), recipe[1])
    if what in PLAIN:
        return PLAIN[what](build(recipe[1], caches))
    return SEVERAL[what]([build(below, caches) for below in recipe[1]])


class Watched:
    """Caches with these budgets, looked at all the while."""

    def __init__(self, folder: Path, budgets: Sequence[int | None]) -> None:
        self.caches = [ShardCache(folder / str(number), budget, patience=5) for number, budget in enumerate(budgets)]
        self._over: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._stop.is_set():
            for cache in self.caches:
                with cache._room.lock():
                    used = sum(entry.size for entry in scan(cache.root))
                if cache.budget is not None and used > cache.budget:
                    self._over.append(f"{used} bytes of {cache.budget}")

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._over == []


def fetching_is_over() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("dload-fetch"):
            thread.join(30)
            assert not thread.is_alive()


def needed(pipe: Pipeline, caches: Sequence[ShardCache]) -> list[int]:
    """Bytes in each cache, by the plan."""
    message = pipe.check().message
    found = [
        re.search(rf"\((\d+) bytes\) must be in the cache {re.escape(str(cache.root))} ", message) for cache in caches
    ]
    return [int(match[1]) if match else 0 for match in found]


@given(recipes)
@settings(max_examples=40, deadline=None)
def test_an_epoch_runs_through_with_what_the_plan_says_and_not_with_less(recipe: Recipe) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        unlimited = [ShardCache(folder / "unlimited" / str(number)) for number in range(2)]
        free = build(recipe, unlimited)
        least = needed(free, unlimited)
        assert free.check().needed == sum(least)
        expected = [list(free.iter(epoch=epoch)) for epoch in range(2)]
        with Watched(folder / "enough", [size + OWN for size in least]) as watched:
            pipe = build(recipe, watched.caches)
            assert pipe.check().ok
            assert [list(pipe.iter(epoch=epoch)) for epoch in range(2)] == expected
        for number, size in enumerate(least):
            if size:
                less = [other + OWN - (number == at) for at, other in enumerate(least)]
                tight = build(recipe, [ShardCache(folder / f"tight{at}", budget) for at, budget in enumerate(less)])
                fetching_is_over()  # what the run above fetched ahead and didn't need may still be on its way
                STORE.calls.clear()
                with pytest.raises(InfeasiblePipelineError, match=f"at least {size + OWN} bytes"):
                    tight.iter()
                assert STORE.calls == []


def test_the_samples_are_those_of_the_shards() -> None:
    """What the runs above are compared with is right."""
    with TemporaryDirectory() as name:
        numbers = (3, 1, 4, 1, 5)
        pipe = build(("samples", numbers, 0, 4), [ShardCache(Path(name))])
        expected: list[Sample] = [
            it for number in numbers for it in made_samples(number, 1 + 7 * number % 12, size=200)
        ]
        assert list(pipe) == expected
