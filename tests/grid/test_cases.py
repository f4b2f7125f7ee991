"""Faults that loaders have had in the field, as a loader of ours meets them."""

from __future__ import annotations

import json
import multiprocessing
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dload
from dload.api import Pipeline, Repository
from dload.cache import ShardCache
from dload.errors import ConfigError
from tests.grid.pipes import KINDS
from tests.grid.ranks import put_together

ROWS = 41  # rows of the pipelines in memory

PIPES: dict[str, tuple[Callable[[], Pipeline], dict[str, Any]]] = {
    "places": (lambda: dload.from_iterable(list(range(ROWS))).shuffle(9, seed=1), {}),
    "stream": (
        lambda: dload.from_iterable(list(range(ROWS))).shuffle(9, seed=1).filter(is_kept),
        {"ends": "agree", "agree": int},
    ),
}


def is_kept(row: int) -> bool:
    return row % 7 != 0


def saved(loader: dload.Loader) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("kind", sorted(PIPES))
def test_case_c55_resumed_near_the_end_the_next_two_epochs_are_full(kind: str, threads: int) -> None:
    make, options = PIPES[kind]
    options = {**options, "threads": threads}
    uninterrupted = dload.Loader(make(), 4, **options)
    whole = [list(uninterrupted) for _ in range(3)]
    steps = len(whole[0])
    assert steps >= 8
    for at in range(steps - 3, steps + 1):
        loader = dload.Loader(make(), 4, **options)
        iterator = iter(loader)
        assert [next(iterator) for _ in range(at)] == whole[0][:at]
        if at == steps:
            assert next(iterator, None) is None
        resumed = dload.Loader(make(), 4, **options)
        resumed.load_state_dict(saved(loader))
        epochs = [list(resumed) for _ in range(3 if at < steps else 2)]
        assert epochs == ([whole[0][at:], *whole[1:]] if at < steps else whole[1:]), at
        if at == steps:
            for epoch, rows in ((0, []), (1, whole[1])):
                resumed = dload.Loader(make(), 4, **options)
                resumed.load_state_dict(saved(loader))
                resumed.set_epoch(epoch)
                assert list(resumed) == rows


@pytest.mark.parametrize("kind", ["shuffled", "mix", "filtered"])
def test_case_c57_saved_on_four_ranks_loaded_on_others_exact_or_refused(repo: Repository, kind: str) -> None:
    pipe = KINDS[kind](repo)
    for batch, worlds in ((24, (1, 2, 3, 8)), (16, (1, 2, 8))):
        options: dict[str, Any] = {"threads": 0, "columns": 8, "ends": "drop" if pipe.node.indexed else "endless"}

        def steps(world: int, count: int, state: Any, batch: int = batch, options: Any = options) -> Any:
            parts, states = [], []
            for rank in range(world):
                with dload.Loader(pipe, batch, rank=rank, world_size=world, **options) as loader:
                    if state is not None:
                        loader.load_state_dict(state)
                    iterator = iter(loader)
                    parts.append([next(iterator) for _ in range(count)])
                    states.append(saved(loader))
            return put_together(parts), dload.merge_states(states)

        expected, _ = steps(4, 12, None)
        first, state = steps(4, 5, None)
        assert first == expected[:5]
        for world in worlds:
            assert steps(world, 7, state)[0] == expected[5:], (batch, world)
    with pytest.raises(ConfigError, match="16 rows can't be shared evenly by 3 ranks"):
        steps(3, 1, state)


def test_case_c57_a_stream_of_four_ranks_is_not_resumed_by_a_part_of_its_states(repo: Repository) -> None:
    pipe, states = KINDS["filtered"](repo), []
    for rank in range(4):
        with dload.Loader(pipe, 8, rank=rank, world_size=4, ends="endless") as loader:
            next(iter(loader))
            states.append(saved(loader))
    alone = dload.Loader(pipe, 8, ends="endless")
    with pytest.raises(ValueError, match=r"the state lacks lanes \[1, 2, 3\].*merge_states"):
        alone.load_state_dict(states[0])
    alone.load_state_dict(dload.merge_states(states))
    beside = dload.Loader(pipe, 8, rank=1, world_size=4, ends="endless")
    beside.load_state_dict(states[1])  # its own is all that a rank needs where their number stays
    assert next(iter(beside)) == next(iter(alone))[2:4]


def test_case_c56_a_shuffle_resumed_at_random_steps_gives_each_id_once(repo: Repository) -> None:
    rng, pipe = random.Random(0), KINDS["shuffled"](repo)
    whole = sorted(pipe.iter(epoch=0))
    steps = len(whole) // 5
    for at in rng.sample(range(steps), 20):
        with dload.Loader(KINDS["shuffled"](repo), 5) as loader:
            iterator = iter(loader)
            rows = [row for _ in range(at) for row in next(iterator)]
            state = saved(loader)
        with dload.Loader(KINDS["shuffled"](repo), 5) as loader:
            loader.load_state_dict(state)
            rows += [row for step in loader for row in step]
        assert sorted(rows) == whole


@pytest.mark.parametrize("ahead", [0, 1, 1_000_000])
def test_case_c60_any_prefetch_works(repo: Repository, tmp_path: Path, ahead: int) -> None:
    expected = list(dload.Loader(KINDS["shuffled"](repo), 6))
    fresh = Repository(repo.store, ShardCache(tmp_path / "cache", 60_000), tmp_path / "dload.lock")
    assert list(dload.Loader(KINDS["shuffled"](fresh).prefetch(ahead), 6)) == expected


def test_case_c62_read_in_the_parent_then_in_four_forked_processes(repo: Repository) -> None:
    pipe = KINDS["shuffled"](repo)
    loader = dload.Loader(pipe, 8)
    iterator = iter(loader)
    expected = [next(iterator)]  # its threads run on in the parent
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def read(rank: int) -> None:
        with dload.Loader(pipe, 8, rank=rank, world_size=4) as own:
            results.put((rank, list(own)))

    processes = [context.Process(target=read, args=(rank,)) for rank in range(4)]
    for process in processes:
        process.start()
    parts = dict(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    expected += list(iterator)
    assert put_together([parts[rank] for rank in range(4)]) == expected
