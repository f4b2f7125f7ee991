"""Bad rows in training runs: the same global batches on any number of ranks, resumed on another, with holes and skips;
and what `stats()` says of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dload
from dload.api import Pipeline, Repository
from dload.api.loader import Loader, merge_states
from dload.cache import ShardCache
from dload.errors import ConfigError, TooManyFailuresError
from dload.pack import Sample
from dload.store.memory import MemoryStore

COUNT = 240


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    folder = tmp_path_factory.mktemp("bad rows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        repo = Repository(MemoryStore(), ShardCache(folder / "cache"), folder / "dload.lock")
        rng = random.Random(0)
        for name, count in (("speech", COUNT), ("noise", 60)):
            samples = [(f"{name}-{i:04d}", {"x": rng.randbytes(30)}) for i in range(count)]
            repo.commit(name, samples, target_shard_size=1500)
        yield repo


def is_bad(key: str) -> bool:
    return int(key[-4:]) % 7 == 3


def decoded(sample: Sample) -> str:
    if is_bad(sample[0]):
        raise ValueError(f"{sample[0]} is bad")
    return sample[0]


def all_decoded(samples: list[Sample]) -> list[str]:
    return [decoded(sample) for sample in samples]


def kept(key: str) -> bool:
    return int(key[-4:]) % 3 != 0


KINDS: dict[str, Callable[[Repository], Pipeline]] = {
    "hole": lambda repo: repo.dataset("speech").samples().shuffle(40, seed=1).map(decoded, on_error="hole"),
    "hole on threads": lambda repo: repo.dataset("speech").samples().shuffle(40, seed=1).map(
        decoded, workers=2, on_error="hole"
    ),
    "hole of lists": lambda repo: repo.dataset("speech").samples().shuffle(40, seed=1).map_batches(
        all_decoded, 5, on_error="hole"
    ),
    "skip": lambda repo: repo.dataset("speech").samples().map(decoded, on_error="skip").shuffle(40, seed=1),
    "skip on threads": lambda repo: repo.dataset("speech").samples().map(decoded, workers=2, on_error="skip").filter(
        kept
    ),
    "skip of lists": lambda repo: repo.dataset("speech").samples().shuffle(40, seed=1).map_batches(
        all_decoded, 4, workers=1, on_error="skip"
    ),
    "skip in a filter": lambda repo: repo.dataset("speech").samples().filter(
        lambda sample: kept(decoded(sample)), on_error="skip"
    ).map(decoded).shuffle(20, seed=2),
    "skip in a mix": lambda repo: dload.mix(
        [
            repo.dataset("speech").samples().shuffle(20, seed=1).map(decoded, on_error="skip"),
            repo.dataset("noise").samples().shuffle(9, seed=2).map(decoded, on_error="hole").repeat(),
        ],
        [3, 1], seed=4,
    ),
    "skip twice": lambda repo: repo.dataset("speech").samples().map(decoded, on_error="skip").map(
        lambda key: (1 // (int(key[-4:]) % 11), key)[1], workers=2, on_error="warn"
    ).shuffle(30, seed=3),
}  # fmt: skip


def together(make: Callable[[], Pipeline], batch: int, world: int, steps: int, **options: Any) -> list[list[Any]]:
    parts = []
    for rank in range(world):
        with Loader(make(), batch, rank=rank, world_size=world, threads=0, **options) as loader:
            parts.append(list(islice(loader, steps)))
    return [[row for part in step for row in part] for step in zip(*parts, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_global_batch_is_the_same_on_any_number_of_ranks(repo: Repository, kind: str) -> None:
    def make() -> Pipeline:
        return KINDS[kind](repo)

    expected = together(make, 12, 1, 20, ends="endless", columns=4)
    rows = [row for step in expected for row in step]
    assert rows
    assert not any(is_bad(row) for row in rows)
    if "hole" in kind:
        assert len(rows) < 12 * 20
    else:
        assert len(rows) == 12 * 20 or "mix" in kind
    for world in (2, 4):
        assert together(make, 12, world, 20, ends="endless", columns=4) == expected, world


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_chains_of_resumes_on_other_numbers_of_ranks_are_the_uninterrupted_run(
    repo: Repository, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    threads = data.draw(st.sampled_from([0, 0, 1]))
    options: dict[str, Any] = {"ends": "endless", "columns": 4, "threads": threads}
    expected = together(lambda: KINDS[kind](repo), 8, 1, 30, ends="endless", columns=4)
    found: list[list[Any]] = []
    state: Any = None
    while len(found) < 30:
        world = data.draw(st.sampled_from([1, 2, 4]))
        steps = data.draw(st.integers(1, 12))
        loaders = [Loader(KINDS[kind](repo), 8, rank=rank, world_size=world, **options) for rank in range(world)]
        parts = []
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            parts.append(list(islice(loader, steps)))
        found += [[row for part in step for row in part] for step in zip(*parts, strict=True)]
        state = merge_states([loader.state_dict() for loader in loaders])
        for loader in loaders:
            loader.close()
    assert found[:30] == expected


# ---- the loader's own policy
@pytest.mark.parametrize("how", ["hole", "skip", "warn", lambda error, _: "bad" in str(error)])
@pytest.mark.parametrize("threads", [0, 1])
def test_a_loaders_policy_leaves_holes(repo: Repository, how: Any, threads: int) -> None:
    def make() -> Pipeline:
        return repo.dataset("speech").samples().shuffle(40, seed=1).map(decoded)

    whole = list(repo.dataset("speech").samples().shuffle(40, seed=1).map(lambda sample: sample[0]).iter(epoch=0))
    expected = [[key for key in whole[first : first + 8] if not is_bad(key)] for first in range(0, COUNT, 8)]
    for world in (1, 2):
        parts = []
        for rank in range(world):
            loader = Loader(make(), 8, rank=rank, world_size=world, threads=threads, on_error=how)
            parts.append(list(loader))
            assert len(loader) == 30
            stats = loader.stats()
            assert stats["rows_skipped"] == stats["holes"] == COUNT // world - stats["consumed_rows"]
            assert loader.state_dict()["lanes"] is None
        assert [[row for part in step for row in part] for step in zip(*parts, strict=True)] == expected


def test_a_run_that_stopped_at_a_bad_row_goes_on_with_a_policy(repo: Repository) -> None:
    for make in (
        lambda: repo.dataset("speech").samples().map(decoded),
        lambda: repo.dataset("speech").samples().filter(lambda sample: len(sample) > 1).map(decoded),
    ):
        loader = Loader(make(), 8, ends="ragged")
        with pytest.raises(ValueError, match="speech-0003 is bad"):
            list(loader)
        state = loader.state_dict()
        loader = Loader(make(), 8, ends="ragged", on_error="hole")
        loader.load_state_dict(state)
        rows = [row for step in loader for row in step]
        assert rows == [f"speech-{i:04d}" for i in range(COUNT) if i % 7 != 3]


def test_a_nodes_own_policy_stands(repo: Repository) -> None:
    pipe = repo.dataset("speech").samples().map(decoded, on_error="raise")
    with pytest.raises(ValueError, match="is bad"):
        list(Loader(pipe, 8, on_error="skip"))


COVERED: dict[str, Callable[[Pipeline], Pipeline]] = {
    "tap": lambda pipe: pipe.tap(decoded),
    "star_map": lambda pipe: pipe.star_map(lambda key, fields: decoded((key, fields))),
    "maybe": lambda pipe: pipe.maybe(decoded, 1.0, seed=0),
    "filter": lambda pipe: pipe.filter(decoded),
    "filter with holes": lambda pipe: pipe.filter(decoded, holes=True),
    "flat_map": lambda pipe: pipe.flat_map(lambda sample: [decoded(sample)]),
}
EXCEPTED: dict[str, Callable[[Pipeline], Pipeline]] = {
    "zip_with": lambda pipe: pipe.zip_with(lambda one, _: decoded(one), pipe),
    "zip_with in a stream": lambda pipe: pipe.filter(bool).zip_with(lambda one, _: decoded(one), pipe),
    "scan": lambda pipe: pipe.scan(lambda _, sample: decoded(sample), ""),
    "through": lambda pipe: pipe.through(lambda samples: map(decoded, samples)),
    "batch": lambda pipe: pipe.batch(1, collate=all_decoded),
    "the loader's collate": lambda pipe: pipe,
}


@pytest.mark.parametrize("kind", COVERED)
def test_a_loaders_policy_is_for_all_functions_of_one_element(repo: Repository, kind: str) -> None:
    loader = Loader(COVERED[kind](repo.dataset("speech").samples()), 2, ends="ragged", threads=0, on_error="hole")
    rows = [row for step in loader for row in step]
    keys = [row if isinstance(row, str) else row[0] for row in rows]
    assert keys == [f"speech-{i:04d}" for i in range(COUNT) if not is_bad(f"{i:04d}")]
    assert loader.stats()["rows_skipped"] == COUNT - len(rows)


@pytest.mark.parametrize("kind", EXCEPTED)
def test_functions_of_several_elements_raise_in_their_step(repo: Repository, kind: str) -> None:
    collate = all_decoded if "collate" in kind else None
    pipe = EXCEPTED[kind](repo.dataset("speech").samples())
    loader = Loader(pipe, 2, ends="ragged", threads=0, on_error="hole", collate=collate)
    steps = iter(loader)
    next(steps)
    with pytest.raises(ValueError, match="speech-0003 is bad"):
        next(steps)
    assert loader.state_dict()["step"] == 1


def test_what_a_loader_refuses(repo: Repository) -> None:
    pipe = repo.dataset("speech").samples()
    with pytest.raises(ConfigError, match=r"on_error is 'ignore'"):
        Loader(pipe, 8, on_error="ignore")
    with pytest.raises(ConfigError, match="fail_after"):
        Loader(pipe, 8, on_error="skip", fail_after=0)
    loader = Loader(pipe.map(lambda sample: len(sample) // 0), 8, on_error="skip", fail_after=20)
    with pytest.raises(TooManyFailuresError, match="20 elements in a row failed"):
        list(loader)


# ---- stepping over them
def odd(sample: Sample) -> bool:
    return int(sample[0][-4:]) % 2 == 1


def opened(sample: Sample) -> str:
    """Few are bad."""
    if int(sample[0][-4:]) % 41 == 3:
        raise ValueError(f"{sample[0]} is bad")
    return sample[0]


def all_opened(samples: list[Sample]) -> list[str]:
    return [opened(sample) for sample in samples]


def twins(sample: Sample) -> Iterator[str]:
    yield f"{sample[0]} a"
    opened(sample)
    yield f"{sample[0]} b"


HOLDING: dict[str, Callable[[Repository], Pipeline]] = {
    "below a filter": lambda repo: repo.dataset("speech").samples().map(opened).filter(kept).shuffle(40, seed=1),
    "above a filter": lambda repo: repo.dataset("speech").samples().filter(odd).map(opened).shuffle(40, seed=1),
    "said to be raised": lambda repo: repo.dataset("speech").samples().filter(odd).map(
        opened, on_error="raise"
    ).shuffle(40, seed=1),
    "on threads": lambda repo: repo.dataset("speech").samples().shuffle(20, seed=1).filter(odd).map(
        opened, workers=2
    ).shuffle(40, seed=2),
    "of lists": lambda repo: repo.dataset("speech").samples().filter(odd).map_batches(all_opened, 5).window(6, 2),
    "in a filter": lambda repo: repo.dataset("speech").samples().filter(
        lambda sample: kept(opened(sample))
    ).shuffle(40, seed=1),
    "in flat_map": lambda repo: repo.dataset("speech").samples().filter(odd).flat_map(twins).shuffle(40, seed=1),
    "of several places": lambda repo: repo.dataset("speech").samples().flat_map(
        lambda sample: [opened(sample)] * 2, fanout=2
    ).filter(kept).shuffle(40, seed=1),
    "in a mix": lambda repo: dload.mix(
        [
            repo.dataset("speech").samples().filter(odd).map(opened).shuffle(40, seed=1).repeat(),
            repo.dataset("noise").samples().filter(odd).repeat().map(opened).shuffle(9, seed=2),
        ],
        [3, 1], seed=4,
    ),
}  # fmt: skip


def stepped_over(loaders: list[Loader], iterators: list[Any], errors: list[str]) -> list[Any] | None:
    """The next step of all ranks; None where it failed on some, which step over it."""
    rows, before = [], len(errors)
    for loader, iterator in zip(loaders, iterators, strict=True):
        try:
            rows += next(iterator)
        except ValueError as error:
            errors.append(str(error))
            loader.skip(1)
    return rows if len(errors) == before else None


@pytest.mark.parametrize("kind", HOLDING)
@pytest.mark.parametrize("steps", [2, 5, 30])
def test_a_bad_row_that_is_held_over_steps_is_stepped_over_once_also_by_who_goes_on(
    repo: Repository, kind: str, steps: int
) -> None:
    options: dict[str, Any] = {"ends": "endless", "columns": 4, "threads": 0}
    lenient = HOLDING["above a filter" if "said" in kind else kind](repo)
    whole = list(islice(Loader(lenient, 8, on_error="hole", **options), 30))
    errors: list[str] = []
    found: list[Any] = []
    state: dict[str, Any] = Loader(HOLDING[kind](repo), 8, **options).state_dict()
    while len(found) < 30:  # `steps` on each number of ranks
        world = (1, 2, 4)[len(found) // steps % 3]
        loaders = [Loader(HOLDING[kind](repo), 8, rank=rank, world_size=world, **options) for rank in range(world)]
        for loader in loaders:
            loader.load_state_dict(json.loads(json.dumps(state)))
        iterators = [iter(loader) for loader in loaders]
        found += [stepped_over(loaders, iterators, errors) for _ in range(steps)]
        state = merge_states([loader.state_dict() for loader in loaders])
        for loader in loaders:
            loader.close()
    assert 0 < found.count(None) < 15
    assert all(rows in (None, expected) for rows, expected in zip(found, whole, strict=True))
    assert len(errors) <= len(state["spared"]), "none was raised again"
    loader = Loader(HOLDING[kind](repo), 8, **options)
    loader.load_state_dict(state)
    loader.set_epoch(5)
    assert "spared" not in loader.state_dict()


# ---- what it says
def test_skipped_rows_are_counted_over_a_resume(repo: Repository) -> None:
    def loader() -> Loader:
        pipe = repo.dataset("speech").samples().map(decoded, on_error="skip").shuffle(30, seed=3)
        return Loader(pipe, 8, ends="ragged", threads=0)

    first = loader()
    list(islice(first, 11))
    stats = first.stats()
    assert 10 <= stats["rows_skipped"] <= 20
    assert len(stats["skipped"]) == stats["rows_skipped"]
    entry = stats["skipped"][0]
    assert entry["node"] == "map(decoded)"
    assert entry["data"].startswith("speech@")
    assert entry["error"] == f"ValueError: {entry['key']} is bad"
    going_on = loader()
    going_on.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert going_on.stats()["rows_skipped"] == stats["rows_skipped"]
    rest = list(going_on)
    total = len([i for i in range(COUNT) if i % 7 == 3])
    assert going_on.stats()["rows_skipped"] == total
    assert sum(map(len, rest)) + 88 == COUNT - total - going_on.stats()["rows_left"]
    assert len(going_on.stats()["skipped"]) == total - stats["rows_skipped"]


@pytest.mark.parametrize("kind", ["skip on threads", "hole of lists"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_worker_processes_leave_out_the_same_and_their_states_go_on_without_them(repo: Repository, kind: str) -> None:
    from dload.torch import StreamLoader

    options: dict[str, Any] = {"ends": "endless", "turns": 2 if "skip" in kind else None}
    expected = list(islice(Loader(KINDS[kind](repo), 8, threads=0, **options), 24))
    workers = StreamLoader(
        KINDS[kind](repo), 8, num_workers=2, collate=list, multiprocessing_context="fork", **options
    )  # fmt: skip
    found = list(islice(workers, 11))
    state = json.loads(json.dumps(workers.state_dict()))
    stats = workers.stats()
    workers.close()
    assert stats["rows_skipped"] > 0
    assert {entry["node"].split("(")[0] for entry in stats["skipped"]} <= {"map", "map_batches"}
    going_on = Loader(KINDS[kind](repo), 8, threads=0, **options)
    going_on.load_state_dict(state)
    assert found + list(islice(going_on, 13)) == expected
