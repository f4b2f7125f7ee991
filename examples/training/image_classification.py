"""Images: a small convolutional network learns handwritten digits, its batches built by worker processes.

    python examples/training/image_classification.py

Data: the 1,797 scans of 8 × 8 pixels that scikit-learn brings, committed as PNG files with their labels. A fifth of
each digit's scans is held out by `split(stratify=...)`. Two worker processes decode the rest and shift each scan by up
to a pixel, every epoch another way, by `map(rng=True)`.

Expected: about 97 % of the held-out scans are read right, where always saying the commonest digit is right for 10 %.
"""

from __future__ import annotations

import io
import random
import tempfile
from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import dload
from dload.torch import StreamLoader

EPOCHS, BATCH = 12, 64

Sample = tuple[str, dict[str, bytes]]
Row = tuple[np.ndarray, int]


def scans() -> Iterator[Sample]:
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        png = io.BytesIO()
        Image.fromarray((pixels * 15).astype("uint8")).save(png, "PNG")
        yield f"scan-{number:04d}", {"png": png.getvalue(), "label": b"%d" % label}


def decode(sample: Sample) -> Row:
    _key, fields = sample
    pixels = np.asarray(Image.open(io.BytesIO(fields["png"])), np.float32)
    return pixels[None] / 255, int(fields["label"])


def shifted(row: Row, rng: random.Random) -> Row:
    pixels, label = row
    return np.roll(pixels, (rng.randint(-1, 1), rng.randint(-1, 1)), axis=(1, 2)), label


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip


def main(seed: int = 0) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dload-example-") as folder:
        repo = dload.Repository.open(f"{folder}/store", cache_dir=f"{folder}/cache")
        repo.commit("digits", scans())
        parts = repo.dataset("digits").split({"train": 0.8, "test": 0.2}, seed=seed, stratify="label")
        train = parts["train"].samples().shuffle(seed=seed).map(decode).map(shifted, rng=True)

        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        with StreamLoader(train, BATCH, num_workers=2, persistent_workers=True) as loader:
            for _ in range(EPOCHS):
                for pixels, labels in loader:
                    loss = nn.functional.cross_entropy(model(pixels), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

        test = list(parts["test"].samples().map(decode))
        pixels, labels = torch.from_numpy(np.stack([row[0] for row in test])), torch.tensor([row[1] for row in test])
        with torch.no_grad():
            accuracy = (model(pixels).argmax(1) == labels).float().mean().item()
        majority = Counter(labels.tolist()).most_common(1)[0][1] / len(test)
        print(f"{len(test)} scans held out: {accuracy:.3f} right; the commonest digit: {majority:.3f}")
        assert accuracy > 0.9 > 4 * majority


if __name__ == "__main__":
    main()
