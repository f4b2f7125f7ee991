"""Text: a recurrent network learns to write like Python's manual, from blocks of packed documents; stopped and resumed.

    python examples/training/text.py

Data: the chapters of Python's language reference that every Python has in pydoc_data, one a document, as ASCII bytes. A
fifth of them is held out by key. `pack` makes blocks of 65 bytes of the rest: 64 to learn from, each with the one that
follows. Two thirds through, model, optimizer and loader are saved; the rest is run once as it goes on and once from
what was saved, by new objects.

Expected: some 3 bits a byte on held-out chapters, where the frequencies of bytes alone give 4.7; the resumed run has
the losses of the other one.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch import nn

import dload

STEPS, SAVED_AT, BATCH, LENGTH = 180, 120, 20, 64
BYTES = 128

Blocks = list[dict[str, np.ndarray]]


def chapters() -> Iterator[tuple[str, dict[str, bytes]]]:
    for name in sorted(topics):
        yield name, {"tokens": topics[name].encode("ascii", "replace")}


def tensors(blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes, (blocks, LENGTH + 1), and which of them to foretell: all but the first of each document and block."""
    ids = np.stack([block["input_ids"] for block in blocks])
    inside = np.stack([block["loss_mask"] & (block["positions"] > 0) for block in blocks])
    return torch.from_numpy(ids), torch.from_numpy(inside[:, 1:])


class Writer(nn.Module):
    """Scores of the next byte, (blocks, LENGTH, BYTES)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, 32)
        self.recur = nn.GRU(32, 64, batch_first=True)
        self.out = nn.Linear(64, BYTES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recur(self.embed(ids))
        scores: torch.Tensor = self.out(hidden)
        return scores


class Run:
    """Everything that a training run is made of, and all that has to be saved of it."""

    def __init__(self, train: dload.Pipeline) -> None:
        self.model = Writer()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.loader = dload.Loader(train, BATCH, ends="endless", collate=tensors)
        self.losses: list[float] = []

    def until(self, step: int) -> None:
        for ids, inside in self.loader:
            loss = bits(self.model, ids, inside)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            if len(self.losses) == step:
                break

    def saved(self) -> dict[str, Any]:
        return {
            "model": copy.deepcopy(self.model.state_dict()),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "loader": json.dumps(self.loader.state_dict()),
            "losses": list(self.losses),
        }

    def load(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.loader.load_state_dict(json.loads(saved["loader"]))
        self.losses = list(saved["losses"])


def bits(model: nn.Module, ids: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """Bits for each byte that is to be foretold."""
    scores = model(ids[:, :-1])
    return nn.functional.cross_entropy(scores[inside], ids[:, 1:][inside]) / np.log(2)


def bits_of_frequencies(train: dload.Dataset, test: dload.Dataset) -> float:
    """Bits for each byte of `test`, foretold by how frequent it is in `train` alone."""
    counts = [
        np.bincount(np.concatenate([np.frombuffer(fields["tokens"], "u1") for _, fields in part]), minlength=BYTES)
        for part in (train, test)
    ]
    chances = (counts[0] + 1) / (counts[0] + 1).sum()
    return float(-(counts[1] / counts[1].sum()) @ np.log2(chances))


def main(seed: int = 0) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dload-example-") as folder:
        repo = dload.Repository.open(f"{folder}/store", cache_dir=f"{folder}/cache")
        repo.commit("manual", chapters(), target_shard_size=200_000)
        parts = repo.dataset("manual").split({"train": 0.8, "test": 0.2}, seed=seed)
        blocks = {
            name: part.samples().pack(LENGTH + 1, eos_id=0, pad_id=0, dtype="uint8") for name, part in parts.items()
        }
        train = blocks["train"].shuffle(500, seed=seed)

        run = Run(train)
        run.until(SAVED_AT)
        saved = run.saved()
        run.until(STEPS)

        resumed = Run(train)
        resumed.load(saved)
        resumed.until(STEPS)
        apart = max(abs(one - other) for one, other in zip(run.losses, resumed.losses, strict=True))

        with torch.no_grad():
            reached = bits(run.model, *tensors(list(blocks["test"].shuffle(seed=seed).take(200)))).item()
        frequencies = bits_of_frequencies(parts["train"], parts["test"])
        print(
            f"{reached:.2f} bits a byte on {len(parts['test'])} chapters held out; frequencies alone: {frequencies:.2f}"
        )
        print(f"resumed at step {SAVED_AT} of {STEPS}: losses at most {apart:.1g} apart")
        assert reached < frequencies - 1
        assert apart < 1e-3


if __name__ == "__main__":
    main()
