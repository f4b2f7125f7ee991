"""Very many samples, very many shards, very many epochs: time, and memory that should stay flat.

    python benchmarks/scale.py [--quick]

- 1,000,000 samples of 100 bytes in a folder store: committed, opened, gone over in order and shuffled. Each in a
  process of its own; growth of its memory after a tenth of the work, and at its peak.
- A manifest of 1,000,000 shards (made up, not stored) in eight forked workers: memory of its own that each takes to
  look at every shard, and to stand in the middle of a shuffled epoch. For the time and memory to open it see
  manifest_size.py.
- Ten epochs of 200,000 samples of 1 KB with eight workers of a DataLoader, new ones each epoch and persistent: time of
  each epoch, epoch 10 against epoch 2, and memory of the largest worker and of the parent. Pages that a worker shares
  with the parent count in both, since Python makes copies of them by and by, whatever is done.

--quick: a tenth of each. Linux.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from manifest_size import made, resident

from dload.api import Pipeline, Repository
from dload.cache import ShardCache
from dload.manifest import Manifest
from dload.pipeline.node import Run, paths_of
from dload.pipeline.sources import Samples
from dload.store.local import FolderStore
from dload.testing.pipelines import Ordinals

WORKERS, EPOCHS = 8, 10


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def repository(folder: Path) -> Repository:
    return Repository(FolderStore(folder / "store"), ShardCache(folder / "cache"), folder / "dload.lock")


# ---- many samples
def made_samples(count: int, size: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    for row in range(count):
        yield f"sample-{row:08d}", {"x": row.to_bytes(8, "big") * (size // 8 + 1)}


class Watched:
    """An iterable that remembers this process's memory after a tenth of it."""

    def __init__(self, items: Iterable[Any], count: int) -> None:
        self._items, self._tenth = items, count // 10
        self.early = 0.0

    def __iter__(self) -> Iterator[Any]:
        for number, item in enumerate(self._items):
            if number == self._tenth:
                self.early = resident()
            yield item


def commit(folder: Path, count: int) -> tuple[float, float, float]:
    repo, samples = repository(folder), Watched(made_samples(count, 100), count)
    before, begin = resident(), time.perf_counter()
    repo.commit("many", samples)
    return time.perf_counter() - begin, samples.early - before, resident("VmHWM") - before


def iterate(folder: Path, count: int, shuffle: bool) -> tuple[float, float, float]:
    repo = repository(folder)
    before, begin = resident(), time.perf_counter()
    pipe = repo.dataset("many").samples()
    watched = Watched(pipe.shuffle(4096, seed=1) if shuffle else pipe, count)
    assert sum(1 for _ in watched) == count
    return time.perf_counter() - begin, watched.early - before, resident("VmHWM") - before


def many_samples(folder: Path, count: int) -> None:
    print(f"{count:,} samples of 100 bytes")
    rows: dict[str, tuple[Any, ...]] = {
        "commit": (commit, folder, count),
        "first pass, in order": (iterate, folder, count, False),
        "second pass, in order": (iterate, folder, count, False),
        "shuffled": (iterate, folder, count, True),
    }
    for title, call in rows.items():
        seconds, early, most = in_a_process(*call)
        print(f"  {title:24}{seconds:6.1f} s {count / seconds:12,.0f}/s   memory +{early:.0f} MB, then +{most:.0f} MB")


# ---- many shards
def look_at_all(manifest: Manifest) -> None:
    for shard in manifest.shards:
        assert shard.size
    assert manifest.shards.locate(manifest.shards.starts[-1] - 1)


def seek(manifest: Manifest) -> None:
    top = Pipeline(Samples(manifest, SimpleNamespace())).shuffle(4096, seed=1).node
    cursor = top.cursor(Run(1, Ordinals(1), paths=paths_of(top)), (0,))
    cursor.reset((top.length or 0) // 2)
    next(cursor)


def own_memory(process: int | str = "self") -> float:
    """MB that no other process has."""
    return sum(_rollup(process, name) for name in ("Private_Clean:", "Private_Dirty:"))


def _rollup(process: int | str, name: str) -> float:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(name)) / 1e3


def grown(manifest: Manifest, works: Callable[[Manifest], None], told: Any) -> None:
    before = own_memory()
    works(manifest)
    told.put(own_memory() - before)


def many_shards(count: int) -> None:
    before = resident()
    manifest, _ = made(count)
    _ = manifest.shards.starts  # as a plan in the parent has
    print(f"a manifest of {count:,} shards ({resident() - before:.0f} MB with what making it took), {WORKERS} workers")
    context = multiprocessing.get_context("fork")
    for title, works in (("looks at every shard", look_at_all), ("stands in an epoch", seek)):
        told = context.Queue()
        workers = [context.Process(target=grown, args=(manifest, works, told)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        most = max(told.get(timeout=600) for _ in workers)
        for worker in workers:
            worker.join()
        print(f"  a worker that {title:22}takes {most:6.1f} MB of its own")


# ---- many epochs
def epochs(folder: Path, count: int, persistent: bool) -> list[tuple[float, float, float]]:
    """(seconds, MB of the largest worker, MB of this process) of each epoch."""
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than this machine may have cores
    from torch.utils.data import DataLoader

    from dload.torch import as_iterable_dataset

    pipe = repository(folder).dataset("epochs").samples().shuffle(4096, seed=1).batch(64)
    loader = DataLoader(
        as_iterable_dataset(pipe), batch_size=None, num_workers=WORKERS, persistent_workers=persistent,
        collate_fn=list, multiprocessing_context="fork",
    )  # fmt: skip
    found = []
    for _ in range(EPOCHS):
        begin, rows, largest = time.perf_counter(), 0, 0.0
        for number, batch in enumerate(loader):
            rows += len(batch)
            if number % 500 == 0 or rows == count:
                workers = [child.pid for child in multiprocessing.active_children()]
                largest = max([largest, *(anonymous(worker) for worker in workers)])
        assert rows == count
        found.append((time.perf_counter() - begin, largest, anonymous()))
    return found


def anonymous(process: int | str | None = "self") -> float:
    """MB of a process in memory that no file has."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    found = next((line for line in lines if line.startswith("RssAnon")), "RssAnon: 0 kB")  # one that has ended has none
    return int(found.split()[1]) / 1e3


def many_epochs(folder: Path, count: int) -> None:
    repository(folder).commit("epochs", made_samples(count, 1000))
    print(f"{EPOCHS} epochs of {count:,} samples of 1 KB, {WORKERS} workers")
    for title, persistent in (("new workers", False), ("persistent workers", True)):
        found = in_a_process(epochs, folder, count, persistent)
        print(f"  {title}: epoch 10 took {found[-1][0] / found[1][0]:.2f} x epoch 2")
        for what, row in zip(("seconds", "MB of a worker", "MB of the parent"), zip(*found, strict=True), strict=True):
            print(f"    {what:18}" + " ".join(f"{value:7.1f}" for value in row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of each")
    part = 10 if parser.parse_args().quick else 1
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as name:
        many_samples(Path(name), 1_000_000 // part)
        many_shards(1_000_000 // part)
        many_epochs(Path(name), 200_000 // part)


if __name__ == "__main__":
    main()
