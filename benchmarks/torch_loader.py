"""Batches of 64 samples out of two worker processes, shuffled, once the shards are in the cache; beside others.

    python benchmarks/torch_loader.py [--quick] [--dload-ml PYTHON] [--litdata PYTHON] [--mosaicml PYTHON]

Each system runs in processes of its own, in turns: it writes the same samples once, goes over them once to warm up and
start its workers, which persist, then is timed over further epochs. A batch is the list of its samples. "a pipe" is
dload's own pipeline in torch's DataLoader, whose workers pickle each batch through a pipe. Prints medians over the
rounds and ratios; then what a state costs beside a step of 5 ms, and how large it is. The options name interpreters
that have the others (pip install dload-ml==0.3.1 torch; litdata==0.2.76; mosaicml-streaming==0.13.0).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

COMMON = """
import json, os, random, sys, time
count, size, folder, passes = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
noise = random.Random(0).randbytes(size + 4096)
def make():
    for row in range(count):
        at = row % 4096
        yield f"sample-{row:08d}", {"a": noise[at : at + size // 2], "b": noise[at + size // 2 : at + size]}
def drain(loader):
    number = 0
    for batch in loader:
        number += len(batch)
    assert number > count - 64, number
def timed(loader):
    drain(loader)
    found = []
    for _ in range(passes):
        begin = time.perf_counter()
        drain(loader)
        found.append(count / (time.perf_counter() - begin))
    return sorted(found)[len(found) // 2]
def torch_loader(dataset, **options):
    from torch.utils.data import DataLoader
    return DataLoader(dataset, num_workers=2, persistent_workers=True, **options)
"""

OURS = """
from pathlib import Path
from dload.api import Repository
from dload.cache import ShardCache
from dload.store.local import FolderStore
from dload.torch import StreamLoader, as_iterable_dataset
repo = Repository(FolderStore(os.path.join(folder, "store")), ShardCache(Path(folder, "cache")))
if "warm" not in repo.list_datasets():
    repo.commit("warm", make())
shuffled = repo.dataset("warm").samples().shuffle(4096, seed=1)
"""

SLOTS = (
    OURS
    + """
with StreamLoader(shuffled, 64, num_workers=2, collate=list, persistent_workers=True) as loader:
    print(json.dumps({"samples/s": timed(loader)}))
"""
)

PIPE = (
    OURS
    + """
dataset = as_iterable_dataset(shuffled.batch(64))
print(json.dumps({"samples/s": timed(torch_loader(dataset, batch_size=None, collate_fn=list))}))
"""
)

STATE = (
    OURS
    + """
with StreamLoader(shuffled, 64, num_workers=2, collate=list) as loader:
    spent = steps = 0
    for _ in zip(range(200), loader):
        time.sleep(0.005)
        begin = time.perf_counter()
        state = loader.state_dict()
        spent += time.perf_counter() - begin
        steps += 1
    print(json.dumps({"state, share of a 5 ms step": spent / steps / 0.005, "state, bytes": len(json.dumps(state))}))
"""
)

DLOAD_ML = """
import dload
from dload.torch import as_iterable_dataset
repo = dload.Repository.open()
if "warm" not in repo.list_datasets():
    repo.commit("warm", make())
dataset = as_iterable_dataset(repo.dataset("warm").samples().shuffle(4096, seed=1))
print(json.dumps({"samples/s": timed(torch_loader(dataset, batch_size=64, collate_fn=list))}))
"""

LITDATA = """
from litdata import StreamingDataset
from litdata.streaming import Cache
target = os.path.join(folder, "litdata")
if not os.path.exists(os.path.join(target, "index.json")):
    os.makedirs(target, exist_ok=True)
    cache = Cache(target, chunk_bytes="64MB")
    for row, (key, fields) in enumerate(make()):
        cache[row] = {"key": key, **fields}
    cache.done()
    cache.merge()
dataset = StreamingDataset(target, shuffle=True, seed=1)
def batch(rows):  # its values are views of a chunk, which can't be pickled
    return [{"key": row["key"], "a": bytes(row["a"]), "b": bytes(row["b"])} for row in rows]
print(json.dumps({"samples/s": timed(torch_loader(dataset, batch_size=64, collate_fn=batch))}))
"""

MOSAICML = """
from streaming import MDSWriter, StreamingDataset
target = os.path.join(folder, "mds")
if not os.path.exists(os.path.join(target, "index.json")):
    with MDSWriter(out=target, columns={"key": "str", "a": "bytes", "b": "bytes"}, size_limit=1 << 26) as writer:
        for key, fields in make():
            writer.write({"key": key, **fields})
dataset = StreamingDataset(local=target, shuffle=True, shuffle_seed=1, batch_size=64)
print(json.dumps({"samples/s": timed(torch_loader(dataset, batch_size=64, collate_fn=list))}))
"""


def run(python: str, code: str, count: int, size: int, folder: Path, environment: dict[str, str]) -> dict[str, float]:
    command = [python, "-W", "ignore", "-c", COMMON + code, str(count), str(size), str(folder), "3"]
    # Two of the systems are called dload: each process finds the one that its interpreter has installed.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**clean, **environment}, cwd=folder, timeout=300
    )
    if done.returncode:
        raise SystemExit(f"{python} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compare(title: str, count: int, size: int, rounds: int, peers: dict[str, str], server: dict[str, str]) -> None:
    systems = {"dload": (sys.executable, SLOTS), "a pipe": (sys.executable, PIPE)}
    for name, code in (("dload-ml", DLOAD_ML), ("litdata", LITDATA), ("mosaicml", MOSAICML)):
        if peers.get(name):
            systems[name] = (peers[name], code)
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as folder:
        results: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(rounds):
            for name, (python, code) in systems.items():
                where = Path(folder, "dload" if name == "a pipe" else name)
                where.mkdir(exist_ok=True)
                environment = {**server, "DLOAD_CACHE_DIR": str(where / "cache")} if name == "dload-ml" else {}
                results[name].append(run(python, code, count, size, where, environment)["samples/s"])
        state = run(sys.executable, STATE, count, size, Path(folder, "dload"), {})
    ours = median(results["dload"])
    print(title, end="")
    for name, found in results.items():
        ratio = "" if name == "dload" else f" ({ours / median(found):.2f} x)"
        print(f"  {name} {median(found):,.0f}{ratio}", end="")
    print("".join(f"\n  {name} {value:.4g}" for name, value in state.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the samples, one round")
    parser.add_argument("--dload-ml", metavar="PYTHON", help="an interpreter that has dload-ml 0.3.1 and torch")
    parser.add_argument("--litdata", metavar="PYTHON", help="an interpreter that has LitData")
    parser.add_argument("--mosaicml", metavar="PYTHON", help="an interpreter that has mosaicml-streaming")
    args = parser.parse_args()
    part, rounds = (4, 1) if args.quick else (1, 5)
    peers = {"dload-ml": args.dload_ml, "litdata": args.litdata, "mosaicml": args.mosaicml}
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as folder:
        server: dict[str, str] = {}
        stop = None
        if args.dload_ml:
            from dload.testing.s3_server import S3Server

            running = S3Server.shared(Path(folder, "server"))
            running.make_bucket("peer")
            stop = running.stop
            server = {**running.environment(), "DLOAD_BUCKET": "peer", "DLOAD_ENDPOINT_URL": running.endpoint_url}
        try:
            for title, count, size, prefix in (("1 KB", 200_000, 1000, "small"), ("100 KB", 12_000, 100_000, "large")):
                place = {**server, "DLOAD_PREFIX": prefix} if server else {}
                compare(f"{title}, warm, samples/s:", count // part, size, rounds, peers, place)
        finally:
            if stop is not None:
                stop()


if __name__ == "__main__":
    main()
