"""How fast samples come out of a shard, against a bare loop that slices one mmap by offsets it knows already.

    python benchmarks/shard_reader.py [--quick]

Two shards, 200,000 x 1 KB and 12,000 x 100 KB, both of two fields of varying length. The loops take turns
within one run, so that a busy machine slows them all. Prints medians; the ratio is the bare loop's time
divided by ours (1.00: as fast). Then what it costs to open a shard of 130,000 samples: time, and the peak of
memory above what was held before. Writes up to 1.4 GB below the temporary folder."""

from __future__ import annotations

import argparse
import mmap
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from dload.pack import ShardReader, ShardWriter

# ru_maxrss is inherited over exec on Linux, where VmHWM isn't; elsewhere it is all there is.
_OPEN = """
import resource, sys
from pathlib import Path
from dload.pack import ShardReader

def peak():
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = peak()
reader = ShardReader.open(Path(sys.argv[1]))
print(peak() - before)
"""


def write_shard(path: Path, samples: int, size: int) -> None:
    noise = random.Random(0).randbytes(size + 4096)
    lengths = random.Random(1)
    with path.open("wb") as file:
        writer = ShardWriter(file)
        started = time.perf_counter()
        for row in range(samples):
            half = lengths.randrange(size // 4, 3 * size // 4)
            at = row % 4096
            writer.add(f"sample-{row:08d}", {"a": noise[at : at + half], "b": noise[at : at + size - half]})
        packed = writer.finish()
        took = time.perf_counter() - started
    print(f"  written at {packed.size / took / 1e6:,.0f} MB/s, {samples / took:,.0f} samples/s")


def bare_loop(path: Path, shuffle: bool = False) -> Callable[[], None]:
    """The least that Python can do: offsets known, names in the source."""
    reader = ShardReader.open(path)
    ends = list(accumulate(reader.index.lengths, initial=0))
    places = list(zip(reader.keys, ends[0:-1:2], ends[1::2], ends[2::2], strict=True))
    if shuffle:
        random.Random(2).shuffle(places)
    file = path.open("rb")
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def loop() -> None:
        for key, start, middle, end in places:
            _ = (key, {"a": mapped[start:middle], "b": mapped[middle:end]})

    return loop


def drain(samples: Iterable[Any]) -> None:
    for _ in samples:
        pass


def compare(samples: int, size: int, rounds: int, folder: Path) -> None:
    print(f"{samples:,} samples of {size:,} bytes in two fields")
    path = folder / "shard"
    write_shard(path, samples, size)
    reader = ShardReader.open(path)
    shuffled = random.Random(2).sample(range(samples), samples)
    groups = [shuffled[at : at + 64] for at in range(0, samples, 64)]
    few = shuffled[: samples // 10]
    loops: dict[str, tuple[Callable[[], None], float]] = {
        "bare mmap loop": (bare_loop(path), 1),
        "bare mmap loop, shuffled": (bare_loop(path, shuffle=True), 1),
        "samples()": (lambda: drain(reader.samples()), 1),
        'samples(["b"])': (lambda: drain(reader.samples(["b"])), 1),
        "read_many, shuffled, 64 at a time": (lambda: drain(map(reader.read_many, groups)), 1),
        "read, shuffled, each checked": (lambda: drain(map(reader.read, few)), len(few) / samples),
    }
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds + 1):
        for name, (loop, share) in loops.items():
            started = time.perf_counter()
            loop()
            if number:  # the first pass fills the page cache and what is built at first need
                times[name].append((time.perf_counter() - started) / share)
    bare = median(times["bare mmap loop"])
    for name, taken in times.items():
        middle = median(taken)
        print(f"  {name:36} {middle * 1e3:8.1f} ms   {middle / samples * 1e6:6.2f} us each   {bare / middle:.2f}x bare")
    reader.close()


def measure_open(samples: int, rounds: int, folder: Path) -> None:
    print(f"opening a shard of {samples:,} samples of 1,000 bytes in two fields")
    path = folder / "shard"
    write_shard(path, samples, 1000)
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        reader = ShardReader.open(path)
        times.append(time.perf_counter() - started)
        reader.close()
        del reader
    peaks = [int(subprocess.check_output([sys.executable, "-c", _OPEN, path])) for _ in range(3)]
    print(f"  median {median(times) * 1e3:.1f} ms, peak memory {median(peaks) / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples, fewer rounds")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as name:
        compare(20_000 if quick else 200_000, 1000, 5 if quick else 11, Path(name))
        compare(1_200 if quick else 12_000, 100_000, 5 if quick else 11, Path(name))
        measure_open(130_000, 5 if quick else 11, Path(name))


if __name__ == "__main__":
    main()
