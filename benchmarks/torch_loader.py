"""Batches out of two worker processes through shared slots and through a pipe; what a state costs.

    python benchmarks/torch_loader.py [--quick]

"slots" is StreamLoader; "a pipe" is the same pipeline in torch's DataLoader, whose workers pickle each batch through a
pipe. Batches of 64 samples as lists, shuffled, from a warm cache, each way in processes of its own, in turns: once over
the samples to warm up and start the workers, which persist, then timed over further epochs. Prints medians over the
rounds and the ratio; then what a state costs beside a step of 5 ms, and how large it is. Other systems' loaders are in
`benchmarks/side_by_side`.
"""

from __future__ import annotations

import argparse
import json
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


def run(code: str, count: int, size: int, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-c", COMMON + code, str(count), str(size), str(folder), "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=300)
    if done.returncode:
        raise SystemExit(f"it failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compare(title: str, count: int, size: int, rounds: int) -> None:
    ways = {"slots": SLOTS, "a pipe": PIPE}
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as folder:
        results: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, code in ways.items():
                results[name].append(run(code, count, size, Path(folder))["samples/s"])
        state = run(STATE, count, size, Path(folder))
    slots, pipe = (median(found) for found in results.values())
    print(f"{title}  slots {slots:,.0f}  a pipe {pipe:,.0f} ({slots / pipe:.2f} x)", end="")
    print("".join(f"\n  {name} {value:.4g}" for name, value in state.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the samples, one round")
    part, rounds = (4, 1) if parser.parse_args().quick else (1, 5)
    for title, count, size in (("1 KB", 200_000, 1000), ("100 KB", 12_000, 100_000)):
        compare(f"{title}, warm, samples/s:", count // part, size, rounds)


if __name__ == "__main__":
    main()
