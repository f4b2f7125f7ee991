"""Several clients of one store against a plain model of what should be there: commits, appends, removals, undos, gcs,
pulls, tags, reverts, clocks that jump, commits that are cut off, in any order."""

from __future__ import annotations

import contextlib
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from dload.api import Repository
from dload.cache import ShardCache
from dload.errors import ConfigError, ConflictError, DuplicateKeyError, NotFoundError, RemovedError, UnavailableError
from dload.pack import Sample
from dload.repo.refs import read_latest
from dload.store.faulty import Fault, Faulty, fail_at
from dload.store.memory import MemoryStore
from dload.testing import invariants
from dload.testing.interleave import without_pools

HOUR, DAY = 3600.0, 86_400.0
GRACE = 7 * DAY
TARGET = 150  # a few samples a shard


def samples(*seeds: int) -> list[Sample]:
    """What a few pieces hold: data sets share pieces, and so shards."""
    return [(f"{seed}-{i}", {"x": random.Random(seed * 10 + i).randbytes(30)}) for seed in seeds for i in range(4)]


@dataclass
class Model:
    """One data set as it should be. `log`: the versions that were latest, oldest first."""

    log: list[str] = field(default_factory=list)
    removed_at: float | None = None  # as a whole
    stored: set[str] = field(default_factory=set)  # not collected
    hidden: dict[str, float] = field(default_factory=dict)  # removed one by one: when
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def latest(self) -> str | None:
        return self.log[-1] if self.log and self.removed_at is None else None

    def living(self) -> list[str]:
        """Oldest first, by when it was latest last."""
        if self.latest is None:
            return []
        there = [version for version in self.log if version in self.stored and version not in self.hidden]
        return list(dict.fromkeys(reversed(there)))[::-1]

    def becomes_latest(self, version: str) -> None:
        self.log.append(version)
        self.stored.add(version)
        self.hidden.pop(version, None)
        self.removed_at = None

    def collect(self, now: float) -> None:
        for version in list(self.stored):
            since = self.hidden.get(version, self.removed_at)
            if since is not None and now >= since + GRACE:
                self.stored.discard(version)


