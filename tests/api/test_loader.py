"""Loaders: one global batch for any number of ranks, exact resume on another number, every way for epochs to end."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dload
from dload.api import Pipeline, Repository
from dload.api.loader import Loader, merge_states
from dload.cache import ShardCache
from dload.errors import ConfigError, InfeasiblePipelineError
from dload.pack import Sample
from dload.store.memory import MemoryStore
from dload.testing.waiting import eventually


def key_of(sample: Sample) -> str:
    return sample[0]


def keep(key: str) -> bool:
    return int(key[1:]) % 3 != 0


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    folder = tmp_path_factory.mktemp("loader")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        repo = Repository(MemoryStore(), ShardCache(folder / "cache"), folder / "dload.lock")
        rng = random.Random(0)
        repo.commit("speech", [(f"k{i:04d}", {"x": rng.randbytes(30)}) for i in range(500)], target_shard_size=1500)
        repo.commit("noise", [(f"n{i:04d}", {"x": rng.randbytes(30)}) for i in range(90)], target_shard_size=1500)
        yield repo


def part(repo: Repository) -> dload.Dataset:
    """A view: two thirds of the samples, over all shards."""
    return repo.dataset("speech").split({"train": 2 / 3})["train"]


KINDS: dict[str, Callable[[Repository], Pipeline]] = {
    "plain": lambda repo: repo.dataset("speech").samples().map(key_of),
    "shuffled": lambda repo: repo.dataset("speech").samples().shuffle(60, seed=3).map(key_of),
    "batched": lambda repo: repo.dataset("speech").samples().shuffle(60, seed=3).map(key_of).batch(4),
    "concat": lambda repo: dload.concat(
        [repo.dataset("speech").samples().shuffle(20, seed=1), repo.dataset("noise").samples()]
    ).map(key_of),
    "mix": lambda repo: dload.mix(
        [repo.dataset("speech").samples().shuffle(20, seed=1), repo.dataset("noise").samples().shuffle(9, seed=2)],
        [3, 1], seed=4, until="cycle",
    ).map(key_of),
    "view": lambda repo: part(repo).samples().shuffle(60, seed=3).map(key_of),
    "repeated": lambda repo: repo.dataset("noise").samples().shuffle(20, seed=5).repeat(3).map(key_of),
}  # fmt: skip


def together(repo: Repository, kind: str, batch: int, world: int, steps: int, **options: Any) -> list[list[Any]]:
    """The first global batches, put together from the ranks."""
    parts = []
    for rank in range(world):
        with Loader(KINDS[kind](repo), batch, rank=rank, world_size=world, threads=0, **options) as loader:
            iterator = iter(loader)
            parts.append([next(iterator, None) for _ in range(steps)])
    return [[row for part in step for row in part] for step in zip(*parts, strict=True) if None not in step]


# ---- the promise
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("ends", ["drop", "pad", "endless"])
def test_the_global_batch_is_the_same_on_any_number_of_ranks(repo: Repository, kind: str, ends: str) -> None:
    expected = together(repo, kind, 12, 1, 9, ends=ends, columns=6, homes=2)
    assert all(len(batch) == 12 for batch in expected)
    for world in (2, 3, 4, 6, 12):
        assert together(repo, kind, 12, world, 9, ends=ends, columns=6, homes=2) == expected, world


def test_one_column_is_plain_iteration(repo: Repository) -> None:
    for make in KINDS.values():
        plain = list(make(repo).iter(epoch=0))
        rows = [row for batch in Loader(make(repo), 5, ends="agree", agree=lambda flag: flag) for row in batch]
        assert rows == plain[: len(rows)]
        assert len(plain) - len(rows) < 5


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("world", [1, 2, 4])
def test_an_epoch_covers_all_rows_but_those_left_out(repo: Repository, kind: str, world: int) -> None:
    every = sorted(map(str, KINDS[kind](repo).iter(epoch=0)))
    loaders = [Loader(KINDS[kind](repo), 8, rank=rank, world_size=world, columns=4) for rank in range(world)]
    rows = [row for loader in loaders for batch in loader for row in batch]
    assert len({len(loader) for loader in loaders}) == 1
    assert len(rows) == 8 * len(loaders[0]) == len(every) // 8 * 8
    remaining = list(every)
    for row in map(str, rows):
        remaining.remove(row)
    assert len(remaining) < 8


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_chains_of_resumes_on_other_numbers_of_ranks_are_the_uninterrupted_run(data: st.DataObject) -> None:
    """Over a sequence in memory: what is under test is where the run stands."""
    count = data.draw(st.integers(1, 60))
    batch, columns = 12, data.draw(st.sampled_from([1, 2, 3, 6, 12]))
    ends = data.draw(st.sampled_from(["drop", "pad", "endless", "steps"]))
    options: dict[str, Any] = {"ends": ends, "columns": columns, "threads": 0}
    if ends == "steps":
        options["steps"] = data.draw(st.integers(1, 5))

    def make() -> Pipeline:
        return dload.from_iterable(list(range(count))).shuffle(7, seed=1)

    def epochs(world: int, state: Any, steps: int) -> tuple[list[list[int]], Any]:
        loaders = [Loader(make(), batch, rank=rank, world_size=world, **options) for rank in range(world)]
        parts: list[list[list[int]]] = []
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            mine: list[list[int]] = []
            empty = 0
            while len(mine) < steps and empty < 2:
                before = len(mine)
                for item in loader:
                    mine.append(item)
                    if len(mine) == steps:
                        break
                empty = empty + 1 if len(mine) == before else 0
            parts.append(mine)
        saved = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
        assert all(other == saved[0] for other in saved)
        return [[row for part in step for row in part] for step in zip(*parts, strict=True)], saved[0]

    whole, _ = epochs(1, None, 24)
    got: list[list[int]] = []
    state = None
    while len(got) < len(whole):
        world = data.draw(st.sampled_from([1, 2, 3, 4, 6]))
        more, state = epochs(world, state, data.draw(st.integers(1, 8)))
        got += more
    assert got[: len(whole)] == whole


@pytest.mark.parametrize("ends", ["endless", "steps", "agree"])
def test_a_stream_resumes_on_other_ranks_from_merged_states(repo: Repository, ends: str) -> None:
    options: dict[str, Any] = {"ends": ends, "columns": 4, "threads": 0}
    options |= {"steps": 30} if ends == "steps" else {"agree": lambda flag: flag} if ends == "agree" else {}

    def make() -> Pipeline:
        return repo.dataset("speech").samples().shuffle(40, seed=2).map(key_of).filter(keep).batch(2)

    def part(world: int, state: Any, steps: int) -> tuple[list[list[Any]], Any]:
        parts, states = [], []
        for rank in range(world):
            with Loader(make(), 8, rank=rank, world_size=world, **options) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                iterator = iter(loader)
                parts.append([next(iterator) for _ in range(steps)])
                states.append(json.loads(json.dumps(loader.state_dict())))
        return [[row for p in step for row in p] for step in zip(*parts, strict=True)], merge_states(states)

    whole, _ = part(1, None, 12)
    first, state = part(2, None, 5)
    second, state = part(4, state, 3)
    third, state = part(1, state, 4)
    assert first + second + third == whole


# ---- how epochs end
def test_padding_is_flagged_and_all_in_the_last_step() -> None:
    with Loader(dload.from_iterable(list(range(10))), 4, ends="pad") as loader:
        seen = [(rows, loader.valid) for rows in loader]
    assert seen == [([0, 1, 2, 3], [True] * 4), ([4, 5, 6, 7], [True] * 4), ([8, 9, 6, 7], [True, True, False, False])]
    with Loader(dload.from_iterable([7]), 3, ends="pad") as loader:
        assert [(rows, loader.valid) for rows in loader] == [([7, 7, 7], [True, False, False])]


def test_case_c52_the_length_is_the_number_of_steps() -> None:
    for count in (0, 1, 7, 8, 9):
        for ends in ("drop", "pad"):
            loader = Loader(dload.from_iterable(list(range(count))).shuffle(3, seed=1), 4, ends=ends)
            assert len(loader) == len(list(loader)) == (count // 4 if ends == "drop" else -(-count // 4))
    with pytest.raises(TypeError, match="isn't known"):
        len(Loader(dload.from_iterable([1]), 1, ends="endless"))


def test_steps_go_on_where_the_epoch_before_ended() -> None:
    loader = Loader(dload.from_iterable(list(range(10))), 4, ends="steps", steps=2)
    assert [rows for _ in range(3) for rows in loader] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9], [0, 1, 2, 3],
    ]  # fmt: skip


def test_ranks_that_agree_end_together(repo: Repository) -> None:
    barrier, flags = threading.Barrier(2), [0, 0]
    ended: list[int] = [0, 0]

    def work(rank: int) -> None:
        def agree(flag: int) -> int:
            flags[rank] = flag
            barrier.wait(timeout=30)
            least = min(flags)
            barrier.wait(timeout=30)
            return least

        pipe = repo.dataset("speech").samples().map(key_of).filter(keep)
        with Loader(pipe, 8, rank=rank, world_size=2, ends="agree", agree=agree) as loader:
            ended[rank] = len(list(loader))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert ended[0] == ended[1] > 30


def test_ragged_ranks_end_by_themselves_and_say_so() -> None:
    rows = list(range(10))
    assert len(list(Loader(dload.from_iterable(rows).filter(bool), 4, ends="ragged"))) == 2
    with pytest.warns(UserWarning, match="rank 1 of 2 ends at step"):
        list(Loader(dload.from_iterable(rows).filter(bool), 4, rank=1, world_size=2, ends="ragged"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ends": "drop"}, r"steps=, or .*'agree'; .*filter\(holes=True\); .*derive\(name, pipe, view=True\)"),
        ({"ends": "pad"}, "filter"), ({"ends": "never"}, "must be one of"),
        ({"ends": "agree"}, "agree=fn"), ({"ends": "steps"}, "steps"), ({"rank": 1}, "give both"),
        ({"rank": 3, "world_size": 2, "ends": "ragged"}, "rank 3 is not one of 2"), ({"replicas": 2}, "replicas"),
        ({"global_batch": 7, "rank": 0, "world_size": 2, "ends": "ragged"}, "shared evenly"),
        ({"columns": 3, "ends": "ragged"}, "don't divide"), ({"threads": 9}, "threads"),
        ({"global_batch": "8"}, "the global batch must be a whole number of at least 1, got '8'"),
    ],
)  # fmt: skip
def test_case_c59_what_does_not_go_together_fails_with_the_ways_out(options: dict[str, Any], message: str) -> None:
    pipe = dload.from_iterable(list(range(100))).filter(bool)
    with pytest.raises(ConfigError, match=message):
        Loader(pipe, **{"global_batch": 8, **options})


def test_several_ranks_need_a_seed() -> None:
    with pytest.raises(ConfigError, match="need one seed"):
        Loader(dload.from_iterable([1]).shuffle(3), 2, rank=0, world_size=2)
    Loader(dload.from_iterable([1]).shuffle(3), 2, rank=0, world_size=2, seed=4)


def test_case_c50_c51_c73_every_shape_has_defined_shares() -> None:
    for count in (0, 1, 3, 5, 100):
        for world in (1, 4, 8):
            for batch in (8, 16):
                loaders = [
                    Loader(dload.from_iterable(list(range(count))), batch, rank=rank, world_size=world, ends="pad")
                    for rank in range(world)
                ]
                parts = [[(row, ok) for rows in loader for row, ok in zip(rows, loader.valid)] for loader in loaders]  # noqa: B905
                assert len({len(part) for part in parts}) == 1
                assert sorted(row for part in parts for row, ok in part if ok) == list(range(count))


# ---- state
def test_case_c54_save_anywhere_and_at_the_end() -> None:
    def make() -> Loader:
        return Loader(dload.from_iterable(list(range(20))).shuffle(5, seed=1), 4)

    whole = [list(loader) for loader in [make()] for _ in range(3)]
    loader = make()
    iterator = iter(loader)
    for step in range(4):
        assert next(iterator) == whole[0][step]
        state = loader.state_dict()
        other = make()
        other.load_state_dict(state)
        assert list(other) == whole[0][step + 1 :]
        assert list(other) == whole[1]
    next(iterator)
    assert next(iterator, None) is None
    at_end = loader.state_dict()
    assert (at_end["epoch"], at_end["step"]) == (0, 5)
    for epoch, expected in ((None, whole[1]), (0, []), (1, whole[1]), (2, whole[2])):
        other = make()
        other.load_state_dict(at_end)
        if epoch is not None:
            other.set_epoch(epoch)
        assert list(other) == expected, epoch


@pytest.mark.parametrize("ends", ["agree", "ragged"])
@pytest.mark.parametrize("threads", [0, 1])
def test_case_c54_a_stream_saved_behind_its_last_step_goes_on_with_the_next_epoch(ends: str, threads: int) -> None:
    agree = (lambda flag: flag) if ends == "agree" else None

    def make() -> Loader:
        pipe = dload.from_iterable(list(range(31))).shuffle(5, seed=1).filter(lambda number: number % 3)
        return Loader(pipe, 4, ends=ends, agree=agree, threads=threads)

    whole = [list(loader) for loader in [make()] for _ in range(3)]
    loader = make()
    for epoch in range(2):
        iterator = iter(loader)
        for _ in whole[epoch]:
            next(iterator)
        unseen = loader.state_dict()
        assert next(iterator, None) is None
        seen = loader.state_dict()
        assert seen == {**unseen, "over": True}
        for state in (unseen, seen):
            for asked, expected in ((None, whole[epoch + 1]), (epoch, []), (epoch + 1, whole[epoch + 1])):
                other = make()
                other.load_state_dict(state)
                if asked is not None:
                    other.set_epoch(asked)
                assert list(other) == expected, (asked, state.get("over"))
                if asked != epoch:
                    assert other.state_dict()["epoch"] == epoch + 1
            other = make()
            other.load_state_dict(state)
            other.skip(1)  # there is none to step over
            assert list(other) == whole[epoch + 1]


def test_a_resumed_epoch_that_gives_nothing_ends_once() -> None:
    """Only a state behind a step says that its epoch was handed out: an empty epoch stays one."""
    pipe = dload.from_iterable(list(range(9))).filter(lambda number: number < 0)
    first = Loader(pipe, 2, ends="ragged")
    second = Loader(pipe, 2, ends="ragged")
    second.load_state_dict(first.state_dict())
    assert list(second) == []
    assert second.state_dict()["epoch"] == 0
    assert list(second) == []
    assert second.state_dict()["epoch"] == 1


def test_set_epoch_goes_on_inside_a_loaded_epoch_and_begins_others() -> None:
    def make() -> Loader:
        return Loader(dload.from_iterable(list(range(20))).shuffle(5, seed=1), 4)

    whole = [list(loader) for loader in [make()] for _ in range(3)]
    first = make()
    iterator = iter(first)
    next(iterator)
    state = first.state_dict()
    for epoch, expected in ((0, whole[0][1:]), (2, whole[2])):
        other = make()
        other.load_state_dict(state)
        other.set_epoch(epoch)
        assert list(other) == expected
    loader = make()
    loader.set_epoch(2)
    assert list(loader) == whole[2]


def test_case_c58_breaking_off_begins_the_next_epoch() -> None:
    loader = Loader(dload.from_iterable(list(range(20))).shuffle(5, seed=1), 4)
    seen = []
    for _ in range(5):
        for rows in loader:
            seen.append(rows)
            break
    expected = []
    for epoch in range(5):
        fresh = Loader(dload.from_iterable(list(range(20))).shuffle(5, seed=1), 4)
        fresh.set_epoch(epoch)
        expected.append(next(iter(fresh)))
    assert seen == expected


def test_a_state_that_does_not_fit_is_refused_naming_both() -> None:
    def make(**options: Any) -> Loader:
        return Loader(dload.from_iterable(list(range(40))).shuffle(5, seed=1), **{"global_batch": 4, **options})

    loader = make(columns=2)
    next(iter(loader))
    state = loader.state_dict()
    for options, message in (
        ({"columns": 4}, "columns=2, this loader was given 4"),
        ({"global_batch": 8}, "global_batch=4, this loader was given 8"),
        ({"seed": 9}, "seed=1, this loader was given 9"), ({"ends": "pad"}, "ends='drop', this loader was given 'pad'"),
        ({"columns": 2, "homes": 2}, "homes=1, this loader was given 2"),
        ({"ends": "steps", "steps": 3}, "'drop', this loader was given 'steps'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            make(**options).load_state_dict(state)
    for rows in (list(range(40)), list(range(44))):
        for size in (5, 6):
            if (len(rows), size) != (40, 5):
                with pytest.raises(ValueError, match=r"the state is of another pipeline: its order is [0-9a-f]{12}"):
                    Loader(dload.from_iterable(rows).shuffle(size, seed=1), 4).load_state_dict(state)
    other = make(rank=0, world_size=2)
    other.load_state_dict(state)
    assert other.state_dict()["plan"]["C"] == 2
    with pytest.raises(ConfigError, match="shared evenly"):
        make(rank=0, world_size=3)
    iterator = iter(other)
    next(iterator)
    with pytest.raises(RuntimeError, match="before iter"):
        other.load_state_dict(state)


def test_a_state_of_other_data_or_of_another_stream_grid_is_refused(repo: Repository) -> None:
    def make(name: str, **options: Any) -> Loader:
        return Loader(
            KINDS["plain"](repo) if name == "speech" else repo.dataset(name).samples().map(key_of), 4, **options
        )

    loader = make("speech")
    next(iter(loader))
    with pytest.raises(ValueError, match=r"of other data: it has speech@[0-9a-f]{12}, this pipeline reads noise@"):
        make("noise").load_state_dict(loader.state_dict())
    stream = KINDS["plain"](repo).filter(keep)
    loader = Loader(stream, 4, ends="endless", turns=2)
    next(iter(loader))
    with pytest.raises(ValueError, match="turns=2, this loader was given 3"):
        Loader(stream, 4, ends="endless", turns=3).load_state_dict(loader.state_dict())


def test_merging_states_names_what_is_wrong() -> None:
    def state(rank: int, world: int = 2, steps: int = 1) -> dict[str, Any]:
        pipe = dload.from_iterable(list(range(40))).filter(bool)
        with Loader(pipe, 4, rank=rank, world_size=world, ends="endless", columns=4) as loader:
            iterator = iter(loader)
            for _ in range(steps):
                next(iterator)
            return loader.state_dict()

    merged = merge_states([state(1), state(0)])
    assert [(first, last) for first, last, _ in merged["lanes"]] == [(0, 3)]
    with pytest.raises(ValueError, match=r"no state has lanes \[2, 3\]"):
        merge_states([state(0)])
    with pytest.raises(ValueError, match="'step'"):
        merge_states([state(0), state(1, steps=2)])
    with pytest.raises(ValueError, match="no states"):
        merge_states([])


def test_a_state_is_small(repo: Repository) -> None:
    with Loader(KINDS["shuffled"](repo), 8) as loader:
        next(iter(loader))
        assert len(json.dumps(loader.state_dict())) < 1024


# ---- errors, threads, budgets
@pytest.mark.parametrize("threads", [0, 1])
def test_an_error_comes_in_its_step_and_can_be_skipped(threads: int) -> None:
    def bad(x: int) -> int:
        if x == 9:
            raise ZeroDivisionError("nine")
        return x

    with Loader(dload.from_iterable(list(range(20))).map(bad), 4, threads=threads) as loader:
        iterator = iter(loader)
        assert [next(iterator), next(iterator)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="nine"):
                next(iterator)
            assert loader.state_dict()["step"] == 2
        loader.skip(1)
        assert list(iterator) == [[12, 13, 14, 15], [16, 17, 18, 19]]


@pytest.mark.parametrize("ends", ["endless", "agree"])
def test_an_error_in_a_stream_can_be_skipped(ends: str) -> None:
    def bad(x: int) -> int:
        if x in (9, 10, 26):
            raise ZeroDivisionError(str(x))
        return x

    pipe = dload.from_iterable(list(range(40))).filter(lambda x: x % 2 == 0 or x == 9)
    options: dict[str, Any] = {"agree": lambda flag: flag} if ends == "agree" else {}
    for made in (pipe.map(bad), pipe.map(bad, on_error="raise"), pipe.map(bad).zip_with(max, pipe)):
        with Loader(made, 4, ends=ends, **options) as loader:
            iterator = iter(loader)
            assert next(iterator) == [0, 2, 4, 6]
            for failing in (1, 3):
                for _ in range(2):
                    with pytest.raises(ZeroDivisionError):
                        next(iterator)
                    assert loader.state_dict()["step"] == failing
                loader.skip(1)
                assert next(iterator) == {1: [14, 16, 18, 20], 3: [30, 32, 34, 36]}[failing]


def test_skipping_ends_with_the_epoch() -> None:
    pipe = dload.from_iterable(list(range(10))).filter(bool)
    with Loader(pipe, 4, ends="ragged") as loader:
        iterator = iter(loader)
        loader.skip(5)
        assert loader.state_dict()["step"] == 2
        assert next(iterator, None) is None
        assert next(iter(loader)) == [1, 2, 3, 4]


def test_what_was_built_ahead_does_not_count(repo: Repository) -> None:
    built = []
    loader = Loader(dload.from_iterable(list(range(40))).tap(built.append), 4)
    iterator = iter(loader)
    next(iterator)
    eventually(lambda: len(built) >= 8)
    assert loader.state_dict()["step"] == 1
    loader.close()
    assert next(iterator, None) is None


def test_threads_end_with_the_iterator(repo: Repository) -> None:
    def running() -> list[str]:
        new = set(threading.enumerate()) - before
        return [t.name for t in new if t.name.startswith(("dload-steps", "dload-fetch"))]

    before = set(threading.enumerate())
    loader = Loader(KINDS["shuffled"](repo), 8)
    for _ in loader:
        break
    eventually(lambda: not running())


def test_holes_keep_their_slots_and_are_counted() -> None:
    with Loader(dload.from_iterable(list(range(12))).filter(bool, holes=True), 4) as loader:
        assert list(loader) == [[1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert loader.stats()["holes"] == 1
        assert loader.stats()["consumed_rows"] == 11


def test_collate_and_replicas(repo: Repository) -> None:
    parts = [
        [sum(rows) for rows in Loader(dload.from_iterable(list(range(16))), 8, rank=r, world_size=4, replicas=2)]
        for r in range(4)
    ]
    assert parts[0] == parts[1] != parts[2] == parts[3]
    loader = Loader(dload.from_iterable(list(range(16))), 8, collate=sum)
    assert list(loader) == [28, 92]


def test_what_does_not_fit_is_refused_at_iter(repo: Repository, tmp_path: Path) -> None:
    tight = Repository(repo.store, ShardCache(tmp_path / "cache", 6_000), tmp_path / "dload.lock")
    loader = Loader(tight.dataset("speech").samples().shuffle(full=True, seed=1), 8)
    with pytest.raises(InfeasiblePipelineError, match="does not fit"):
        iter(loader)


def test_rank_and_world_come_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    loader = Loader(dload.from_iterable(list(range(16))), 8)
    assert (loader.rank, loader.world_size) == (1, 4)
    assert loader.state_dict()["plan"] | {} == {
        "B": 8, "C": 2, "m": 1, "H": 2, "seed": 0, "ends": "drop", "steps": None,
    }  # fmt: skip
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ConfigError, match="WORLD_SIZE is 'many'"):
        Loader(dload.from_iterable([1]), 1)


def test_rows_that_fill_no_step_are_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("dload"), "propagate", True)  # the command line ends it where it runs
    few = dload.from_iterable(range(7))
    with caplog.at_level("WARNING", "dload.api"):
        assert list(dload.Loader(few, 8)) == []
    assert "no step: 7 rows don't fill a global batch of 8" in caplog.text
    caplog.clear()
    with caplog.at_level("WARNING", "dload.api"):
        assert len(list(dload.Loader(few, 8, ends="pad"))) == len(list(dload.Loader(few, 7))) == 1
    assert not caplog.text
