"""Autoencoder: patches of photographs through sixteen numbers and back.

    python examples/training/autoencoder.py

Data: the two photographs that scikit-learn brings, a temple and a flower, cut into tiles of 64 × 64 pixels; each tile
is a PNG file. A quarter of the tiles is held out by key. `derive` stores the 64 grey patches of 8 × 8 pixels of each:
two threads decode tiles (`map(workers=2)`), and `flat_map` with a known fanout keeps length and places.

Expected: on held-out patches about half of the mean squared error that each patch's own mean brightness has.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn

import dload

EPOCHS, BATCH = 20, 64
TILE, PATCH, CODE = 64, 8, 16

Sample = tuple[str, dict[str, bytes]]


def tiles() -> Iterator[Sample]:
    for name, photo in zip(("temple", "flower"), load_sample_images().images, strict=True):
        height, width, _ = photo.shape
        for top in range(0, height - TILE + 1, TILE):
            for left in range(0, width - TILE + 1, TILE):
                png = io.BytesIO()
                Image.fromarray(photo[top : top + TILE, left : left + TILE]).save(png, "PNG")
                yield f"{name}-{top:03d}-{left:03d}", {"png": png.getvalue()}


def grey(sample: Sample) -> tuple[str, np.ndarray]:
    """Key, and brightness (TILE, TILE)."""
    key, fields = sample
    return key, np.asarray(Image.open(io.BytesIO(fields["png"])).convert("L"))


def patches(tile: tuple[str, np.ndarray]) -> Iterator[Sample]:
    """Row by row."""
    key, pixels = tile
    for top in range(0, TILE, PATCH):
        for left in range(0, TILE, PATCH):
            patch = pixels[top : top + PATCH, left : left + PATCH]
            yield f"{key}/{top:02d}-{left:02d}", {"grey": patch.tobytes()}


def tensor(samples: list[Sample]) -> torch.Tensor:
    """(patches, PATCH * PATCH), about 0 and from -2 to 2."""
    pixels = np.frombuffer(b"".join(fields["grey"] for _, fields in samples), np.uint8)
    return torch.from_numpy((pixels.reshape(len(samples), -1) / np.float32(64) - 2).astype(np.float32))


def main(seed: int = 0) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dload-example-") as folder:
        repo = dload.Repository.open(f"{folder}/store", cache_dir=f"{folder}/cache")
        repo.commit("tiles", tiles())
        parts = repo.dataset("tiles").split({"train": 0.75, "test": 0.25}, seed=seed)
        cut = {
            name: repo.derive(
                f"patches-{name}",
                part.samples().map(grey, workers=2).flat_map(patches, fanout=(TILE // PATCH) ** 2),
            )
            for name, part in parts.items()
        }
        assert len(cut["train"]) == 64 * len(parts["train"])

        model = nn.Sequential(
            nn.Linear(PATCH * PATCH, 64), nn.GELU(), nn.Linear(64, CODE),
            nn.Linear(CODE, 64), nn.GELU(), nn.Linear(64, PATCH * PATCH),
        )  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        with dload.Loader(cut["train"].samples().shuffle(seed=seed), BATCH, collate=tensor) as loader:
            for _ in range(EPOCHS):
                for batch in loader:
                    loss = nn.functional.mse_loss(model(batch), batch)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

        test = tensor(list(cut["test"]))
        with torch.no_grad():
            error = nn.functional.mse_loss(model(test), test).item()
        flat = test.var(1, correction=0).mean().item()
        print(f"{len(test)} patches held out: mean squared error {error:.4f}; their own mean brightness: {flat:.4f}")
        assert error < 0.7 * flat


if __name__ == "__main__":
    main()
