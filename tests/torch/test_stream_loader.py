"""Steps built by real torch workers: the same rows as `dload.Loader`, the same states, errors in their places."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import dload
from dload.api import Pipeline, Repository
from dload.cache import ShardCache
from dload.errors import ConfigError, InfeasiblePipelineError, IntegrityError
from dload.pack import Sample
from dload.store.local import FolderStore
from dload.torch import StreamLoader

COUNT = 300


def key_of(sample: Sample) -> str:
    return sample[0]


def keep(key: str) -> bool:
    return int(key[1:]) % 3 != 0


def broken(key: str) -> str:
    if key == "k0111":
        raise ZeroDivisionError("this one")
    return key


def broken_too(key: str) -> str:
    return broken("k0111" if key == "k0112" else key)


def late_error(rows: list[int]) -> list[int]:
    if rows[0] == 1202:
        raise ZeroDivisionError
    return rows


def late_lambda(rows: list[int]) -> Any:
    return rows if rows[0] != 1202 else lambda: rows


def keep_most(number: int) -> bool:
    return number % 7 > 0


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    folder = tmp_path_factory.mktemp("stream-loader")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        repo = Repository(FolderStore(folder / "store"), ShardCache(folder / "cache"), folder / "dload.lock")
        rng = random.Random(0)
        data = [(f"k{i:04d}", {"x": rng.randbytes(30)}) for i in range(COUNT)]
        repo.commit("speech", data, target_shard_size=1500)
        repo.commit("noise", [(f"n{i:04d}", {"x": b"1"}) for i in range(70)], target_shard_size=400)
        yield repo


@pytest.fixture
def shuffled(repo: Repository) -> Pipeline:
    return repo.dataset("speech").samples().shuffle(60, seed=3).map(key_of)


@pytest.fixture
def filtered(shuffled: Pipeline) -> Pipeline:
    return shuffled.filter(keep)


def epochs(loader: Any, count: int) -> list[list[Any]]:
    return [list(loader) for _ in range(count)]


# ---- the same steps
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_any_number_of_workers_gives_the_steps_of_a_loader(shuffled: Pipeline, workers: int) -> None:
    expected = epochs(dload.Loader(shuffled, 7), 2)
    with StreamLoader(shuffled, 7, num_workers=workers, collate=list) as loader:
        assert epochs(loader, 2) == expected
        assert len(loader) == len(expected[0]) == COUNT // 7
        assert loader.stats()["consumed_rows"] == 2 * 7 * (COUNT // 7)


@pytest.mark.parametrize(
    ("method", "persistent"),
    [("fork", False), ("fork", True), ("spawn", False), ("spawn", True), ("forkserver", True)],
)
def test_case_c53_epochs_differ_and_agree_between_modes(repo: Repository, method: str, persistent: bool) -> None:
    pipe = repo.dataset("speech").samples().shuffle(60, seed=3).map(key_of)
    count = 3 if method == "fork" or persistent else 1  # a spawned worker takes seconds to import torch
    expected = epochs(dload.Loader(pipe, 8), 9)
    options: dict[str, Any] = {"multiprocessing_context": method, "persistent_workers": persistent}
    with StreamLoader(pipe, 8, num_workers=2, collate=list, **options) as loader:
        assert epochs(loader, count) == expected[:count]
        assert expected[0] != expected[1]
        if count > 1:
            loader.set_epoch(7)
            assert epochs(loader, 2) == expected[7:]


@pytest.mark.parametrize("persistent", [False, True])
def test_case_c58_breaking_off_begins_the_next_epoch(shuffled: Pipeline, persistent: bool) -> None:
    whole = epochs(dload.Loader(shuffled, 8), 5)
    with StreamLoader(shuffled, 8, num_workers=2, collate=list, persistent_workers=persistent) as loader:
        for epoch in range(5):
            seen = []
            for rows in loader:
                seen.append(rows)
                if len(seen) == 4:
                    break
            assert seen == whole[epoch][:4]


@pytest.mark.parametrize("pinned", [False, True])
def test_tensors_of_all_kinds_arrive(pinned: bool) -> None:
    def rows(number: int) -> dict[str, Any]:
        return {
            "float": torch.full((3, 2), number, dtype=torch.float32), "half": torch.tensor(number).to(torch.bfloat16),
            "empty": torch.zeros(0, 4), "long": torch.arange(50_000) + number, "turned": torch.ones(2, 3).t() * number,
            "bool": torch.tensor([True, False]), "complex": torch.tensor([1j]).conj() * number,
        }  # fmt: skip

    pipe = dload.from_iterable(list(range(12))).map(rows)
    expected = list(StreamLoader(pipe, 4))
    with StreamLoader(pipe, 4, num_workers=2, pin_memory=pinned) as loader:
        found = list(loader)
    assert len(found) == 3
    for batch, other in zip(found, expected, strict=True):
        assert batch.keys() == other.keys()
        for name, tensor in batch.items():
            assert torch.equal(tensor, other[name]), name
            assert tensor.dtype == other[name].dtype
            tensor.zero_()  # it is writable


def test_batches_of_any_size_arrive_and_stay(repo: Repository) -> None:
    """Larger than the slot that the one before had; what came earlier isn't written over."""
    sizes = [10, 3_000_000, 5, 70_000, 9_000_000, 1, 0, 200_000]

    def big(number: int) -> bytes:
        return bytes([number]) * sizes[number]

    with StreamLoader(dload.from_iterable(list(range(8))).map(big), 1, num_workers=2, collate=list) as loader:
        found = list(loader)
    assert found == [[big(number)] for number in range(8)]


