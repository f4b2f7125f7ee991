"""Two data sets mixed by a schedule, and augmented: exact shares, and draws that hang on nothing but the sample.

    pip install dload-ml numpy scikit-learn
    python examples/mixture.py

Digits of scikit-learn, those up to 4 as one data set, the rest as another. The mix begins with the first, a curriculum,
and ends half and half. Each image is moved about and gets noise; how much is the same on any rank, in any worker and
after a resume, and another in each epoch.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import dload
from dload.codecs import npy_bytes, npy_from

SCHEDULE = [(0, [0.9, 0.1]), (400, [0.7, 0.3]), (800, [0.5, 0.5])]  # from which element on, and how much of each
Element = tuple[str, np.ndarray]


def digits(wanted: range) -> Iterator[tuple[str, dict[str, bytes]]]:
    data = load_digits()
    for number, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        if label in wanted:
            yield f"{label}-{number:04d}", {"npy": npy_bytes(image.astype(np.float32) / 16)}


def decode(sample: tuple[str, dict[str, bytes]]) -> Element:
    key, fields = sample
    return key, npy_from(fields["npy"])


def move(element: Element, rng: random.Random) -> Element:
    """A pixel this way or that, and some noise. `rng` is this sample's, in this epoch."""
    key, image = element
    image = np.roll(image, (rng.randrange(-1, 2), rng.randrange(-1, 2)), axis=(0, 1))
    noise = np.random.default_rng(rng.getrandbits(64)).normal(0, 0.05, image.shape)
    return key, (image + noise).astype(np.float32)


def invert(element: Element) -> Element:
    key, image = element
    return f"{key} inverted", 1 - image


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name:
        folder = Path(name)
        repo = dload.Repository.open(folder / "store", cache_dir=folder / "cache", cache_budget="100MB")
        repo.commit("low", digits(range(5)))
        repo.commit("high", digits(range(5, 10)))

        # Each is shuffled by itself and goes round for ever; what is made of the mix has an end.
        sources = [repo.dataset(each).samples().shuffle(seed=1).repeat() for each in ("low", "high")]
        mixed = dload.mix(sources, SCHEDULE, seed=0).take(1200)
        pipe = mixed.map(decode).map(move, rng=True, rng_seed=2).maybe(invert, 0.2, seed=3)
        first = list(pipe.iter(epoch=0))

        # The shares are exact to a few elements, in any stretch and not by chance.
        for begin, (low, _) in SCHEDULE:
            part = [key for key, _ in first[begin : begin + 400]]
            count = sum(key[0] in "01234" for key in part)
            print(f"elements {begin} to {begin + 400}: {count} low digits for a share of {low}")
            assert abs(count - 400 * low) <= 4
        inverted = sum(key.endswith("inverted") for key, _ in first)
        print(f"{inverted} of 1200 are inverted")
        assert 180 < inverted < 300

        # Another epoch, other draws; the same epoch, the same ones.
        again, second = list(pipe.iter(epoch=0)), list(pipe.iter(epoch=1))
        assert same(first, again) and not same(first, second)

        # Resumed in the middle: the state is a few hundred bytes of JSON.
        with pipe.iter(epoch=0) as iterator:
            begun = list(islice(iterator, 777))
            state = json.dumps(iterator.get_state())
        assert same(first, begun + list(pipe.iter(state=json.loads(state))))
        print(f"resumed from {len(state)} bytes: the same elements, draws and all")

        # Dealt to three ranks: put together step by step they are the same stream.
        ranks = [dload.Loader(pipe, 24, rank=rank, world_size=3) for rank in range(3)]
        together = [row for parts in zip(*ranks, strict=True) for part in parts for row in part]
        assert same(first, together)
        print("on three ranks: the same elements, draws and all")


def same(some: list[Element], others: list[Element]) -> bool:
    return len(some) == len(others) and all(
        key == other and np.array_equal(image, image2)
        for (key, image), (other, image2) in zip(some, others, strict=True)
    )


if __name__ == "__main__":
    main()
