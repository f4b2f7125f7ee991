"""Train in JAX from a data set that Hugging Face `datasets` holds, without importing it; on two processes, then on one.

    python examples/jax_without_import.py [--stream]

Makes a small data set in local files; any name that `datasets.load_dataset` takes does as well. Two processes, which
meet in jax.distributed on CPU devices, take the first half of the steps and leave their state; one process takes it up.
At the end the losses are compared with those of a run that one process made alone: they are the same, draws and all.
With `--stream` nothing is downloaded ahead of reading.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import dload

BATCH, STEPS, RECORDS = 8, 20, 200


def make_data(folder: Path) -> None:
    """Four files of records with eight inputs and what is to be learned from them."""
    rng = random.Random(0)
    weights = [rng.gauss(0, 1) for _ in range(8)]
    for number in range(4):
        rows = []
        for _ in range(RECORDS // 4):
            x = [rng.gauss(0, 1) for _ in range(8)]
            rows.append({"x": x, "y": sum(a * b for a, b in zip(x, weights, strict=True))})
        (folder / f"train-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def preprocess(record: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Inputs with a little noise, which hangs on the record, the epoch and the seed alone."""
    import numpy as np

    x = [value + rng.gauss(0, 0.01) for value in record["x"]]
    return {"x": np.array(x, np.float32), "y": np.float32(record["y"])}


def make_pipe(folder: Path, stream: bool) -> dload.Pipeline:
    files = [str(folder / f"train-{number}.jsonl") for number in range(4)]
    return dload.load(
        "hf/json", preprocess=preprocess, records=RECORDS, seed=1, shuffle=50, streaming=stream,
        options=dload.HFOptions(data_files={"train": files}),
    )  # fmt: skip


def train(folder: Path, until: int, stream: bool) -> list[float]:
    """The steps up to `until`, from where the last run left off; in its state, the weights and JSON of all ranks."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental.multihost_utils import process_allgather
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from dload.jax import Loader

    rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))

    @jax.jit
    def step(weights: Any, x: Any, y: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
        return weights - 0.1 * gradient, loss

    def to_global(local: Any) -> Any:
        return jax.make_array_from_process_local_data(rows, local, (BATCH, *local.shape[1:]))

    saved = folder / "state.json"
    before = json.loads(saved.read_text()) if saved.exists() else None
    weights = jnp.zeros(8) if before is None else jnp.array(before["weights"])
    losses: list[float] = [] if before is None else before["losses"]
    with Loader(make_pipe(folder, stream), BATCH, columns=2) as loader:
        if before is not None:
            loader.set_state(before["data"])
        for batch in loader:
            weights, loss = step(weights, to_global(batch["x"]), to_global(batch["y"]))
            losses.append(float(loss))
            if len(losses) == until:
                break
        own = json.dumps(loader.get_state()).encode().ljust(1 << 16)
        states = process_allgather(np.frombuffer(own, np.uint8)).reshape(jax.process_count(), -1)
        data = dload.merge_states([json.loads(state.tobytes()) for state in np.asarray(states)])
    if jax.process_index() == 0:
        saved.write_text(json.dumps({"data": data, "weights": np.asarray(weights).tolist(), "losses": losses}))
    return losses


def run(folder: Path, processes: int, until: int, stream: bool) -> list[float]:
    """So many processes of this program, up to step `until`. Gives the losses of all steps so far."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, __file__, *(["--stream"] if stream else []), "--process", str(folder), address]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    started = [
        subprocess.Popen([*command, str(index), str(processes), str(until)], env=environment)
        for index in range(processes)
    ]
    try:
        if sum(process.wait() for process in started):
            sys.exit("a process failed")
    finally:
        for process in started:
            process.kill()
    losses: list[float] = json.loads((folder / "state.json").read_text())["losses"]
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--process", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.process is not None:
        folder, address, index, processes, until = args.process
        import jax

        jax.distributed.initialize(address, int(processes), int(index))
        train(Path(folder), int(until), args.stream)
        return
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name:
        folder = Path(name)
        make_data(folder)
        alone = run(folder, 1, STEPS, args.stream)
        (folder / "state.json").unlink()
        run(folder, 2, STEPS // 2, args.stream)
        moved = run(folder, 1, STEPS, args.stream)
    print("step  one process  two processes, then one")
    for number, (one, other) in enumerate(zip(alone, moved, strict=True), 1):
        print(f"{number:4}  {one:11.4f}  {other:23.4f}")
    if not all(math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-5) for one, other in zip(alone, moved, strict=True)):
        sys.exit("they differ by more than rounding")


if __name__ == "__main__":
    main()
