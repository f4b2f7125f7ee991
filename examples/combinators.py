"""The combinators, one after another, over the 150 flowers of the iris table; each is stopped and resumed in between.

    pip install dload-ml scikit-learn
    python examples/combinators.py

A pipeline is a description. Some have places: a length, and each element can be had by itself. Others, whose elements
hang on those before, are streams. Both resume exactly, from a state that is a few hundred bytes of JSON.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from sklearn.datasets import load_iris

import dload
from dload.codecs import json_bytes, json_from

Flower = tuple[str, list[float]]  # the kind; length and width of sepal and petal


def samples() -> Iterator[tuple[str, dict[str, bytes]]]:
    iris = load_iris()
    for number, (sizes, kind) in enumerate(zip(iris.data.tolist(), iris.target, strict=True)):
        yield f"{number:03d}", {"json": json_bytes(sizes), "kind": str(iris.target_names[kind]).encode()}


def decode(sample: tuple[str, dict[str, bytes]]) -> Flower:
    _, fields = sample
    return fields["kind"].decode(), json_from(fields["json"])


def petal(flower: Flower) -> float:
    return flower[1][2]


def show(name: str, pipe: dload.Pipeline) -> list[Any]:
    """All elements of its first epoch; looks that they are the same when it is left after a third, and resumed."""
    whole = list(pipe.iter(epoch=0))
    with pipe.iter(epoch=0) as iterator:
        begun = list(islice(iterator, len(whole) // 3))
        state = json.loads(json.dumps(iterator.get_state()))
    assert begun + list(pipe.iter(state=state)) == whole
    try:
        what = f"{len(pipe)} places"
    except TypeError:
        what = "a stream"
    print(f"{name:<34} {what:<12} {str(whole[0])[:70]}")
    return whole


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name:
        folder = Path(name)
        repo = dload.Repository.open(folder / "store", cache_dir=folder / "cache", cache_budget="100MB")
        repo.commit("iris", samples(), target_shard_size=2_000)
        flowers = repo.dataset("iris").samples().map(decode)
        petals = flowers.map(petal)
        lengths = show("map", petals)
        one_by_one(flowers, petals, lengths)
        in_groups(petals, lengths)
        in_orders(petals, lengths)
        of_several(flowers, petals, lengths)


def one_by_one(flowers: dload.Pipeline, petals: dload.Pipeline, lengths: list[float]) -> None:
    assert show("star_map", flowers.star_map(lambda kind, sizes: f"{kind} {sizes[0]}"))[0] == "setosa 5.1"
    assert show("map_batches", petals.map_batches(lambda some: [round(each) for each in some], 32))[0] == 1
    assert show("enumerate", petals.enumerate())[7] == (7, lengths[7])
    noisy = show("map with draws", petals.map(lambda cm, rng: cm + rng.gauss(0, 0.1), rng=True, rng_seed=0))
    assert noisy != lengths
    halved = show("maybe", petals.maybe(lambda cm: cm / 2, 0.5, seed=0))
    assert 50 < sum(a != b for a, b in zip(halved, lengths, strict=True)) < 100

    seen: list[float] = []
    show("tap", petals.tap(seen.append))
    assert seen[:150] == lengths

    # What leaves out or adds has no places; with holes, or a fixed number of each, it does.
    large = [cm for cm in lengths if cm > 5]
    assert show("filter", petals.filter(lambda cm: cm > 5)) == large
    kept = show("filter with holes", petals.filter(lambda cm: cm > 5, holes=True))
    assert [cm for cm in kept if cm in large] == large
    assert len(show("flat_map", petals.flat_map(lambda cm: [cm] * round(cm)))) == sum(map(round, lengths))
    assert len(show("flat_map with a fanout", petals.flat_map(lambda cm: (cm, -cm), fanout=2))) == 300


def in_groups(petals: dload.Pipeline, lengths: list[float]) -> None:
    assert show("batch", petals.batch(32))[-1] == lengths[128:]
    assert show("batch, whole ones", petals.batch(32, drop_last=True))[-1] == lengths[96:128]
    assert show("batch with a collate", petals.batch(50, collate=sum))[0] == sum(lengths[:50])
    assert show("batch and unbatch", petals.batch(32).unbatch()) == lengths
    assert show("window", petals.window(10, stride=5))[1] == lengths[5:15]
    assert show("scan", petals.scan(max, 0.0))[-1] == max(lengths)
    assert show("through", petals.through(Differences))[1] == lengths[1] - lengths[0]


class Differences:
    """How much each value is more than the one before; with a state, so that a resumed run needn't begin anew."""

    def __init__(self, values: Iterator[float]) -> None:
        self.values, self.before = values, 0.0

    def __iter__(self) -> Differences:
        return self

    def __next__(self) -> float:
        before, self.before = self.before, next(self.values)
        return self.before - before

    def get_state(self) -> float:
        return self.before

    def set_state(self, state: float) -> None:
        self.before = state


def in_orders(petals: dload.Pipeline, lengths: list[float]) -> None:
    mixed_up = show("shuffle", petals.shuffle(50, seed=0))
    assert mixed_up != lengths and sorted(mixed_up) == sorted(lengths)
    assert sorted(show("shuffle all alike", petals.shuffle(full=True, seed=0))) == sorted(lengths)
    assert show("skip and take", petals.skip(10).take(5)) == lengths[10:15]
    twice = show("repeat", petals.shuffle(seed=0).repeat(2))
    assert twice[:150] != twice[150:]  # each pass is an epoch of its own
    assert show("concat", dload.concat([petals, petals.take(5)])) == lengths + lengths[:5]


def of_several(flowers: dload.Pipeline, petals: dload.Pipeline, lengths: list[float]) -> None:
    small, large = petals.filter(lambda cm: cm < 2), petals.filter(lambda cm: cm > 5)
    assert show("zip", dload.zip(petals, petals.skip(1)))[0] == (lengths[0], lengths[1])
    ratios = show("zip_with", petals.zip_with(lambda cm, flower: cm / flower[1][3], flowers))
    assert ratios[0] == lengths[0] / 0.2
    mixed = show("mix", dload.mix([petals.skip(100), petals.take(50)], [2, 1], seed=0))
    assert abs(sum(cm > 2 for cm in mixed[:60]) - 40) <= 2
    chosen = show("choice", dload.choice([small, large], 0.5, seed=0))
    assert 5 < sum(cm < 2 for cm in chosen[:40]) < 35

    turns = dload.from_iterable([0, 0, 1] * 10)
    assert [cm < 2 for cm in show("select", dload.select(turns, small, large))] == [True, True, False] * 10
    drawn = dload.zip(petals, dload.random_stream(seed=0))
    assert all(0 <= draw < 1 for _, draw in show("random_stream", drawn))


if __name__ == "__main__":
    main()
