"""Committers, removers and a gc of one store, stepped through the interleavings of their calls: nothing that lives is
ever lost, and nothing visible is ever half there."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError, ConflictError, DloadError, IntegrityError, NotFoundError
from dload.pack import Sample
from dload.repo import removal
from dload.repo.commit import CommitOptions, append, commit
from dload.repo.gc import gc
from dload.repo.history import History
from dload.store.memory import MemoryStore
from dload.testing import invariants
from dload.testing.interleave import (
    ByChance,
    Choose,
    KilledError,
    Run,
    Schedule,
    Step,
    Stepped,
    run,
    schedules,
    without_pools,
)

DAY = 86_400.0
# What may come out of a client: someone else was first, or what it wanted is gone.
EXPECTED = (ConflictError, IntegrityError, NotFoundError, ConfigError)


class Clock:
    """The store's clock, set by hand. It is pickled with its store."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def samples(seed: int) -> list[Sample]:
    rng = random.Random(seed)
    return [(f"s{i}", {"x": rng.randbytes(30)}) for i in range(4)]


OLD, LATEST, NEW, GONE = samples(1), samples(2), samples(3), samples(4)
OPTIONS = CommitOptions(target=100)  # several shards each


@dataclass
class World:
    """speech: OLD, then LATEST; GONE was removed so long ago that gc may take it. lost: so was the whole of it."""

    store: MemoryStore
    clock: Clock
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        history = History(self.store)
        for name, data in {"gone": GONE, "old": OLD, "latest": LATEST}.items():
            self.versions[name] = commit(history, "speech", data, OPTIONS).manifest.version
        removal.remove_version(history, "speech", self.versions["gone"])
        for number in (5, 6):
            self.versions[f"lost{number}"] = commit(history, "lost", samples(number), OPTIONS).manifest.version
        removal.remove_dataset(history, "lost")
        self.clock.now += 8 * DAY


def _made() -> bytes:
    clock = Clock()
    return pickle.dumps(World(MemoryStore(clock=clock), clock))


WORLD = _made()
Act = Callable[[World, History], object]


def commits(data: Sequence[Sample], *more: Sequence[Sample]) -> Act:
    """A client that commits this, then that."""

    def act(_world: World, history: History) -> list[str]:
        return [commit(history, "speech", each, OPTIONS).manifest.version for each in (data, *more)]

    return act


def appends(data: Sequence[Sample]) -> Act:
    renamed = [(f"more-{key}", fields) for key, fields in data]
    return lambda _world, history: [append(history, "speech", renamed, OPTIONS).manifest.version]


def removes(which: str) -> Act:
    return lambda world, history: removal.remove_version(history, "speech", world.versions[which])


def restores(which: str) -> Act:
    def act(world: World, history: History) -> list[str]:
        removal.restore_version(history, "speech", world.versions[which])
        return [world.versions[which]]

    return act


def restores_all(_world: World, history: History) -> set[str]:
    """Gives what is there again; gc may have taken some of it by then, but takes nothing any more."""
    removal.restore_dataset(history, "lost")
    return {manifest.version for manifest in history.versions("lost")}


def reverts(which: str) -> Act:
    def act(world: World, history: History) -> list[str]:
        return [removal.revert(history, "speech", world.versions[which]).version]

    return act


def tags(which: str) -> Act:
    return lambda world, history: history.tag("speech", "mine", world.versions[which])


def collects(grace: float) -> Act:
    return lambda _world, history: gc(history, grace=grace) and None


def removes_all(_world: World, history: History) -> None:
    removal.remove_dataset(history, "speech")


def jumps(seconds: float) -> Act:
    """Time passes for everybody at once, as it does for a client that is frozen."""

    def act(world: World, history: History) -> None:
        assert isinstance(history.store, Stepped)
        history.store.step("jump", "*")
        world.clock.now += seconds

    return act


SCENES: dict[str, list[Act]] = {
    "two committers and a gc": [commits(NEW), commits(LATEST, OLD), collects(7 * DAY)],
    "a removed version is committed again while gc takes it": [commits(GONE), collects(7 * DAY)],
    "and another commit comes quickly behind it": [commits(GONE), commits(NEW), collects(7 * DAY)],
    "two quick commits of one client between the looks of a gc": [commits(GONE, NEW), collects(7 * DAY)],
    "removed, committed again, collected at once": [removes("old"), commits(OLD), collects(0)],
    "the latest is removed, committed again, collected at once": [removes("latest"), commits(LATEST), collects(0)],
    "a committer is frozen past its lease": [commits(NEW), jumps(8000), collects(0)],
    "a committer of what is gone is frozen past its lease": [commits(GONE), jumps(8000), collects(0)],
    "a gc is frozen past its lock": [collects(7 * DAY), jumps(8000), commits(GONE)],
    "a gc is frozen and another takes over": [collects(7 * DAY), jumps(8000), collects(7 * DAY), commits(GONE)],
    "an append while its parent is removed": [appends(NEW), removes("latest"), collects(0)],
    "undone while gc takes it": [restores("gone"), collects(7 * DAY)],
    "a data set is undone while gc takes it": [restores_all, collects(7 * DAY)],
    "reverted to what is removed": [reverts("old"), removes("old"), collects(0)],
    "tagged while it is removed": [tags("old"), removes("old"), collects(0)],
    "tagged while the data set is removed": [tags("latest"), removes_all, collects(0)],
    "the latest and the one before are removed": [removes("latest"), removes("old"), collects(0)],
    "committed while the data set is removed": [commits(OLD), removes_all, collects(0)],
    "two gcs and a committer": [collects(7 * DAY), collects(7 * DAY), commits(GONE)],
}


