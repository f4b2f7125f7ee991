"""How fast documents of tokens become blocks once the shards are in the cache; beside LanceDB's streaming loader.

    python benchmarks/packing.py [--quick] [--rounds N] [--lancedb PYTHON]

1,000,000 documents (--quick: 50,000) of 50 to 1,500 int32 tokens, packed into blocks of 2,048: joined and cut where
they are known beforehand (planned), in a stream behind a filter, and planned behind a shuffle; whole documents by first
fit and best fit. Each system runs in processes of its own, in turns, and goes over the data once to warm up. Prints
millions of tokens a second, by the clock and by the processor time of all threads, as medians over the rounds, and the
share of the blocks that is padding.

`--lancedb` names an interpreter that has it with torch (pip install lancedb==0.40.0 torch). Its packer joins and cuts:
StreamingDataset(shuffle=False, num_splits=1, pack_sequences=2048, blocks_per_epoch=<all>), iterated directly. It gives
input_ids and doc_ids as tensors; ours gives positions and a mask besides.
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

LANCEDB = """
import lancedb, pyarrow as pa
from itertools import islice
from lancedb.streaming import StreamingDataset
db = lancedb.connect(os.path.join(folder, "lance"))
schema = pa.schema([("tokens", pa.list_(pa.int32()))])
def batches():
    docs = documents()
    while rows := [doc for _, doc in islice(docs, 10_000)]:
        yield pa.record_batch([pa.array(rows, type=schema.field(0).type)], schema=schema)
try:
    table = db.open_table("docs")
except Exception:
    table = db.create_table("docs", batches(), schema=schema)
def packed():
    return StreamingDataset(table, shuffle=False, num_splits=1, columns=["tokens"], pack_sequences=LENGTH, eos_id=EOS,
                            pad_id=PAD, blocks_per_epoch=-(-total // LENGTH))
def count_valid(block):
    return int((block["input_ids"] != PAD).sum())
def bare(make):
    begin, cpu = time.perf_counter(), time.process_time()
    for block in make():
        pass
    return total / (time.perf_counter() - begin) / 1e6, total / (time.process_time() - cpu) / 1e6, 0.0
sum(1 for _ in islice(packed(), 2000))
print(json.dumps({"joined, planned": bare(packed)}))
"""


def run(python: str, code: str, count: int, folder: Path) -> dict[str, list[float]]:
    command = [python, "-c", COMMON + code, str(count), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=dict(os.environ))
    if done.returncode:
        raise SystemExit(f"{python} failed with exit code {done.returncode}:\n{done.stderr}")
    line = done.stdout.strip().splitlines()[-1]
    print(python, line, file=sys.stderr)  # what there is so far, should another one fail
    found: dict[str, list[float]] = json.loads(line)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="50,000 documents, one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lancedb", metavar="PYTHON", help="an interpreter that has LanceDB and torch")
    args = parser.parse_args()
    count, rounds = (50_000, 1) if args.quick else (1_000_000, args.rounds)
    systems = {"dload": (sys.executable, OURS)} | ({"lancedb": (args.lancedb, LANCEDB)} if args.lancedb else {})
    results: dict[str, list[dict[str, list[float]]]] = {name: [] for name in systems}
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as folder:
        for _ in range(rounds):
            for name, (python, code) in systems.items():
                where = Path(folder, name)
                where.mkdir(exist_ok=True)
                results[name].append(run(python, code, count, where))
    print(f"{count:,} documents into blocks of 2,048, millions of tokens/s (a second of processor time), padding")
    for name, found in results.items():
        for row in found[0]:
            clock, cpu, padding = (median(each[row][at] for each in found) for at in range(3))
            line = f"  {name:8} {row:20} {clock:7.1f} ({cpu:.1f})"
            print(line + (f"  {padding:.1f} %" if name == "dload" else ""))
    if "lancedb" in results:
        ours, theirs = (
            [median(each["joined, planned"][at] for each in results[name]) for at in range(2)] for name in systems
        )
        print(f"  joined: {ours[0] / theirs[0]:.1f} x by the clock, {ours[1] / theirs[1]:.1f} x by processor time")


if __name__ == "__main__":
    main()
