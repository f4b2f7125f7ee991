"""A folder of images, one subfolder a class, as a data set: imported, looked at, split by class, decoded on threads.

    pip install dload-ml numpy pillow scikit-learn
    python examples/image_folder.py

The images are 600 handwritten digits of scikit-learn, saved as PNG; any folder does.
"""

from __future__ import annotations

import io
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import dload
from dload.codecs import text_from

CLASSES = 10


def write_folder(folder: Path) -> None:
    """folder/7/0123.png and so on."""
    digits = load_digits()
    for number, (image, label) in enumerate(zip(digits.images[:600], digits.target[:600], strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype(np.uint8)).save(path)


def decode(sample: tuple[str, dict[str, bytes]]) -> tuple[np.ndarray, int]:
    """The pixels (8, 8), from 0 to 1, and the label."""
    _, fields = sample
    with Image.open(io.BytesIO(fields["png"])) as image:
        return np.asarray(image, np.float32) / 255, int(text_from(fields["label"]))


def label(sample: tuple[str, dict[str, bytes]]) -> bytes:
    return sample[1]["label"]


def centers(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The mean image of each class (10, 8, 8)."""
    return np.stack([images[labels == each].mean(axis=0) for each in range(CLASSES)])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name:
        folder = Path(name)
        write_folder(folder / "images")
        repo = dload.Repository.open(folder / "store", cache_dir=folder / "cache", cache_budget="100MB")
        images = dload.importers.open_source(folder / "images", "folder", label_from_folder=True)
        repo.commit("digits", images)
        digits = repo.dataset("digits")
        print(digits)

        # Bytes stay as they are: dload neither decodes nor guesses.
        assert digits["7/0007"]["png"] == (folder / "images" / "7" / "0007.png").read_bytes()
        assert digits["7/0007"]["label"] == b"7"

        # Each class has its share of each part. The parts are views: row numbers, no bytes.
        parts = digits.split({"train": 0.8, "test": 0.2}, seed=0, stratify="label")
        train, test = parts["train"], parts["test"]
        all_of, in_test = (Counter(map(label, each.samples())) for each in (digits, test))
        print(f"{len(train)} to train on, {len(test)} to test, of these {min(in_test.values())} or more of each digit")
        assert len(train) + len(test) == 600
        assert all(abs(in_test[each] - 0.2 * all_of[each]) <= 2 for each in all_of)

        # Decoded on two threads, in order, in batches.
        batches = train.samples().shuffle(seed=0).map(decode, workers=2).batch(64, collate=stack)
        whole = [np.concatenate(column) for column in zip(*batches, strict=True)]
        means = centers(*whole)
        right = sum(np.abs(means - pixels).sum(axis=(1, 2)).argmin() == truth for pixels, truth in map(decode, test))
        print(f"{right} of {len(test)} are nearest to the mean of their own class")
        assert right > 0.8 * len(test)


def stack(rows: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = zip(*rows, strict=True)
    return np.stack(pixels), np.array(labels)


if __name__ == "__main__":
    main()
