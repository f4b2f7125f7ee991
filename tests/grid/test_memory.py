"""Memory that doesn't grow with what was gone through: samples, and epochs. Measured, in processes of their own."""

from __future__ import annotations

import multiprocessing
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import dload
from dload.api import Repository
from dload.cache import ShardCache
from dload.pipeline.dealing import Deal
from dload.pipeline.lanes import Grid
from dload.pipeline.reorder import Shuffle
from dload.store.local import FolderStore
from dload.testing.pipelines import made_source, make_run
from dload.torch import as_iterable_dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # torch has threads
    pytest.mark.filterwarnings("ignore:.*number of worker.*:UserWarning"),
]

MB = 1 << 20


def made(count: int, size: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    return ((f"k{row:07d}", {"x": row.to_bytes(8, "big") * (size // 8)}) for row in range(count))


def repository(folder: Path) -> Repository:
    return Repository(FolderStore(folder / "store"), ShardCache(folder / "cache"), folder / "dload.lock")


def resident(process: int | str = "self") -> int:
    """Bytes of a process in memory that no file has."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=lambda: theirs.send(function(*arguments)))
    process.start()
    theirs.close()
    assert ours.poll(120), "it hangs"
    result = ours.recv()
    process.join(30)
    return result


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


# ---- many samples
def grown(items: Iterator[Any], count: int) -> int:
    """Bytes by which memory grows from a fourth of the items to the last."""
    early = last = 0
    for number, _ in enumerate(items):
        if number == count // 4:
            early = resident()
        if number % 1000 == 0 or number == count - 1:
            last = max(last, resident())
    assert number == count - 1
    return last - early


def commit(folder: Path, count: int) -> int:
    found: list[int] = []

    def watched() -> Iterator[Any]:
        for number, sample in enumerate(made(count, 100)):
            if number in (count // 4, count - 1):
                found.append(resident())
            yield sample

    repository(folder).commit("many", watched(), target_shard_size=MB)
    return found[1] - found[0]


def test_case_c80_memory_is_flat_over_many_samples(tmp_path: Path) -> None:
    """40,000 of 100 bytes, for the million of the benchmark: as objects they are 15 MB."""
    count = 40_000
    assert in_a_process(commit, tmp_path, count) < 6 * MB
    for make in (lambda pipe: pipe, lambda pipe: pipe.shuffle(1000, seed=1)):

        def read(make: Callable[[Any], Any] = make) -> int:
            return grown(iter(make(repository(tmp_path).dataset("many").samples())), count)

        assert in_a_process(read) < 4 * MB


# ---- many epochs
def over_epochs(loader: Any, epochs: int) -> list[int]:
    """Bytes in memory behind each epoch."""
    found = []
    for _ in range(epochs):
        for _ in loader:
            pass
        found.append(resident())
    return found


def test_case_c82_memory_is_flat_over_epochs(tmp_path: Path) -> None:
    """What an epoch might leave behind: its order (10,000 places: 0.4 MB or more), indexes of keys, rows. Threads come
    and go, so the allocator takes some epochs to have all it will ever need."""
    repository(tmp_path).commit("many", made(10_000, 200), target_shard_size=MB // 4)

    def epochs() -> list[int]:
        pipe = repository(tmp_path).dataset("many").samples().shuffle(4096, seed=1)
        return over_epochs(dload.Loader(pipe, 64, threads=0), 30)

    found = in_a_process(epochs)
    assert found[-1] - found[9] < 3 * MB, found


def test_case_c82_memory_of_persistent_workers_is_flat_over_epochs(tmp_path: Path) -> None:
    repository(tmp_path).commit("many", made(10_000, 200), target_shard_size=4 * MB)
    pipe = repository(tmp_path).dataset("many").samples().shuffle(4096, seed=1).batch(64)
    loader = DataLoader(
        as_iterable_dataset(pipe), batch_size=None, num_workers=2, persistent_workers=True,
        multiprocessing_context="fork", collate_fn=list,
    )  # fmt: skip
    before = set(multiprocessing.active_children())
    found = []
    for _ in range(12):
        assert sum(1 for _ in loader) == 157
        workers = set(multiprocessing.active_children()) - before
        found.append(max(resident(worker.pid) for worker in workers))
    assert found[-1] - found[3] < 4 * MB, found


def test_case_c82_orders_of_past_epochs_are_let_go() -> None:
    """A worker that takes every eighth element leaves orders in the middle: what these held goes with the next."""
    node = Shuffle(made_source([200] * 100), 4096, seed=1)
    run, _ = make_run(node)
    held = []
    tracemalloc.start()
    try:
        for epoch in range(6):
            cursor = Deal(node, Grid(8), "drop").lane_cursor(run, epoch, 0, range(8), 3, 8)
            cursor.reset(None)
            assert sum(1 for _ in cursor) > 2000
            cursor.close()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(held[2:]) < 1.25 * held[1], held