@without_pools()
def attempt(acts: Sequence[Act], choose: Choose, kill: tuple[int, int] | None = None) -> Run:
    """One run of a scene; what must hold at its end."""
    world: World = pickle.loads(WORLD)

    def passes() -> None:
        world.clock.now += 600

    def client(act: Act) -> Callable[[Stepped], object]:
        return lambda view: act(world, History(view))

    done = run(world.store, [client(act) for act in acts], choose, idle=passes, kill=kill)
    for outcome in done.outcomes:
        killed = kill is not None and isinstance(outcome, KilledError)
        assert not isinstance(outcome, Exception) or isinstance(outcome, EXPECTED) or killed, f"{outcome!r}\n{done}"
    if _frozen_in_the_middle_of_deleting(done):
        return done
    try:
        _holds(world, done)
        # Whatever the race has left behind must not be taken for garbage later.
        before = invariants.living(world.store)
        world.clock.now += 8 * DAY
        gc(History(world.store))
        assert invariants.living(world.store) == before
        _holds(world, done)
    except (AssertionError, DloadError) as error:
        raise AssertionError(f"{error!r}\nafter {choose}, {kill}:\n{done}") from error
    return done


def _frozen_in_the_middle_of_deleting(done: Run) -> bool:
    """Whether a gc slept between its last look at its lock and a delete, for longer than the lock lives: the one thing
    that isn't promised."""
    for at, step in enumerate(done.steps):
        if step.operation == "jump":
            later = {each.client: each for each in reversed(done.steps[at + 1 :])}
            if any(
                each.operation == "delete_many" and each.keys[0].startswith(("shards/", "datasets/"))
                for each in later.values()
            ):
                return True
    return False


def _holds(world: World, done: Run) -> None:
    broken = invariants.problems(world.store, deep=True)
    assert not broken, broken
    seen = invariants.living(world.store)
    lost = invariants.lost(world.store, seen)
    assert not lost, lost
    for restored in (outcome for outcome in done.outcomes if isinstance(outcome, set)):
        assert restored == seen["lost"], seen
    # Each commit is in the log, and is there unless somebody removed it.
    log = {record.version for record in History(world.store).log("speech")}
    hidden = {r.version for r in History(world.store).removed("speech")}
    for outcome in done.outcomes:
        for version in outcome if isinstance(outcome, list) else []:
            assert version in log
            assert version in hidden or "speech" not in seen or version in seen["speech"]


# A bounded number, drawn by chance. All, in hours: DLOAD_TEST_SWITCHES=2 pytest tests/repo/test_interleavings.py
ALL_SWITCHES = int(os.environ.get("DLOAD_TEST_SWITCHES", "0"))


@pytest.mark.timeout(36_000 if ALL_SWITCHES else 300)
@pytest.mark.parametrize("scene", SCENES)
def test_interleavings_with_few_switches(scene: str) -> None:
    acts = SCENES[scene]
    most = None if ALL_SWITCHES else 60
    runs = schedules(lambda choose: attempt(acts, choose), len(acts), switches=ALL_SWITCHES or 2, most=most)
    assert sum(1 for _ in runs) >= 60


@pytest.mark.parametrize("scene", SCENES)
def test_interleavings_by_chance(scene: str) -> None:
    @settings(max_examples=15, deadline=None, database=None)
    @given(st.integers(0, 1 << 30), st.floats(0.0, 0.95))
    def by_chance(seed: int, stay: float) -> None:
        attempt(SCENES[scene], ByChance(seed, stay))

    by_chance()


@pytest.mark.parametrize("scene", ["two committers and a gc", "a gc is frozen and another takes over"])
def test_whoever_is_killed_anywhere_the_others_go_on(scene: str) -> None:
    acts = SCENES[scene]
    for victim in range(len(acts)):
        number, alive = 0, True
        while alive:
            number += 1
            done = attempt(acts, ByChance(number), kill=(victim, number))
            alive = sum(step.client == victim for step in done.steps) >= number


# ---- the scheduler itself
def test_it_finds_a_lost_update() -> None:
    def adds(view: Stepped) -> None:
        value = int(view.get("counter").data)
        view.put("counter", b"%d" % (value + 1))

    found = set()

    def count(choose: Choose) -> Run:
        store = MemoryStore()
        store.put("counter", b"0")
        done = run(store, [adds, adds], choose)
        found.add(store.get("counter").data)
        return done

    assert set(schedules(count, 2, switches=0)) == {Schedule((1, 0)), Schedule((0, 1))}
    assert found == {b"2"}
    assert len(list(schedules(count, 2, switches=1))) > 2
    assert found == {b"1", b"2"}


def test_the_same_schedule_gives_the_same_run() -> None:
    acts = SCENES["two committers and a gc"]
    one, two = (attempt(acts, ByChance(7)) for _ in range(2))

    def shape(done: Run) -> list[tuple[int, str, int]]:
        return [(step.client, step.operation, len(step.keys)) for step in done.steps]

    assert shape(one) == shape(two)


def test_calls_meet_where_their_order_can_matter() -> None:
    put, get, listing = Step(0, "put", ("a/b",)), Step(1, "get", ("a/b",)), Step(1, "list", ("a/",))
    assert put.meets(get)
    assert put.meets(listing)
    assert not get.meets(Step(0, "head", ("a/b",)))
    assert not put.meets(Step(1, "list", ("c/",)))
    assert put.meets(Step(1, "jump", ("*",)))