@pytest.mark.parametrize("prefetch", [1, 1_000_000])
def test_case_c60_any_prefetch_factor_works(shuffled: Pipeline, prefetch: int) -> None:
    with StreamLoader(shuffled, 30, num_workers=2, collate=list, prefetch_factor=prefetch) as loader:
        assert list(loader) == list(dload.Loader(shuffled, 30))


def test_a_step_without_rows_is_an_empty_list() -> None:
    pipe = dload.from_iterable(list(range(8))).filter(lambda x: x >= 6, holes=True)
    with StreamLoader(pipe, 4, num_workers=1) as loader:
        first, second = loader
        assert first == []
        assert second.tolist() == [6, 7]
        assert loader.stats()["holes"] == 6


# ---- how epochs end
def test_case_c50_c51_every_shape_has_defined_shares() -> None:
    for count, world, workers, batch in ((100, 4, 3, 4), (100, 4, 1, 8), (5, 8, 2, 8), (3, 1, 3, 4), (0, 2, 2, 2)):
        seen: list[int] = []
        steps = set()
        for rank in range(world):
            pipe = dload.from_iterable(list(range(count))).shuffle(9, seed=1)
            options: dict[str, Any] = {"rank": rank, "world_size": world, "ends": "pad", "collate": list}
            with StreamLoader(pipe, batch, num_workers=workers, **options) as loader:
                items = [(rows, loader.valid) for rows in loader]
            steps.add(len(items))
            seen += [row for rows, valid in items for row, ok in zip(rows, valid, strict=True) if ok]
        assert len(steps) == 1
        assert sorted(seen) == list(range(count)), (count, world)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_case_c52_the_length_is_the_number_of_steps(workers: int) -> None:
    for count in (0, 1, 7, 8, 9):
        for ends in ("drop", "pad"):
            with StreamLoader(dload.from_iterable(list(range(count))), 4, ends=ends, num_workers=workers) as loader:
                assert len(loader) == len(list(loader))


