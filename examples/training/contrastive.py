"""Contrastive: functions and their docstrings come to lie close together in one space, joined from two data sets.

    python examples/training/contrastive.py

Data: the functions of the standard library, NumPy and scikit-learn on this machine that have a docstring. Code is one
data set, docstrings another, under the same keys; `join` brings them together. A quarter of the files is held out, with
all their functions, by `split(by=...)`. Two towers make vectors of the words of each, and learn to tell which of a
batch's docstrings belongs to which of its functions (InfoNCE, van den Oord et al. 2018).

Expected: for a quarter of the held-out functions the right docstring of a hundred is the nearest; an untrained model
finds one in a hundred.
"""

from __future__ import annotations

import re
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from torch import nn

import dload

EPOCHS, BATCH, AMONG = 8, 128, 100
WORDS, WIDTH = 4096, 64
FUNCTION = re.compile(
    r'^(?P<indent> *)def (?P<name>\w+)\((?P<arguments>[^"]*?)\):\n'
    r'\s+"""(?P<docstring>(?:[^"]|"(?!""))+)"""\n'
    r"(?P<body>(?:(?P=indent) +.*\n|\n)+)",
    re.MULTILINE,
)
WORD = re.compile(rb"[A-Za-z][a-z]*")

Sample = tuple[str, dict[str, bytes]]
Bag = tuple[torch.Tensor, torch.Tensor]


# ---------------------------------------------------------------- data
def functions() -> Iterator[tuple[str, str, str]]:
    """Key, code and docstring."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    for package in ("numpy", "sklearn"):
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None, f"pip install {package}"
        files += sorted(path for path in Path(spec.origin).parent.rglob("*.py") if "tests" not in path.parts)
    for path in files:
        for number, found in enumerate(FUNCTION.finditer(path.read_text("utf-8"))):
            code = f"{found['name']}({found['arguments']})\n{found['body']}"
            yield f"{path}:{number}", code[:1000], found["docstring"].strip().partition("\n\n")[0]


def file_of(sample: Sample) -> str:
    return sample[0].rpartition(":")[0]


# ---------------------------------------------------------------- pipeline
def words(text: bytes) -> torch.Tensor:
    """Numbers of the words of a text; camelCase and snake_case are several."""
    return torch.tensor([crc32(word.lower()) % WORDS for word in WORD.findall(text)] or [0])


def decode(sample: Sample) -> Bag:
    _key, fields = sample
    return words(fields["code"]), words(fields["docstring"])


# ---------------------------------------------------------------- model
class Tower(nn.Module):
    """A vector of length 1 for each bag of words."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, WIDTH)

    def forward(self, bags: tuple[torch.Tensor, ...]) -> torch.Tensor:
        starts = np.cumsum([0, *map(len, bags[:-1])])
        return nn.functional.normalize(self.bag(torch.cat(bags), torch.from_numpy(starts)), dim=1)


def likeness(code: Tower, docs: Tower, bags: list[Bag]) -> torch.Tensor:
    """How close each function (row) is to each docstring (column)."""
    ours, theirs = zip(*bags, strict=True)
    return code(ours) @ docs(theirs).T


@torch.no_grad()
def share_found(code: Tower, docs: Tower, bags: list[Bag]) -> float:
    """Of the functions, those whose docstring is the nearest of AMONG."""
    rounds = [bags[start : start + AMONG] for start in range(0, len(bags) - AMONG + 1, AMONG)]
    right = [(likeness(code, docs, some).argmax(1) == torch.arange(AMONG)).float().mean() for some in rounds]
    return float(torch.stack(right).mean())


# ---------------------------------------------------------------- training
def main(seed: int = 0) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    found = list(functions())
    with tempfile.TemporaryDirectory(prefix="dload-example-") as folder:
        repo = dload.Repository.open(f"{folder}/store", cache_dir=f"{folder}/cache")
        repo.commit("code", ((key, {"code": code.encode()}) for key, code, _ in found))
        repo.commit("docstrings", ((key, {"docstring": docstring.encode()}) for key, _, docstring in found))
        docstrings = repo.dataset("docstrings")
        parts = repo.dataset("code").split({"train": 0.75, "test": 0.25}, seed=seed, by=file_of)
        bags = {name: part.join(docstrings) for name, part in parts.items()}

        code, docs = Tower(), Tower()
        test = list(bags["test"].shuffle(full=True, seed=seed).map(decode))
        untrained = share_found(code, docs, test)
        optimizer = torch.optim.Adam([*code.parameters(), *docs.parameters()], lr=0.02)
        with dload.Loader(bags["train"].shuffle(seed=seed).map(decode), BATCH) as loader:
            for _ in range(EPOCHS):
                for batch in loader:
                    close = likeness(code, docs, batch) / 0.07
                    own = torch.arange(len(batch))
                    loss = nn.functional.cross_entropy(close, own) + nn.functional.cross_entropy(close.T, own)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

        trained = share_found(code, docs, test)
        print(
            f"{len(test)} functions held out: of {trained:.2f} the right docstring of {AMONG} is the nearest; ", end=""
        )
        print(f"untrained: {untrained:.2f}")
        assert trained > 0.1 > 3 * untrained


if __name__ == "__main__":
    main()
