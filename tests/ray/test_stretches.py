"""Which pipelines can be computed in pieces, and the pieces."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dload
from dload.api import Pipeline
from dload.errors import ConfigError
from dload.pipeline.node import Run, paths_of
from dload.ray.stretches import equal, parallel, stretches
from dload.run.iterate import iterate
from dload.run.window import ShardWindow


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 50), max_size=12), st.integers(1, 60))
def test_stretches_are_small_enough_and_cover_all_once(units: list[int], size: int) -> None:
    found = list(stretches(units, size))
    assert [place for start, stop in found for place in range(start, stop)] == list(range(sum(units)))
    assert all(0 < stop - start <= size for start, stop in found)
    borders = {sum(units[:count]) for count in range(len(units) + 1)}
    for (start, middle), (_, stop) in pairwise(found):
        if middle in borders and start in borders and stop in borders:
            assert stop - start > size, "two that would have fitted together"


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 40))
def test_equal_parts(start: int, length: int, count: int) -> None:
    found = list(equal(start, start + length, count))
    assert [place for first, last in found for place in range(first, last)] == list(range(start, start + length))
    assert len(found) == max(1, min(count, length))
    assert max(b - a for a, b in found) - min(b - a for a, b in found) <= 1


def odd(number: int) -> bool:
    return number % 2 == 1


def times(number: int) -> list[int]:
    return [number] * (number % 4)


def drawn(number: int, rng: Any) -> tuple[int, float]:
    return number, rng.random()


def added(state: int, number: int) -> int:
    return state + number


def picky(number: int) -> int:
    if number % 5 == 0:
        raise ValueError(number)
    return number


def numbers() -> Pipeline:
    return dload.from_iterable(list(range(3000))).shuffle(100, seed=1)


PIPES = [
    numbers(),
    numbers().map(drawn, rng=True, rng_seed=2),
    numbers().filter(odd).map(drawn, rng=True),
    numbers().flat_map(times).filter(odd).map(drawn, rng=True, rng_seed=2),
    numbers().filter(odd, holes=True).enumerate().maybe(str, 0.5, seed=3),
    numbers().map(picky, on_error="skip").map_batches(list, 7).tap(str).prefetch(2),
    numbers().filter(odd).maybe(str, 0.5),
    dload.mix([numbers(), numbers().take(50)], [2, 1], seed=4).batch(3).unbatch().filter(odd),
]


@pytest.mark.parametrize("pipe", PIPES, ids=repr)
def test_pieces_together_are_the_whole(pipe: Pipeline) -> None:
    plan = parallel(pipe.node)
    assert plan.base.length is not None
    found = []
    for start, stop in stretches(plan.base.units(), 777):
        top, window = plan.stretch(start, stop), ShardWindow(0)
        with iterate(top, Run(9, window, paths=paths_of(top)), window, 0) as items:
            found += list(items)
    assert found == list(pipe.iter(epoch=0, seed=9))


@pytest.mark.parametrize(
    ("pipe", "kind", "why"),
    [
        (numbers().scan(added, 0), "scan", "made of the one before"),
        (numbers().through(iter), "through", "the whole stream"),
        (numbers().filter(odd).enumerate(), "enumerate", "how many elements the nodes below it leave"),
        (numbers().filter(odd).take(3), "take", "where it ends"),
        (numbers().filter(odd).skip(3).map(str), "skip", "where it begins"),
        (numbers().filter(odd).shuffle(5, seed=1), "shuffle", "a window"),
        (numbers().filter(odd).batch(2), "window", "come together"),
        (numbers().filter(odd).repeat(2), "repeat", "no places of their own"),
        (dload.concat([numbers(), numbers().filter(odd)]).map(str), "concat", "no places of their own"),
        (dload.zip(numbers().filter(odd), numbers()), "zip", "no places of their own"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_parallel_is_refused_by_name(pipe: Pipeline, kind: str, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        parallel(pipe.node)
    assert f"{kind} can't be computed piece by piece: " in str(error.value)
    assert why in str(error.value)
    assert "filter(holes=True)" in str(error.value.remedy) and f"below the {kind}" in str(error.value.remedy)


def test_without_ray_it_is_said_what_is_missing(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["ray"] = None
import dload
repo = dload.Repository.open({str(tmp_path / "store")!r}, cache_dir={str(tmp_path / "cache")!r})
repo.commit("in", [("a", {{"x": b"1"}})])
try:
    repo.derive("out", repo.dataset("in").samples(), engine="ray")
except dload.ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "the engine 'ray' needs the package ray — pip install 'dload-ml[ray]'", done.stderr
