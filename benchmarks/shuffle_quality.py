"""How well shuffles mix: the order of an epoch against a uniform permutation.

    python benchmarks/shuffle_quality.py [--quick]

A made-up data set of 200 shards with 1,000 samples each (--quick: 20 shards), whose samples are their places in
storage. For each order, medians over epochs:

- displacement: how far a sample is from its place in storage, on average, as a share of the data set (uniform: 1/3)
- correlation: of places in the order and in storage (Spearman's rank correlation), the largest absolute value of all
  epochs (uniform: about 0)
- same shard: how often two samples in a row are of one shard (uniform: 1 / shards)
- shards in 256: how many shards the samples of a batch of 256 come from
- again: of the pairs of samples that are in one batch of 256, how many are in one batch in the next epoch, too, as a
  multiple of what chance gives (uniform: 1)
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from itertools import pairwise
from statistics import median

from dload.api.pipeline import Pipeline
from dload.pipeline.node import Run, paths_of
from dload.testing.pipelines import Ordinals, made_source

ROWS = 1000
BATCH = 256


def of_dload(shards: int, shuffled: Callable[[Pipeline], Pipeline]) -> Callable[[int], list[int]]:
    top = shuffled(Pipeline(made_source([ROWS] * shards))).node
    run = Run(1, Ordinals(), paths=paths_of(top))

    def order(epoch: int) -> list[int]:
        cursor = top.cursor(run, (epoch,))
        cursor.reset(None)
        return list(cursor)

    return order


def uniform(shards: int) -> Callable[[int], list[int]]:
    def order(epoch: int) -> list[int]:
        places = list(range(shards * ROWS))
        random.Random(epoch).shuffle(places)
        return places

    return order


def quality(orders: list[list[int]]) -> dict[str, float]:
    count = len(orders[0])
    whole = count - count % BATCH
    found: dict[str, list[float]] = {}
    for order in orders:
        assert sorted(order) == list(range(count))
        distances = [abs(place - at) for at, place in enumerate(order)]
        squares = sum(distance * distance for distance in distances)
        batches = [order[at : at + BATCH] for at in range(0, whole, BATCH)]
        for name, value in (
            ("displacement", sum(distances) / count / count),
            ("correlation", abs(1 - 6 * squares / (count * (count * count - 1)))),
            ("same shard", sum(a // ROWS == b // ROWS for a, b in pairwise(order)) / (count - 1)),
            ("shards in 256", sum(len({place // ROWS for place in batch}) for batch in batches) / len(batches)),
        ):
            found.setdefault(name, []).append(value)
    figures = {name: max(values) if name == "correlation" else median(values) for name, values in found.items()}
    return {**figures, "again": median(met_again(a, b) for a, b in pairwise(orders))}


def met_again(one: list[int], other: list[int]) -> float:
    """Pairs that share a batch in both orders, against what chance gives."""
    batch_of = {place: at // BATCH for at, place in enumerate(other)}
    pairs = same = 0
    for at in range(0, len(one) - BATCH + 1, BATCH):
        met: dict[int, int] = {}
        for place in one[at : at + BATCH]:
            met[batch_of[place]] = met.get(batch_of[place], 0) + 1
        pairs += BATCH * (BATCH - 1) // 2
        same += sum(count * (count - 1) // 2 for count in met.values())
    return same / pairs * (len(one) - 1) / (BATCH - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the shards")
    shards, epochs = (20, 3) if parser.parse_args().quick else (200, 5)
    orders: dict[str, Callable[[int], list[int]]] = {
        "in order": of_dload(shards, lambda samples: samples),
        "shuffle(1)": of_dload(shards, lambda samples: samples.shuffle(1)),
        "shuffle(256)": of_dload(shards, lambda samples: samples.shuffle(256)),
        "shuffle(4096)": of_dload(shards, lambda samples: samples.shuffle(4096)),
        "shuffle(16384)": of_dload(shards, lambda samples: samples.shuffle(16_384)),
        "shuffle(65536)": of_dload(shards, lambda samples: samples.shuffle(65_536)),
        "full=True": of_dload(shards, lambda samples: samples.shuffle(full=True)),
        "uniform": uniform(shards),
    }
    print(f"{shards} shards of {ROWS} samples, {epochs} epochs")
    for number, (name, order) in enumerate(orders.items()):
        figures = quality([order(epoch) for epoch in range(epochs)])
        if not number:
            print(f"{'':16}" + "".join(f"{title:>15}" for title in figures))
        print(f"{name:16}" + "".join(f"{value:15.3f}" for value in figures.values()))


if __name__ == "__main__":
    main()