def test_case_c59_an_uneven_filter_ends_or_names_the_ways_out(filtered: Pipeline) -> None:
    with pytest.raises(ConfigError, match=r"agree.*filter\(holes=True\)"):
        StreamLoader(filtered, 8, rank=0, world_size=2, num_workers=4)
    parts = []
    for rank in range(2):
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "ends": "steps", "steps": 5, "turns": 4}
        with StreamLoader(filtered, 8, num_workers=4, collate=list, **options) as loader:
            parts.append(epochs(loader, 3))
    assert [len(epoch) for part in parts for epoch in part] == [5] * 6
    one = dload.Loader(filtered, 8, ends="steps", steps=5, turns=4, columns=2)
    whole = [[a + b for a, b in zip(*both, strict=True)] for both in zip(*parts, strict=True)]
    assert whole == epochs(one, 3)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_stream_that_ends_unknown_when_ends_at_the_same_step_as_a_loader(filtered: Pipeline, workers: int) -> None:
    flags: list[int] = []
    options: dict[str, Any] = {"ends": "agree", "turns": 4, "agree": lambda flag: flags.append(flag) or flag}
    expected = epochs(dload.Loader(filtered, 8, **options), 2)
    flags.clear()
    with StreamLoader(filtered, 8, num_workers=workers, collate=list, **options) as loader:
        assert epochs(loader, 2) == expected
    assert flags == [*[1] * len(expected[0]), 0, *[1] * len(expected[1]), 0]


def test_workers_of_a_stream_divide_its_turns_and_others_rest(filtered: Pipeline) -> None:
    with StreamLoader(filtered, 8, num_workers=2, ends="endless", collate=list) as first:
        assert first.state_dict()["plan"]["m"] == 2
        iterator = iter(first)
        expected = [next(iterator) for _ in range(6)]
        state = first.state_dict()
        expected += [next(iterator) for _ in range(3)]
    with StreamLoader(filtered, 8, num_workers=3, ends="endless", collate=list) as other:
        other.load_state_dict(state)
        with pytest.warns(UserWarning, match="2 of 3 workers work: in this pipeline their number must divide turns=2"):
            assert [rows for _, rows in zip(range(3), other, strict=False)] == expected[6:]
        iter(other).__next__()  # said once: another warning would be an error


# ---- where it stands
@pytest.mark.parametrize("persistent", [False, True])
def test_case_c54_c55_save_anywhere_and_at_the_end(shuffled: Pipeline, persistent: bool) -> None:
    whole = epochs(dload.Loader(shuffled, 30), 4)

    def make() -> StreamLoader:
        return StreamLoader(shuffled, 30, num_workers=2, collate=list, persistent_workers=persistent)

    loader, seen = make(), []
    for _ in range(4):  # saved and loaded three times in one epoch, and at its end
        for _, rows in zip(range(3), loader, strict=False):
            seen.append(rows)
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
        loader = make()
        loader.load_state_dict(state)
        if loader.state_dict()["step"] == 10:
            break
    with loader:
        assert seen == whole[0]
        assert epochs(loader, 2) == whole[1:3], "the next epochs are full"
        at_end = loader.state_dict()
    assert (at_end["epoch"], at_end["step"]) == (2, 10)
    for epoch, expected in ((None, whole[3]), (2, []), (3, whole[3])):
        with make() as other:
            other.load_state_dict(at_end)
            if epoch is not None:
                other.set_epoch(epoch)
            assert list(other) == expected


@pytest.mark.parametrize("persistent", [False, True])
def test_case_c54_a_stream_saved_behind_its_last_step_goes_on_with_the_next_epoch(
    filtered: Pipeline, persistent: bool
) -> None:
    def make() -> StreamLoader:
        return StreamLoader(filtered, 8, num_workers=2, ends="ragged", collate=list, persistent_workers=persistent)

    whole = epochs(dload.Loader(filtered, 8, ends="ragged", turns=2), 4)
    with make() as loader:
        assert list(loader) == whole[0]
        iterator = iter(loader)
        for _ in whole[1]:
            next(iterator)
        state = loader.state_dict()
    assert "over" not in state
    with make() as loader:
        loader.load_state_dict(state)
        assert epochs(loader, 2) == whole[2:]


