"""Pipelines of each kind over the data of these tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import dload
from dload.api import Pipeline, Repository
from dload.pack import Sample


def key_of(sample: Sample) -> str:
    return sample[0]


def keep(key: str) -> bool:
    """Two thirds of the keys, unevenly spread."""
    return random.Random(key).random() < 2 / 3


def part(repo: Repository) -> dload.Dataset:
    """A view: two thirds of the samples, over all shards."""
    return repo.dataset("numbers").split({"train": 2 / 3})["train"]


def cut(sample: Sample) -> dict[str, bytes]:
    """Documents of other lengths; a tenth of them is bad."""
    rng = random.Random(sample[0])
    if rng.random() < 0.1:
        raise ValueError("a bad row")
    return {"x": sample[1]["x"][: rng.randrange(72)]}


def packed(pipe: Pipeline, mode: str) -> Pipeline:
    return pipe.pack(40, tokens="x", eos_id=256, pad_id=257, dtype="uint8", mode=mode).map(tokens_of)


def tokens_of(block: dict[str, Any]) -> list[int]:
    tokens: list[int] = block["input_ids"].tolist()
    return tokens


KINDS: dict[str, Callable[[Repository], Pipeline]] = {
    "plain": lambda repo: repo.dataset("numbers").samples().map(key_of),
    "shuffled": lambda repo: repo.dataset("numbers").samples().shuffle(60, seed=3).map(key_of),
    "batched": lambda repo: repo.dataset("numbers").samples().shuffle(60, seed=3).map(key_of).batch(3),
    "mix": lambda repo: dload.mix(
        [repo.dataset("numbers").samples().shuffle(20, seed=1), repo.dataset("noise").samples().shuffle(9, seed=2)],
        [3, 1], seed=4, until="cycle",
    ).map(key_of),
    "view": lambda repo: part(repo).samples().shuffle(60, seed=3).map(key_of),
    "filtered": lambda repo: repo.dataset("numbers").samples().shuffle(40, seed=2).map(key_of).filter(keep),
    "packed": lambda repo: packed(repo.dataset("numbers").samples().shuffle(40, seed=2), "concat"),
    "packed in a stream": lambda repo: packed(
        repo.dataset("numbers").samples().shuffle(40, seed=2).map(cut, on_error="skip"), "best_fit"
    ),
}  # fmt: skip
