"""What the nodes of a cluster download, with homes and without.

    python benchmarks/cluster.py [--quick]

Eight nodes, each with a cache of its own, train together for four epochs over 400 shards (--quick: 80), shuffled. All
is real but the network: a store in memory, and a loader and a cache for each node. Printed, for caches with all the
room in the world, and with room for 60 shards (--quick: 15): how many shards a node downloads (mean, most), how many of
them it downloads again later, how many different ones it reads, and how many shards two nodes or more read. With as
many homes as nodes, each reads a part of the data of its own in all epochs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from statistics import mean

import dload
from dload.api import Repository
from dload.cache import ShardCache
from dload.store.faulty import Faulty
from dload.store.memory import MemoryStore

NODES, EPOCHS = 8, 4
ROWS = 100  # samples of a shard
WINDOW = 4 * ROWS


def committed(shards: int, folder: Path) -> MemoryStore:
    store = MemoryStore()
    repo = Repository(store, ShardCache(folder / "committing"), folder / "dload.lock")
    size = 200
    rows = range(shards * ROWS - ROWS // 2)  # so that borders of nodes fall inside shards
    samples = ((f"sample-{row:07d}", {"x": row.to_bytes(4, "big") * (size // 4)}) for row in rows)
    repo.commit("data", samples, target_shard_size=size * ROWS * 115 // 100, boundaries="size")
    return store


def downloads(store: MemoryStore, folder: Path, homes: int, room: int | None) -> list[Counter[str]]:
    """For each node, how often it downloads each shard."""
    found = []
    for node in range(NODES):
        recorded = Faulty(store)
        cache = ShardCache(folder / f"{homes}-{room}-{node}", room)
        pipe = Repository(recorded, cache, folder / "dload.lock").dataset("data").samples().shuffle(WINDOW, seed=1)
        loader = dload.Loader(pipe, 8 * NODES, rank=node, world_size=NODES, columns=NODES, homes=homes, threads=0)
        for _ in range(EPOCHS):
            for _ in loader:
                pass
        found.append(Counter(call.key for call in recorded.calls if call.key.startswith("shards/")))
        cache.clear()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the shards")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as name:
        folder = Path(name)
        store = committed(80 if quick else 400, folder)
        manifest = Repository(store, ShardCache(folder / "look"), folder / "dload.lock").manifest("data")
        count, largest = len(manifest.shards), max(manifest.shards.sizes)
        print(f"{NODES} nodes, {EPOCHS} epochs, {count} shards")
        for title, room in (
            ("all the room", None),
            (f"room for {15 if quick else 60}", (15 if quick else 60) * largest),
        ):
            for homes in (NODES, 1):
                nodes = downloads(store, folder, homes, room)
                total, distinct = [sum(node.values()) for node in nodes], [len(node) for node in nodes]
                readers = Counter(key for node in nodes for key in node)
                print(
                    f"{title:14} homes={homes}:  downloads a node {mean(total):6.1f} (most {max(total)}), again "
                    f"{mean(total) - mean(distinct):5.1f}, different {mean(distinct):6.1f}; "
                    f"shards of several nodes {sum(number > 1 for number in readers.values())}"
                )


if __name__ == "__main__":
    main()
