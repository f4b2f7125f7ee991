"""Features that are computed once for everybody: derived, found again, killed and gone on with, traced back.

    pip install dload-ml numpy pillow scikit-learn
    python examples/derive_features.py

The images are tiles of scikit-learn's two photographs; their features, a histogram of colors and one of edges, tell
which photograph a tile is of. `derive` stores them under the pipeline's fingerprint: the data it reads, the functions'
text, their order.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

import dload
from dload.codecs import npy_bytes, npy_from

TILE = 32
PHOTOS = ("china", "flower")
Sample = tuple[str, dict[str, bytes]]
computed: list[str] = []  # what `features` was called for in this process; only to show that little is


def tiles() -> Iterator[Sample]:
    """Squares of both photographs, as PNG."""
    for photo in PHOTOS:
        pixels = load_sample_image(f"{photo}.jpg")
        for y in range(0, pixels.shape[0] - TILE + 1, TILE):
            for x in range(0, pixels.shape[1] - TILE + 1, TILE):
                file = io.BytesIO()
                Image.fromarray(pixels[y : y + TILE, x : x + TILE]).save(file, "png")
                yield f"{photo}/{y:03d}-{x:03d}", {"png": file.getvalue()}


def features(sample: Sample) -> Sample:
    """The field `npy` in place of the image: 24 shares of colors, 8 of the strengths of edges."""
    key, fields = sample
    computed.append(key)
    with Image.open(io.BytesIO(fields["png"])) as image:
        pixels = np.asarray(image, np.float32) / 255
    colors = [np.histogram(pixels[..., channel], 8, (0, 1))[0] for channel in range(3)]
    edges = np.histogram(np.abs(np.diff(pixels.mean(axis=2), axis=0)), 8, (0, 0.4))[0]
    return key, {"npy": npy_bytes((np.concatenate([*colors, edges]) / TILE**2).astype(np.float32))}


def derive(folder: Path, progress: Callable[[str], object] | None = None) -> dload.Dataset:
    repo = dload.Repository.open(folder / "store", cache_dir=folder / "cache", cache_budget="100MB")
    pipe = repo.dataset("tiles").samples().map(features)
    return repo.derive("features", pipe, target_shard_size=10_000, progress=progress)


def derive_and_die(folder: Path) -> None:
    """Is killed when the fifth shard of features is in the store."""

    def tell(line: str) -> None:
        if line.startswith("shard 4"):
            os.kill(os.getpid(), signal.SIGKILL)

    derive(folder, tell)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name:
        folder = Path(name)
        repo = dload.Repository.open(folder / "store", cache_dir=folder / "cache", cache_budget="100MB")
        raw = repo.commit("tiles", tiles(), message="two photographs")

        # Killed in the middle, then asked for again: what was packed already isn't computed twice.
        died = subprocess.run([sys.executable, __file__, str(folder)], check=False)
        assert died.returncode == -signal.SIGKILL and "features" not in repo.list_datasets()
        made = derive(folder)
        print(f"killed, then gone on with: {len(computed)} of {len(made)} features are computed")
        assert 0 < len(computed) < len(made) == raw.num_samples

        # Asked for a third time, by whomever, it is found.
        computed.clear()
        assert derive(folder).version == made.version and not computed
        print(f"asked for again: none is, it is {made.name}@{made.version[:12]}")

        # When the data grow the pipeline is another one, and so is its output; both know where they come from.
        repo.append("tiles", [("flower/again", repo.dataset("tiles")["flower/000-000"])], message="one more")
        newer = derive(folder)
        assert newer.version != made.version and len(newer) == len(made) + 1
        lineage = repo.lineage("features", newer.version)
        assert lineage.derived_from == [("tiles", repo.resolve("tiles"))]
        assert repo.lineage("tiles", raw.version).derived_by == [("features", made.version)]
        print(f"of one tile more they are another version, {newer.name}@{newer.version[:12]}")

        # What they are good for: a tile belongs to the photograph with the nearer mean.
        rows = [(npy_from(fields["npy"]), PHOTOS.index(key.partition("/")[0])) for key, fields in made]
        x, y = np.stack([row[0] for row in rows]), np.array([row[1] for row in rows])
        means = np.stack([x[y == each].mean(axis=0) for each in range(2)])
        right = float((np.linalg.norm(x[:, None] - means, axis=2).argmin(axis=1) == y).mean())
        print(f"{right:.0%} of the tiles are told apart")
        assert right > 0.7


if __name__ == "__main__":
    if len(sys.argv) > 1:
        derive_and_die(Path(sys.argv[1]))
    else:
        main()
