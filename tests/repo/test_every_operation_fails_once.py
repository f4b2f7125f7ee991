"""Every call that an operation makes of the store fails once, in every way: what is visible stays whole, nothing that
lives is lost, and the same operation again finishes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dload.api import Repository
from dload.cache import ShardCache
from dload.errors import ConfigError, ConflictError, DloadError, IntegrityError, NotFoundError, UnavailableError
from dload.manifest import is_version
from dload.pack import Sample
from dload.repo import keys
from dload.store.base import Store
from dload.store.faulty import Call, Fault, Faulty, Plan, fail_at
from dload.store.memory import MemoryStore
from dload.store.retrying import Backoff, Retrying
from dload.testing import invariants

TARGET = 2_000
DAY = 86_400.0


class Clock:
    """The store's clock, set by hand. It is pickled with its store."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def samples(count: int, seed: int) -> list[Sample]:
    rng = random.Random(seed)
    return [(f"s{seed}-{i:03d}", {"x": rng.randbytes(40)}) for i in range(count)]


ONE, TWO, NEW, OTHER = samples(60, 1), samples(60, 2), samples(90, 3), samples(40, 4)
BEHIND = samples(20, 5)
FOREIGN = {"shards/README": b"mine", "datasets/speech/notes.txt": b"mine", "elsewhere/x": b"mine"}


@dataclass
class World:
    """A store with two data sets, and another that it is copied to."""

    store: MemoryStore
    target: MemoryStore
    clock: Clock
    versions: dict[str, str]

    def later(self, seconds: float) -> None:
        self.clock.now += seconds


def _world() -> World:
    clock = Clock()
    world = World(MemoryStore(clock=clock), MemoryStore(clock=clock), clock, {})
    repo = Repository(world.store, ShardCache(_NOWHERE))
    for number, (name, data) in enumerate([("speech", ONE), ("speech", TWO), ("other", OTHER), ("other", ONE)]):
        world.versions[f"{name}{number}"] = repo.commit(name, data, target_shard_size=TARGET).version
    repo.tag("speech", "v1", world.versions["speech0"])
    for key, data in FOREIGN.items():
        world.store.put(key, data)
    return world


_NOWHERE = Path("/nonexistent")


@dataclass(frozen=True)
class At:
    """A world, and repositories over its two stores, which may be made to fail."""

    repo: Repository
    target: Repository
    world: World


@dataclass(frozen=True)
class Operation:
    """`run` does it, and is what the rerun does, too; `done`: whether it was; `prepare` makes the world it finds."""

    run: Callable[[At], object]
    done: Callable[[At], bool]
    prepare: Callable[[At], object] = lambda _: None


def _commit(at: At) -> None:
    at.repo.commit("speech", NEW, target_shard_size=TARGET)


def _append(at: At) -> None:
    if _samples(at.repo, "speech") == TWO:  # else it was done, though it failed
        at.repo.append("speech", BEHIND)


def _remove_version(at: At) -> None:
    if at.world.versions["speech1"] in {m.version for m in at.repo.versions("speech")}:
        at.repo.delete_dataset("speech", at.world.versions["speech1"])


def _remove_dataset(at: At) -> None:
    if "other" in at.repo.list_datasets():
        at.repo.delete_dataset("other")


def _undo_version(at: At) -> None:
    if at.world.versions["speech1"] in {r.version for r in at.repo.removed("speech")}:
        at.repo.undelete("speech", at.world.versions["speech1"])


def _undo_dataset(at: At) -> None:
    if "other" not in at.repo.list_datasets():
        at.repo.undelete("other")


def _revert(at: At) -> None:
    with contextlib.suppress(ConfigError):  # it is the latest already
        at.repo.revert("speech", at.world.versions["speech0"])


def _tag(at: At) -> None:
    at.repo.tag("speech", "new", at.world.versions["speech1"])


def _untag(at: At) -> None:
    with contextlib.suppress(NotFoundError):
        at.repo.untag("speech", "v1")


def _gc(at: At) -> None:
    try:
        at.repo.gc()
    except ConflictError:  # the first run's lock is left: it is passed over in time
        at.world.later(2 * 3600)
        at.repo.gc()


def _removed_long_ago(at: At) -> None:
    at.repo.delete_dataset("speech", at.world.versions["speech1"])
    at.repo.delete_dataset("other")
    with contextlib.suppress(UnavailableError):  # a commit that was cut off
        repo_of(at.world.store, _after_shards).commit("speech", NEW, target_shard_size=TARGET)
    at.world.later(8 * DAY)


