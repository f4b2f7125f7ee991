"""Downloads of scans that begin again and again, from the real cache against the fewest possible and against LRU.

    python benchmarks/cache.py [--quick]

100 equal shards, room for 60, ten epochs, in one order and shuffled anew each epoch. The cache is told when each shard
is needed again, by the pace so far; once more without being told, which makes it LRU. "Optimum" is Belady's rule,
simulated. Also what the cache itself costs: a pin of a resident shard, a download of an empty one, and both again where
10,000 other shards are there.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from pathlib import Path

from dload.cache import ShardCache
from dload.cache.inventory import shard_path
from dload.testing.scans import least_recently_used, optimum, orders, scan

SHARDS, ROOM, EPOCHS, SIZE = 100, 60, 10, 20_000
OVERHEAD = 1000  # bytes of the cache's own files, at most


def compare(quick: bool) -> None:
    print(f"{SHARDS} shards, room for {ROOM}, {EPOCHS} epochs: downloads")
    for shuffled in (False, True):
        epochs = orders(SHARDS, EPOCHS, shuffled=shuffled)
        with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as name:
            told = scan(ShardCache(Path(name) / "told", ROOM * SIZE + OVERHEAD), epochs, SIZE, informed=True)
            untold = scan(ShardCache(Path(name) / "untold", ROOM * SIZE + OVERHEAD), epochs, SIZE, informed=False)
        best = optimum(epochs, ROOM)
        print(
            f"  {'shuffled' if shuffled else 'one order':10} optimum {best:4}   dload {told:4} ({told / best:.2f} x)   "
            f"dload, not told {untold:4}   LRU, simulated {least_recently_used(epochs, ROOM):4}"
        )
    for others in (0, 1_000 if quick else 10_000):
        cost(others)


def cost(others: int) -> None:
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as name:
        cache = ShardCache(Path(name), 10**12)
        for number in range(others):
            path = shard_path(Path(name), hashlib.sha256(str(number).encode()).hexdigest())
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        bodies = [b"%d" % number for number in range(200)]
        digests = [hashlib.sha256(body).hexdigest() for body in bodies]
        rounds = []
        for _ in range(2):
            begin = time.perf_counter()
            for digest, body in zip(digests, bodies, strict=True):
                cache.ensure(digest, len(body), lambda start, body=body: iter([body[start:]])).release()
            rounds.append((time.perf_counter() - begin) / len(bodies) * 1e6)
    print(f"beside {others:,} other shards: a download costs {rounds[0]:,.0f} us, a hit {rounds[1]:,.0f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,000 other shards instead of 10,000")
    compare(parser.parse_args().quick)


if __name__ == "__main__":
    main()
