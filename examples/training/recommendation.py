"""Recommendation: which modules a file imports besides those that are known, by factors learnt from many files.

    python examples/training/recommendation.py

Data: the Python files of the standard library, NumPy, scikit-learn and torch on this machine that import at least five
of the modules that at least eight files do. A file is a user, a module an item, each pair a sample; a fifth of the
pairs is held out by key. torch's own DataLoader reads batches of the others, over `as_iterable_dataset`: each iteration
of it is the next epoch, in another order.

Expected: of the held-out imports some 55 % are among the ten that the model recommends, and 34 % among the ten that are
imported most often of those that the file isn't known to import.
"""

from __future__ import annotations

import re
import struct
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

import dload
from dload.torch import as_iterable_dataset

EPOCHS, BATCH, WIDTH, SHOWN = 6, 256, 32, 10
PACKAGES = ["numpy", "sklearn", "torch"]
IMPORT = re.compile(rb"^[ \t]*(?:from|import)[ \t]+([A-Za-z_][\w.]*)", re.MULTILINE)

Sample = tuple[str, dict[str, bytes]]
Pair = tuple[int, int]


# ---------------------------------------------------------------- data
def files() -> Iterator[Path]:
    yield from sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None, f"pip install {package}"
        yield from sorted(Path(spec.origin).parent.rglob("*.py"))


def imports() -> dict[str, list[str]]:
    """File: the modules that it imports, of those that at least eight files do, where it has at least five."""
    found = {str(path): {name.decode() for name in IMPORT.findall(path.read_bytes())} for path in files()}
    times = Counter(module for modules in found.values() for module in modules)
    often = {path: sorted(name for name in modules if times[name] >= 8) for path, modules in found.items()}
    return {path: modules for path, modules in often.items() if len(modules) >= 5}


def pairs(imported: dict[str, list[str]], modules: list[str]) -> Iterator[Sample]:
    numbers = {module: number for number, module in enumerate(modules)}
    for user, names in enumerate(imported.values()):
        for name in names:
            yield f"{user}-{name}", {"pair": struct.pack("<II", user, numbers[name])}


def decode(sample: Sample) -> Pair:
    user, item = struct.unpack("<II", sample[1]["pair"])
    return user, item


# ---------------------------------------------------------------- model
class Factors(nn.Module):
    """How well each item goes with users: (users, items)."""

    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        self.users = nn.Embedding(users, WIDTH)
        self.items = nn.Linear(WIDTH, items)
        nn.init.normal_(self.users.weight, std=0.1)

    def forward(self, users: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.items(self.users(users))
        return scores


def share_found(scores: np.ndarray, known: list[set[int]], wanted: list[Pair]) -> float:
    """Of the pairs that are wanted, those among the SHOWN best of what each user isn't known to have."""
    scores = scores.copy()
    for user, items in enumerate(known):
        scores[user, list(items)] = -np.inf
    best = np.argsort(-scores, axis=1, kind="stable")[:, :SHOWN]
    return float(np.mean([item in best[user] for user, item in wanted]))


# ---------------------------------------------------------------- training
def main(seed: int = 0) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    imported = imports()
    modules = sorted({name for names in imported.values() for name in names})
    with tempfile.TemporaryDirectory(prefix="dload-example-") as folder:
        repo = dload.Repository.open(f"{folder}/store", cache_dir=f"{folder}/cache")
        repo.commit("imports", pairs(imported, modules))
        parts = repo.dataset("imports").split({"train": 0.8, "test": 0.2}, seed=seed)
        known: list[set[int]] = [set() for _ in imported]
        for user, item in parts["train"].samples().map(decode):
            known[user].add(item)

        train = parts["train"].samples().shuffle(seed=seed).map(decode).batch(BATCH, collate=torch.tensor)
        loader = DataLoader(as_iterable_dataset(train), batch_size=None)
        model = Factors(len(imported), len(modules))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.5)
        for _ in range(EPOCHS):
            for batch in loader:
                users, items = batch.T
                loss = nn.functional.cross_entropy(model(users), items)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        wanted = list(parts["test"].samples().map(decode))
        often = np.bincount([item for items in known for item in items], minlength=len(modules))
        with torch.no_grad():
            scores = model(torch.arange(len(imported))).numpy()
        found = share_found(scores, known, wanted)
        popular = share_found(np.tile(often.astype(float), (len(imported), 1)), known, wanted)
        print(f"{len(wanted)} imports held out: {found:.2f} among {SHOWN} recommended; the most popular: {popular:.2f}")
        assert found > popular + 0.1


if __name__ == "__main__":
    main()