def test_what_workers_built_ahead_does_not_count(shuffled: Pipeline) -> None:
    with StreamLoader(shuffled, 8, num_workers=2, collate=list) as loader:
        assert loader.state_dict()["step"] == 0
        next(iter(loader))
        assert loader.state_dict()["step"] == 1
        assert len(json.dumps(loader.state_dict())) < 1024
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError, match="before iter"):
            loader.load_state_dict(loader.state_dict())
        with pytest.raises(RuntimeError, match="before iter"):
            loader.set_epoch(1)


def test_case_c57_a_state_goes_on_at_other_worlds_or_is_refused(shuffled: Pipeline) -> None:
    whole = list(dload.Loader(shuffled, 8))
    with StreamLoader(shuffled, 8, rank=3, world_size=4, num_workers=2) as loader:
        for _ in zip(range(5), loader, strict=False):
            pass
        state = loader.state_dict()
    for world in (1, 2, 8):
        parts = []
        for rank in range(world):
            with StreamLoader(shuffled, 8, rank=rank, world_size=world, num_workers=2, collate=list) as other:
                other.load_state_dict(state)
                parts.append([rows for _, rows in zip(range(4), other, strict=False)])
        assert [[row for part in step for row in part] for step in zip(*parts, strict=True)] == whole[5:9]
    with pytest.raises(ConfigError, match="8 rows can't be shared evenly by 3 ranks"):
        StreamLoader(shuffled, 8, rank=0, world_size=3)
    with pytest.raises(ValueError, match="the state has global_batch=8, this loader was given 16"):
        StreamLoader(shuffled, 16).load_state_dict(state)


# ---- runs that change
@pytest.mark.parametrize("persistent", [False, True])
def test_a_ramp_and_phases_are_those_of_a_loader_and_go_on_in_either(repo: Repository, persistent: bool) -> None:
    """Phases alone may change, for what comes."""
    speech, noise = (repo.dataset(name).samples().map(key_of).repeat() for name in ("speech", "noise"))
    pipe = dload.mix([speech, noise], [3, 1], seed=1)
    given: dict[str, Any] = {"ramp": dload.Ramp(4, 4, 24), "phases": [(6, [0, 1])], "ends": "steps", "steps": 10}
    given |= {"seed": 0, "columns": 1, "rank": 0, "world_size": 1}
    expected = epochs(dload.Loader(pipe, 12, **given), 2)
    assert {len(rows) for rows in expected[0]} == {4, 8, 12}
    assert {key[0] for rows in expected[0][6:] for key in rows} == {"n"}
    with StreamLoader(pipe, 12, num_workers=2, collate=list, persistent_workers=persistent, **given) as loader:
        assert epochs(loader, 2) == expected
    later = given | {"phases": [(6, [0, 1]), (12, [1, 0])]}
    with StreamLoader(pipe, 12, num_workers=2, collate=list, persistent_workers=persistent, **given) as loader:
        begun = [rows for _, rows in zip(range(8), loader, strict=False)]
        state = loader.state_dict()
    for made in (dload.Loader(pipe, 12, **later), StreamLoader(pipe, 12, num_workers=3, collate=list, **later)):
        with made as other:
            other.load_state_dict(state)
            assert begun + list(other) == expected[0]
            rows = list(other)
            assert rows[:2] == expected[1][:2] and {key[0] for row in rows[2:] for key in row} == {"k"}
    with pytest.raises(ValueError, match="before step 8, this loader was given"):
        StreamLoader(pipe, 12, **given | {"phases": [(5, [0, 1])]}).load_state_dict(state)


def test_a_ramp_over_a_stream_has_one_worker_which_is_said(filtered: Pipeline) -> None:
    given: dict[str, Any] = {"ramp": dload.Ramp(4, 4, 60), "ends": "steps", "steps": 8, "rank": 0, "world_size": 1}
    expected = list(dload.Loader(filtered, 12, seed=0, **given))
    loader = StreamLoader(filtered, 12, num_workers=2, collate=list, seed=0, **given)
    with loader, pytest.warns(UserWarning, match="1 of 2 workers work: .* with a ramp it has one"):
        assert list(loader) == expected
    with pytest.raises(ConfigError, match="a ramp goes on over epochs and has one turn"):
        StreamLoader(filtered, 12, turns=2, **given)


