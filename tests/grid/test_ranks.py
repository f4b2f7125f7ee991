"""Real ranks in torch.distributed: one global batch for any number of them, killed and gone on on another number."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dload
from dload.api import Pipeline, Repository
from dload.cache import ShardCache
from dload.errors import ConfigError
from dload.torch import StreamLoader
from tests.grid.pipes import KINDS
from tests.grid.ranks import Ranks, put_together, whole_lines

Start = Callable[..., Ranks]

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # torch has threads

BATCH = 8


def endless(loader: Any) -> Iterator[list[Any]]:
    """Step after step, epoch after epoch."""
    while True:
        yield from loader


def first_steps(pipe: Pipeline, count: int, state: Any, options: dict[str, Any]) -> tuple[list[list[Any]], Any]:
    """This rank's part of the next steps, and where it stands then."""
    with dload.Loader(pipe, BATCH, **options) as loader:
        if dist.is_initialized():
            assert (loader.rank, loader.world_size) == (dist.get_rank(), dist.get_world_size())
        if state is not None:
            loader.load_state_dict(state)
        parts = list(itertools.islice(endless(loader), count))
        return parts, json.loads(json.dumps(loader.state_dict()))


def options_for(pipe: Pipeline) -> dict[str, Any]:
    return {"columns": 4, "ends": "drop" if pipe.node.indexed else "endless"}


# ---- the promise
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_global_batch_is_the_same_on_any_number_of_ranks(repo: Repository, start: Start, kind: str) -> None:
    pipe = KINDS[kind](repo)
    options = options_for(pipe)
    expected, _ = first_steps(KINDS[kind](repo), 90, None, options)
    state, at = None, 0
    for world, count in ((2, 30), (4, 35), (1, 25)):
        results = start(world, first_steps, KINDS[kind](repo), 40, None, options).results()
        assert put_together([parts for parts, _ in results]) == expected[:40], world
        results = start(world, first_steps, KINDS[kind](repo), count, state, options).results()
        assert put_together([parts for parts, _ in results]) == expected[at : at + count], world
        state, at = dload.merge_states([state for _, state in results]), at + count


