"""How fast documents of tokens become blocks, in each of the ways that `pack` has, once the shards are in the cache.

    python benchmarks/packing.py [--quick] [--rounds N]

1,000,000 documents (--quick: 50,000) of 50 to 1,500 int32 tokens, packed into blocks of 2,048: joined and cut where
they are known beforehand (planned), in a stream behind a filter, and planned behind a shuffle; whole documents by first
fit and best fit. Each round is a process of its own, which goes over the data once to warm up. Prints millions of
tokens a second, by the clock and by the processor time of all threads, as medians over the rounds, and the share of the
blocks that is padding. A round goes over 775 million tokens six times, which takes some 80 seconds of a core and 6.3 GB
of disk, so there is one where no other number is asked for. Other systems' packing is in `benchmarks/side_by_side`.
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
import numpy as np
count, folder = int(sys.argv[1]), sys.argv[2]
LENGTH, EOS, PAD = 2048, 50_000, 50_001
rng = np.random.default_rng(0)
sizes = rng.integers(50, 1501, count).tolist()
noise = rng.integers(0, 50_000, 1 << 20, dtype=np.int32)
total = sum(sizes) + count
def documents():
    for number, size in enumerate(sizes):
        at = number * 1237 % (len(noise) - size)
        yield number, noise[at : at + size]
def timed(make):
    begin, cpu, blocks, valid = time.perf_counter(), time.process_time(), 0, 0
    for block in make():
        blocks += 1
        valid += count_valid(block)
    assert valid == total, (valid, total)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    return valid / seconds / 1e6, valid / cpu / 1e6, 100 * (1 - valid / (blocks * LENGTH))
"""

OURS = """
from pathlib import Path
from dload.api import Repository
from dload.cache import ShardCache
from dload.store.local import FolderStore
os.environ["XDG_STATE_HOME"] = folder
repo = Repository(FolderStore(os.path.join(folder, "store")), ShardCache(Path(folder, "cache")))
if "docs" not in repo.list_datasets():
    repo.commit("docs", ((f"d{number:07d}", {"tokens": doc.tobytes()}) for number, doc in documents()))
samples = repo.dataset("docs").samples()
def count_valid(block):
    return block["valid"]
def packed(pipe, **more):
    return pipe.pack(LENGTH, eos_id=EOS, pad_id=PAD, dtype="int32", **more)
sum(1 for _ in samples)
streamed = samples.filter(bool)
pipes = {"joined, planned": packed(samples), "joined, streamed": packed(streamed),
         "joined, shuffled": packed(samples.shuffle(4096, seed=1)), "first fit": packed(samples, mode="first_fit"),
         "best fit": packed(samples, mode="best_fit"), "best fit, streamed": packed(streamed, mode="best_fit")}
print(json.dumps({name: timed(lambda: pipe) for name, pipe in pipes.items()}))
"""


def run(count: int, folder: Path) -> dict[str, list[float]]:
    command = [sys.executable, "-c", COMMON + OURS, str(count), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise SystemExit(f"it failed with exit code {done.returncode}:\n{done.stderr}")
    found: dict[str, list[float]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="50,000 documents")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    count, rounds = 50_000 if args.quick else 1_000_000, args.rounds
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as folder:
        results = [run(count, Path(folder)) for _ in range(rounds)]
    print(f"{count:,} documents into blocks of 2,048, millions of tokens/s (a second of processor time), padding")
    for row in results[0]:
        clock, cpu, padding = (median(each[row][at] for each in results) for at in range(3))
        print(f"  {row:20} {clock:7.1f} ({cpu:.1f})  {padding:.1f} %")


if __name__ == "__main__":
    main()
