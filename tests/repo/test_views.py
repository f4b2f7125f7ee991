"""Views: some rows of shards that are there already, for everything that reads, keeps, copies and checks versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dload
from dload.api import Repository
from dload.cache import ShardCache
from dload.errors import ConfigError, IntegrityError, UnknownKeyError
from dload.pack import Sample
from dload.repo import keys
from dload.store.memory import MemoryStore
from dload.testing import invariants

SAMPLES = [(f"k{i:03}", {"x": bytes([i]) * 100, "cls": str(i % 3).encode()}) for i in range(200)]
SIZE = 2_000
READ: list[str] = []


def third(sample: Sample) -> bool:
    READ.append(sample[0])
    return sample[1]["cls"] == b"0"


def early(sample: Sample) -> bool:
    return sample[0] < "k100"


THIRD = [sample for sample in SAMPLES if sample[1]["cls"] == b"0"]


@pytest.fixture
def speech(repo: Repository) -> dload.Dataset:
    READ.clear()
    repo.commit("speech", SAMPLES, target_shard_size=SIZE)
    return repo.dataset("speech")


# ---- made
@pytest.mark.parametrize("holes", [False, True])
def test_a_derived_view_stores_numbers_and_no_bytes(repo: Repository, speech: dload.Dataset, holes: bool) -> None:
    before = {info.key for info in repo.store.list("shards/")}
    pipe = speech.samples().filter(third, holes=holes)
    made = repo.derive("third", pipe, view=True, meta={"a": 1})
    assert {info.key for info in repo.store.list("shards/")} == before
    assert list(made.samples()) == THIRD
    assert (len(made), made.manifest.format) == (len(THIRD), 3)
    assert made.manifest.meta["derived_from"] == {"speech": speech.version}
    assert repo.derive("third", speech.samples().filter(third, holes=holes), view=True).version == made.version
    assert len(READ) == 200
    copied = repo.derive("third", pipe)
    assert copied.version != made.version, "the bytes of the same pipeline are something else"
    assert list(copied.samples()) == THIRD


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda pipe: pipe.take(30).skip(10), SAMPLES[10:30]),
        (lambda pipe: pipe.filter(third).take(5).filter(early), THIRD[:5]),
        (lambda pipe: pipe.skip(100).filter(early), []),
        (lambda pipe: pipe.tap(READ.append).prefetch(2), SAMPLES),
    ],
)
def test_what_only_leaves_out_can_be_a_view(
    memory_repo: Repository, monkeypatch: pytest.MonkeyPatch, make: Any, expected: list[Sample]
) -> None:
    repo = memory_repo
    repo.commit("speech", SAMPLES, target_shard_size=SIZE)
    pipe = make(repo.dataset("speech").samples())
    monkeypatch.setattr(dload.Pipeline, "fingerprint", lambda *_, **__: "f" * 64)
    made = repo.derive("view", pipe, view=True)
    assert list(made.samples()) == expected
    assert [made[number] for number in range(len(made))] == expected
    above = repo.view("above", made, lambda sample: sample[1]["cls"] == b"1")
    assert list(above.samples()) == [sample for sample in expected if sample[1]["cls"] == b"1"]
    assert repo.verify(read_data=True).sound


def test_what_makes_something_else_can_not(memory_repo: Repository) -> None:
    memory_repo.commit("speech", SAMPLES)
    speech = memory_repo.dataset("speech")
    for pipe, kind in (
        (speech.samples().map(third), "map"), (speech.samples().shuffle(5, seed=1), "shuffle"),
        (dload.concat([speech.samples(), speech.samples()]), "concat"), (speech.samples().select_fields("x"), "select"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"in their order, and {kind}.* without view=True"):
            memory_repo.derive("view", pipe, view=True)


def test_a_view_of_anything_by_any_function(repo: Repository, speech: dload.Dataset) -> None:
    made = repo.view("few", speech, lambda sample: sample[0] in ("k003", "k150"), meta={"why": "both"}, message="m")
    assert [key for key, _ in made.samples()] == ["k003", "k150"]
    assert len(made.manifest.shards) == 2, "shards without rows are left out"
    assert made["k150"] == SAMPLES[150][1]
    with pytest.raises(UnknownKeyError):
        made["k004"]
    assert (repo.log("few")[0].op, repo.log("few")[0].message, repo.log("few")[0].num_samples) == ("derive", "m", 2)
    assert repo.view("few", made).version == repo.view("few", made).version
    whole = repo.view("whole", speech)
    assert list(whole.samples()) == SAMPLES


# ---- all that handles versions
def test_a_view_keeps_its_shards_alive(repo: Repository, speech: dload.Dataset) -> None:
    few = repo.view("few", speech, lambda sample: sample[0] < "k020")
    needed = set(few.manifest.shards.digests)
    repo.delete_dataset("speech")
    repo.gc(grace=0)
    assert {info.key for info in repo.store.list("shards/")} == set(map(keys.shard_key, needed))
    assert list(few.samples()) == SAMPLES[:20]
    assert invariants.problems(repo.store, deep=True) == []
    assert repo.verify(read_data=True).sound
    repo.delete_dataset("few")
    assert repo.gc(grace=0).deleted_shards == len(needed)


def test_a_view_of_what_is_gone_is_refused(repo: Repository, speech: dload.Dataset) -> None:
    train = speech.split({"train": 0.5})["train"]
    repo.delete_dataset("speech")
    repo.gc(grace=0)
    with pytest.raises(IntegrityError, match=r"are not in .* a view lives where its shards are: bring them there"):
        repo.view("train", train)
    assert repo.list_datasets() == []
    assert invariants.problems(repo.store) == []


def test_copy_pull_diff_log_tag_revert(repo: Repository, speech: dload.Dataset, tmp_path: Path) -> None:
    first = repo.view("part", speech, third)
    second = repo.view("part", speech, lambda sample: sample[0] < "k150")
    repo.tag("part", "v1", first.version)
    diff = repo.diff("part", first.version, "latest")
    old, new = {key for key, _ in THIRD}, {key for key, _ in SAMPLES[:150]}
    assert (diff.added, diff.removed, diff.changed) == (sorted(new - old), sorted(old - new), [])
    other = Repository(MemoryStore(), ShardCache(tmp_path / "other"), tmp_path / "other.lock")
    assert repo.copy("part", to=other, version="v1").version == first.version
    assert list(other.dataset("part").samples()) == THIRD
    assert other.list_datasets() == ["part"]
    other.dataset("part").fetch()
    assert {digest for digest, _, _ in other.cache.entries()} == set(first.manifest.shards.digests)
    repo.revert("part", "v1")
    assert [len(manifest.shards) for manifest in repo.versions("part")]
    assert repo.dataset("part").version == first.version != second.version
    assert list(repo.dataset("part").samples()) == THIRD


def test_nothing_goes_behind_a_view_and_anything_after_it(repo: Repository, speech: dload.Dataset) -> None:
    repo.view("part", speech, third)
    with pytest.raises(ConfigError, match="is a view, and nothing can be put behind it — append to speech, of which"):
        repo.append("part", [("new", {"x": b""})])
    repo.commit("part", SAMPLES[:3])
    assert list(repo.dataset("part").samples()) == SAMPLES[:3]
    repo.append("part", SAMPLES[3:5])
    assert len(repo.dataset("part")) == 5


def test_a_damaged_shard_of_a_view_is_found_and_mended(tmp_path: Path) -> None:
    store = MemoryStore()
    repo = Repository(store, ShardCache(tmp_path / "cache"), tmp_path / "dload.lock")
    repo.commit("speech", SAMPLES, target_shard_size=SIZE)
    part = repo.view("part", repo.dataset("speech"), third)
    part.fetch()
    key = keys.shard_key(part.manifest.shards[2].digest)
    data = bytearray(store.get(key).data)
    data[5] ^= 1
    store.put(key, bytes(data))
    report = repo.verify("part", read_data=True)
    [fault] = report.faults
    assert fault.versions == {part.version: part.manifest.starts[2]}
    assert repo.verify("part", read_data=True, repair=True).sound
    assert repo.verify(read_data=True).sound


def test_the_key_index_of_a_view_is_not_taken_for_that_of_its_shards(memory_repo: Repository) -> None:
    memory_repo.commit("speech", SAMPLES, target_shard_size=SIZE)
    speech = memory_repo.dataset("speech")
    part = memory_repo.view("part", speech, lambda sample: sample[0] > "k050" and third(sample))
    assert part["k150"] == SAMPLES[150][1]
    for key, fields in SAMPLES[::9]:
        assert speech[key] == fields
    with pytest.raises(UnknownKeyError):
        part["k003"]
