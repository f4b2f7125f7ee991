"""PyTorch Lightning: killed in the middle of an epoch and gone on with, to the same weights.

    pip install 'dload-ml[torch]' lightning scikit-learn
    python examples/lightning_trainer.py

A Trainer takes the loader as it is. It finds `state_dict` and `load_state_dict` there, puts the state into its own
checkpoints, and with `ckpt_path` goes on with exactly the batches that are left. For that the loader must have a
length: where it has none, behind a filter, say, Lightning takes each batch one step early, and its checkpoints are one
batch ahead. Such a loader gets a length by `ends="steps", steps=...`. The data are the digits of scikit-learn.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

import dload
from dload.codecs import json_bytes, json_from, npy_bytes, npy_from
from dload.torch import StreamLoader

EPOCHS, BATCH, KILLED_AT = 3, 64, 40  # an epoch has 28 steps
EVERY = 15  # steps between two checkpoints


def digits() -> Iterator[tuple[str, dict[str, bytes]]]:
    from sklearn.datasets import load_digits

    data = load_digits()
    for number, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        pixels = (image.reshape(-1) / 16).astype(np.float32)
        yield f"{number:04d}", {"npy": npy_bytes(pixels), "json": json_bytes(int(label))}


def decode(sample: tuple[str, dict[str, bytes]]) -> tuple[str, np.ndarray, int]:
    key, fields = sample
    return key, npy_from(fields["npy"]), json_from(fields["json"])


class Digits(lightning.LightningModule):
    """A linear classifier; `seen`: the keys of each batch of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
        self.seen: list[list[str]] = []

    def training_step(self, batch: tuple[list[str], torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        keys, pixels, labels = batch
        self.seen.append(keys)
        return torch.nn.functional.cross_entropy(self.layer(pixels), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Kill(Callback):
    """Kills this process without warning when so many steps are done."""

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        if trainer.global_step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def fit(folder: Path, name: str, *callbacks: Callback) -> Digits:
    """Train for all epochs, from the newest checkpoint of the run if there is one."""
    repo = dload.Repository.open(folder / "store", cache_dir=folder / "cache", cache_budget="100MB")
    pipe = repo.dataset("digits").samples().shuffle(seed=0).map(decode)
    lightning.seed_everything(0, verbose=False)
    model = Digits()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=1, default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder / name, every_n_train_steps=EVERY), *callbacks],
    )  # fmt: skip
    newest = max((folder / name).glob("*.ckpt"), key=os.path.getmtime, default=None)
    trainer.fit(model, StreamLoader(pipe, BATCH), ckpt_path=newest)
    return model


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name:
        folder = Path(name)
        repo = dload.Repository.open(folder / "store", cache_dir=folder / "cache", cache_budget="100MB")
        repo.commit("digits", digits())
        whole = fit(folder, "whole")
        killed = subprocess.run([sys.executable, __file__, str(folder)], check=False)
        assert killed.returncode == -signal.SIGKILL
        resumed = fit(folder, "killed")

        checkpoint = KILLED_AT // EVERY * EVERY
        print(f"killed at step {KILLED_AT}, gone on with from the checkpoint of step {checkpoint}")
        assert len(whole.seen) == EPOCHS * 28
        assert resumed.seen == whole.seen[checkpoint:]
        assert torch.equal(resumed.layer.weight, whole.layer.weight)
        print(f"the {len(resumed.seen)} batches that were left, the same rows in the same order; the same weights")


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # it says what hardware it hasn't found
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        fit(Path(sys.argv[1]), "killed", Kill())
    else:
        main()