class Clients(RuleBasedStateMachine):
    """Two clients, each with a cache of its own."""

    names = st.sampled_from(["speech", "birds"])
    who = st.integers(0, 1)
    versions = Bundle("versions")  # (data set, version) that were there once

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.now = 1_000_000.0
        self.store = MemoryStore(clock=lambda: self.now)
        self.repos = [self._client(self.store, number) for number in range(2)]
        self.models = {"speech": Model(), "birds": Model()}
        self.contents: dict[str, list[Sample]] = {}
        self.pools = without_pools()
        self.pools.__enter__()

    def _client(self, store: MemoryStore | Faulty, number: int) -> Repository:
        return Repository(store, ShardCache(Path(self.folder.name) / str(number), 1 << 20))

    def teardown(self) -> None:
        if hasattr(self, "pools"):
            self.pools.__exit__(None, None, None)
            self.folder.cleanup()

    # ---- writing
    @rule(target=versions, name=names, who=who, seeds=st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True))
    def commit(self, name: str, who: int, seeds: list[int]) -> tuple[str, str]:
        version = self.repos[who].commit(name, samples(*seeds), target_shard_size=TARGET).version
        return self._is_latest(name, version, samples(*seeds))

    @rule(target=versions, name=names, who=who, seed=st.integers(6, 8))
    def append(self, name: str, who: int, seed: int) -> tuple[str, str]:
        model = self.models[name]
        before = self.contents.get(model.latest or "", [])
        if model.latest is None or samples(seed)[0] in before:
            with pytest.raises((NotFoundError, DuplicateKeyError)):
                self.repos[who].append(name, samples(seed))
            return name, model.latest or "0" * 64
        version = self.repos[who].append(name, samples(seed)).version
        return self._is_latest(name, version, before + samples(seed))

    def _is_latest(self, name: str, version: str, data: list[Sample]) -> tuple[str, str]:
        self.contents[version] = data
        if self.models[name].latest != version:
            self.models[name].becomes_latest(version)
        return name, version

    @rule(target=versions, name=names, seed=st.integers(0, 5), call=st.integers(1, 30), fault=st.sampled_from(Fault))
    def a_commit_is_cut_off(self, name: str, seed: int, call: int, fault: Fault) -> tuple[str, str]:
        before = read_latest(self.store, name)
        with contextlib.suppress(UnavailableError):
            self._client(Faulty(self.store, fail_at(call, fault)), 0).commit(name, samples(seed))
        after = read_latest(self.store, name)
        if after is not None and after != before:
            return self._is_latest(name, after.version, samples(seed))
        return name, self.models[name].latest or "0" * 64

    @rule(which=versions, who=who)
    def revert(self, which: tuple[str, str], who: int) -> None:
        name, version = which
        model = self.models[name]
        if version in model.living() and version != model.latest:
            self.repos[who].revert(name, version)
            model.becomes_latest(version)
        else:
            with pytest.raises((NotFoundError, ConfigError)):
                self.repos[who].revert(name, version)

    @rule(which=versions, who=who, tag=st.sampled_from(["v1", "v2"]))
    def tag(self, which: tuple[str, str], who: int, tag: str) -> None:
        name, version = which
        model = self.models[name]
        if version not in model.living():
            with pytest.raises((NotFoundError, ConflictError)):
                self.repos[who].tag(name, tag, version)
        elif model.tags.get(tag, version) != version:
            with pytest.raises(ConflictError):
                self.repos[who].tag(name, tag, version)
        else:
            self.repos[who].tag(name, tag, version)
            model.tags[tag] = version

    @rule(name=names, who=who, tag=st.sampled_from(["v1", "v2"]))
    def untag(self, name: str, who: int, tag: str) -> None:
        if self.models[name].tags.pop(tag, None):
            self.repos[who].untag(name, tag)

    # ---- removing
    @rule(which=versions, who=who)
    def remove_version(self, which: tuple[str, str], who: int) -> None:
        name, version = which
        model = self.models[name]
        others = [each for each in model.living() if each != version]
        refused = version in model.tags.values() or (version == model.latest and not others)
        if version not in model.living() or refused:
            with pytest.raises((NotFoundError, ConflictError)):
                self.repos[who].delete_dataset(name, version)
            return
        self.repos[who].delete_dataset(name, version)
        if version == model.latest:
            model.becomes_latest(others[-1])
        model.hidden[version] = self.now

    @rule(name=names, who=who)
    def remove_all(self, name: str, who: int) -> None:
        model = self.models[name]
        if model.latest is None or model.tags:
            with pytest.raises((NotFoundError, ConflictError)):
                self.repos[who].delete_dataset(name)
            return
        self.repos[who].delete_dataset(name)
        model.log.append(model.latest)
        model.removed_at = self.now

    @rule(which=versions, who=who)
    def undo_version(self, which: tuple[str, str], who: int) -> None:
        name, version = which
        model = self.models[name]
        if model.latest is None:
            return
        if version in model.hidden and version in model.stored:
            assert self.repos[who].undelete(name, version) == version
            del model.hidden[version]
        else:
            with pytest.raises(NotFoundError):
                self.repos[who].undelete(name, version)

    @rule(name=names, who=who)
    def undo_all(self, name: str, who: int) -> None:
        model = self.models[name]
        if model.removed_at is None:
            return
        if model.log[-1] in model.stored:
            self.repos[who].undelete(name)
            model.becomes_latest(model.log[-1])
        else:
            with pytest.raises(NotFoundError):
                self.repos[who].undelete(name)

    # ---- time
    @rule(who=who)
    def gc(self, who: int) -> None:
        try:
            self.repos[who].gc()
        except ConflictError:  # the lock of one that was cut off
            return
        if not list(self.store.list("leases/")):  # else nothing goes
            for model in self.models.values():
                model.collect(self.now)

    @rule(seconds=st.sampled_from([60.0, HOUR, 2 * HOUR, DAY, 6.9 * DAY, 8 * DAY]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # ---- reading
    @rule(name=names, who=who)
    def pull(self, name: str, who: int) -> None:
        model, repo = self.models[name], self.repos[who]
        if model.latest is None:
            with pytest.raises((NotFoundError, RemovedError)):
                repo.dataset(name)
            return
        dataset = repo.dataset(name)
        dataset.fetch()
        assert dataset.version == model.latest
        assert list(dataset.samples()) == self.contents[model.latest]

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        if not hasattr(self, "models"):
            return
        assert invariants.problems(self.store) == []
        repo = self.repos[0]
        alive = {name: model for name, model in self.models.items() if model.latest}
        assert repo.list_datasets() == sorted(alive)
        for name, model in alive.items():
            assert repo.resolve(name) == model.latest
            assert [m.version for m in repo.versions(name)] == model.living()[::-1]
            assert repo.tags(name) == dict(sorted(model.tags.items()))
        for name, model in self.models.items():
            for version in model.stored:  # removed ones, too: they can come back
                assert invariants.content(self.store, name, version) == self.contents[version]


Clients.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
TestClients = Clients.TestCase
