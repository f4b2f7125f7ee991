"""Tabular: logistic regression in JAX on rows that were imported from a CSV file.

    python examples/training/tabular.py

Data: the 569 tumours of the Wisconsin breast cancer set, with 30 measurements each, which scikit-learn brings as a CSV
file. `dload import` reads such a file as it is, here by its Python name; a row of it is a sample, a column a field. A
quarter of the rows is held out by key. `dload.jax.Loader` gives this process's part of each step as NumPy arrays.

Expected: about 97 % of the held-out tumours are told right, where the commoner kind is right for 63 %.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import sklearn.datasets

import dload
from dload.jax import Loader

EPOCHS, BATCH = 30, 64

Weights = dict[str, jax.Array]
Row = dict[str, np.ndarray]


def table(folder: Path) -> Path:
    """The file of scikit-learn under names for its columns, which its first line doesn't have."""
    raw = Path(sklearn.datasets.__file__).parent / "data" / "breast_cancer.csv"
    names = sklearn.datasets.load_breast_cancer().feature_names
    with raw.open(newline="") as source, (folder / "tumours.csv").open("w", newline="") as target:
        rows = csv.writer(target)
        rows.writerow([*names, "benign"])
        rows.writerows(list(csv.reader(source))[1:])
    return folder / "tumours.csv"


def numbers(sample: tuple[str, dict[str, bytes]]) -> Row:
    _key, fields = sample
    measured = [float(value) for name, value in sorted(fields.items()) if name != "benign"]
    return {"x": np.array(measured, np.float32), "y": np.float32(fields["benign"])}


def chances(weights: Weights, x: jax.Array) -> jax.Array:
    """How likely each tumour is benign, as log odds."""
    return (x - weights["mean"]) / weights["spread"] @ weights["slope"] + weights["offset"]


def loss(slopes: Weights, fixed: Weights, x: jax.Array, y: jax.Array) -> jax.Array:
    odds = chances(slopes | fixed, x)
    return jnp.mean(jnp.logaddexp(0, odds) - y * odds)


@jax.jit
def step(slopes: Weights, fixed: Weights, x: jax.Array, y: jax.Array) -> Weights:
    gradient = jax.grad(loss)(slopes, fixed, x, y)
    return jax.tree.map(lambda weight, slope: weight - 0.3 * slope, slopes, gradient)


def main(seed: int = 0) -> None:
    with tempfile.TemporaryDirectory(prefix="dload-example-") as folder:
        repo = dload.Repository.open(f"{folder}/store", cache_dir=f"{folder}/cache")
        repo.commit("tumours", dload.importers.open_source(str(table(Path(folder)))))
        parts = repo.dataset("tumours").split({"train": 0.75, "test": 0.25}, seed=seed)
        train = parts["train"].samples().map(numbers)

        seen = np.stack([row["x"] for row in train])
        fixed = {"mean": jnp.array(seen.mean(axis=0)), "spread": jnp.array(seen.std(axis=0))}
        slopes = {"slope": jnp.zeros(seen.shape[1]), "offset": jnp.zeros(())}
        with Loader(train.shuffle(seed=seed), BATCH) as loader:
            for _ in range(EPOCHS):
                for batch in loader:
                    slopes = step(slopes, fixed, batch["x"], batch["y"])

        test = list(parts["test"].samples().map(numbers))
        benign = np.array([row["y"] for row in test]) > 0.5
        told = np.asarray(chances(slopes | fixed, jnp.array([row["x"] for row in test]))) > 0
        accuracy, majority = (told == benign).mean(), max(benign.mean(), 1 - benign.mean())
        print(f"{len(test)} tumours held out: {accuracy:.3f} right; the commoner kind: {majority:.3f}")
        assert accuracy > 0.9 > majority + 0.1


if __name__ == "__main__":
    main()
