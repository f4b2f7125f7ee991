"""Every call of every operation is answered with a lie once, in every way: nothing that lives is lost or broken, what
is read is right or an error, and the same operation by a store that speaks the truth finishes."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dload.api import Repository
from dload.errors import DloadError, IntegrityError
from dload.importers.restore import write_files
from dload.pack import Sample
from dload.repo import keys
from dload.repo.refs import read_record, ref_bytes
from dload.store.base import Body
from dload.store.faulty import Call
from dload.testing import invariants
from dload.testing.liar import Liar, Lie, Lies
from tests.repo.test_every_operation_fails_once import (
    ALL,
    FOREIGN,
    KEPT,
    ONE,
    OPERATIONS,
    TWO,
    At,
    World,
    repo_of,
    world_for,
)

NEVER = {("untag", Lie.STALE), ("untag", Lie.GHOST)}  # nothing that it asks can be answered so
CALLS = 400  # no operation makes as many


def once(number: int, lie: Lie) -> Lies:
    return lambda call: lie if call.number == number else None


def liar(world: World, lies: Lies) -> Liar:
    first = read_record(world.store, "speech", 1)
    assert first is not None
    return Liar(world.store, lies, {keys.latest_key("speech"): Body(ref_bytes(first), "an old one", 0.0)})


@pytest.mark.parametrize("lie", Lie, ids=lambda lie: lie.value)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_lies_once(name: str, lie: Lie, tmp_path: Path) -> None:
    told = 0
    for number in range(1, CALLS):
        world: World = pickle.loads(world_for(name))
        store, where = liar(world, once(number, lie)), f"{name}: call {number} is answered {lie.value}"
        cache = tmp_path / str(number)
        with contextlib.suppress(DloadError):
            OPERATIONS[name].run(At(repo_of(store, cache=cache), repo_of(world.target, cache=cache), world))
        told += store.told
        if len(store.calls) < number:
            break
        if not store.told:  # that call can't be answered so
            continue
        _holds(name, world, where)
        again = At(repo_of(world.store, cache=tmp_path / f"{number}-again"), repo_of(world.target), world)
        OPERATIONS[name].run(again)
        _holds(name, world, f"{where}, then again")
        # Who was told of an older latest version has derived from that, as it would have been right then.
        assert OPERATIONS[name].done(again) or (name == "derive" and lie in (Lie.STALE, Lie.OTHER)), where
    assert number < CALLS and (told > 0 or (name, lie) in NEVER)


def _holds(name: str, world: World, where: str) -> None:
    for store in (world.store, world.target):
        assert invariants.problems(store, deep=True) == [], where
    expected = {data_set: [world.versions[v] for v in versions] for data_set, versions in KEPT.get(name, ALL).items()}
    assert invariants.lost(world.store, expected) == [], where
    assert invariants.foreign(world.store) == FOREIGN, where


# ---- reading
def _pulled(repo: Repository, _: Path) -> list[Sample]:
    manifest = repo.manifest("speech")
    repo.fetch(manifest)
    return list(repo.dataset("speech", manifest.version).samples())


def _written(repo: Repository, folder: Path) -> list[Sample]:
    write_files(repo.dataset("speech").samples(), folder)
    return sorted((path.stem, {path.suffix[1:]: path.read_bytes()}) for path in folder.iterdir())


def _verified(repo: Repository, _: Path) -> list[Sample]:
    if not repo.verify("speech", read_data=True).sound:
        raise IntegrityError("as it was told")
    return TWO


def _by_key(repo: Repository, _: Path) -> list[Sample]:
    dataset = repo.dataset("speech")
    return [(key, dataset[key]) for key, _ in TWO]


READ: dict[str, Callable[[Repository, Path], list[Sample]]] = {
    "stream": lambda repo, _: list(repo.dataset("speech").samples()),
    "stream shuffled": lambda repo, _: sorted(repo.dataset("speech").samples().shuffle(8, seed=0)),
    "by number": lambda repo, _: list(map(repo.dataset("speech").__getitem__, (59, 0, 17))),
    "by slice": lambda repo, _: repo.dataset("speech")[5:50:3],
    "by key": _by_key,
    "pull": _pulled,
    "pull --to": _written,
    "verify": _verified,
}
RIGHT: dict[str, list[Sample]] = {"by number": [TWO[59], TWO[0], TWO[17]], "by slice": TWO[5:50:3]}


WRONG = (Lie.FLIPPED, Lie.LONG, Lie.OTHER, Lie.PAGE)


@pytest.mark.parametrize("lie", Lie, ids=lambda lie: lie.value)
@pytest.mark.parametrize("name", READ)
def test_what_is_read_is_right_or_an_error(name: str, lie: Lie, tmp_path: Path) -> None:
    """Each call lies once, and then each call of a kind lies for ever."""
    for number in range(1, CALLS):
        world: World = pickle.loads(world_for("pull"))
        store = liar(world, once(number, lie))
        refused = _right_or_refused(
            name, repo_of(store, cache=tmp_path / str(number)), world, tmp_path / f"out{number}"
        )
        if store.calls[min(number, len(store.calls)) - 1].key.startswith("shards/") and lie in WRONG:
            assert refused is None, f"{name}: a shard that came wrong once is fetched again, call {number}"
        if len(store.calls) < number:
            break
    assert number < CALLS
    for kind in ("/refs/", "/manifests/", "/removed/", "shards/"):
        world = pickle.loads(world_for("pull"))
        store = liar(world, lambda call, kind=kind: lie if kind in call.key else None)  # type: ignore[misc]
        folder = tmp_path / kind.strip("/")
        refused = _right_or_refused(name, repo_of(store, cache=folder), world, folder / "out")
        if kind == "shards/" and lie in WRONG and store.told:
            assert refused is not None, f"{name} by a store that never gives what is asked for"


def _right_or_refused(name: str, repo: Repository, world: World, folder: Path) -> DloadError | None:
    try:
        got = READ[name](repo, folder)
    except DloadError as error:
        return error
    right = RIGHT.get(name, TWO)
    older = {"by number": [ONE[59], ONE[0], ONE[17]], "by slice": ONE[5:50:3]}.get(name, ONE)
    assert got in (right, older), f"{name} gave what was never committed"  # an old ref is as true as it was
    return None


def test_the_error_names_key_expected_and_got(tmp_path: Path) -> None:
    world: World = pickle.loads(world_for("pull"))
    store = liar(world, lambda call: Lie.FLIPPED if call.key.startswith("shards/") else None)
    with pytest.raises(IntegrityError) as caught:
        list(repo_of(store, cache=tmp_path / "cache").dataset("speech").samples())
    digest = caught.value.details["expected"]
    data = world.store.get(keys.shard_key(digest)).data
    at = len(data) // 3
    flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    for part in (keys.shard_key(digest), digest, hashlib.sha256(flipped).hexdigest()):
        assert part in str(caught.value)


def test_a_shard_that_ended_early_again_and_again_is_not_damaged(tmp_path: Path) -> None:
    world: World = pickle.loads(world_for("pull"))
    streams: Counter[str] = Counter()

    def early(call: Call) -> Lie | None:
        if call.operation != "stream":
            return None
        streams[call.key] += 1
        return Lie.SHORT if streams[call.key] <= 3 else None

    store = liar(world, early)
    assert repo_of(store, cache=tmp_path / "cache").verify("speech", read_data=True).sound
    assert store.told
    store = liar(world, lambda call: Lie.SHORT if call.operation == "stream" else None)
    assert not repo_of(store, cache=tmp_path / "cache").verify("speech", read_data=True).sound
