"""Distributed training on gloo: one of two ranks is killed; the run goes on on one, with the losses of an unbroken run.

    pip install 'dload-ml[torch]' scikit-learn
    python examples/torch_ddp.py

Starts itself by torchrun, as a cluster's launcher would. Each step is 48 rows over all ranks, the same rows in the same
order on any number of them, so a run may go on where there are more or fewer. One rank is killed without warning, and
torchrun gives up; what goes on is the last checkpoint, with the model's, the optimizer's and the loader's state.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import dload
from dload.codecs import json_bytes, json_from, npy_bytes, npy_from

STEPS, EVERY, KILLED_AT = 90, 10, 47  # an epoch has 37 steps
BATCH = 48


def digits() -> Iterator[tuple[str, dict[str, bytes]]]:
    from sklearn.datasets import load_digits  # the ranks don't need it

    data = load_digits()
    for number, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        yield f"{number:04d}", {"npy": npy_bytes(image.reshape(-1) / 16), "json": json_bytes(int(label))}


def decode(sample: tuple[str, dict[str, bytes]]) -> tuple[np.ndarray, int]:
    _, fields = sample
    return npy_from(fields["npy"]), json_from(fields["json"])


def collate(rows: list[tuple[np.ndarray, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = zip(*rows, strict=True)
    return torch.from_numpy(np.stack(pixels)), torch.tensor(labels)


def repository(folder: Path) -> dload.Repository:
    return dload.Repository.open(folder / "store", cache_dir=folder / "cache", cache_budget="100MB")


# ---------------------------------------------------------------- a rank
def train(folder: Path, name: str, killed_at: int | None = None) -> None:
    """Train up to the last step, from the run's checkpoint if there is one; rank 0 writes checkpoints and losses."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 10, dtype=torch.float64))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pipe = repository(folder).dataset("digits").samples().shuffle(seed=0).map(decode)
    loader = dload.Loader(pipe, BATCH, collate=collate, ends="endless")  # rank and world are those of torch.distributed
    losses: list[float] = []
    checkpoint = folder / f"{name}.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        losses = saved["losses"]
    for pixels, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()  # the mean of all ranks' gradients is that of the global batch
        optimizer.step()
        dist.all_reduce(loss.detach_())
        losses.append(loss.item() / world)
        if len(losses) == killed_at and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if len(losses) % EVERY == 0:
            learnt = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
            save(checkpoint, learnt, loader)
        if len(losses) == STEPS:
            break
    loader.close()


def save(checkpoint: Path, learnt: dict[str, Any], loader: dload.Loader) -> None:
    """A whole checkpoint or none. What each rank knows of where it is together says where the run is."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    if dist.get_rank() == 0:
        partial = checkpoint.with_suffix(".partial")
        torch.save({**learnt, "loader": dload.merge_states(states)}, partial)
        partial.replace(checkpoint)


# ---------------------------------------------------------------- runs
def on_two_ranks(folder: Path, name: str, killed_at: int) -> int:
    """A run of which one rank is killed; gives the launcher's exit code."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, __file__, str(folder), name, str(killed_at)], check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode


def in_this_process(folder: Path, name: str) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    train(folder, name)
    dist.destroy_process_group()


def losses(folder: Path, name: str) -> list[float]:
    found: list[float] = torch.load(folder / f"{name}.pt")["losses"]
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name:
        folder = Path(name)
        repository(folder).commit("digits", digits())
        in_this_process(folder, "alone")
        assert on_two_ranks(folder, "moved", KILLED_AT) != 0
        begun = len(losses(folder, "moved"))
        print(f"of two ranks one was killed at step {KILLED_AT}; the last checkpoint is of step {begun}")
        assert begun == KILLED_AT // EVERY * EVERY
        in_this_process(folder, "moved")
        alone, moved = losses(folder, "alone"), losses(folder, "moved")
        print(f"gone on with on one: loss {moved[0]:.3f} at first, {moved[-1]:.3f} after {len(moved)} steps")
        assert len(alone) == len(moved) == STEPS and moved[-1] < moved[0] / 2
        apart = max(abs(a - b) for a, b in zip(alone, moved, strict=True))
        print(f"all losses are those of a run that wasn't broken off, to {apart:.0e}")
        assert apart < 1e-9


if __name__ == "__main__":
    if len(sys.argv) > 1:
        dist.init_process_group("gloo")  # with rank and world as torchrun says
        train(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
        dist.destroy_process_group()
    else:
        main()
