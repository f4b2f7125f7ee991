"""A loader inside the workers of Ray Train: stopped on two of them, resumed without Ray, to the same weights.

    python examples/ray_train.py

`train` is what each worker runs. It says nothing of ranks: Ray Train has initialised torch.distributed, where
StreamLoader finds rank and world. Each worker gets its part of every global batch; the checkpoint holds the model and
the loader's state, a few hundred bytes. The run on two workers is stopped in the middle of the epoch. This process
resumes it, as any number of workers could, and ends with the weights of a run that went through.

Needs the extras `ray` and `torch`; starts a Ray of its own, with two processors, and takes half a minute.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

import dload
from dload.torch import StreamLoader

SAMPLES, BATCH, STOP = 320, 16, 7  # 20 steps an epoch; the run on Ray stops behind step 7


def samples() -> Iterator[tuple[str, dict[str, bytes]]]:
    rng = random.Random(0)
    for number in range(SAMPLES):
        x = rng.random()
        yield f"{number:04d}", {"json": dload.codecs.json_bytes([x, 3 * x - 1])}


def repository(folder: Path) -> dload.Repository:
    return dload.Repository.open(str(folder / "store"), cache_dir=folder / "cache", cache_budget="1GB")


def made(folder: Path) -> tuple[torch.nn.Module, StreamLoader]:
    """A model and a loader at the beginning, the same everywhere."""
    torch.manual_seed(0)
    line = repository(folder).dataset("line").samples().shuffle(64, seed=1)
    loader = StreamLoader(line, global_batch=BATCH, num_workers=1, collate=collate)
    return torch.nn.Linear(1, 1, dtype=torch.float64), loader


def collate(rows: list[Any]) -> torch.Tensor:
    """(n, 2): x and what y should be."""
    return torch.tensor([dload.codecs.json_from(fields["json"]) for _, fields in rows], dtype=torch.float64)


def learn(model: torch.nn.Module, loader: StreamLoader, stop: int | None = None) -> dict[str, int]:
    """Train to the end of the epoch, or behind step `stop`. Returns how many steps and how many rows it had."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = rows = 0
    for step, batch in enumerate(loader, 1):
        loss = (model(batch[:, :1]) - batch[:, 1:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows += len(batch)
        if step == stop:
            break
    return {"steps": step, "rows": rows}


def train(config: dict[str, Any]) -> None:
    """In each worker of Ray Train."""
    model, loader = made(Path(config["folder"]))
    with loader, tempfile.TemporaryDirectory() as folder:
        metrics = learn(ray.train.torch.prepare_model(model), loader, STOP)
        if ray.train.get_context().get_world_rank() == 0:  # any rank's state is the state of all
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, Path(folder) / "saved.pt")
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))
        else:
            ray.train.report(metrics)


def on_ray(folder: Path) -> Any:
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"folder": str(folder)},
        scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=ray.train.RunConfig(name="stopped", storage_path=str(folder / "runs")),
    )
    return trainer.fit()


def main() -> None:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository(folder).commit("line", samples(), target_shard_size=2_000)
        through, loader = made(folder)
        with loader:
            whole = learn(through, loader)
        stopped = on_ray(folder)
        resumed, loader = made(folder)
        with stopped.checkpoint.as_directory() as checkpoint, loader:
            saved = torch.load(Path(checkpoint) / "saved.pt")
            resumed.load_state_dict(saved["model"])
            loader.load_state_dict(saved["loader"])
            rest = learn(resumed, loader)
    ray.shutdown()
    print(f"through: {whole['steps']} steps, y = {through.weight.item():.6f} x {through.bias.item():+.6f}")
    print(f"stopped on two workers of Ray Train behind step {stopped.metrics['steps']}, resumed for {rest['steps']}: "
          f"y = {resumed.weight.item():.6f} x {resumed.bias.item():+.6f}")  # fmt: skip
    assert whole == {"steps": 20, "rows": SAMPLES}
    assert (stopped.metrics["steps"], stopped.metrics["rows"]) == (STOP, STOP * BATCH // 2), "each worker had its half"
    assert rest == {"steps": 20 - STOP, "rows": (20 - STOP) * BATCH}
    assert abs(through.weight.item() - resumed.weight.item()) < 1e-9
    assert abs(through.bias.item() - resumed.bias.item()) < 1e-9


if __name__ == "__main__":
    main()
