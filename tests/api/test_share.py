"""One rank's rows without a loader: `pipe.iter(rank=, world_size=, global_batch=)`."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import dload
from dload.api.pipeline import Pipeline


@pytest.fixture(params=["places", "stream"])
def pipe(request: pytest.FixtureRequest, tmp_path: Path) -> Pipeline:
    repo = dload.Repository.open(str(tmp_path / "store"), cache_dir=tmp_path / "cache")
    repo.commit("x", ((f"{i:03d}", {"v": b"1"}) for i in range(100)), target_shard_size=300)
    shuffled = repo.dataset("x").samples().shuffle(30, seed=1).map(lambda sample: int(sample[0]))
    return shuffled if request.param == "places" else shuffled.filter(lambda number: number % 10 != 3).repeat()


def rows(pipe: Pipeline, steps: int, batch: int, **given: Any) -> list[list[int]]:
    """`steps` steps of one rank's rows."""
    each = batch // given["world_size"]
    with pipe.iter(global_batch=batch, **given) as found:
        return [[next(found) for _ in range(each)] for _ in range(steps)]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_ranks_rows_are_those_of_a_loader(pipe: Pipeline, world: int) -> None:
    columns = None if pipe.node.indexed else 4
    whole = []
    for rank in range(world):
        loader = dload.Loader(
            pipe, 8, rank=rank, world_size=world, columns=world if columns else None,
            ends="endless" if pipe.node.endless else "drop",
        )  # fmt: skip
        loader.set_epoch(2)
        with loader:
            expected = [step for step, _ in zip(loader, range(9), strict=False)]
        assert rows(pipe, 9, 8, rank=rank, world_size=world, epoch=2) == expected
        whole.append(expected)
    if pipe.node.indexed:
        assert [list(chain(*parts)) for parts in zip(*whole, strict=True)] == rows(
            pipe, 9, 8, rank=0, world_size=1, epoch=2
        )


def test_one_row_a_rank_covers_what_divides_and_epochs_go_on(pipe: Pipeline) -> None:
    if not pipe.node.indexed:
        return
    shares = [list(pipe.iter(rank=rank, world_size=3, epoch=0)) for rank in range(3)]
    assert [len(share) for share in shares] == [33, 33, 33]
    assert len(set(chain(*shares))) == 99
    first, second = list(pipe.iter(rank=0, world_size=3, epoch=4)), list(pipe.iter(rank=0, world_size=3))
    assert first == list(pipe.iter(rank=0, world_size=3, epoch=4)) != second
    assert second == list(pipe.iter(rank=0, world_size=3, epoch=5))


def test_a_state_goes_on_on_other_ranks_and_is_taken_between_steps(pipe: Pipeline) -> None:
    if not pipe.node.indexed:
        return
    it = pipe.iter(rank=1, world_size=2, global_batch=8, epoch=1)
    taken = [next(it) for _ in range(12)]
    state = it.get_state()
    next(it)
    with pytest.raises(RuntimeError, match="take the 3 rows left of this one first"):
        it.get_state()
    it.close()
    assert list(it) == []
    whole = list(pipe.iter(rank=0, world_size=1, global_batch=8, epoch=1))
    assert taken == whole[4:8] + whole[12:16] + whole[20:24]
    assert list(pipe.iter(rank=0, world_size=1, state=state)) == whole[24:]
    four = [list(pipe.iter(rank=rank, world_size=4, state=state)) for rank in range(4)]
    assert [row for parts in zip(*four, strict=True) for row in parts] != whole[24:]  # two rows of a step each
    steps = [[share[2 * step : 2 * step + 2] for share in four] for step in range(9)]
    assert [row for step in steps for part in step for row in part] == whole[24:]
    with pytest.raises(ValueError, match="epoch"):
        pipe.iter(rank=0, world_size=1, state=state, epoch=3)
    with pytest.raises(ValueError, match="state"):
        pipe.iter(rank=0, world_size=1, state={"dload": 1})


@pytest.mark.parametrize("ranks", [{}, {"rank": 0, "world_size": 1, "global_batch": 2}])
@pytest.mark.parametrize("last", ["taken", "asked for more"])
def test_case_c54_a_state_behind_the_last_element_leaves_nothing_and_the_next_epoch_follows(
    ranks: dict[str, Any], last: str, tmp_path: Path
) -> None:
    def make() -> Pipeline:
        repo = dload.Repository.open(str(tmp_path / "store"), cache_dir=tmp_path / "cache")
        shuffled = repo.dataset("x").samples().shuffle(30, seed=1).map(lambda sample: int(sample[0]))
        return shuffled if ranks else shuffled.filter(lambda number: number % 10 != 3)

    repo = dload.Repository.open(str(tmp_path / "store"), cache_dir=tmp_path / "cache")
    repo.commit("x", ((f"{i:03d}", {"v": b"1"}) for i in range(40)), target_shard_size=300)
    whole = make()
    epochs = [list(whole.iter(**ranks)) for _ in range(3)]
    pipe = make()
    it = pipe.iter(epoch=1, **ranks)
    for _ in epochs[1]:
        next(it)
    if last == "asked for more":
        assert next(it, None) is None
    state = it.get_state()
    pipe = make()
    assert list(pipe.iter(state=state, **ranks)) == []
    assert list(pipe.iter(**ranks)) == epochs[2]
