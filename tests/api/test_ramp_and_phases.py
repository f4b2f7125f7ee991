"""Runs whose steps grow and whose mixture changes: the same on any number of ranks, and gone on with exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dload
from dload.api import Pipeline
from dload.api.loader import Loader, merge_states
from dload.errors import ConfigError

RAMP = dload.Ramp(4, 4, 100)
STEPS = 14


def numbers(first: int, count: int, seed: int) -> Pipeline:
    return dload.from_iterable(range(first, first + count)).shuffle(20, seed=seed)


def mixed(weights: Any = (2, 1)) -> Pipeline:
    """Two endless ones: numbers below 1000, and above."""
    return dload.mix([numbers(0, 130, 1).repeat(), numbers(1000, 50, 2).repeat()], list(weights), seed=3)


def mixed_streams(weights: Any = (2, 1)) -> Pipeline:
    """The same without those that 7 divides: what is mixed is in the stream tier."""
    some = [numbers(0, 130, 1).repeat().filter(indivisible), numbers(1000, 50, 2).repeat().filter(indivisible)]
    return dload.mix(some, list(weights), seed=3)


def indivisible(number: int) -> bool:
    return number % 7 != 0


PIPES: dict[str, Callable[[], Pipeline]] = {
    "epochs": lambda: numbers(0, 130, 1),
    "mixed": mixed,
    "mapped": lambda: mixed().map(str),
    "streamed": lambda: mixed().filter(indivisible),
    "mix of streams": mixed_streams,
}


def loader_of(kind: str, rank: int = 0, world: int = 1, **options: Any) -> Loader:
    columns = 1 if "phases" in options and PIPES[kind]().node.indexed else 2
    given = {"ends": "endless", "columns": columns, "seed": 0, "threads": 0} | options
    return Loader(PIPES[kind](), given.pop("global_batch", 16), rank=rank, world_size=world, **given)


def together(kind: str, world: int, steps: int = STEPS, states: list[Any] | None = None, **options: Any) -> Any:
    """(the next global batches, the state of all ranks behind them), from a state on."""
    parts, after = [], []
    for rank in range(world):
        with loader_of(kind, rank, world, **options) as loader:
            if states is not None:
                loader.load_state_dict(json.loads(json.dumps(merge_states(states))))
            iterator = iter(loader)
            parts.append([next(iterator) for _ in range(steps)])
            after.append(loader.state_dict())
    return [[row for part in step for row in part] for step in zip(*parts, strict=True)], after


# ---- ramp
@pytest.mark.parametrize("kind", sorted(PIPES))
def test_a_ramps_global_batches_are_the_same_on_any_number_of_ranks(kind: str) -> None:
    expected, _ = together(kind, 1, ramp=RAMP)
    assert [len(batch) for batch in expected] == [4] * 9 + [8] * 4 + [12]
    for world in (2, 4):
        assert together(kind, world, ramp=RAMP)[0] == expected


@pytest.mark.parametrize("kind", sorted(PIPES))
def test_a_ramp_goes_on_at_every_step_on_another_number_of_ranks(kind: str) -> None:
    expected, _ = together(kind, 1, 19, ramp=RAMP)
    assert [len(batch) for batch in expected[-4:]] == [12, 16, 16, 16]
    for done in range(0, 19, 3):
        begun, states = together(kind, 2, done, ramp=RAMP)
        rest, _ = together(kind, 4, 19 - done, states)  # the ramp is in the state
        assert begun + rest == expected


@pytest.mark.parametrize("kind", ["epochs", "mixed", "streamed"])
def test_a_ramp_cuts_other_steps_of_the_same_rows(kind: str) -> None:
    """On one column even in the same order."""
    grown, _ = together(kind, 1, ramp=RAMP, columns=1)
    plain, _ = together(kind, 1, 8, columns=1)
    rows = [row for batch in grown for row in batch]
    assert rows == [row for batch in plain for row in batch][: len(rows)]


def test_a_ramp_over_epochs_of_so_many_steps() -> None:
    expected, _ = together("mixed", 1, 12, ramp=RAMP)
    with loader_of("mixed", ramp=RAMP, ends="steps", steps=5) as loader:
        assert len(loader) == 5
        found = [*loader, *loader]
        iterator = iter(loader)
        found += [next(iterator), next(iterator)]
        state = loader.state_dict()
    assert found == expected
    with loader_of("mixed", ends="steps", steps=5) as loader:
        loader.load_state_dict(state)
        assert list(loader) == together("mixed", 1, 15, ramp=RAMP)[0][12:]


def test_the_ramp_is_part_of_the_plan() -> None:
    state = loader_of("mixed", ramp=RAMP).state_dict()
    assert state["plan"]["ramp"] == [4, 4, 100]
    for other in (dload.Ramp(4, 4, 101), dload.Ramp(8, 8, 100)):
        with pytest.raises(ValueError, match=r"the state has ramp=\[4, 4, 100\], this loader was given \["):
            loader_of("mixed", ramp=other).load_state_dict(state)
    with pytest.raises(ValueError, match="the state has ramp=None, this loader was given"):
        loader_of("mixed", ramp=RAMP).load_state_dict(loader_of("mixed").state_dict())
    assert "ramp" not in loader_of("mixed").state_dict()["plan"]


def test_ramps_that_do_not_go_together_with_the_run() -> None:
    for options, what in (
        ({"ends": "drop"}, "goes on over epochs"),
        ({"ramp": dload.Ramp(6, 4, 9)}, "doesn't lead to a global batch of 16"),
        ({"ramp": dload.Ramp(4, 3, 9)}, "multiples of 1 rows, which 1 ranks and 2 columns"),
        ({"rank": 0, "world": 3, "columns": 1}, "multiples of 4 rows, which 3 ranks"),
        ({"kind": "streamed", "turns": 2}, "one turn"),
    ):
        with pytest.raises(ConfigError, match=what):
            loader_of(**({"kind": "epochs", "ramp": RAMP} | options))


# ---- phases
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["mixed", "mix of streams"]),
    st.dictionaries(st.integers(1, 12), st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=3),
    st.sampled_from([None, RAMP]),
)
def test_phases_are_the_schedule_of_a_mix_in_steps(kind: str, phases: dict[int, Any], ramp: Any) -> None:
    found, _ = together(kind, 2, phases=sorted(phases.items()), ramp=ramp)
    sizes = [16] * STEPS if ramp is None else [4] * 9 + [8] * 4 + [12]
    schedule = [(0, (2, 1)), *((sum(sizes[:step]), list(weights)) for step, weights in sorted(phases.items()))]
    pipe = mixed if kind == "mixed" else mixed_streams
    columns = 1 if kind == "mixed" else 2
    with Loader(pipe(schedule), 16, ends="endless", columns=columns, seed=0, threads=0, ramp=ramp) as loader:
        iterator = iter(loader)
        assert found == [next(iterator) for _ in range(STEPS)]


def test_from_its_step_on_a_phase_has_its_weights_and_pipelines_go_on() -> None:
    found, _ = together("mixed", 1, 30, phases=[(10, [0, 1]), (20, [1, 0])], columns=1)
    assert found[:10] == together("mixed", 1, 10, columns=1)[0]
    assert all(number >= 1000 for batch in found[10:20] for number in batch)
    assert all(number < 1000 for batch in found[20:] for number in batch)
    low = [number for batch in found for number in batch if number < 1000]
    assert sorted(low[:130]) == list(range(130)) and len(low) > 260  # pass after pass, none twice and none left out


@pytest.mark.parametrize("kind", ["mixed", "mapped", "mix of streams"])
def test_what_comes_may_change_when_a_run_goes_on(kind: str) -> None:
    begun, states = together(kind, 2, 8, phases=[(4, [1, 1]), (10, [0, 1])])
    expected, _ = together(kind, 1, phases=[(4, [1, 1]), (10, [0, 1])])
    assert begun == expected[:8]
    columns = states[0]["plan"]["C"]
    rest, _ = together(kind, 1, STEPS - 8, states, columns=columns)  # they are in the state
    assert begun + rest == expected
    for later in ([(8, [1, 0])], [(11, [1, 3])], []):
        phases = [(4, [1, 1]), *later]
        expected, _ = together(kind, 1, phases=phases)
        assert begun + together(kind, 4, STEPS - 8, states, phases=phases)[0] == expected


def test_what_was_may_not_change() -> None:
    _, states = together("mixed", 1, 8, phases=[(4, [1, 1])])
    for phases in ([], [(4, [1, 2])], [(5, [1, 1])], [(3, [1, 3]), (4, [1, 1])], [(4, [1, 1]), (7, [1, 2])]):
        with pytest.raises(ValueError, match=r"phases \[\[4, \[1, 1\]\]\] before step 8, .* only those that come"):
            loader_of("mixed", phases=phases).load_state_dict(states[0])
    loader_of("mixed", phases=[(4, [1, 1]), (8, [1, 2])]).load_state_dict(states[0])
    other = loader_of("mixed", phases=[(1, [1, 1])]).state_dict()  # no step was taken yet
    loader_of("mixed", phases=[(1, [3, 1])]).load_state_dict(other)


def test_phases_in_the_index_tier_have_one_column() -> None:
    with pytest.raises(ConfigError, match=r"phases go with one column .*, and this run has 2"):
        loader_of("mixed", phases=[(4, [1, 1])], columns=2)
    with pytest.raises(ConfigError, match="and this run has 2"):
        loader_of("mixed", phases=[(4, [1, 1])], columns=None).load_state_dict(loader_of("mixed").state_dict())


def test_a_child_that_is_never_due_again_gives_each_row_once() -> None:
    """A lane's piece of its last pass ends where the child does, whoever asks first."""

    def steps(rank: int, world: int) -> list[list[int]]:
        pipe = mixed([(0, [2, 1]), (16, [0, 1])])
        with Loader(pipe, 16, rank=rank, world_size=world, ends="endless", columns=4, seed=0, threads=0) as loader:
            iterator = iter(loader)
            return [next(iterator) for _ in range(2)]

    alone = steps(0, 1)
    rows = [number for batch in alone for number in batch if number < 1000]
    assert len(rows) == len(set(rows)) == 11
    for world in (2, 4):
        parts = [steps(rank, world) for rank in range(world)]
        assert [[row for part in step for row in part] for step in zip(*parts, strict=True)] == alone


