"""A model that is trained by one rank, by two, and by two that die and four that go on: the same losses."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import dload
from dload.api import Pipeline, Repository
from dload.pack import Sample
from tests.grid.pipes import keep
from tests.grid.ranks import Ranks, whole_lines

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # torch has threads

STEPS, BATCH, EVERY, KILLED = 200, 12, 5, 77


def numbers(sample: Sample) -> list[float]:
    return list(struct.unpack("9d", sample[1]["x"]))


def kept(sample: Sample) -> bool:
    return keep(sample[0])


PIPES: dict[str, tuple[Callable[[Repository], Pipeline], dict[str, Any]]] = {
    "places": (lambda repo: repo.dataset("numbers").samples().shuffle(80, seed=1).map(numbers), {}),
    "stream": (
        lambda repo: repo.dataset("numbers").samples().shuffle(80, seed=1).filter(kept).map(numbers),
        {"ends": "endless", "columns": 4},
    ),
}


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()


def train(pipe: Pipeline, options: dict[str, Any], folder: Path, killed: int | None = None) -> None:
    """Train up to step STEPS, from the checkpoint of the folder if there is one; the losses go to a file, line by line.
    Rank 1 kills itself behind step `killed`."""
    model = make_model()
    loader = dload.Loader(pipe, BATCH, collate=lambda rows: torch.tensor(rows, dtype=torch.float64), **options)
    step, checkpoint = 0, folder / "checkpoint"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(json.loads(saved["loader"]))
        step = saved["step"]
    with (folder / f"losses-{dist.get_rank()}").open("a") as losses, loader:
        while step < STEPS:
            for rows in loader:
                loss = train_step(model, rows)
                step += 1
                print(json.dumps([step, loss]), file=losses, flush=True)
                if step % EVERY == 0:
                    save(checkpoint, model, loader, step)
                if step == killed and dist.get_rank() == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                if step == STEPS:
                    break


def train_step(model: torch.nn.Module, rows: torch.Tensor) -> float:
    """Gradient descent on this rank's rows, gradients averaged over all ranks; gives the loss of the global batch."""
    loss = (model(rows[:, :8]).squeeze(1) - rows[:, 8]).square().mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    shared = torch.cat([loss.detach().reshape(1), *[gradient.flatten() for gradient in gradients]])
    dist.all_reduce(shared)
    shared /= dist.get_world_size()
    with torch.no_grad():
        vector_to_parameters(parameters_to_vector(model.parameters()) - 0.1 * shared[1:], model.parameters())
    return float(shared[0])


def save(path: Path, model: torch.nn.Module, loader: dload.Loader, step: int) -> None:
    """A checkpoint of all ranks as one file, that appears whole or not at all."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    if dist.get_rank() == 0:
        new = path.with_suffix(".new")
        loading = json.dumps(dload.merge_states(states))
        torch.save({"model": model.state_dict(), "loader": loading, "step": step}, new)
        new.rename(path)


@pytest.mark.parametrize("kind", sorted(PIPES))
def test_killed_and_gone_on_on_four_ranks_the_losses_are_those_of_one(
    repo: Repository, start: Callable[..., Ranks], tmp_path: Path, kind: str
) -> None:
    make, options = PIPES[kind]
    folders = {name: tmp_path / name for name in ("one", "two", "killed")}
    for folder in folders.values():
        folder.mkdir()
    start(1, train, make(repo), options, folders["one"]).results()
    start(2, train, make(repo), options, folders["two"]).results()
    killed = start(2, train, make(repo), options, folders["killed"], KILLED)
    killed.processes[1].join(60)
    killed.kill()
    assert killed.processes[1].exitcode == -signal.SIGKILL
    assert whole_lines(folders["killed"] / "losses-1")[-1][0] == KILLED
    start(4, train, make(repo), options, folders["killed"]).results()

    expected = whole_lines(folders["one"] / "losses-0")
    assert [step for step, _ in expected] == [*range(1, STEPS + 1)]
    for rank in range(2):
        assert whole_lines(folders["two"] / f"losses-{rank}") == close(expected)
    gone_on = whole_lines(folders["killed"] / "losses-2")
    assert gone_on[0][0] == KILLED // EVERY * EVERY + 1
    assert gone_on == close(expected[gone_on[0][0] - 1 :])
    losses = [loss for _, loss in expected]
    assert len(set(losses)) == STEPS, "each step has a batch of its own"


def close(expected: list[list[float]]) -> Any:
    return [[step, pytest.approx(loss, rel=1e-9)] for step, loss in expected]