def steps_of_workers(pipe: Pipeline, count: int, state: Any, options: dict[str, Any]) -> tuple[list[Any], Any]:
    """As `first_steps`, by two worker processes."""
    with StreamLoader(pipe, BATCH, num_workers=2, collate=list, multiprocessing_context="fork", **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        parts = list(itertools.islice(endless(loader), count))
        return parts, json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("kind", ["shuffled", "filtered"])
def test_ranks_with_workers_give_that_batch_too(repo: Repository, start: Start, kind: str) -> None:
    make = KINDS[kind]
    options = {**options_for(make(repo)), "turns": 1 if make(repo).node.indexed else 2}
    expected, _ = first_steps(make(repo), 90, None, options)
    first = start(2, steps_of_workers, make(repo), 33, None, options).results()
    assert put_together([parts for parts, _ in first]) == expected[:33]
    state = dload.merge_states([state for _, state in first])
    second = start(4, first_steps, make(repo), 20, state, options).results()
    assert put_together([parts for parts, _ in second]) == expected[33:53]
    state = dload.merge_states([state for _, state in second])
    third = start(1, steps_of_workers, make(repo), 37, state, options).results()
    assert put_together([parts for parts, _ in third]) == expected[53:]


def write_steps(pipe: Pipeline, folder: Path, options: dict[str, Any]) -> None:
    """Train until killed: in each step a collective, then a line with this rank's rows and where it stands."""
    with (folder / str(dist.get_rank())).open("a") as file, dload.Loader(pipe, BATCH, **options) as loader:
        for rows in endless(loader):
            dist.all_reduce(torch.ones(1))
            file.write(json.dumps([rows, loader.state_dict()]) + "\n")
            file.flush()


def named_memory(process: int) -> set[str]:
    """Files of /dev/shm that a process has open or mapped, and that have a name."""
    found = []
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(link.readlink()))
    found += [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{process}/maps").read_text().splitlines()]
    return {path for path in found if path.startswith("/dev/shm/") and not path.endswith("(deleted)")}


@pytest.mark.parametrize("kind", ["shuffled", "mix", "filtered"])
def test_case_c61_all_ranks_killed_and_gone_on_on_another_number(
    repo: Repository, start: Start, tmp_path: Path, kind: str
) -> None:
    """Through a cache with room for a part of the data, so that they die with pins and downloads under way."""

    def make() -> Pipeline:
        tight = Repository(repo.store, ShardCache(tmp_path / "cache", 60_000), tmp_path / "dload.lock")
        return KINDS[kind](tight)

    options = options_for(make())
    ranks = start(4, write_steps, make(), tmp_path, options)
    until = time.monotonic() + 60
    while time.monotonic() < until and min(len(whole_lines(tmp_path / str(rank))) for rank in range(4)) < 20:
        time.sleep(0.02)
    named = set().union(*[named_memory(process.pid) for process in ranks.processes])
    ranks.kill()
    assert [process.exitcode for process in ranks.processes] == [-signal.SIGKILL] * 4
    assert not {path for path in named if Path(path).exists()}
    found = [whole_lines(tmp_path / str(rank)) for rank in range(4)]
    steps = min(map(len, found))
    assert steps >= 20
    expected, _ = first_steps(make(), steps + 30, None, options)
    assert put_together([[rows for rows, _ in lines[:steps]] for lines in found]) == expected[:steps]
    state = dload.merge_states([lines[steps - 1][1] for lines in found])
    results = start(2, first_steps, make(), 30, state, options).results()
    assert put_together([parts for parts, _ in results]) == expected[steps:]


# ---- how epochs end
def count_steps(pipe: Pipeline, epochs: int, options: dict[str, Any]) -> list[int]:
    """Steps of each epoch, with a collective in each: where ranks ended on different steps, it would hang."""
    counts = []
    with dload.Loader(pipe, BATCH, **options) as loader:
        for _ in range(epochs):
            counts.append(0)
            for _ in itertools.islice(loader, 100):
                dist.all_reduce(torch.ones(1))
                counts[-1] += 1
    return counts


def agreeing(pipe: Pipeline, epochs: int) -> tuple[list[int], int]:
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=20))

    def least(flag: int) -> int:
        agreed = torch.tensor(flag)
        dist.all_reduce(agreed, dist.ReduceOp.MIN, group=group)
        return int(agreed)

    return count_steps(pipe, epochs, {"ends": "agree", "agree": least})


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_end_on_the_same_step(repo: Repository, start: Start, world: int) -> None:
    def make(length: int) -> Pipeline:
        return repo.dataset("numbers").samples().shuffle(60, seed=3).take(length)

    for length in (205, 3):
        drop = start(world, count_steps, make(length), 3, {"ends": "drop"}).results()
        assert drop == [[length // BATCH] * 3] * world
        pad = start(world, count_steps, make(length), 3, {"ends": "pad"}).results()
        assert pad == [[-(-length // BATCH)] * 3] * world
        steps = start(world, count_steps, make(length), 3, {"ends": "steps", "steps": 7}).results()
        assert steps == [[7] * 3] * world
    assert start(world, count_steps, make(205), 2, {"ends": "endless"}).results() == [[100] * 2] * world


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_end_on_the_same_step_of_a_stream(repo: Repository, start: Start, world: int) -> None:
    filtered = KINDS["filtered"](repo)
    counts = start(world, agreeing, filtered, 3).results()
    assert counts == [counts[0]] * world
    assert all(30 < count < 600 // BATCH for count in counts[0])
    steps = start(world, count_steps, filtered, 3, {"ends": "steps", "steps": 60}).results()
    assert steps == [[60] * 3] * world
    holes = KINDS["plain"](repo).filter(len, holes=True)
    assert start(world, count_steps, holes, 3, {"ends": "drop"}).results() == [[600 // BATCH] * 3] * world


def ragged(pipe: Pipeline) -> int:
    with dload.Loader(pipe, BATCH, ends="ragged") as loader, pytest.warns(UserWarning, match="ends at step"):
        return sum(1 for _ in loader)


def test_ragged_ranks_end_by_themselves(repo: Repository, start: Start) -> None:
    """What `agree` is needed for: the same filter gives ranks unequally many steps."""
    counts = start(4, ragged, KINDS["filtered"](repo)).results()
    assert len(set(counts)) > 1
    assert min(counts) > 30


def refused(pipe: Pipeline) -> str:
    with pytest.raises(ConfigError) as caught:
        iter(dload.Loader(pipe, BATCH))
    return str(caught.value)


def test_case_c59_a_filter_without_a_way_to_end_is_refused_with_the_ways_out(repo: Repository, start: Start) -> None:
    for message in start(2, refused, KINDS["filtered"](repo)).results():
        assert "ends nobody knows when" in message
        for way in ("steps=", "'endless'", "'agree'", "filter(holes=True)"):
            assert way in message
