"""A manifest of very many shards: its bytes, the time and memory to open it, and what a worker is sent.

    python benchmarks/manifest_size.py [SHARDS]

Each figure of memory comes from a process of its own: the growth of its resident set. Linux.
"""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dload.manifest import FieldStats, Manifest, Packing, ShardList, decode, new_manifest

TARGET = 128 * 2**20


def main() -> None:
    if len(sys.argv) == 4:
        measure_open(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
        return
    shards = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    started = time.perf_counter()
    manifest, data = made(shards)
    report("made, encoded and parsed back", time.perf_counter() - started)
    print(f"{'its bytes':<34}{len(data) / 1e6:10.1f} MB")
    pickled = pickle.dumps(manifest)
    print(f"{'its pickle':<34}{len(pickled) / 1e6:10.1f} MB")
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "manifest").write_bytes(data)
        (Path(folder) / "pickle").write_bytes(pickled)
        for how, file in (("decode", path), ("unpickle", Path(folder) / "pickle")):
            subprocess.run([sys.executable, __file__, file, manifest.version, how], check=True)
    used(manifest)


def made(shards: int) -> tuple[Manifest, bytes]:
    """A manifest whose numbers look like those of 128 MiB shards of 100 KB samples."""
    columns = ShardList.of_columns(
        [hashlib.sha256(number.to_bytes(8, "little")).hexdigest() for number in range(shards)],
        [TARGET + number * 7919 % 2**24 for number in range(shards)],
        [1200 + number % 200 for number in range(shards)],
        [30_000 + number % 5000 for number in range(shards)],
    )
    total = sum(columns.sizes)
    return new_manifest("large", columns, {"data": FieldStats(sum(columns.counts), total)}, Packing())


def measure_open(path: Path, version: str, how: str) -> None:
    """In a process of its own: time and memory from the file's bytes to the object."""
    before = resident()
    started = time.perf_counter()
    data = path.read_bytes()
    manifest = pickle.loads(data) if how == "unpickle" else decode(data, version=version, where=str(path))
    report(how, time.perf_counter() - started)
    del data
    assert manifest.version == version
    print(f"{'  kept':<34}{resident() - before:10.1f} MB")
    print(f"{'  at the peak':<34}{resident('VmHWM') - before:10.1f} MB")


def used(manifest: Manifest) -> None:
    started = time.perf_counter()
    for _ in manifest.shards:
        pass
    report("all shards, one by one", time.perf_counter() - started)
    started = time.perf_counter()
    total = manifest.shards.starts[-1]
    report("first ordinals", time.perf_counter() - started)
    started = time.perf_counter()
    for ordinal in range(0, total, total // 100_000 or 1):
        manifest.shards.locate(ordinal)
    report("100,000 ordinals located", time.perf_counter() - started)


def report(what: str, seconds: float) -> None:
    print(f"{what:<34}{seconds:10.2f} s")


def resident(what: str = "VmRSS") -> float:
    """MB that this process has in memory now, or had at the most (VmHWM). Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1e3


if __name__ == "__main__":
    main()