def test_steps_of_phases_are_those_of_the_whole_run() -> None:
    expected, _ = together("mixed", 1, 12, phases=[(7, [0, 1])])
    with loader_of("mixed", phases=[(7, [0, 1])], ends="steps", steps=4) as loader:
        assert [*loader, *loader, *loader] == expected
        state = loader.state_dict()
    with pytest.raises(ValueError, match=r"before step 12"):
        loader_of("mixed", phases=[(9, [0, 1])], ends="steps", steps=4).load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "phases", "what"),
    [
        (lambda: numbers(0, 9, 1).repeat(), [(1, [1])], "phases need a mix without an end"),
        (lambda: dload.mix([numbers(0, 9, 1), numbers(9, 9, 1)]), [(1, [1, 1])], "phases need a mix without an end"),
        (lambda: mixed().filter(indivisible), [(1, [1, 1])], "phases need a mix without an end"),
        (lambda: mixed().shuffle(5, seed=1), [(1, [1, 1])], "phases need a mix without an end"),
        (lambda: mixed([(0, [1, 1]), (9, [1, 2])]), [(1, [1, 1])], "constant weights"),
        (mixed, [(1, [1, 1, 1])], "3 weights for 2 pipelines"),
        (mixed, [(0, [1, 1])], "at least 1, got 0"),
        (mixed, [(2, [1, 1]), (2, [1, 2])], r"begin at steps \[2, 2\]"),
        (mixed, [5], "phases="),
        (mixed, [(1, ["a", "b"])], "numbers"),
    ],
)
def test_phases_that_are_refused(make: Callable[[], Pipeline], phases: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Loader(make(), 4, ends="endless", seed=0, phases=phases)
