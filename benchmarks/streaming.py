"""How fast a pipeline runs once the shards are in the cache, stage by stage, against bare loops.

    python benchmarks/streaming.py [--quick]

200,000 samples of 1 KB and 12,000 of 100 KB, in two fields, committed to a folder store in shards of 128 MiB and
streamed through the cache once. Then the second and later passes in turns with a loop that slices the same bytes out
of one mmap by offsets it knows already, in the same order, and builds the same tuples. A pass of dload opens its shards
anew, since the cache may have evicted them meanwhile, so the loops are there twice: mapping their file anew in each
pass, and with a map that stays (its page tables are filled then). Prints medians, and ratios to the loop with a new map
and to that with a kept one in the same order. The stages: one field of the two, shuffled within 4,096 and in full,
mapped and batched. Also how long a fresh process takes to the first sample. Other systems are in
`benchmarks/side_by_side`.
"""

from __future__ import annotations

import argparse
import mmap
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median

from shard_reader import drain

import dload
from dload.cache import ShardCache
from dload.store.local import FolderStore

PIECE = 1 << 18

_FIRST = """
import sys, time
from pathlib import Path
begin = time.perf_counter()
from dload.api import Repository
from dload.cache import ShardCache
from dload.store.local import FolderStore
repo = Repository(FolderStore(sys.argv[1]), ShardCache(Path(sys.argv[2])))
dataset = repo.dataset("warm")
opened = time.perf_counter()
next(iter(dataset.samples()))
print(opened - begin, time.perf_counter() - opened)
"""


def make_samples(count: int, size: int) -> list[tuple[str, dict[str, bytes]]]:
    noise = random.Random(0).randbytes(size + 4096)
    lengths = random.Random(1)
    samples = []
    for row in range(count):
        half, at = lengths.randrange(size // 4, 3 * size // 4), row % 4096
        samples.append((f"sample-{row:08d}", {"a": noise[at : at + half], "b": noise[at : at + size - half]}))
    return samples


class Bare:
    """The same bytes in one file, cut by offsets that are known already. It is written by 256 KiB, as the cache's files
    are: how large the pieces are decides how large Linux's pages are, and so how many faults a new map takes."""

    def __init__(self, samples: Iterable[tuple[str, dict[str, bytes]]], path: Path) -> None:
        self._path = path
        self._places, end, rest = {}, 0, bytearray()
        with path.open("wb", buffering=0) as file:
            for key, fields in samples:
                start, middle = end, end + len(fields["a"])
                end = middle + len(fields["b"])
                self._places[key] = key, start, middle, end
                rest += fields["a"] + fields["b"]
                while len(rest) >= PIECE:
                    file.write(rest[:PIECE])
                    del rest[:PIECE]
            file.write(rest)
        self._kept = self._map()

    def _map(self) -> mmap.mmap:
        with self._path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def loop(self, keys: Iterable[str], keep: bool) -> Callable[[], None]:
        """A pass over the samples with these keys."""
        places = [self._places[key] for key in keys]

        def loop() -> None:
            mapped = self._kept if keep else self._map()
            for key, start, middle, end in places:
                _ = (key, {"a": mapped[start:middle], "b": mapped[middle:end]})

        return loop


def same(sample: tuple[str, dict[str, bytes]]) -> tuple[str, dict[str, bytes]]:
    return sample


def compare(title: str, count: int, size: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as name:
        root = Path(name)
        repo = dload.Repository(FolderStore(root / "store"), ShardCache(root / "cache"))
        samples = make_samples(count, size)
        repo.commit("warm", samples)
        bare = Bare(samples, root / "bare")
        del samples
        dataset = repo.dataset("warm")
        orders = {
            "in order": dataset.samples(),
            "shuffle(4096)": dataset.samples().shuffle(4096, seed=1),
            "shuffle(full=True)": dataset.samples().shuffle(full=True, seed=1),
        }
        loops: dict[str, Callable[[], None]] = {}
        for order, pipe in orders.items():  # the first pass fills the cache and the system's page cache
            keys = [key for key, _ in pipe.iter(epoch=0)]
            for kind in ("new", "kept"):
                loops[f"bare loop, {kind} map, {order}"] = bare.loop(keys, keep=kind == "kept")
        stages = {
            **{f"dload, {order}": (order, pipe) for order, pipe in orders.items()},
            "dload, one field of two, in order": ("in order", dataset.samples(fields=["a"])),
            "dload, shuffle(4096), map, batch(64)": (
                "shuffle(4096)", orders["shuffle(4096)"].map(same).batch(64),
            ),
        }  # fmt: skip
        for label, (_, pipe) in stages.items():
            loops[label] = partial(drain, pipe)
        times: dict[str, list[float]] = {label: [] for label in loops}
        for number in range(rounds + 1):
            for label, loop in loops.items():
                begin = time.perf_counter()
                loop()
                if number:
                    times[label].append(time.perf_counter() - begin)
        print(title)
        for label, seconds in times.items():
            line = f"  {label:40} {count / median(seconds):12,.0f} samples/s"
            if label in stages:
                for kind in ("new", "kept"):
                    bound = times[f"bare loop, {kind} map, {stages[label][0]}"]
                    line += f"   {median(b / s for b, s in zip(bound, seconds, strict=True)):.2f} of a {kind} map"
            print(line)
        command = [sys.executable, "-c", _FIRST, str(root / "store"), str(root / "cache")]
        pairs = [
            tuple(map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()))
            for _ in range(rounds)
        ]
        opened, first = (median(each) for each in zip(*pairs, strict=True))
        print(f"  fresh process: {opened * 1000:.0f} ms to import and open, {first * 1000:.0f} ms more to a sample")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    part = 10 if parser.parse_args().quick else 1
    compare("1 KB, warm", 200_000 // part, 1000, 7)
    compare("100 KB, warm", 12_000 // part, 100_000, 7)


if __name__ == "__main__":
    main()
