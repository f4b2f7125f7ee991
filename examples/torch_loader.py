"""PyTorch, two ways: a data set for a DataLoader of your own, and a loader that resumes in the middle of an epoch.

    pip install 'dload-ml[torch]' scikit-learn
    python examples/torch_loader.py

`as_iterable_dataset` is for whoever has a DataLoader already: workers share the rows, and with `batch_size=None` their
order doesn't hang on how many there are. `StreamLoader` makes the same batches on any number of workers, and its state
says exactly which were handed out. The data are the digits of scikit-learn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

import dload
from dload.codecs import json_bytes, json_from, npy_bytes, npy_from
from dload.torch import StreamLoader, as_iterable_dataset

EPOCHS, BATCH = 5, 64


def digits() -> Iterator[tuple[str, dict[str, bytes]]]:
    data = load_digits()
    for number, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        pixels = (image / 16).astype(np.float32)
        yield f"{number:04d}", {"npy": npy_bytes(pixels), "json": json_bytes(int(label))}


def decode(sample: tuple[str, dict[str, bytes]]) -> dict[str, object]:
    key, fields = sample
    return {"key": key, "pixels": npy_from(fields["npy"]), "label": json_from(fields["json"])}


def own_dataloader(pipe: dload.Pipeline) -> None:
    """Every row once an epoch, in the same order for any number of workers; the next epoch in another order."""
    orders = {}
    for workers in (0, 2):
        rows = as_iterable_dataset(pipe)
        loader = torch.utils.data.DataLoader(rows, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
        for epoch in range(2):
            rows.set_epoch(epoch)  # reaches workers that persist, too
            orders[workers, epoch] = [row["key"] for row in loader]
    assert orders[0, 0] == orders[2, 0] and orders[0, 1] == orders[2, 1]
    assert orders[0, 0] != orders[0, 1]
    assert len(set(orders[0, 0])) == len(orders[0, 0]) == len(pipe)
    print(f"a DataLoader of one's own: {len(pipe)} rows, each once, in one order on 0 and on 2 workers")


def resumed(pipe: dload.Pipeline) -> None:
    """Left in the middle of an epoch on two workers, gone on with in this process."""
    with StreamLoader(pipe, BATCH) as loader:
        whole = [batch["key"] for batch in loader]
    with StreamLoader(pipe, BATCH, num_workers=2) as loader:
        batches = iter(loader)
        begun = [next(batches)["key"] for _ in range(10)]
        state = loader.state_dict()  # small; save it beside the model's
    with StreamLoader(pipe, BATCH) as loader:
        loader.load_state_dict(state)
        rest = [batch["key"] for batch in loader]
    assert begun + rest == whole
    print(f"left after {len(begun)} of {len(whole)} batches on 2 workers, resumed on none: the same batches")


def train(pipe: dload.Pipeline) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    right = 0
    with StreamLoader(pipe, BATCH, num_workers=2, persistent_workers=True) as loader:
        for _ in range(EPOCHS):  # each goes on to the next epoch
            right = 0
            for batch in loader:
                scores = model(batch["pixels"])
                loss = torch.nn.functional.cross_entropy(scores, batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right += int((scores.argmax(dim=1) == batch["label"]).sum())
        stats = loader.stats()
    rows = len(loader) * BATCH
    print(f"after {EPOCHS} epochs {right / rows:.0%} are right; {stats['consumed_rows']} rows were read")
    assert right > 0.9 * rows


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name:
        folder = Path(name)
        repo = dload.Repository.open(folder / "store", cache_dir=folder / "cache", cache_budget="100MB")
        repo.commit("digits", digits())
        pipe = repo.dataset("digits").samples().shuffle(seed=0).map(decode)
        own_dataloader(pipe)
        resumed(pipe)
        train(pipe)


if __name__ == "__main__":
    main()
