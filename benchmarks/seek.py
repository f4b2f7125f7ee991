"""How long it takes to plan and to seek in an epoch of a very large data set: no storage is touched.

    python benchmarks/seek.py [--quick] [--rounds N]

A made-up manifest of 100,000 shards with 1,000 samples each (--quick: 10,000 shards), as for 12.8 TB. Each round is a
process of its own. Timed, in seconds of its processor: opening a pipeline's plan (`check`), and going to the middle of
an epoch until the runner has been asked for the first element's sample and the order of the next is known; plain,
shuffled, shuffled in full, in batches, mixed. Prints medians, and the most memory a process took.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace

from dload.api.pipeline import Pipeline, mix
from dload.cache import ShardCache
from dload.pipeline.node import Run, paths_of
from dload.pipeline.sources import Samples
from dload.testing.pipelines import Ordinals, made_source

SAMPLES = 1000
BYTES = 128 << 20


def made(shards: int, name: str) -> Pipeline:
    manifest = made_source([SAMPLES] * shards, name, BYTES // SAMPLES).manifest
    return Pipeline(Samples(manifest, SimpleNamespace(cache=ShardCache(Path("unlimited")))))


PIPELINES: dict[str, Callable[[int], Pipeline]] = {
    "plain": lambda shards: made(shards, "big"),
    "shuffle(4096)": lambda shards: made(shards, "big").shuffle(4096, seed=1),
    "shuffle(100,000)": lambda shards: made(shards, "big").shuffle(100_000, seed=1),
    "shuffle(full=True)": lambda shards: made(shards, "big").shuffle(full=True, seed=1),
    "shuffle, batch(64)": lambda shards: made(shards, "big").shuffle(4096, seed=1).batch(64),
    "mix of two shuffled": lambda shards: mix(
        [made(shards, "big").shuffle(4096, seed=1), made(shards // 10, "small").shuffle(4096, seed=2)], [10, 1]
    ),
}


def measure(name: str, shards: int) -> dict[str, float]:
    pipe = PIPELINES[name](shards)
    begun = time.process_time()
    report = pipe.check()
    planned = time.process_time()
    assert report.ok, report.message
    pipe = PIPELINES[name](shards)  # anew: the plan has kept an order
    run = Run(1, Ordinals(3), paths=paths_of(pipe.node))
    length = pipe.node.length
    assert length is not None
    cursor = pipe.node.cursor(run, (0,))
    seeking = time.process_time()
    cursor.reset(length // 2)
    next(cursor)
    sought = time.process_time()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"check": planned - begun, "seek": sought - seeking, "memory": memory / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    shards = 10_000 if arguments.quick else 100_000
    if arguments.one:
        print(json.dumps(measure(arguments.one, shards)))
        return
    print(f"{shards:,} shards, {shards * SAMPLES:,} samples")
    for name in PIPELINES:
        command = [sys.executable, __file__, "--one", name, *(["--quick"] if arguments.quick else [])]
        rounds = [
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for _ in range(arguments.rounds)
        ]
        check, seek, memory = (median(one[what] for one in rounds) for what in ("check", "seek", "memory"))
        print(f"{name:<20} check {check:6.3f} s   seek {seek:6.3f} s   {memory:4.0f} MiB")


if __name__ == "__main__":
    main()
