"""Time series: where the Earth's pole will have wandered to in 60 days, learnt from windows over daily measurements.

    python examples/training/time_series.py

Data: the place of the pole on the Earth's surface, each day since 1962, in seconds of arc, as astropy-iers-data brings
it. A day is a sample. `window` makes stretches of 460 days, a new one each twenty days: 400 to learn from, and 60 to
foretell. `split(by=...)` holds out a quarter of the blocks of eight years, so that no day of them is in any window that
is learnt from; a filter leaves out the windows that would bridge a block that isn't there. `derive` stores them, once.

Expected: an error of some 0.04 seconds of arc, where saying that the pole stays where it is has one of 0.11.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import astropy_iers_data
import numpy as np
import torch
from torch import nn

import dload
from dload.codecs import npy_bytes, npy_from

EPOCHS, BATCH = 40, 32
PAST, FUTURE, STRIDE = 400, 60, 20
YEARS = 8

Sample = tuple[str, dict[str, bytes]]


def days() -> Iterator[Sample]:
    for line in Path(astropy_iers_data.IERS_B_FILE).read_text().splitlines():
        if not line.startswith("#"):
            year, month, day, _hour, number, x, y, *_ = line.split()
            measured = struct.pack("<ldd", int(float(number)), float(x), float(y))
            yield f"{year}-{month:0>2}-{day:0>2}", {"pole": measured}


def block(sample: Sample) -> int:
    """Which eight years a day is in."""
    return int(sample[0][:4]) // YEARS


def unbroken(stretch: list[Sample]) -> bool:
    first, last = (struct.unpack("<ldd", stretch[at][1]["pole"])[0] for at in (0, -1))
    return bool(last - first == len(stretch) - 1)


def path(stretch: list[Sample]) -> Sample:
    """Each day's x and y against those of the last day that is known, (PAST + FUTURE, 2)."""
    places = np.array([struct.unpack("<ldd", fields["pole"])[1:] for _, fields in stretch], np.float32)
    return stretch[0][0], {"path": npy_bytes(places - places[PAST - 1])}


def tensors(samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    """What is known, each fourth day (n, PAST // 4, 2), and where the pole is on the last day (n, 2)."""
    paths = torch.from_numpy(np.stack([npy_from(fields["path"]) for _, fields in samples]))
    return paths[:, 3:PAST:4], paths[:, -1]


def main(seed: int = 0) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dload-example-") as folder:
        repo = dload.Repository.open(f"{folder}/store", cache_dir=f"{folder}/cache")
        repo.commit("pole", days())
        parts = repo.dataset("pole").split({"train": 0.75, "test": 0.25}, seed=seed, by=block)
        windows = {
            name: repo.derive(
                f"paths-{name}",
                part.samples().window(PAST + FUTURE, STRIDE, drop_last=True).filter(unbroken).map(path),
            )
            for name, part in parts.items()
        }

        model = nn.Sequential(nn.Flatten(), nn.Linear(PAST // 4 * 2, 64), nn.Tanh(), nn.Linear(64, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        with dload.Loader(windows["train"].samples().shuffle(seed=seed), BATCH, collate=tensors) as loader:
            for _ in range(EPOCHS):
                for past, later in loader:
                    loss = nn.functional.mse_loss(model(past), later)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

        past, later = tensors(list(windows["test"]))
        with torch.no_grad():
            error = (model(past) - later).norm(dim=1).mean().item()
        stays = later.norm(dim=1).mean().item()
        print(f"{len(later)} windows held out: {error:.3f} seconds of arc; a pole that stays: {stays:.3f}")
        assert error < 0.6 * stays


if __name__ == "__main__":
    main()
