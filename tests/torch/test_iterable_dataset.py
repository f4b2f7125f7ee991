"""Real DataLoader workers of every kind over a pipeline: exact cover, one order, epochs that differ."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from dload.api import Pipeline, Repository
from dload.cache import ShardCache
from dload.errors import ConfigError
from dload.pack import Sample
from dload.store.local import FolderStore
from dload.torch import as_iterable_dataset

COUNT = 300


def key_of(sample: Sample) -> str:
    return sample[0]


def keep(key: str) -> bool:
    return int(key[1:]) % 3 != 0


def broken(key: str) -> str:
    if key == "k0111":
        raise ZeroDivisionError("this one")
    return key


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    folder = tmp_path_factory.mktemp("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        repo = Repository(FolderStore(folder / "store"), ShardCache(folder / "cache"), folder / "dload.lock")
        rng = random.Random(0)
        data = [(f"k{i:04d}", {"x": rng.randbytes(30)}) for i in range(COUNT)]
        repo.commit("speech", data, target_shard_size=1500)
        yield repo


@pytest.fixture
def shuffled(repo: Repository) -> Pipeline:
    return repo.dataset("speech").samples().shuffle(60, seed=3).map(key_of)


def read(dataset: Any, workers: int = 0, **options: Any) -> list[Any]:
    return list(DataLoader(dataset, batch_size=None, num_workers=workers, **options))


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_any_number_of_workers_gives_the_same_order(shuffled: Pipeline, workers: int) -> None:
    expected = list(shuffled.iter(epoch=0))
    dataset = as_iterable_dataset(shuffled)
    assert len(dataset) == COUNT
    assert read(dataset, workers) == expected
    assert read(dataset, workers) == list(shuffled.iter(epoch=1))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("persistent", [False, True])
def test_case_c53_epochs_differ_and_agree_between_modes(repo: Repository, method: str, persistent: bool) -> None:
    pipe = repo.dataset("speech").samples().shuffle(60, seed=3).map(key_of)
    dataset = as_iterable_dataset(pipe)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=persistent, multiprocessing_context=method
    )
    epochs = 3 if method == "fork" or persistent else 1  # a spawned worker takes seconds to import torch
    assert [list(loader) for _ in range(epochs)] == [list(pipe.iter(epoch=e)) for e in range(epochs)]
    dataset.set_epoch(7)
    assert list(loader) == list(pipe.iter(epoch=7))
    if epochs > 1:
        assert list(loader) == list(pipe.iter(epoch=8))


def test_breaking_off_begins_the_next_epoch(shuffled: Pipeline) -> None:
    loader = DataLoader(as_iterable_dataset(shuffled), batch_size=None, num_workers=2)
    for epoch in range(3):
        assert next(iter(loader)) == next(shuffled.iter(epoch=epoch))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_case_c50_ranks_share_the_rows_and_give_equally_many(shuffled: Pipeline, world: int, workers: int) -> None:
    parts = [read(as_iterable_dataset(shuffled, rank, world), workers) for rank in range(world)]
    assert len({len(part) for part in parts}) == 1
    assert sorted(row for part in parts for row in part) == sorted(shuffled.iter(epoch=0))
    alone = [read(as_iterable_dataset(shuffled, rank, world)) for rank in range(world)]
    assert parts == alone


def test_with_a_global_batch_a_ranks_rows_of_each_step_come_in_order(shuffled: Pipeline) -> None:
    whole = list(shuffled.iter(epoch=0))
    parts = [read(as_iterable_dataset(shuffled, rank, 2, global_batch=8), workers=2) for rank in range(2)]
    steps = [[row for part in parts for row in part[4 * k : 4 * k + 4]] for k in range(len(parts[0]) // 4)]
    assert len(steps) == COUNT // 8
    assert set().union(*steps) <= set(whole)
    assert len(set().union(*steps)) == 8 * (COUNT // 8)
    with pytest.raises(ConfigError, match="3 workers can't share this rank's 4 rows"):
        read(as_iterable_dataset(shuffled, 0, 2, global_batch=8), workers=3)


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_a_filtered_stream_is_covered_exactly(repo: Repository, workers: int) -> None:
    pipe = repo.dataset("speech").samples().shuffle(60, seed=3).map(key_of).filter(keep)
    assert sorted(read(as_iterable_dataset(pipe), workers)) == sorted(pipe.iter(epoch=0))
    with pytest.raises(TypeError, match="isn't known"):
        len(as_iterable_dataset(pipe))


def test_what_ends_nobody_knows_when_is_refused_on_several_ranks(repo: Repository) -> None:
    pipe = repo.dataset("speech").samples().map(key_of).filter(keep)
    with pytest.raises(ConfigError, match=r"filter\(holes=True\)"):
        as_iterable_dataset(pipe, 0, 2)
    with pytest.raises(ConfigError, match="need one seed"):
        as_iterable_dataset(repo.dataset("speech").samples().shuffle(9), 0, 2)


def test_endless_pipelines_never_end(repo: Repository) -> None:
    pipe = repo.dataset("speech").samples().shuffle(60, seed=3).map(key_of).repeat()
    loader = DataLoader(as_iterable_dataset(pipe), batch_size=None, num_workers=2)
    rows = [row for row, _ in zip(loader, range(700), strict=False)]
    assert rows == [row for row, _ in zip(pipe.iter(epoch=0), range(700), strict=False)]


def test_batches_of_the_pipeline_come_whole(shuffled: Pipeline) -> None:
    pipe = shuffled.batch(7)
    assert read(as_iterable_dataset(pipe), 2) == list(pipe.iter(epoch=0))


def test_workers_download_each_shard_once(repo: Repository, tmp_path: Path) -> None:
    fresh = Repository(repo.store, ShardCache(tmp_path / "cache"), tmp_path / "dload.lock")
    dataset = as_iterable_dataset(fresh.dataset("speech").samples().shuffle(60, seed=3).map(key_of))
    assert len(read(dataset, 3)) == COUNT
    assert fresh.cache.counts().misses == len(fresh.dataset("speech").manifest.shards)


def test_case_c62_reading_in_the_parent_first_then_in_workers(shuffled: Pipeline) -> None:
    next(iter(shuffled))
    dataset = as_iterable_dataset(shuffled)
    assert read(dataset) == list(shuffled.iter(epoch=0))
    assert read(dataset, 2, multiprocessing_context="fork") == list(shuffled.iter(epoch=1))


def test_case_c63_a_workers_error_comes_out_with_its_traceback(repo: Repository) -> None:
    pipe = repo.dataset("speech").samples().map(key_of).map(broken)
    begin = time.monotonic()
    with pytest.raises(ZeroDivisionError, match=r"(?s)in broken.*this one"):
        read(as_iterable_dataset(pipe), 2)
    assert time.monotonic() - begin < 60, "not a hang"


def test_data_sets_pickle_and_count_anew(shuffled: Pipeline) -> None:
    dataset = as_iterable_dataset(shuffled)
    first = read(dataset)
    assert read(pickle.loads(pickle.dumps(dataset))) == first


def test_samples_as_they_are_reach_the_trainer(repo: Repository) -> None:
    rows = read(as_iterable_dataset(repo.dataset("speech").samples()), 2)
    assert rows == [[key, fields] for key, fields in repo.dataset("speech").samples()], "torch turns tuples into lists"


# ---- torchdata's StatefulDataLoader
def stateful(pipe: Pipeline, workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(as_iterable_dataset(pipe), batch_size=None, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("filtered", [False, True])
def test_a_stateful_data_loader_goes_on_in_any_epoch(shuffled: Pipeline, workers: int, filtered: bool) -> None:
    pipe = shuffled.filter(keep) if filtered else shuffled
    loader = stateful(pipe, workers)
    whole = [list(loader) for _ in range(4)]
    first = stateful(pipe, workers)
    assert list(first) == whole[0]
    seen = [row for _, row in zip(range(31), first, strict=False)]
    state = pickle.loads(pickle.dumps(first.state_dict()))
    second = stateful(pipe, workers)
    second.load_state_dict(state)
    assert seen + list(second) == whole[1]
    assert list(second) == whole[2]


@pytest.mark.parametrize(("workers", "filtered"), [(0, False), (2, True)])
@pytest.mark.parametrize("last", ["taken", "asked for more"])
def test_case_c54_a_stateful_data_loader_saved_behind_the_last_row_goes_on_with_the_next_epoch(
    shuffled: Pipeline, workers: int, filtered: bool, last: str
) -> None:
    """Where the end wasn't seen its loop ends at once, as the one that was saved would have."""
    pipe = shuffled.filter(keep) if filtered else shuffled
    loader = stateful(pipe, workers)
    whole = [list(loader) for _ in range(4)]
    first = stateful(pipe, workers)
    assert list(first) == whole[0]
    rows = iter(first)
    assert [next(rows) for _ in whole[1]] == whole[1]
    if last == "asked for more":
        assert next(rows, None) is None
    second = stateful(pipe, workers)
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    left = list(second)
    if last == "taken":
        assert left == []
        left = list(second)
    assert left == whole[2]
    assert list(second) == whole[3]


def test_a_stateful_data_loader_refuses_the_state_of_another_pipeline(repo: Repository, shuffled: Pipeline) -> None:
    first = stateful(shuffled, 0)
    next(iter(first))
    for other, message in (
        (shuffled.batch(2), "the state is of another pipeline"),
        (repo.dataset("speech").samples().shuffle(60, seed=4).map(key_of), "the state is of another pipeline"),
    ):
        second = stateful(other, 0)
        second.load_state_dict(first.state_dict())
        with pytest.raises(ValueError, match=message):
            next(iter(second))
