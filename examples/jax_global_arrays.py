"""JAX on several processes: global arrays, each process reading only its own rows; on CPU devices here, two a process.

    pip install 'dload-ml[jax]' scikit-learn
    python examples/jax_global_arrays.py

Starts two processes of itself that meet in jax.distributed, as a cluster's launcher would. Each reads its share of
every global batch with `dload.jax.Loader`, and the mesh makes global arrays of the shares. In the middle the run is
left and resumed from its state. The losses are those of a run on one process. What is learned is how a diabetes goes
on, from the ten measurements of scikit-learn's table.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BATCH, STEPS = 16, 40
DEVICES = 2  # of each process


def make_data(folder: Path) -> None:
    """Each row of the table is a sample: its inputs x, and y, how far it went on."""
    from sklearn.datasets import load_diabetes

    import dload
    from dload.codecs import npy_bytes

    table = load_diabetes()
    x, y = table.data / table.data.std(axis=0), (table.target - table.target.mean()) / table.target.std()
    samples = [(f"{row:03d}", {"x": npy_bytes(x[row]), "y": npy_bytes(y[row])}) for row in range(len(y))]
    dload.Repository.open(folder / "store", cache_dir=folder / "cache").commit("diabetes", samples)


def train(folder: Path) -> list[float]:
    """The losses of all steps."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import dload
    from dload.jax import DataPartition, Loader

    mesh = Mesh(np.array(jax.devices()), ("data",))  # in the order of processes, as the global batch is
    rows = NamedSharding(mesh, PartitionSpec("data"))

    def to_global(local: Any) -> Any:
        return jax.make_array_from_process_local_data(rows, local, (BATCH, *local.shape[1:]))

    @jax.jit
    def step(weights: Any, x: Any, y: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
        return weights - 0.05 * gradient, loss

    def make_loader() -> Loader:
        repo = dload.Repository.open(folder / "store", cache_dir=folder / "cache")
        pipe = repo.dataset("diabetes").samples().shuffle(100, seed=1)
        return Loader(pipe, BATCH, DataPartition(jax.process_index(), jax.process_count()))

    weights, losses, state = jnp.zeros(10), [], None
    for until in (STEPS // 2, STEPS):
        with make_loader() as loader:
            if state is not None:
                loader.set_state(json.loads(state))
            while len(losses) < until:
                for _keys, fields in loader:
                    weights, loss = step(weights, to_global(fields["x"]), to_global(fields["y"]))
                    losses.append(float(loss))
                    if len(losses) == until:
                        break
            state = json.dumps(loader.get_state())  # it is JSON: save it beside the weights
    return losses


def run(folder: Path, processes: int) -> list[float]:
    """The losses of a run on so many processes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {
        **os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
    }  # fmt: skip
    command = [sys.executable, __file__, str(folder), address, str(processes)]
    started = [subprocess.Popen([*command, str(index)], env=environment) for index in range(processes)]
    try:
        assert sum(process.wait() for process in started) == 0
    finally:
        for process in started:
            process.kill()
    losses: list[float] = json.loads((folder / "losses.json").read_text())
    return losses


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name:
        folder = Path(name)
        make_data(folder)
        two, alone = run(folder, processes=2), run(folder, processes=1)
    first, last = sum(two[:5]) / 5, sum(two[-5:]) / 5
    print(f"mean squared error on two processes: {first:.2f} at first, {last:.2f} after {STEPS} steps")
    assert last < 0.8 * first
    apart = max(abs(a - b) for a, b in zip(two, alone, strict=True))
    print(f"all losses are those of one process, to {apart:.0e}")
    assert apart < 1e-4


def one_process(folder: Path, address: str, processes: int, index: int) -> None:
    import jax

    jax.distributed.initialize(address, processes, index)
    losses = train(folder)
    if index == 0:
        (folder / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one_process(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
