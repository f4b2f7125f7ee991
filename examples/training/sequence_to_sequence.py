"""Sequence to sequence: from the letters of a Korean syllable to its name in Latin ones; stopped and resumed.

    python examples/training/sequence_to_sequence.py

Data: the 11,172 Hangul syllables in Python's own Unicode data base. A syllable is taken apart into its two or three
letters; the model learns to spell its name, letter by letter ("HANGUL SYLLABLE GGAEG" is `ggaeg`). A third of the
syllables is held out by key. After 60 of 200 steps model, optimizer and loader are saved; the next 40 are run once as
it goes on, and once by new objects from what was saved.

Expected: nearly all of the held-out names are spelt without a mistake, where an untrained model spells none; the
resumed run has the losses of the other one.
"""

from __future__ import annotations

import copy
import json
import tempfile
import unicodedata
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import dload

STEPS, SAVED_AT, AGAIN, BATCH, WIDTH = 200, 60, 40, 128, 96
FIRST, COUNT = 0xAC00, 11_172  # the syllables
JAMO, JAMOS = 0x1100, 256  # the letters
LATIN = "\n abcdefghijklmnopqrstuvwxyz"  # the end, the beginning, and what names are made of
LONGEST = 9

Row = tuple[list[int], list[int]]
Batch = tuple[torch.Tensor, torch.Tensor]


# ---------------------------------------------------------------- data
def syllables() -> Iterator[tuple[str, dict[str, bytes]]]:
    for code in range(FIRST, FIRST + COUNT):
        letters = unicodedata.normalize("NFD", chr(code))
        name = unicodedata.name(chr(code)).removeprefix("HANGUL SYLLABLE ")
        yield f"{code:x}", {"letters": letters.encode(), "name": name.lower().encode()}


def decode(sample: tuple[str, dict[str, bytes]]) -> Row:
    _key, fields = sample
    letters = [ord(letter) - JAMO for letter in fields["letters"].decode()]
    name = [LATIN.index(letter) for letter in fields["name"].decode()]
    return letters + [JAMOS - 1] * (3 - len(letters)), [*name, *[0] * (LONGEST - len(name))]


def tensors(rows: list[Row]) -> Batch:
    """Letters (n, 3) and names (n, LONGEST), with ends behind them."""
    letters, names = zip(*rows, strict=True)
    return torch.tensor(letters), torch.tensor(names)


# ---------------------------------------------------------------- model
class Speller(nn.Module):
    """An encoder whose last state begins the decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.latin = nn.Embedding(JAMOS, 32), nn.Embedding(len(LATIN), 32)
        self.encoder, self.decoder = nn.GRU(32, WIDTH, batch_first=True), nn.GRU(32, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, len(LATIN))

    def forward(self, letters: torch.Tensor, names: torch.Tensor) -> torch.Tensor:
        """Scores of each letter of the names, given those before it: (n, LONGEST, letters)."""
        _, state = self.encoder(self.letters(letters))
        before = torch.cat([torch.ones(len(names), 1, dtype=torch.long), names[:, :-1]], dim=1)
        hidden, _ = self.decoder(self.latin(before), state)
        scores: torch.Tensor = self.out(hidden)
        return scores

    @torch.no_grad()
    def spell(self, letters: torch.Tensor) -> torch.Tensor:
        """Names, each letter the likeliest behind those that were chosen: (n, LONGEST)."""
        names = torch.zeros(len(letters), LONGEST, dtype=torch.long)
        for at in range(LONGEST):
            names[:, at] = self(letters, names)[:, at].argmax(1)
        return names

    def share_right(self, letters: torch.Tensor, names: torch.Tensor) -> float:
        return (self.spell(letters) == names).all(1).float().mean().item()


# ---------------------------------------------------------------- a run that can be saved
class Run:
    def __init__(self, train: dload.Pipeline) -> None:
        self.model = Speller()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.loader = dload.Loader(train, BATCH, ends="endless", collate=tensors)
        self.losses: list[float] = []

    def until(self, step: int) -> None:
        for letters, names in self.loader:
            loss = nn.functional.cross_entropy(self.model(letters, names).flatten(0, 1), names.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            if len(self.losses) == step:
                break

    def saved(self) -> dict[str, Any]:
        parts = copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict()])
        return {"parts": parts, "loader": json.dumps(self.loader.state_dict()), "losses": list(self.losses)}

    def load(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["parts"][0])
        self.optimizer.load_state_dict(saved["parts"][1])
        self.loader.load_state_dict(json.loads(saved["loader"]))
        self.losses = list(saved["losses"])


def main(seed: int = 0) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dload-example-") as folder:
        repo = dload.Repository.open(f"{folder}/store", cache_dir=f"{folder}/cache")
        repo.commit("syllables", syllables())
        parts = repo.dataset("syllables").split({"train": 0.66, "test": 0.34}, seed=seed)
        train = parts["train"].samples().shuffle(full=True, seed=seed).map(decode)

        letters, names = tensors(list(parts["test"].samples().shuffle(full=True, seed=seed).take(1000).map(decode)))
        run = Run(train)
        untrained = run.model.share_right(letters, names)
        run.until(SAVED_AT)
        saved = run.saved()
        run.until(STEPS)

        resumed = Run(train)
        resumed.load(saved)
        resumed.until(SAVED_AT + AGAIN)
        apart = max(abs(one - other) for one, other in zip(run.losses, resumed.losses, strict=False))

        right = run.model.share_right(letters, names)
        print(
            f"{len(names)} syllables held out: {right:.3f} of the names without a mistake; untrained: {untrained:.3f}"
        )
        print(f"resumed at step {SAVED_AT}: {AGAIN} losses at most {apart:.1g} apart")
        assert right > 0.7 > 10 * untrained
        assert apart < 1e-3


if __name__ == "__main__":
    main()
