"""How fast pipelines run once the shards are in the cache: shuffled, mapped, batched; beside a bare loop and others.

    python benchmarks/pipeline.py [--quick] [--dload-ml PYTHON] [--litdata PYTHON]

Each system runs in processes of its own, in turns: it writes the same samples once, goes over them once to warm up,
then is timed over further passes. The bare loop slices one mmap in a random order that was drawn before. A pass of
dload maps each shard anew, since the cache may have evicted it meanwhile, so the bare loop is there twice: mapping its
file anew in each pass, and with a map that stays (its page tables are filled then). Prints medians over the rounds and
ratios. `--dload-ml` and `--litdata` name interpreters that have them (pip install
dload-ml==0.3.1; litdata==0.2.76).
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
import json, mmap, os, random, sys, time
count, size, folder, passes = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
noise = random.Random(0).randbytes(size + 4096)
def make():
    for row in range(count):
        at = row % 4096
        yield f"sample-{row:08d}", {"a": noise[at : at + size // 2], "b": noise[at + size // 2 : at + size]}
def drain(iterable):
    number = 0
    for _ in iterable:
        number += 1
    return number
def timed(make_iterable, per=1):
    drain(make_iterable())
    best = []
    for _ in range(passes):
        begin = time.perf_counter()
        assert drain(make_iterable()) * per >= count
        best.append(count / (time.perf_counter() - begin))
    best.sort()
    return best[len(best) // 2]
def first(make_iterable):
    begin = time.perf_counter()
    iterator = iter(make_iterable())
    next(iterator)
    return time.perf_counter() - begin
"""

BARE = """
path = os.path.join(folder, "bare")
if not os.path.exists(path):
    with open(path, "wb") as file:
        for _, fields in make():
            file.write(fields["a"] + fields["b"])
file = open(path, "rb")
def new_map():
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
kept = new_map() if keep else None
half = size // 2
places = [(f"sample-{row:08d}", row * size, row * size + half, (row + 1) * size) for row in range(count)]
in_order = list(places)
random.Random(1).shuffle(places)
def loop(order):
    mapped = kept or new_map()
    for key, a, b, c in order:
        yield key, {"a": mapped[a:b], "b": mapped[b:c]}
def by_hand():
    batch = []
    for item in loop(places):
        batch.append(work(item))
        if len(batch) == 64:
            yield batch
            batch = []
    if batch:
        yield batch
def work(item):
    return item
print(json.dumps({"shuffled": timed(lambda: loop(places)), "sequential": timed(lambda: loop(in_order)),
                  "map and batch": timed(by_hand, 64)}))
"""

OURS = """
import resource
from pathlib import Path
from dload.api import Repository
from dload.cache import ShardCache
from dload.store.local import FolderStore
repo = Repository(FolderStore(os.path.join(folder, "store")), ShardCache(Path(folder, "cache")))
if "warm" not in repo.list_datasets():
    repo.commit("warm", make())
samples = repo.dataset("warm").samples()
shuffled = samples.shuffle(4096, seed=1)
def work(item):
    return item
drain(shuffled)
print(json.dumps({"shuffled": timed(lambda: shuffled), "sequential": timed(lambda: samples),
                  "map and batch": timed(lambda: shuffled.map(work).batch(64), 64), "first sample, ms": 1000 *
                  first(lambda: shuffled), "full shuffle": timed(lambda: samples.shuffle(full=True, seed=1))}))
"""

DLOAD_ML = """
import dload
repo = dload.Repository.open()
if "warm" not in repo.list_datasets():
    repo.commit("warm", make())
samples = repo.dataset("warm").samples()
shuffled = samples.shuffle(4096, seed=1)
def work(item):
    return item
print(json.dumps({"shuffled": timed(lambda: shuffled), "sequential": timed(lambda: samples),
                  "map and batch": timed(lambda: shuffled.map(work).batch(64), 64), "first sample, ms": 1000 *
                  first(lambda: shuffled)}))
"""

LITDATA = """
import litdata
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
def read(shuffle):
    return StreamingDataset(target, shuffle=shuffle, seed=1)
print(json.dumps({"shuffled": timed(lambda: read(True)), "sequential": timed(lambda: read(False)),
                  "first sample, ms": 1000 * first(lambda: read(True))}))
"""


def run(python: str, code: str, count: int, size: int, folder: Path, environment: dict[str, str]) -> dict[str, float]:
    command = [python, "-c", COMMON + code, str(count), str(size), str(folder), "3"]
    # Two of the systems are called dload: each process finds the one that its interpreter has installed.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**clean, **environment}, cwd=folder
    )
    if done.returncode:
        raise SystemExit(f"{python} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compare(title: str, count: int, size: int, rounds: int, peers: dict[str, str], server: dict[str, str]) -> None:
    systems = {
        "bare loop, new map": (sys.executable, "keep = False" + BARE),
        "bare loop, kept map": (sys.executable, "keep = True" + BARE),
        "dload": (sys.executable, OURS),
    }
    for name, code in (("dload-ml", DLOAD_ML), ("litdata", LITDATA)):
        if peers.get(name):
            systems[name] = (peers[name], code)
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as folder:
        results: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
        for _ in range(rounds):
            for name, (python, code) in systems.items():
                where = Path(folder, name.replace(" ", "-"))
                where.mkdir(exist_ok=True)
                environment = {**server, "DLOAD_CACHE_DIR": str(where / "cache")} if name == "dload-ml" else {}
                results[name].append(run(python, code, count, size, where, environment))
    print(title)
    for row in results["dload"][0]:
        ours = median(each[row] for each in results["dload"])
        print(f"  {row:18}", end="")
        for name, found in results.items():
            if row in found[0]:
                value = median(each[row] for each in found)
                ratio = "" if name == "dload" else f" ({ours / value:.2f} x)"
                print(f"  {name} {value:,.0f}{ratio}", end="")
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples, one round")
    parser.add_argument("--dload-ml", metavar="PYTHON", help="an interpreter that has dload-ml 0.3.1")
    parser.add_argument("--litdata", metavar="PYTHON", help="an interpreter that has LitData")
    args = parser.parse_args()
    part, rounds = (10, 1) if args.quick else (1, 5)
    peers = {"dload-ml": args.dload_ml, "litdata": args.litdata}
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
                compare(f"{title}, warm, samples/s", count // part, size, rounds, peers, place)
        finally:
            if stop is not None:
                stop()


if __name__ == "__main__":
    main()
