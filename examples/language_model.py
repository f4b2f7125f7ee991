"""A character model trained from packed blocks, killed in the middle, and resumed to the same loss.

    pip install dload-ml numpy
    python examples/language_model.py

The text is that of Python's own standard library. It is committed as a data set of documents, one a file, each a field
of raw bytes. `pack` makes blocks of 129 tokens of them, without reading a document before its turn: 128 to learn from,
each with its next one. Two runs are made in processes of their own: one goes through; the other is killed without
warning, and started again from the last checkpoint, which holds the model and the loader's state. Both end with the
same weights to the last bit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import dload

STEPS, EVERY = 120, 20  # steps of training, and between two checkpoints
BATCH, LENGTH = 16, 128  # blocks a step, and tokens that are learnt of each
CONTEXT, WIDTH, HIDDEN = 6, 16, 96
EOS, PAD = 256, 257
VOCABULARY = 258

Weights = dict[str, Any]


# ---------------------------------------------------------------- data
def documents() -> Iterator[tuple[str, dict[str, bytes]]]:
    """The modules of the standard library that aren't in a package."""
    for path in sorted(Path(json.__file__).parents[1].glob("*.py")):
        yield path.stem, {"tokens": path.read_bytes()[:20_000]}


def loader(folder: Path) -> dload.Loader:
    repo = dload.Repository.open(str(folder / "store"), cache_dir=folder / "cache", cache_budget="1GB")
    if "python" not in repo.list_datasets():
        repo.commit("python", documents(), target_shard_size=200_000)
    blocks = repo.dataset("python").samples().pack(LENGTH + 1, eos_id=EOS, pad_id=PAD, dtype="uint8")
    return dload.Loader(blocks.shuffle(500, seed=1), BATCH, ends="endless", collate=batch)


def batch(blocks: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Contexts (n, CONTEXT) and the tokens that follow them (n,): none across two documents, and none of padding."""
    contexts, targets = [], []
    for block in blocks:
        ids, documents = block["input_ids"], block["doc_ids"]
        padded = np.concatenate([np.full(CONTEXT, PAD), ids])
        own = np.concatenate([np.full(CONTEXT, -1), documents])
        windows = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT)[: len(ids)]
        of = np.lib.stride_tricks.sliding_window_view(own, CONTEXT)[: len(ids)]
        alike = of == documents[:, None]
        keep = block["loss_mask"] & (block["positions"] > 0)
        contexts.append(np.where(alike, windows, PAD)[keep])
        targets.append(ids[keep])
    return np.concatenate(contexts), np.concatenate(targets)


# ---------------------------------------------------------------- model
def new_weights() -> Weights:
    rng = np.random.default_rng(0)
    return {
        "embed": rng.normal(0, 0.1, (VOCABULARY, WIDTH)),
        "hidden": rng.normal(0, 0.1, (CONTEXT * WIDTH, HIDDEN)),
        "out": rng.normal(0, 0.1, (HIDDEN, VOCABULARY)),
    }


def learn(weights: Weights, contexts: Any, targets: Any, rate: float = 0.5) -> float:
    """One step of gradient descent, in place; gives the mean loss in bits a token before it."""
    count = len(targets)
    inputs = weights["embed"][contexts].reshape(count, -1)
    hidden = np.tanh(inputs @ weights["hidden"])
    scores = hidden @ weights["out"]
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    loss = -np.log2(chances[np.arange(count), targets]).mean()
    chances[np.arange(count), targets] -= 1
    chances /= count
    back = (chances @ weights["out"].T) * (1 - hidden**2)
    weights["out"] -= rate * hidden.T @ chances
    into = (back @ weights["hidden"].T).reshape(count * CONTEXT, WIDTH)
    weights["hidden"] -= rate * inputs.T @ back
    np.add.at(weights["embed"], contexts.reshape(-1), -rate * into)
    return float(loss)


# ---------------------------------------------------------------- a run that can be killed
def train(folder: Path, name: str, kill_at: int | None) -> None:
    checkpoint = folder / f"{name}.npz"
    weights, losses, loads = new_weights(), [], loader(folder)
    if checkpoint.exists():
        with np.load(checkpoint) as saved:
            weights = {key: saved[key] for key in weights}
            losses = saved["losses"].tolist()
            loads.load_state_dict(json.loads(str(saved["loader"])))
    for contexts, targets in loads:
        losses.append(learn(weights, contexts, targets))
        if len(losses) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if len(losses) % EVERY == 0:
            partial = folder / f"{name}-partial.npz"
            np.savez(partial, **weights, losses=losses, loader=json.dumps(loads.state_dict()))
            partial.replace(checkpoint)
        if len(losses) == STEPS:
            break
    loads.close()


def run(folder: Path, name: str, kill_at: int | None = None) -> int:
    """A process that trains; gives its exit code."""
    command = [sys.executable, __file__, str(folder), name, str(kill_at or "")]
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # so that sums are added up in one order
    return subprocess.run(command, env={**os.environ, **one_thread}, check=False).returncode


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name:
        folder = Path(name)
        assert run(folder, "whole") == 0
        assert run(folder, "killed", kill_at=STEPS // 2 + 7) == -signal.SIGKILL
        assert run(folder, "killed") == 0
        with np.load(folder / "whole.npz") as whole, np.load(folder / "killed.npz") as killed:
            first, last = whole["losses"][0], whole["losses"][-10:].mean()
            print(f"bits a character: {first:.2f} at first, {last:.2f} after {STEPS} steps")
            assert last < first - 2.5, "it hasn't learnt"
            for key in whole.files:
                assert np.array_equal(whole[key], killed[key]), f"{key} differs after resuming"
            print(f"killed at step {STEPS // 2 + 7} and resumed: the same {STEPS} losses and weights")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if sys.argv[3] else None)
    else:
        main()