# ---- errors
@pytest.mark.parametrize("persistent", [False, True])
def test_case_c63_a_workers_error_comes_in_its_step_and_can_be_skipped(repo: Repository, persistent: bool) -> None:
    pipe = repo.dataset("speech").samples().map(key_of).map(broken)
    with StreamLoader(pipe, 10, num_workers=2, collate=list, persistent_workers=persistent) as loader:
        iterator = iter(loader)
        assert [next(iterator)[0] for _ in range(11)] == [f"k{i:04d}" for i in range(0, 110, 10)]
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="this one") as caught:
                next(iterator)
            assert "in broken" in "".join(caught.value.__notes__)
            assert loader.state_dict()["step"] == 11
        loader.skip(1)
        assert [rows[0] for rows in iterator] == [f"k{i:04d}" for i in range(120, 300, 10)]


@pytest.mark.parametrize("held", [False, True])
def test_an_error_in_a_stream_can_be_skipped(repo: Repository, held: bool) -> None:
    pipe = repo.dataset("speech").samples().map(key_of).filter(keep).map(broken_too)
    pipe = pipe.shuffle(60, seed=1) if held else pipe
    with StreamLoader(
        pipe, 10, num_workers=2, collate=list, ends="endless", columns=1, persistent_workers=held
    ) as loader:
        iterator = iter(loader)
        seen = [next(iterator) for _ in range(6)]
        with pytest.raises(ZeroDivisionError, match="this one"):
            while True:
                seen.append(next(iterator))
        at = loader.state_dict()["step"]
        assert at == len(seen)
        loader.skip(1)
        seen += [next(iterator) for _ in range(4)]
    rows = [int(key[1:]) for step in seen for key in step]
    assert 112 not in rows
    whole = dload.Loader(pipe, 10, ends="endless", columns=1, turns=2, on_error="hole")
    expected = [rows for _, rows in zip(range(at + 5), whole, strict=False)]
    assert seen == expected[:at] + expected[at + 1 :]


class UnpickledError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("no way back")


def damaged(key: str) -> str:
    raise IntegrityError("bytes are not what they should be", remedy="look", key=key)


def strange(key: str) -> str:
    raise UnpickledError(1, 2)


def unsendable(rows: list[Any]) -> Any:
    return lambda: rows


