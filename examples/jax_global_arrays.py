"""Train over global arrays of JAX, each process reading only its own rows; here on CPU devices, two a process.

    python examples/jax_global_arrays.py [--processes N] [--steps N]

Starts N processes of itself that meet in jax.distributed, as a cluster's launcher would. Each reads its share of every
global batch with `dload.jax.Loader`, and the mesh makes global arrays of the shares. The losses that are printed are
the same for any number of processes; in the middle the run is left and resumed from its state.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BATCH = 16
DEVICES = 2  # of each process


def make_data(folder: Path) -> None:
    """A small data set: eight inputs and what is to be learned from them, each as the bytes of a .npy file."""
    import numpy as np

    import dload
    from dload.codecs import npy_bytes

    rng = np.random.default_rng(0)
    weights = rng.normal(size=8)
    samples = []
    for row in range(320):
        x = rng.normal(size=8)
        samples.append((f"row-{row:04d}", {"x": npy_bytes(x), "y": npy_bytes(x @ weights)}))
    dload.Repository.open(str(folder / "store"), cache_dir=folder / "cache").commit("line", samples)


def train(folder: Path, steps: int) -> None:
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
        return weights - 0.1 * gradient, loss

    def make_loader() -> Loader:
        repo = dload.Repository.open(str(folder / "store"), cache_dir=folder / "cache")
        pipe = repo.dataset("line").samples().shuffle(100, seed=1)
        return Loader(pipe, BATCH, DataPartition(jax.process_index(), jax.process_count()))

    weights, done, state = jnp.zeros(8), 0, None
    for until in (steps // 2, steps):
        with make_loader() as loader:
            if state is not None:
                loader.set_state(state)
            while done < until:
                for _keys, fields in loader:
                    weights, loss = step(weights, to_global(fields["x"]), to_global(fields["y"]))
                    done += 1
                    if jax.process_index() == 0:
                        print(f"step {done}: loss {loss:.4f}", flush=True)
                    if done == until:
                        break
            state = json.loads(json.dumps(loader.get_state()))  # it is JSON: save it beside the weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--process", nargs=3, metavar=("FOLDER", "ADDRESS", "INDEX"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.process is not None:
        folder, address, index = args.process
        import jax

        jax.distributed.initialize(address, args.processes, int(index))
        train(Path(folder), args.steps)
        return
    with tempfile.TemporaryDirectory(prefix="dload-example-") as folder, socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
        make_data(Path(folder))
        free.close()
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
        }
        command = [sys.executable, __file__, "--processes", str(args.processes), "--steps", str(args.steps)]
        processes = [
            subprocess.Popen([*command, "--process", folder, address, str(index)], env=environment)
            for index in range(args.processes)
        ]
        try:
            sys.exit(max(process.wait() for process in processes))
        finally:
            for process in processes:
                process.kill()


if __name__ == "__main__":
    main()