def _after_shards(call: Call) -> Fault | None:
    return Fault.BEFORE if "/manifests/" in call.key and call.operation == "put_if" else None


def _copy(at: At) -> None:
    at.repo.copy("speech", to=at.target)


def _pull(at: At) -> None:
    at.repo.dataset("speech").fetch()


def loud(sample: Sample) -> Sample:
    return sample[0].upper(), sample[1]


def _derive(at: At) -> None:
    at.repo.derive("loud", at.repo.dataset("speech").samples().map(loud), target_shard_size=TARGET)


def _derived(at: At) -> bool:
    refs = [at.repo.store.get(info.key).data.decode() for info in at.repo.store.list(keys.derived_prefix("loud"))]
    return refs == [at.repo.resolve("loud")] and _samples(at.repo, "loud") == [loud(sample) for sample in TWO]


def _even(sample: Sample) -> bool:
    return int(sample[0][-1]) % 2 == 0


def _view(at: At) -> None:
    at.repo.view("part", at.repo.dataset("speech"), _even)


def _retain(at: At) -> None:
    at.repo.retain("speech", keep_last=1)


def _verify(at: At) -> None:
    if not at.repo.verify(read_data=True).sound:
        raise IntegrityError("as it was told")


def _diff(at: At) -> None:
    at.repo.diff("speech", at.world.versions["speech0"], at.world.versions["speech1"])


def _samples(repo: Repository, name: str) -> list[Sample]:
    return invariants.content(repo.store, name, repo.resolve(name))


def _is_removed(repo: Repository, name: str, version: str) -> bool:
    return version in {r.version for r in repo.removed(name)}


OPERATIONS = {
    "commit": Operation(_commit, lambda at: _samples(at.repo, "speech") == NEW),
    "append": Operation(_append, lambda at: _samples(at.repo, "speech") == TWO + BEHIND),
    "rm version": Operation(_remove_version, lambda at: _is_removed(at.repo, "speech", at.world.versions["speech1"])),
    "rm data set": Operation(_remove_dataset, lambda at: at.repo.list_datasets() == ["speech"]),
    "undo version": Operation(
        _undo_version,
        lambda at: not _is_removed(at.repo, "speech", at.world.versions["speech1"]),
        lambda at: at.repo.delete_dataset("speech", at.world.versions["speech1"]),
    ),
    "undo data set": Operation(
        _undo_dataset,
        lambda at: at.repo.list_datasets() == ["other", "speech"],
        lambda at: at.repo.delete_dataset("other"),
    ),
    "revert": Operation(_revert, lambda at: _samples(at.repo, "speech") == ONE),
    "tag": Operation(_tag, lambda at: at.repo.tags("speech").get("new") == at.world.versions["speech1"]),
    "untag": Operation(_untag, lambda at: at.repo.tags("speech") == {}),
    "gc": Operation(_gc, lambda at: tuple(at.repo.gc(dry_run=True)) == (0, 0), _removed_long_ago),
    "copy": Operation(_copy, lambda at: _samples(at.target, "speech") == TWO),
    "derive": Operation(_derive, _derived),
    "view": Operation(_view, lambda at: _samples(at.repo, "part") == list(filter(_even, TWO))),
    "rm by a rule": Operation(
        _retain,
        lambda at: [m.version for m in at.repo.versions("speech")] == [at.world.versions["speech1"]],
        lambda at: at.repo.untag("speech", "v1"),
    ),
    "verify": Operation(_verify, lambda at: at.repo.verify().sound),
    "diff": Operation(_diff, lambda _: True),
    "pull": Operation(_pull, lambda at: list(at.repo.dataset("speech").samples()) == TWO),
}
# May these disappear? Only what was removed long ago, by gc.
KEPT = {"gc": {"speech": ["speech0"]}}
ALL = {"speech": ["speech0", "speech1"], "other": ["other2", "other3"]}


def repo_of(store: Store, plan: Plan | None = None, cache: Path = _NOWHERE) -> Repository:
    return Repository(store if plan is None else Faulty(store, plan), ShardCache(cache))


@functools.cache
def world_for(name: str) -> bytes:
    """The world that an operation finds, pickled."""
    world = _world()
    OPERATIONS[name].prepare(At(repo_of(world.store), repo_of(world.target), world))
    return pickle.dumps(world)


