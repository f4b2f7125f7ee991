"""dload under the real Grain: its threads, worker processes, data loader and its own checkpoint test."""

from __future__ import annotations

import gc
import itertools
import json
import pickle
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dload
from dload.api import Pipeline, Repository
from dload.errors import ConfigError, InfeasiblePipelineError
from dload.run.indexes import Indexes

grain = pytest.importorskip("grain")
from absl import flags  # noqa: E402
from grain import experimental  # noqa: E402

from dload.grain import iter_dataset, map_dataset, source  # noqa: E402


def key_of(sample: Any) -> str:
    return sample[0]


def drawn(sample: Any, rng: random.Random) -> tuple[str, float]:
    return sample[0], rng.random()


def drawn_twice(pair: tuple[str, float], rng: random.Random) -> tuple[str, float, float]:
    return *pair, rng.random()


def fails_for_some(row: tuple[str, float, float]) -> tuple[str, float, float]:
    if keep(row[0]):
        return row
    raise ValueError("a bad sample")


def keep(key: str) -> bool:
    return int(key[1:]) % 3 != 0


def fails_at_k0007(key: str) -> str:
    if key == "k0007":
        raise ValueError("a bad sample")
    return key


@pytest.fixture(scope="module", autouse=True)
def flags_are_parsed() -> None:
    """Grain's worker processes are started with flags of absl, which a program parses at its start."""
    flags.FLAGS.mark_as_parsed()


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """On disk, since worker processes read it, too."""
    folder = tmp_path_factory.mktemp("grain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        repo = Repository.open(str(folder / "store"), cache_dir=folder / "cache", cache_budget="1GB")
        rng = random.Random(0)
        repo.commit("speech", [(f"k{i:04d}", {"x": rng.randbytes(30)}) for i in range(200)], target_shard_size=1500)
        repo.commit("noise", [(f"n{i:04d}", {"x": rng.randbytes(30)}) for i in range(90)], target_shard_size=1500)
        yield repo


def shuffled(repo: Repository) -> Pipeline:
    return repo.dataset("speech").samples().shuffle(60, seed=3).map(drawn, rng=True)


def streamed(repo: Repository) -> Pipeline:
    return repo.dataset("speech").samples().shuffle(60, seed=3).map(key_of).filter(keep)


# ---- a data set as a source
def test_a_source_is_grains_random_access_source(repo: Repository) -> None:
    ds = repo.dataset("speech")
    found = source(ds)
    assert isinstance(found, grain.sources.RandomAccessDataSource)
    assert list(grain.MapDataset.source(found)) == list(ds)
    assert list(grain.MapDataset.source(found).shuffle(seed=1).to_iter_dataset()) != list(ds)
    assert pickle.loads(pickle.dumps(found))[17] == ds[17]
    assert source(ds, fields=["x"])[3] == ds[3]
    assert source(ds, fields=["y"])[3] == (ds[3][0], {})


def test_many_threads_read_from_one_source(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few indexes are kept, so that threads drop what others look for."""
    monkeypatch.setattr("dload.run.lookup.indexes", Indexes(most=1))
    ds = repo.dataset("speech")
    expected, places = list(ds), random.Random(1).choices(range(200), k=1000)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(source(ds).__getitem__, places)) == [expected[place] for place in places]


def test_a_sources_repr_names_version_and_fields(repo: Repository) -> None:
    ds = repo.dataset("speech")
    assert repr(source(ds)) == repr(source(pickle.loads(pickle.dumps(ds))))
    assert ds.version in repr(source(ds))
    assert repr(source(ds)) != repr(source(ds, fields=["x"]))


def loader_of(repo: Repository, workers: int = 0, fields: list[str] | None = None) -> Any:
    sampler = grain.samplers.IndexSampler(200, num_epochs=1, shuffle=True, seed=4)
    return grain.DataLoader(data_source=source(repo.dataset("speech"), fields), sampler=sampler, worker_count=workers)


def test_grains_loader_reads_a_source_and_resumes(repo: Repository) -> None:
    whole = [key for key, _ in loader_of(repo)]
    assert sorted(whole) == [f"k{i:04d}" for i in range(200)]
    iterator = iter(loader_of(repo))
    begun = [next(iterator)[0] for _ in range(70)]
    state = iterator.get_state()
    going_on = iter(loader_of(repo))
    going_on.set_state(state)
    assert begun + [key for key, _ in going_on] == whole
    with pytest.raises(ValueError, match="source in checkpoint"):
        iter(loader_of(repo, fields=["x"])).set_state(state)


def test_grains_loader_reads_a_source_in_a_worker_process(repo: Repository) -> None:
    assert [key for key, _ in loader_of(repo, 1)] == [key for key, _ in loader_of(repo)]


# ---- an index-tier pipeline as a MapDataset
def test_a_map_dataset_has_the_pipelines_elements_and_epochs(repo: Repository) -> None:
    pipe = shuffled(repo)
    ds = map_dataset(pipe)
    assert len(ds) == len(pipe) == 200
    epochs = [list(pipe.iter(epoch=epoch)) for epoch in range(3)]
    assert list(ds) == epochs[0]
    assert [ds[i] for i in range(400, 600)] == epochs[2]
    assert ds[-1] == epochs[0][-1]
    assert list(ds.repeat(3)) == epochs[0] + epochs[1] + epochs[2]
    assert list(ds[20:180:7]) == epochs[0][20:180:7]
    assert list(ds.batch(7, batch_fn=list)) == [epochs[0][i : i + 7] for i in range(0, 200, 7)]


@pytest.mark.parametrize("threads", [1, 16])
def test_a_map_dataset_is_read_on_grains_threads(repo: Repository, threads: int) -> None:
    pipe = dload.mix(
        [shuffled(repo), repo.dataset("noise").samples().shuffle(9, seed=2).map(drawn, rng=True)], [2, 1], seed=1
    )
    expected = list(pipe.iter(epoch=0)) + list(pipe.iter(epoch=1))
    ds = map_dataset(pipe).repeat(2)
    assert list(ds.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=100))) == expected


def test_functions_with_threads_and_policies_of_their_own(repo: Repository) -> None:
    pipe = shuffled(repo).map(drawn_twice, rng=True, workers=3).map(fails_for_some, on_error="hole").map(str)
    expected = list(pipe.iter(epoch=0))
    assert len(expected) < 200
    ds = map_dataset(pipe)
    assert list(ds.to_iter_dataset()) == [item for item in ds if item is not None] == expected
    assert list(iter_dataset(pipe)) == expected


def test_a_map_dataset_under_grains_shuffle(repo: Repository) -> None:
    pipe = shuffled(repo)
    found = list(map_dataset(pipe).shuffle(seed=9).repeat(2).to_iter_dataset())
    assert sorted(found) == sorted([*pipe.iter(epoch=0), *pipe.iter(epoch=1)])


def test_reading_anywhere_is_reading_in_order(repo: Repository) -> None:
    pipe = dload.from_iterable(range(30_000)).shuffle(100, seed=1)
    pipe = dload.zip(pipe, shuffled(repo).repeat(150))
    expected = list(pipe.iter(epoch=0))
    ds, rng = map_dataset(pipe), random.Random(0)
    places = [*range(50), *rng.choices(range(30_000), k=60), *range(20_000, 20_300), *range(19_000, 19_010), 29_999, 0]
    assert [ds[place] for place in places] == [expected[place] for place in places]


def test_a_hole_is_grains_none(repo: Repository) -> None:
    pipe = repo.dataset("speech").samples().map(key_of).filter(keep, holes=True)
    ds = map_dataset(pipe)
    assert ds[0] is None and ds[1] == "k0001"
    assert list(ds.to_iter_dataset()) == list(pipe.iter(epoch=0))


def test_a_map_dataset_in_worker_processes(repo: Repository) -> None:
    pipe = shuffled(repo)
    ds = map_dataset(pipe).to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    assert list(ds) == list(pipe.iter(epoch=0))


def test_grains_checkpoint_test_passes_on_a_map_dataset(repo: Repository) -> None:
    experimental.assert_equal_output_after_checkpoint(map_dataset(shuffled(repo))[:40].to_iter_dataset())
    experimental.assert_equal_output_after_checkpoint(
        map_dataset(shuffled(repo)).batch(16, batch_fn=list).to_iter_dataset()
    )


def test_an_endless_pipeline_has_grains_endless_length(repo: Repository) -> None:
    pipe = shuffled(repo).repeat()
    ds = map_dataset(pipe)
    assert len(ds) == sys.maxsize
    iterator = iter(pipe.iter(epoch=0))
    assert [ds[i] for i in range(450)] == [next(iterator) for _ in range(450)]


def test_what_a_map_dataset_refuses(repo: Repository) -> None:
    with pytest.raises(ConfigError, match="iter_dataset"):
        map_dataset(streamed(repo))
    with pytest.raises(ConfigError, match="seed"):
        map_dataset(repo.dataset("speech").samples().shuffle(60))
    assert len(map_dataset(repo.dataset("speech").samples().shuffle(60), seed=1)) == 200
    with pytest.raises(IndexError):
        map_dataset(repo.dataset("speech").samples().take(0))[0]


def test_what_does_not_fit_is_refused_before_a_byte_moves(repo: Repository, tmp_path: Path) -> None:
    small = Repository.open(repo.store.url, cache_dir=tmp_path / "cache", cache_budget="2KB")
    pipe = small.dataset("speech").samples().shuffle(full=True, seed=1)
    for ds in (map_dataset(pipe), iter_dataset(pipe)):
        with pytest.raises(InfeasiblePipelineError):
            next(iter(ds))
    assert small.cache.used_bytes() == 0


def test_an_error_of_an_element_is_raised_in_its_place(repo: Repository) -> None:
    pipe = repo.dataset("speech").samples().map(key_of).map(fails_at_k0007)
    ds = map_dataset(pipe)
    with pytest.raises(ValueError, match="a bad sample"):
        ds[7]
    assert ds[8] == "k0008"
    iterator = iter(iter_dataset(pipe))
    assert [next(iterator) for _ in range(7)][-1] == "k0006"
    with pytest.raises(ValueError, match="a bad sample"):
        next(iterator)


# ---- a pipeline as an IterDataset
@pytest.mark.parametrize("make", [shuffled, streamed])
def test_an_iter_dataset_gives_the_pipelines_epoch(repo: Repository, make: Any) -> None:
    pipe = make(repo)
    for epoch in range(2):
        ds = iter_dataset(pipe, epoch=epoch)
        assert list(ds) == list(ds) == list(pipe.iter(epoch=epoch))


@pytest.mark.parametrize("make", [shuffled, streamed])
def test_an_endless_pipeline_has_epochs_of_its_own(repo: Repository, make: Any) -> None:
    pipe = make(repo).repeat()
    for epoch in range(2):
        expected = list(itertools.islice(pipe.iter(epoch=epoch), 300))
        assert list(itertools.islice(iter_dataset(pipe, epoch=epoch), 300)) == expected


@pytest.mark.parametrize("make", [shuffled, streamed])
def test_grains_checkpoint_test_passes_on_an_iter_dataset(repo: Repository, make: Any) -> None:
    pipe = dload.Pipeline(make(repo).node)
    experimental.assert_equal_output_after_checkpoint(iter_dataset(pipe.take(50)))
    experimental.assert_equal_output_after_checkpoint(iter_dataset(pipe.take(50), index=1, count=3))
    experimental.assert_equal_output_after_checkpoint(iter_dataset(pipe).batch(9, batch_fn=list))


def test_an_iter_dataset_in_worker_processes(repo: Repository) -> None:
    pipe = streamed(repo)
    shares = [list(iter_dataset(pipe, index=index, count=2)) for index in range(2)]
    in_turns = [row for pair in itertools.zip_longest(*shares) for row in pair if row is not None]
    assert sorted(in_turns) == sorted(pipe.iter(epoch=0))
    ds = iter_dataset(pipe).mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    iterator = iter(ds)
    begun = [next(iterator) for _ in range(31)]
    state = json.loads(json.dumps(iterator.get_state()))
    del iterator
    going_on = iter(ds)
    going_on.set_state(state)
    assert begun + list(going_on) == in_turns


def test_workers_put_places_together_in_their_order(repo: Repository) -> None:
    """As Grain's worker processes do it: each takes its slice, and their elements come in turns."""
    pipe = shuffled(repo)
    workers = []
    for number in range(3):
        ds = iter_dataset(pipe, index=1, count=2)
        ds.set_slice(slice(number, None, 3))
        workers.append(list(ds))
    in_turns = [row for rows in itertools.zip_longest(*workers) for row in rows if row is not None]
    assert in_turns == list(pipe.iter(epoch=0))[1::2]
    with pytest.raises(ValueError, match="sequential_slice"):
        ds.set_slice(slice(0, None, 3), sequential_slice=True)


@pytest.mark.parametrize("make", [shuffled, streamed])
def test_shares_are_the_whole(repo: Repository, make: Any) -> None:
    pipe = make(repo)
    shares = [list(iter_dataset(pipe, index=index, count=3)) for index in range(3)]
    assert sorted(row for share in shares for row in share) == sorted(pipe.iter(epoch=0))
    if pipe.node.indexed:
        assert shares == [list(pipe.iter(epoch=0))[index::3] for index in range(3)]


def test_grains_own_steps_go_on_top(repo: Repository) -> None:
    ds = iter_dataset(streamed(repo)).map(str.upper).batch(10, batch_fn=list)
    rows = [key.upper() for key in streamed(repo).iter(epoch=0)]
    assert list(ds) == [rows[i : i + 10] for i in range(0, len(rows), 10)]


def test_a_state_of_another_pipeline_seed_or_share_is_refused(repo: Repository) -> None:
    state = iter(iter_dataset(shuffled(repo))).get_state()
    for other, what in (
        (iter_dataset(streamed(repo)), "another pipeline"),
        (iter_dataset(shuffled(repo), seed=8), "the state has plan"),
        (iter_dataset(shuffled(repo), epoch=1), "the state has epoch 0"),
        (iter_dataset(shuffled(repo), index=1, count=2), "the state has plan"),
    ):
        with pytest.raises(ValueError, match=what):
            iter(other).set_state(state)


def test_what_an_iter_dataset_refuses(repo: Repository) -> None:
    with pytest.raises(ConfigError, match="share 3 is not one of 3"):
        iter_dataset(streamed(repo), index=3, count=3)
    with pytest.raises(ConfigError, match="seed"):
        iter_dataset(repo.dataset("speech").samples().shuffle(60))


@pytest.fixture
def alone(repo: Repository, tmp_path: Path) -> Repository:
    """The same data through a cache of its own."""
    return Repository.open(repo.store.url, cache_dir=tmp_path / "cache", cache_budget="1GB")


def can_be_emptied(repo: Repository) -> bool:
    """Whether no shard stays pinned, once what is under way has come."""
    for _ in range(200):
        repo.cache.clear()
        if not repo.cache.used_bytes():
            return True
        time.sleep(0.05)
    return False


def test_a_closed_iterator_lets_go(alone: Repository) -> None:
    iterator = iter(iter_dataset(shuffled(alone)))
    next(iterator)
    iterator.close()
    with pytest.raises(ValueError, match="closed"):
        next(iterator)
    assert alone.cache.used_bytes() > 0
    assert can_be_emptied(alone)


def test_a_forgotten_map_dataset_lets_go(alone: Repository) -> None:
    ds = map_dataset(shuffled(alone))
    assert ds[0]
    alone.cache.clear()
    assert alone.cache.used_bytes() > 0  # what is read is pinned
    del ds
    gc.collect()
    assert can_be_emptied(alone)


def test_device_put_moves_the_batches(repo: Repository) -> None:
    jax = pytest.importorskip("jax")
    np = pytest.importorskip("numpy")
    pipe = repo.dataset("speech").samples().map(lambda sample: np.frombuffer(sample[1]["x"], dtype=np.uint8))
    ds = map_dataset(pipe).batch(20).to_iter_dataset()
    put = list(experimental.device_put(ds, jax.devices("cpu")[0]))
    assert len(put) == 10 and all(isinstance(batch, jax.Array) for batch in put)
    assert (np.concatenate(put) == np.stack(list(pipe.iter(epoch=0)))).all()
