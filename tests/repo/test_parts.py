"""A version of parts that were packed apart, in any order and how often ever, is that of the samples in their order."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dload.api import Repository
from dload.cache import ShardCache
from dload.errors import ConfigError, DuplicateKeyError, IntegrityError
from dload.manifest import Packing
from dload.pack import Sample, cuts, sample_size
from dload.repo import keys
from dload.repo.commit import CommitOptions, packing_for
from dload.repo.history import History
from dload.repo.packing import Part
from dload.repo.parts import pack_part
from dload.store.memory import MemoryStore
from dload.testing import invariants

PACKING = Packing(1_000)


def samples(count: int = 120) -> list[Sample]:
    rng = random.Random(0)
    sizes = [rng.randrange(60) for _ in range(count)]
    more = {"y": b"1"}
    return [(f"k{i:03}", {"x": rng.randbytes(size), **(more if i % 7 else {})}) for i, size in enumerate(sizes)]


def groups() -> list[int]:
    return list(cuts(((key, sample_size(key, fields), fields) for key, fields in samples()), PACKING.target))


def packed(repo: Repository, counts: list[int]) -> list[Part]:
    every, ends = samples(), list(accumulate(counts, initial=0))
    return [pack_part(repo.store, "apart", every[start:stop], PACKING) for start, stop in pairwise(ends)]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whole_shards_give_the_version_of_the_serial_commit(memory_repo: Repository, data: st.DataObject) -> None:
    serial = Repository(MemoryStore(), memory_repo.cache).commit("apart", samples(), target_shard_size=1_000)
    repo = Repository(MemoryStore(), memory_repo.cache)
    sizes = groups()
    borders = sorted(data.draw(st.sets(st.integers(1, len(sizes) - 1), max_size=5)) | {0, len(sizes)})
    counts = [sum(sizes[a:b]) for a, b in pairwise(borders)]
    parts = packed(repo, counts)
    if data.draw(st.booleans()):
        parts = [Part(part.shards) for part in packed(repo, counts)]  # again, and the keys from the shards
    made = repo.commit_shards("apart", parts, target_shard_size=1_000)
    assert made.version == serial.version
    assert made.fields == serial.fields
    assert repo.log("apart")[0].op == "commit"
    assert invariants.problems(repo.store, deep=True) == []


def test_other_borders_are_the_borders_of_shards(repo: Repository) -> None:
    counts = [1, 50, 69]
    made = repo.commit_shards("apart", packed(repo, counts), target_shard_size=1_000, meta={"a": 1}, message="m")
    assert invariants.content(repo.store, "apart", made.version) == samples()
    assert {1, 51, 120} <= set(made.shards.starts)
    assert (made.meta, made.packing.target, repo.log("apart")[0].message) == ({"a": 1}, 1_000, "m")
    again = repo.commit_shards("apart", packed(repo, counts), meta={"a": 1})
    assert again.version == made.version
    assert len(repo.log("apart")) == 1
    assert not any(repo.store.list(keys.LEASES))


def test_parts_are_asked_for_under_the_commits_lease(memory_repo: Repository) -> None:
    leases: list[int] = []

    def parts() -> Any:
        for part in packed(memory_repo, [60, 60]):
            leases.append(len(list(memory_repo.store.list(keys.LEASES))))
            yield part

    memory_repo.commit_shards("apart", parts())
    assert leases == [1, 1]


@pytest.mark.parametrize("hashes", [True, False])
def test_keys_are_unique_across_parts(memory_repo: Repository, hashes: bool) -> None:
    parts = packed(memory_repo, [30, 90])
    parts.append(pack_part(memory_repo.store, "apart", [samples()[17]], PACKING))
    parts = parts if hashes else [Part(part.shards) for part in parts]
    with pytest.raises(DuplicateKeyError, match="samples 17 and 120 have the same key 'k017'"):
        memory_repo.commit_shards("apart", parts)
    assert memory_repo.list_datasets() == []


def test_what_is_not_there_or_does_not_add_up_is_refused(memory_repo: Repository) -> None:
    first, second = packed(memory_repo, [60, 60])
    with pytest.raises(ConfigError, match="a part of 60 samples has 8 bytes of hashes, expected 480"):
        memory_repo.commit_shards("apart", [first, Part(second.shards, b"12345678")])
    memory_repo.store.delete(keys.shard_key(second.shards[0].digest))
    with pytest.raises(IntegrityError, match="1 shards of this commit are not in"):
        memory_repo.commit_shards("apart", [first, second])
    assert memory_repo.list_datasets() == []


def test_the_packing_that_parts_need(memory_repo: Repository, tmp_path_factory: pytest.TempPathFactory) -> None:
    memory_repo.commit("apart", samples(), target_shard_size=700, codecs={"x": "zstd"})
    history = History(memory_repo.store)
    assert packing_for(history, "apart", CommitOptions()) == Packing(700, codecs={"x": "zstd"})
    assert packing_for(history, "new", CommitOptions(target=5, boundaries="size")) == Packing(5, "size")
    cache = ShardCache(tmp_path_factory.mktemp("cache"))
    assert Repository(memory_repo.store, cache).dataset("apart")[3] == samples()[3]
