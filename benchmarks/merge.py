"""Many parts, packed elsewhere, as one version: the time and memory of the commit that puts them together.

    python benchmarks/merge.py [--parts 64] [--shards 100000] [--samples 100] [--quick]

Parts of made-up shards, in a store in memory that answers at once: what is left is this side's own work. Each shard has
`samples` keys, whose hashes come with the parts and are looked at for duplicates. Memory: the growth of the process's
resident set at its peak, beside that of a tenth of the shards. --quick: a tenth of each. Linux.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from manifest_size import resident

from dload.pack import PackedShard
from dload.repo.commit import CommitOptions, commit
from dload.repo.history import History
from dload.repo.keys import shard_key
from dload.repo.packing import Part
from dload.store.memory import MemoryStore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        measure(given.parts, given.shards, given.samples)
        return
    shards = given.shards // 10 if given.quick else given.shards
    print(f"{'parts':>6}{'shards':>10}{'keys':>12}{'taken in':>11}{'in all':>10}{'processor':>12}{'memory':>12}")
    for count in (shards // 10, shards):
        arguments = ["--parts", given.parts, "--shards", count, "--samples", given.samples, "--one"]
        subprocess.run([sys.executable, __file__, *map(str, arguments)], check=True)


def measure(parts: int, shards: int, samples: int) -> None:
    store = MemoryStore()
    digests = [hashlib.sha256(number.to_bytes(8, "little")).hexdigest() for number in range(shards)]
    for digest in digests:
        store.put(shard_key(digest), b"x")
    before, begun, busy, taken = resident(), time.perf_counter(), time.process_time(), []

    def made() -> Iterator[Part]:
        for number in range(parts):
            mine = digests[number * shards // parts : (number + 1) * shards // parts]
            packed = [PackedShard(digest, 1, samples, 1, {"x": (samples, 1)}) for digest in mine]
            yield Part(packed, os.urandom(8 * samples * len(mine)))
        taken.append(time.perf_counter() - begun)

    outcome = commit(History(store), "merged", (), CommitOptions(), made())
    seconds, peak = time.perf_counter() - begun, resident("VmHWM") - before
    busy = time.process_time() - busy
    manifest = outcome.manifest
    assert len(manifest.shards) == shards
    row = f"{parts:>6}{shards:>10,}{manifest.num_samples:>12,}{taken[0]:>9.1f} s{seconds:>8.1f} s"
    print(f"{row}{busy:>10.1f} s{peak:>9.0f} MB")


if __name__ == "__main__":
    main()