BACKOFF = Backoff(sleep=lambda _: None)
WAYS: dict[str, tuple[Fault, bool]] = {
    "before": (Fault.BEFORE, False),  # nothing was done
    "after": (Fault.AFTER, False),  # it was done, and the reply was lost
    "torn": (Fault.TORN, False),  # a stream breaks off in the middle
    "after, tried again": (Fault.AFTER, True),  # as it is in real use
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_fails_once(name: str, way: str, tmp_path: Path) -> None:
    fault, retried = WAYS[way]
    for side in ("source", "target") if name == "copy" else ("source",):
        number, reached = 0, True
        while reached:
            number += 1
            where = f"{name}: call {number} of the {side} fails {way}"
            reached = _fail_once(name, side, fail_at(number, fault), retried, tmp_path / f"{side}{number}", where)
        assert number > 2, "the operation asks the store for something"


def _fail_once(name: str, side: str, plan: Plan, retried: bool, cache: Path, where: str) -> bool:
    """One run with one fault; whether the fault was reached."""
    os.environ["XDG_STATE_HOME"] = f"{cache}-state"  # what is remembered of another run isn't of this one
    world: World = pickle.loads(world_for(name))
    operation = OPERATIONS[name]
    faulty = {"source": Faulty(world.store), "target": Faulty(world.target)}
    faulty[side].plan = plan
    tried = {key: Retrying(store, BACKOFF) if retried else store for key, store in faulty.items()}
    reached = False

    def noticed(call: Call) -> object:
        nonlocal reached
        found = plan(call)
        reached = reached or found is not None
        return found

    faulty[side].plan = noticed  # type: ignore[assignment]
    try:
        operation.run(At(repo_of(tried["source"], cache=cache), repo_of(tried["target"], cache=cache), world))
    except UnavailableError:
        assert not retried, f"{where}: trying again would have helped"
    except DloadError as error:
        raise AssertionError(f"{where}: {error!r}") from error
    _holds(name, world, where)
    again = At(repo_of(world.store, cache=cache), repo_of(world.target, cache=cache), world)
    if not retried:
        operation.run(again)
        _holds(name, world, f"{where}, then again")
    assert operation.done(again), where
    return reached


def _holds(name: str, world: World, where: str) -> None:
    for store in (world.store, world.target):
        assert invariants.problems(store, deep=True) == [], where
    kept = KEPT.get(name, ALL)
    expected = {data_set: [world.versions[v] for v in versions] for data_set, versions in kept.items()}
    assert invariants.lost(world.store, expected) == [], where
    assert invariants.foreign(world.store) == FOREIGN, where


# ---- repair
@pytest.mark.parametrize("way", WAYS)
def test_every_call_of_a_repair_fails_once(way: str, tmp_path: Path) -> None:
    """It begins with what is broken: nothing that was good gets worse, and in the end all is good."""
    fault, retried = WAYS[way]
    number, reached = 0, True
    while reached:
        number += 1
        world = _damaged()
        good = _good(world)
        store = Faulty(world.store, fail_at(number, fault))
        tried = Retrying(store, BACKOFF) if retried else store
        where = f"call {number} of a repair fails {way}"
        with contextlib.suppress(UnavailableError):
            repo_of(tried).verify(read_data=True, repair=True, source=repo_of(world.target))
        assert _good(world) >= good, where
        assert invariants.foreign(world.store) == FOREIGN, where
        assert repo_of(world.store).verify(read_data=True, repair=True, source=repo_of(world.target)).sound, where
        _holds("repair", world, f"{where}, then again")
        reached = len(store.calls) >= number
    assert number > 20


def _damaged() -> World:
    """A shard is damaged, one is gone, and so are a manifest and the latest; another store has all of them."""
    world: World = pickle.loads(world_for("pull"))
    for name in ("speech", "other"):
        for manifest in reversed(repo_of(world.store).versions(name)):
            repo_of(world.store).copy(name, to=repo_of(world.target), version=manifest.version)
    shards = repo_of(world.store).manifest("speech").shards
    world.store.put(keys.shard_key(shards[0].digest), bytes(shards[0].size))
    world.store.delete(keys.shard_key(shards[1].digest))
    world.store.delete(keys.manifest_key("other", world.versions["other2"]))
    world.store.delete(keys.latest_key("speech"))
    return world


def _good(world: World) -> set[str]:
    """The keys of what has the bytes that its name says, or is another's or of the history."""
    found = set()
    for info in world.store.list(""):
        digest = info.key.rpartition("/")[2].removesuffix(".json")
        if not is_version(digest) or hashlib.sha256(world.store.get(info.key).data).hexdigest() == digest:
            found.add(info.key)
    return found
