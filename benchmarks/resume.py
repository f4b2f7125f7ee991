"""What resuming costs: time to the first batch, rows read again, the size of a state, the time to take one.

    python benchmarks/resume.py [--quick] [--workers N]

- A data set of 10 million samples in a folder store (--quick: 200,000), shuffled, four ranks as processes of their own,
  each with an empty cache of its own: from making the loader to the first batch, at the start of an epoch and in its
  middle. The slowest rank counts; medians over the rounds, in turns. `--workers N`: each rank has N worker processes
  (dload.torch.StreamLoader) instead of a thread (dload.Loader).
- A stream with a filter below and above a shuffle, over four lanes: how many rows are read until the first batch of a
  resumed loader, less those of a loader that goes on; at most a window of each lane and the 64 rows to a saved place.
- Bytes of states as JSON, after 50 steps: whole, and for streams of each lane by each node that has a state.
- Microseconds of `state_dict()`, and its share of a step of 5 ms.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import dload
from dload.api import Pipeline, Repository
from dload.cache import ShardCache
from dload.pipeline.node import walk
from dload.store.local import FolderStore

RANKS, BATCH = 4, 256


def repository(folder: Path, cache: str = "cache") -> Repository:
    return Repository(FolderStore(folder / "store"), ShardCache(folder / cache), folder / "dload.lock")


def commit(folder: Path, count: int) -> None:
    samples = ((f"{row:08d}", {"x": b"%08d" % row}) for row in range(count))
    repository(folder).commit("many", samples, target_shard_size=1 << 20)


# ---- the first batch
def first_batch(folder: Path, cache: str, rank: int, workers: int, state: Any, start: Any, told: Any) -> None:
    """One rank: seconds to its first batch."""
    pipe = repository(folder, cache).dataset("many").samples().shuffle(4096, seed=1)
    import numpy  # noqa: F401  (as who trains has long done)

    if workers:
        from dload.torch import StreamLoader

        warnings.filterwarnings("ignore", "This DataLoader will create")  # more than this machine may have cores
    start.wait()
    begin = time.perf_counter()
    loader: Any
    if workers:
        loader = StreamLoader(pipe, BATCH, rank=rank, world_size=RANKS, collate=list, num_workers=workers)
    else:
        loader = dload.Loader(pipe, BATCH, rank=rank, world_size=RANKS)
    if state is not None:
        loader.load_state_dict(state)
    next(iter(loader))
    told.put(time.perf_counter() - begin)
    loader.close()


def slowest_rank(folder: Path, cache: str, workers: int, state: Any) -> float:
    context = multiprocessing.get_context("spawn")
    start, told = context.Barrier(RANKS), context.Queue()
    ranks = [
        context.Process(target=first_batch, args=(folder, f"{cache}-{rank}", rank, workers, state, start, told))
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    seconds = [told.get(timeout=300) for _ in ranks]
    for process in ranks:
        process.join()
    return max(seconds)


def compare_first_batches(folder: Path, count: int, workers: int, rounds: int) -> None:
    commit(folder, count)
    pipe = repository(folder).dataset("many").samples().shuffle(4096, seed=1)
    loader = dload.Loader(pipe, BATCH)
    loader.skip(len(loader) // 2)
    states = {"at the start": None, "in the middle": loader.state_dict()}
    times: dict[str, list[float]] = {name: [] for name in states}
    for number in range(rounds):
        for name, state in states.items():
            times[name].append(slowest_rank(folder, f"cache-{number}-{name}", workers, state))
    fresh, resumed = (median(seconds) for seconds in times.values())
    print(f"first batch of an epoch of {count:,} samples, {RANKS} ranks, {workers or 'no'} workers each")
    print(f"  at the start {fresh * 1000:.0f} ms   in the middle {resumed * 1000:.0f} ms   ({resumed / fresh:.2f} x)")


# ---- rows read again
class Filter:
    """Lets two rows of three through, and counts those it was asked about."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, row: int) -> bool:
        self.count += 1
        return row % 3 != 0


def rows_read_again(above: bool) -> tuple[int, int]:
    """(rows read again by a resumed loader, how many there are in a window of each lane)."""
    window, columns = 4000, 4

    def make() -> tuple[Any, Filter]:
        kept, rows = Filter(), dload.from_iterable(range(200_000))
        shuffled = rows.shuffle(window, seed=1).filter(kept) if above else rows.filter(kept).shuffle(window, seed=1)
        return dload.Loader(shuffled, 32, ends="endless", columns=columns, threads=0), kept

    again: list[int] = []
    for steps in range(100, 600, 97):
        loader, kept = make()
        iterator = iter(loader)
        for _ in range(steps):
            next(iterator)
        state, before = loader.state_dict(), kept.count
        expected = next(iterator)
        resumed, counted = make()
        resumed.load_state_dict(state)
        assert next(iter(resumed)) == expected
        again.append(counted.count - (kept.count - before))
    return max(again), window * 3 // 2


# ---- states
def pipelines(samples: Callable[[], Pipeline]) -> Iterator[tuple[str, Pipeline, dict[str, Any]]]:
    stream: dict[str, Any] = {"ends": "endless", "columns": 4}
    yield "shuffle, batch", samples().shuffle(4096, seed=1).batch(4), {}
    yield "mix of two", dload.mix([samples().shuffle(4096, seed=1), samples().shuffle(99, seed=2)], [3, 1]), {}
    yield "shuffle, filter", samples().shuffle(4096, seed=1).filter(is_kept), stream
    yield "shuffle, filter, batch", samples().shuffle(4096, seed=1).filter(is_kept).batch(4), stream
    yield "filter, shuffle, batch", samples().filter(is_kept).shuffle(4096, seed=1).batch(4), stream
    yield "the same, 64 lanes", samples().filter(is_kept).shuffle(4096, seed=1).batch(4), {**stream, "columns": 64}
    both = [samples().filter(is_kept), samples().shuffle(99, seed=2).flat_map(twice)]
    yield "mix of streams", dload.mix(both, [3, 1]).batch(4), stream


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def is_kept(sample: Any) -> bool:
    return int(sample[0]) % 3 != 0


def twice(sample: Any) -> list[Any]:
    return [sample, sample]


def measure_states(folder: Path) -> None:
    print("states after 50 steps")
    samples = repository(folder).dataset("many").samples
    for name, pipe, options in pipelines(samples):
        with dload.Loader(pipe, 64, **options) as loader:
            iterator = iter(loader)
            for _ in range(50):
                next(iterator)
            state = loader.state_dict()
            time.sleep(0.2)  # until the thread has built what it builds ahead
            cost = median(timed(loader.state_dict) for _ in range(1000))
        text = f"  {name:24}{len(json.dumps(state)):7,} bytes"
        if state["lanes"] is not None:
            nodes = len({path for path, node in walk(pipe.node) if not node.indexed})
            lanes = len(state["lanes"][0][2])
            text += f"{len(json.dumps(state['lanes'])) / lanes / nodes:6.1f} a lane and node"
        print(f"{text:60} state_dict() {cost * 1e6:5.0f} us ({cost / 0.005:.1%} of a step of 5 ms)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer samples, one round")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of each rank")
    args = parser.parse_args()
    count, rounds = (200_000, 1) if args.quick else (10_000_000, 5)
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as name:
        compare_first_batches(Path(name), count, args.workers, rounds)
        for above, title in ((True, "a filter above a shuffle"), (False, "a filter below a shuffle")):
            again, most = rows_read_again(above)
            print(f"rows read again, {title}: {again:,} (in the windows: {most:,})")
        measure_states(Path(name))


if __name__ == "__main__":
    main()
