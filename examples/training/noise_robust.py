"""Noise-robust: nearly half of the labels are wrong, some rows are damaged, and a model learns what is right.

    python examples/training/noise_robust.py

Data: the 1,797 handwritten digits that scikit-learn brings. 45 % of them get another label, drawn by chance, and 4 %
lose a part of their pixels. What can't be decoded is left out by `on_error="hole"`, counted and named in the loader's
`stats()`. One model learns by cross-entropy, which comes to believe every label; the other by a loss that gives up
labels that it can't fit (generalized cross-entropy, Zhang and Sabuncu 2018).

Expected: measured by the right labels of held-out scans, the robust loss is right for some 90 % and cross-entropy for
75 %; the commonest digit is for 10 %, and 55 % of the labels that were learnt from are right.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import dload

EPOCHS, BATCH = 40, 64
WRONG, DAMAGED = 0.45, 0.04

Sample = tuple[str, dict[str, bytes]]
Row = tuple[np.ndarray, int]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def scans(seed: int) -> Iterator[Sample]:
    """`label` is what is learnt from, `truth` what to be measured by; the keys of damaged ones say so."""
    digits, rng = load_digits(), random.Random(seed)
    for number, (pixels, truth) in enumerate(zip(digits.images, digits.target.tolist(), strict=True)):
        label = rng.choice([other for other in range(10) if other != truth]) if rng.random() < WRONG else truth
        data, key = pixels.astype("u1").tobytes(), f"scan-{number:04d}"
        if rng.random() < DAMAGED:
            data, key = data[: rng.randrange(64)], f"{key}-damaged"
        yield key, {"pixels": data, "label": b"%d" % label, "truth": b"%d" % truth}


def pixels_of(sample: Sample) -> np.ndarray:
    """(64,), from 0 to 1. Raises ValueError where some are missing."""
    return np.frombuffer(sample[1]["pixels"], np.uint8).reshape(8, 8).ravel() / np.float32(16)


def as_labelled(sample: Sample) -> Row:
    return pixels_of(sample), int(sample[1]["label"])


def as_it_is(sample: Sample) -> Row:
    return pixels_of(sample), int(sample[1]["truth"])


def tensors(rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(np.stack([row[0] for row in rows])), torch.tensor([row[1] for row in rows])


def robust(scores: torch.Tensor, labels: torch.Tensor, q: float = 0.7) -> torch.Tensor:
    """Generalized cross-entropy: cross-entropy where q goes to 0, and the mean absolute error where it is 1."""
    chance = scores.softmax(1).gather(1, labels[:, None])
    return ((1 - chance**q) / q).mean()


def train(pipe: dload.Pipeline, loss_of: Loss, seed: int) -> tuple[nn.Module, set[str]]:
    """The model, and the keys of the rows that were left out."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    with dload.Loader(pipe, BATCH, collate=tensors) as loader:
        for _ in range(EPOCHS):
            for pixels, labels in loader:
                loss = loss_of(model(pixels), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        stats = loader.stats()
    return model, {row["key"] for row in stats["skipped"]}


def main(seed: int = 0) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dload-example-") as folder:
        repo = dload.Repository.open(f"{folder}/store", cache_dir=f"{folder}/cache")
        repo.commit("digits", scans(seed))
        parts = repo.dataset("digits").split({"train": 0.75, "test": 0.25}, seed=seed)
        train_on = parts["train"].samples().shuffle(seed=seed).map(as_labelled, on_error="hole")
        models = {}
        for name, loss_of in (("robust", robust), ("plain", nn.functional.cross_entropy)):
            models[name], left_out = train(train_on, loss_of, seed)
            damaged = {key for key, _ in parts["train"] if key.endswith("damaged")}
            assert left_out <= damaged and len(left_out) > len(damaged) / 2  # stats() lists the first of them

        pixels, truth = tensors(list(parts["test"].samples().map(as_it_is, on_error="skip")))
        with torch.no_grad():
            right = {name: (model(pixels).argmax(1) == truth).float().mean().item() for name, model in models.items()}
        majority = truth.bincount().max().item() / len(truth)
        print(f"{len(damaged)} damaged scans left out, {WRONG:.0%} of the labels wrong")
        print(f"{len(truth)} held out: robust {right['robust']:.3f}, plain {right['plain']:.3f}, ", end="")
        print(f"the commonest digit {majority:.3f}")
        assert right["robust"] > 0.75 > 1 - WRONG > 4 * majority
        assert right["robust"] > right["plain"] + 0.05


if __name__ == "__main__":
    main()