def test_errors_arrive_whole_or_as_what_they_said(shuffled: Pipeline) -> None:
    with StreamLoader(shuffled.map(damaged), 8, num_workers=1) as loader:
        with pytest.raises(IntegrityError) as caught:
            next(iter(loader))
        assert (caught.value.remedy, set(caught.value.details)) == ("look", {"key"})
    with (
        StreamLoader(shuffled.map(strange), 8, num_workers=1) as loader,
        pytest.raises(RuntimeError, match="UnpickledError: no way back"),
    ):
        next(iter(loader))
    with (
        StreamLoader(shuffled, 8, num_workers=1, collate=unsendable) as loader,
        pytest.raises(RuntimeError, match=r"step 0 can't be sent by its worker: .*unsendable"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_many_quick_steps_come_in_order_whatever_goes_wrong(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many of them that workers send several as one item."""
    monkeypatch.setattr("dload.torch.workers._QUICK", 1000)  # also where others make this machine slow
    rows = list(range(1500))
    with StreamLoader(dload.from_iterable(rows), 2, num_workers=workers, collate=list) as loader:
        iterator = iter(loader)
        for step in range(750):
            assert next(iterator) == [2 * step, 2 * step + 1]
            assert loader.state_dict()["step"] == step + 1
        assert loader._fleet is not None and loader._fleet._many == 8
        assert next(iterator, None) is None
        assert next(iter(loader)) == [0, 1]
    for collate, error in ((late_error, ZeroDivisionError), (late_lambda, RuntimeError)):
        with StreamLoader(dload.from_iterable(rows), 2, num_workers=workers, collate=collate) as loader:
            iterator = iter(loader)
            assert [next(iterator) for _ in range(601)] == [[2 * step, 2 * step + 1] for step in range(601)]
            with pytest.raises(error):
                next(iterator)
            assert loader.state_dict()["step"] == 601
            loader.skip()
            assert [rows[0] for rows in iterator] == list(range(1204, 1500, 2))
    flags: list[int] = []
    pipe = dload.from_iterable(rows).filter(keep_most)
    options: dict[str, Any] = {"ends": "agree", "agree": lambda flag: flags.append(flag) or flag, "turns": 6}
    with StreamLoader(pipe, 2, num_workers=workers, collate=list, **options) as loader:
        found = list(loader)
    assert found == list(dload.Loader(pipe, 2, ends="agree", agree=lambda flag: flag, turns=6))
    assert flags == [1] * len(found) + [0]


class Suicide:
    """Kills the worker that is to map one key, once."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self, key: str) -> str:
        if key == "k0111" and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return key


@pytest.mark.parametrize("persistent", [False, True])
def test_case_c63_a_killed_worker_is_an_error_in_seconds(repo: Repository, tmp_path: Path, persistent: bool) -> None:
    pipe = repo.dataset("speech").samples().map(key_of).map(Suicide(tmp_path / "dead"))
    with StreamLoader(pipe, 10, num_workers=2, collate=list, persistent_workers=persistent) as loader:
        iterator, seen = iter(loader), []
        begin = time.monotonic()
        with pytest.raises(RuntimeError, match=r"(killed|exited unexpectedly)"):
            while True:
                seen.append(next(iterator))
        assert time.monotonic() - begin < 60, "not a hang"
        assert len(seen) == loader.state_dict()["step"] <= 11
        seen += list(iterator)  # with new workers
    assert [row for rows in seen for row in rows] == [f"k{i:04d}" for i in range(300)]


def test_what_does_not_go_together_is_refused(shuffled: Pipeline, repo: Repository, tmp_path: Path) -> None:
    for options, message in (
        ({"in_order": False}, "in_order=False"), ({"num_workers": -1}, "num_workers=-1"),
        ({"prefetch_factor": 0}, "prefetch_factor=0"), ({"ends": "never"}, "must be one of"),
    ):  # fmt: skip
        given: Any = options
        with pytest.raises(ConfigError, match=message):
            StreamLoader(shuffled, 8, **given)
    tight = Repository(repo.store, ShardCache(tmp_path / "cache", 6_000), tmp_path / "dload.lock")
    with pytest.raises(InfeasiblePipelineError, match="does not fit"):
        iter(StreamLoader(tight.dataset("speech").samples().shuffle(full=True, seed=1), 8, num_workers=2))


# ---- processes
def test_case_c62_reading_in_the_parent_first_then_in_forked_workers(shuffled: Pipeline) -> None:
    expected = list(dload.Loader(shuffled, 8))
    reading = iter(shuffled)
    next(reading)
    with StreamLoader(shuffled, 8, num_workers=4, collate=list, multiprocessing_context="fork") as loader:
        assert list(loader) == expected
    assert next(reading) is not None


def children() -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            found.update(map(int, (task / "children").read_text().split()))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="children are looked up in /proc")
@pytest.mark.parametrize("persistent", [False, True])
def test_processes_end_with_the_loader(shuffled: Pipeline, persistent: bool) -> None:
    before = children()
    loader = StreamLoader(shuffled, 8, num_workers=2, persistent_workers=persistent)
    for _ in range(2):
        iterator = iter(loader)
        next(iterator)
        assert len(children() - before) == 2
    loader.close()
    loader.close()
    assert children() - before == set()
    assert next(iterator, None) is None
    next(iter(loader))  # it can be used again
    loader.close()
    assert children() - before == set()


KILLED = """
import sys, time, dload, torch
from dload.torch import StreamLoader
repo = dload.Repository.open(sys.argv[1], cache_dir=sys.argv[1] + "-cache")
pipe = repo.dataset("speech").samples().shuffle(60, seed=3)
loader = StreamLoader(pipe, 8, num_workers=2, collate=list, persistent_workers=True)
print(next(iter(loader))[0][0], flush=True)
if len(sys.argv) > 2:
    time.sleep(60)
"""


def named_memory(group: int) -> set[str]:
    """What files of /dev/shm the processes of a group have, those without a name left out."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(process.name)) == group:
                mapped = [line.split()[-1] for line in (process / "maps").read_text().splitlines()]
                opened = [str(link.readlink()) for link in (process / "fd").iterdir()]
                found |= {path for path in mapped + opened if path.startswith("/dev/shm/")}
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory is looked up in /proc")
def test_case_c61_all_processes_killed_leave_nothing_and_it_starts_again(repo: Repository) -> None:
    command = [sys.executable, "-W", "ignore", "-c", KILLED, repo.store.url.removeprefix("file://")]
    ranks = [
        subprocess.Popen([*command, "wait"], stdout=subprocess.PIPE, text=True, start_new_session=True)
        for _ in range(2)
    ]
    first, left = [], set()
    for rank in ranks:
        assert rank.stdout is not None
        first.append(rank.stdout.readline())
        left |= named_memory(rank.pid)
        os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()
        rank.stdout.close()
    assert not [path for path in left if Path(path).exists()]
    again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert first == [again.stdout] * 2


KINDS: dict[str, Callable[[Repository], Pipeline]] = {
    "batched": lambda repo: repo.dataset("speech").samples().shuffle(60, seed=3).map(key_of).batch(4),
    "mix": lambda repo: dload.mix(
        [repo.dataset("speech").samples().shuffle(20, seed=1), repo.dataset("noise").samples().shuffle(9, seed=2)],
        [3, 1], seed=4, until="cycle",
    ).map(key_of),
    "concat": lambda repo: dload.concat(
        [repo.dataset("speech").samples().shuffle(20, seed=1), repo.dataset("noise").samples()]
    ).map(key_of),
    "filtered": lambda repo: repo.dataset("speech").samples().shuffle(60, seed=3).map(key_of).filter(keep),
    "filtered batches": lambda repo: repo.dataset("speech").samples().shuffle(60, seed=3).map(key_of).filter(keep)
    .batch(3),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("seed", range(3))
def test_chains_of_resumes_on_other_numbers_of_ranks_and_workers_are_the_uninterrupted_run(
    repo: Repository, kind: str, seed: int
) -> None:
    rng = random.Random(f"{kind}{seed}")
    indexed = not kind.startswith("filtered")
    batch = rng.choice([4, 12])
    columns = rng.choice([4, 12] if batch == 12 else [4])
    ends = rng.choice(["drop", "pad", "endless", "steps"] if indexed else ["endless", "steps"])
    options: dict[str, Any] = {"columns": columns, "turns": 1 if indexed else rng.choice([1, 2, 4]), "ends": ends}
    options |= {"steps": rng.randint(2, 5)} if ends == "steps" else {}

    def part(world: int, state: Any, steps: int, **how: Any) -> tuple[list[list[Any]], Any]:
        kinds: Any = StreamLoader if how else dload.Loader
        parts, states = [], []
        for rank in range(world):
            with kinds(KINDS[kind](repo), batch, rank=rank, world_size=world, **options, **how) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                mine: list[Any] = []
                while len(mine) < steps:
                    for item in loader:
                        mine.append(item)
                        if len(mine) == steps:
                            break
                parts.append(mine)
                states.append(json.loads(json.dumps(loader.state_dict())))
        return [[row for p in step for row in p] for step in zip(*parts, strict=True)], dload.merge_states(states)

    whole, _ = part(1, None, 14)
    got: list[list[Any]] = []
    state = None
    while len(got) < len(whole):
        world, workers = rng.choice([1, 2, 4]), rng.choice([1, 2, 4] if not indexed else [1, 2, 3])
        workers = min(workers, options["turns"]) if not indexed else workers
        more, state = part(world, state, rng.randint(2, 6), num_workers=workers, collate=list)
        got += more
    assert got[: len(whole)] == whole, options
