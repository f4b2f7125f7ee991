"""Mixture: one model of two kinds of text, of which one is rare, by a mix whose weights change on the way.

    python examples/training/mixture.py

Data: the chapters of Python's language reference (pydoc_data), 460 KB of prose, and 27 short modules of the standard
library, a fifth of that in code. A quarter of each is held out by key. `mix` takes blocks of both by weight, endlessly;
`phases` changes the weights: nine blocks of prose to one of code at first, then half and half. A model that gets
nothing but prose is trained beside it.

Expected: on held-out code some 3.3 bits a byte, where the model of prose needs 3.7; on prose both need about 2.8. The
frequencies of bytes alone give 4.7. In both phases each kind has its share of the blocks to within four.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch import nn

import dload

STEPS, SWITCH, BATCH, LENGTH, CONTEXT = 160, 80, 24, 128, 6
BYTES = 128
MODULES = [
    "abc", "bisect", "codeop", "colorsys", "contextlib", "copy", "fnmatch", "functools", "getpass", "gettext",
    "heapq", "linecache", "queue", "quopri", "reprlib", "sched", "shelve", "shlex", "shutil", "statistics",
    "string", "textwrap", "timeit", "token", "tokenize", "types", "weakref",
]  # fmt: skip

Document = tuple[str, dict[str, bytes]]
Block = dict[str, Any]


def prose() -> Iterator[Document]:
    for name in sorted(topics):
        yield name, {"tokens": topics[name].encode("ascii", "replace")}


def code() -> Iterator[Document]:
    library = Path(json.__file__).parents[1]
    for name in MODULES:
        yield name, {"tokens": (library / f"{name}.py").read_text("utf-8").encode("ascii", "replace")[:5000]}


def from_source(number: int, block: Block) -> Block:
    return {**block, "source": number}


def blocks_of(number: int, part: dload.Dataset) -> dload.Pipeline:
    """Blocks of the documents, which say which data set they are of."""
    blocks = part.samples().pack(LENGTH, eos_id=0, pad_id=0, dtype="uint8")
    return blocks.map(partial(from_source, number))


def tensors(blocks: list[Block]) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """What stands before each byte (n, CONTEXT), the byte (n,), and the source of each block."""
    ids = np.stack([block["input_ids"] for block in blocks])
    whole = np.stack([block["loss_mask"] & (block["positions"] >= CONTEXT) for block in blocks])[:, CONTEXT:]
    windows = np.lib.stride_tricks.sliding_window_view(ids, CONTEXT + 1, axis=1)[whole]
    return torch.from_numpy(windows[:, :-1]), torch.from_numpy(windows[:, -1]), [block["source"] for block in blocks]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(BYTES, 16), nn.Flatten(), nn.Linear(16 * CONTEXT, 128), nn.ReLU(), nn.Linear(128, BYTES)
    )


def train(blocks: dload.Pipeline, phases: list[tuple[int, list[float]]] | None = None) -> tuple[nn.Module, list[int]]:
    """The model, and the sources of the blocks that it got, in order."""
    model, sources = network(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    with dload.Loader(blocks, BATCH, ends="endless", collate=tensors, phases=phases) as loader:
        for before, following, kinds in itertools.islice(loader, STEPS):
            loss = nn.functional.cross_entropy(model(before), following)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sources += kinds
    return model, sources


@torch.no_grad()
def bits(model: nn.Module, part: dload.Dataset) -> float:
    """Bits a byte."""
    before, following, _ = tensors(list(blocks_of(0, part)))
    return nn.functional.cross_entropy(model(before), following).item() / np.log(2)


def bits_of_frequencies(train_on: dload.Dataset, test: dload.Dataset) -> float:
    """Bits a byte where nothing is known but how frequent each is."""
    counts = [
        np.bincount(np.concatenate([np.frombuffer(fields["tokens"], "u1") for _, fields in part]), minlength=BYTES)
        for part in (train_on, test)
    ]
    chances = (counts[0] + 1) / (counts[0] + 1).sum()
    return float(-(counts[1] / counts[1].sum()) @ np.log2(chances))


def main(seed: int = 0) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dload-example-") as folder:
        repo = dload.Repository.open(f"{folder}/store", cache_dir=f"{folder}/cache")
        parts = {}
        for name, documents in (("prose", prose()), ("code", code())):
            repo.commit(name, documents)
            parts[name] = repo.dataset(name).split({"train": 0.75, "test": 0.25}, seed=seed)
        endless = [
            blocks_of(number, parts[name]["train"]).shuffle(2000, seed=seed).repeat()
            for number, name in enumerate(parts)
        ]
        both, sources = train(dload.mix(endless, [0.9, 0.1], seed=seed), [(SWITCH, [0.5, 0.5])])
        alone, _ = train(endless[0])

        ends = {"first": (sources[: SWITCH * BATCH], 0.1), "second": (sources[SWITCH * BATCH :], 0.5)}
        for name, (stretch, share) in ends.items():
            print(f"{name} phase: {sum(stretch)} of {len(stretch)} blocks are code")
            assert abs(sum(stretch) - share * len(stretch)) <= 4
        found = {}
        for name, of in parts.items():
            found[name] = bits(both, of["test"]), bits(alone, of["test"]), bits_of_frequencies(of["train"], of["test"])
            print("{}: mixed {:.2f}, only prose {:.2f}, frequencies {:.2f} bits a byte".format(name, *found[name]))
        assert found["code"][0] < found["code"][1] - 0.15
        assert all(mixed < frequencies - 0.7 for mixed, _, frequencies in found.values())
        assert found["prose"][0] < found["prose"][1] + 0.4


if __name__ == "__main__":
    main()
