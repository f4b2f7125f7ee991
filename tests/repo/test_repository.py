"""What a repository does, the same over a folder, memory and a real S3 server."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dload.api import Repository
from dload.cache import ShardCache
from dload.errors import (
    ConfigError,
    ConflictError,
    DuplicateKeyError,
    NotFoundError,
    RemovedError,
    SampleError,
)
from dload.pack import Sample
from dload.store.faulty import Faulty
from dload.store.local import FolderStore
from dload.store.memory import MemoryStore

SMALL = 4_000  # bytes of a shard here


def samples(count: int, seed: int = 0) -> list[Sample]:
    rng = random.Random(seed)
    return [(f"k{i:05d}", {"x": rng.randbytes(50), "label": b"%d" % (i % 7)}) for i in range(count)]


def commit(repo: Repository, data: list[Sample], name: str = "speech", **options: object) -> str:
    return repo.commit(name, data, target_shard_size=SMALL, **options).version


# ---- the main job
def test_what_is_committed_comes_back_in_order(repo: Repository) -> None:
    data = samples(500)
    manifest = repo.commit(
        "speech", data, target_shard_size=SMALL, meta={"rate": 16000}, recipe="make it", message="one"
    )
    assert manifest.num_samples == 500
    assert len(manifest.shards) > 3
    assert manifest.total_bytes == sum(shard.size for shard in manifest.shards)
    assert manifest.fields["x"].count == 500
    assert manifest.fields["x"].bytes == 25_000
    dataset = repo.dataset("speech")
    assert (dataset.name, dataset.version, len(dataset)) == ("speech", manifest.version, 500)
    assert dataset.manifest.meta == {"rate": 16000}
    assert dataset.manifest.recipe == "make it"
    assert list(dataset.samples()) == data
    assert list(dataset.samples()) == data, "samples() can be read again"
    assert dict(dataset.samples(fields=["label"]))["k00003"] == {"label": b"3"}


def test_samples_by_place_key_and_slice(repo: Repository) -> None:
    data = samples(300)
    commit(repo, data)
    dataset = repo.dataset("speech")
    assert dataset[0] == data[0]
    assert dataset[-1] == data[-1]
    assert dataset[295:400] == data[295:]
    assert dataset[::-50] == data[::-50]
    assert dataset["k00123"] == data[123][1]
    with pytest.raises(IndexError):
        dataset[300]
    with pytest.raises(KeyError):
        dataset["nobody"]
    assert list(dataset.samples()) == data  # now from the cache
    assert dataset[17] == data[17]
    assert dataset["k00200"] == data[200][1]


def test_a_version_is_named_by_what_it_holds_not_by_who_commits_it_when(
    repo: Repository, memory_repo: Repository
) -> None:
    first = commit(repo, samples(100), message="mine")
    assert commit(memory_repo, samples(100), message="yours", workers=3) == first
    assert commit(memory_repo, samples(100, seed=1)) != first
    assert commit(memory_repo, samples(100), meta={"a": 1}) != first


def test_listing_and_history(repo: Repository) -> None:
    assert repo.list_datasets() == []
    assert repo.overview() == []
    one = commit(repo, samples(100), message="first")
    two = commit(repo, samples(120), message="second")
    commit(repo, samples(10), name="other")
    assert repo.list_datasets() == ["other", "speech"]
    info = repo.overview()[1]
    assert (info.name, info.version, info.num_samples, info.message) == ("speech", two, 120, "second")
    assert [m.version for m in repo.versions("speech")] == [two, one]
    log = repo.log("speech")
    assert [(r.seq, r.version, r.parent, r.op, r.message) for r in log] == [
        (2, two, one, "commit", "second"), (1, one, None, "commit", "first"),
    ]  # fmt: skip
    assert repo.manifest("speech").created == log[0].time
    assert repo.manifest("speech", one).created == log[1].time
    with pytest.raises(NotFoundError, match=r"no data set 'nope' in .* dload ls"):
        repo.dataset("nope")
    with pytest.raises(NotFoundError, match=r"no data set 'speech@latest' .* of its own: 'speech', 'latest'"):
        repo.dataset("speech@latest")


def test_listing_takes_a_bounded_number_of_requests(tmp_path: Path) -> None:
    store = MemoryStore()
    plain = Repository(store, ShardCache(tmp_path / "cache"))
    for number in range(200):
        commit(plain, samples(2), name=f"set-{number:03d}")
    faulty = Faulty(store)
    assert len(Repository(faulty, plain.cache).overview()) == 200
    assert faulty.count() == {"list_folders": 1, "get": 200}


def test_resolving(repo: Repository) -> None:
    one, two = commit(repo, samples(10)), commit(repo, samples(11))
    assert repo.resolve("speech") == two
    assert repo.resolve("speech", "latest") == two
    assert repo.resolve("speech", one) == one
    assert repo.resolve("speech", one[:4] if one[:4] != two[:4] else one[:12]) == one
    for unknown in ("ffff" if not one.startswith("ffff") else "0000", "abc", "v1", "a" * 64, "../x", ""):
        if unknown:
            with pytest.raises(NotFoundError):
                repo.resolve("speech", unknown)
    for name in ("a/b", "../x", "", ".hidden", "x" * 1000):
        with pytest.raises(ConfigError, match="invalid data set name"):
            repo.resolve(name)
    for name in ("x" * 101, "naïve"):
        with pytest.raises(NotFoundError, match="no data set"):
            repo.resolve(name)
        with pytest.raises(ConfigError, match="invalid data set name"):
            repo.commit(name, samples(1))


def test_tags_never_move(repo: Repository) -> None:
    one, two = commit(repo, samples(10)), commit(repo, samples(11))
    assert repo.tag("speech", "v1", one) == one
    assert repo.tag("speech", "2024") == two
    assert repo.tags("speech") == {"2024": two, "v1": one}
    assert repo.resolve("speech", "v1") == one
    assert repo.resolve("speech", "2024") == two
    repo.tag("speech", "v1", one)
    with pytest.raises(ConflictError, match=f"names {one[:12]} already"):
        repo.tag("speech", "v1", two)
    for name in ("latest", one, "a b"):
        with pytest.raises(ConfigError, match="tag"):
            repo.tag("speech", name)
    repo.untag("speech", "v1")
    with pytest.raises(NotFoundError, match="no tag 'v1'"):
        repo.untag("speech", "v1")


def test_pins(repo: Repository) -> None:
    one, two = commit(repo, samples(10)), commit(repo, samples(11))
    assert repo.pin("speech", one[:12]) == one
    assert repo.resolve("speech") == one
    assert repo.pins() == {"speech": one}
    assert repo.pin("speech") == two, "without a version: the latest, whatever is pinned"
    repo.unpin("speech")
    with pytest.raises(NotFoundError, match="not pinned"):
        repo.unpin("speech")
    assert repo.resolve("speech") == two


def test_diff_between_versions(repo: Repository) -> None:
    data = samples(300)
    one = commit(repo, data)
    changed = [("a-new-one", {"x": b"1"}), *data[:100], ("k00100", {"x": b"other"}), *data[102:]]
    two = commit(repo, changed)
    diff = repo.diff("speech", one, two)
    assert (diff.added, diff.removed, diff.changed) == (["a-new-one"], ["k00101"], ["k00100"])
    assert not repo.diff("speech", two, two)


def test_append(repo: Repository) -> None:
    data = samples(300)
    one = repo.commit("speech", data[:200], target_shard_size=SMALL, meta={"a": 1}, recipe="r")
    two = repo.append("speech", data[200:])
    assert list(repo.dataset("speech").samples()) == data
    assert two.shards[: len(one.shards)] == one.shards
    assert (two.meta, two.recipe, two.packing) == ({"a": 1}, "r", one.packing)
    assert two.fields["x"].count == 300
    assert repo.log("speech")[0].op == "append"
    with pytest.raises(DuplicateKeyError, match="k00007"):
        repo.append("speech", [data[7]])
    assert repo.resolve("speech") == two.version
    assert repo.append("speech", [data[7]], check_parent=False).num_samples == 301
    with pytest.raises(NotFoundError):
        repo.append("nope", data)


def test_revert(repo: Repository) -> None:
    one, two = commit(repo, samples(10)), commit(repo, samples(11))
    record = repo.revert("speech", one[:12], message="two was bad")
    assert (record.op, record.version, record.parent, record.message) == ("revert", one, two, "two was bad")
    assert repo.resolve("speech") == one
    with pytest.raises(ConfigError, match="the latest version of speech already"):
        repo.revert("speech", one)


def test_fetch_then_read_without_the_store(repo: Repository, tmp_path: Path) -> None:
    data = samples(300)
    version = commit(repo, data)
    lines: list[str] = []
    repo.dataset("speech").fetch(workers=3, progress=lines.append)
    assert lines
    offline = Repository(_Unplugged(), repo.cache, tmp_path / "dload.lock")
    assert list(offline.dataset("speech", version).samples()) == data
    assert offline.dataset("speech", version)[5] == data[5]


class _Unplugged:
    """Not a store: every use of it fails."""

    url = "unplugged://"


# ---- what is refused
@pytest.mark.parametrize(
    "bad",
    [
        ("", {"x": b""}), ("k" * 1025, {"x": b""}), (1, {"x": b""}), ("\ud800", {"x": b""}), ("k", {"x": "text"}),
        ("k", {"": b""}), ("k", {"f" * 101: b""}), ("k", [b""]), "k", ("k",), None,
    ],
)  # fmt: skip
def test_bad_samples_are_refused_and_nothing_is_published(memory_repo: Repository, bad: object) -> None:
    with pytest.raises(SampleError):
        memory_repo.commit("speech", [("good", {"x": b"1"}), bad])
    assert memory_repo.list_datasets() == []


@pytest.mark.parametrize("wrong", ["photos", Path("photos"), b"photos", {"key": {"x": b"1"}}])
def test_what_is_iterable_but_no_samples_is_refused_by_name(memory_repo: Repository, wrong: object) -> None:
    for write in (memory_repo.commit, memory_repo.append):
        with pytest.raises(SampleError, match=r"expected an iterable of samples.*got .*open_source\(path\)"):
            write("speech", wrong)  # type: ignore[arg-type]
    assert memory_repo.list_datasets() == []


def test_samples_of_any_shape(memory_repo: Repository) -> None:
    data: list[Sample] = [
        ("none", {}), ("empty", {"x": b""}), ("ключ/ю", {"поле": b"1"}),
        ("k" * 1024, {"f" * 100: b"\0" * 10}), ("a b%2F;", {"x": bytes(range(256))}),
    ]  # fmt: skip
    memory_repo.commit("mixed", data)
    assert list(memory_repo.dataset("mixed").samples()) == data
    assert memory_repo.commit("none", []).num_samples == 0
    assert list(memory_repo.dataset("none").samples()) == []


def test_case_c15_the_same_key_twice_is_refused_with_both_places(repo: Repository) -> None:
    data = samples(200)
    with pytest.raises(DuplicateKeyError, match=r"samples 3 and 200 have the same key 'k00003'"):
        commit(repo, [*data, data[3]])
    assert repo.list_datasets() == []


def test_case_c18_an_error_of_the_generator_comes_out_and_nothing_is_published(
    repo: Repository, tmp_path: Path
) -> None:
    def broken() -> Iterator[Sample]:
        yield from samples(150)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        repo.commit("speech", broken(), target_shard_size=SMALL)
    assert repo.list_datasets() == []
    assert not list(repo.store.list("leases/"))
    assert not [path for path in tmp_path.rglob("shard-*") if path.is_file()]


@pytest.mark.parametrize("codec", ["zstd"])
def test_compressed_fields_read_back_and_are_inherited(repo: Repository, codec: str) -> None:
    data: list[Sample] = [(f"k{i}", {"text": b"again and again " * 50, "raw": b"1"}) for i in range(50)]
    first = repo.commit("text", data, codecs={"text": codec})
    assert first.total_bytes < 20_000
    assert first.fields["text"].bytes == 50 * 800
    assert list(repo.dataset("text").samples()) == data
    assert repo.dataset("text")[7] == data[7]
    second = repo.commit("text", data[1:])
    assert second.packing.codecs == {"text": codec}
    with pytest.raises(ConfigError, match="unknown codec 'lzma'"):
        repo.commit("text", data, codecs={"text": "lzma"})


# ---- removing
def test_a_removed_version_is_out_of_sight_and_comes_back(repo: Repository) -> None:
    one, two = commit(repo, samples(100)), commit(repo, samples(120))
    repo.delete_dataset("speech", two)
    assert repo.resolve("speech") == one
    assert [m.version for m in repo.versions("speech")] == [one]
    repo.cache.clear()
    with pytest.raises(
        RemovedError, match=f"version {two[:12]} of speech was removed by .* dload undo speech@{two[:12]}"
    ):
        repo.dataset("speech", two)
    assert [r.version for r in repo.removed("speech")] == [two]
    assert repo.undelete("speech") == two
    assert list(repo.dataset("speech", two).samples()) == samples(120)
    with pytest.raises(NotFoundError, match="has no removed version"):
        repo.undelete("speech")


def test_a_tagged_or_only_version_is_not_removed(repo: Repository) -> None:
    one = commit(repo, samples(10))
    with pytest.raises(ConflictError, match="only version"):
        repo.delete_dataset("speech", one)
    commit(repo, samples(11))
    repo.tag("speech", "v1", one)
    with pytest.raises(ConflictError, match="tagged v1"):
        repo.delete_dataset("speech", one)
    with pytest.raises(ConflictError, match="has tags: v1"):
        repo.delete_dataset("speech")


def test_committing_a_removed_version_again_brings_it_back(repo: Repository) -> None:
    one, two = commit(repo, samples(10)), commit(repo, samples(11))
    repo.delete_dataset("speech", one)
    assert commit(repo, samples(10)) == one
    assert repo.removed("speech") == []
    assert [m.version for m in repo.versions("speech")] == [one, two]


def test_a_removed_data_set_comes_back_with_its_history(repo: Repository) -> None:
    one = repo.commit("speech", samples(10), message="the first").version
    repo.delete_dataset("speech")
    assert repo.list_datasets() == []
    repo.cache.clear()
    for version in (None, one, "latest"):
        with pytest.raises(RemovedError, match=r"data set 'speech' was removed by .* dload undo speech"):
            repo.dataset("speech", version)
    assert repo.undelete("speech") == one
    assert repo.list_datasets() == ["speech"]
    assert [info.message for info in repo.overview()] == ["the first"] == [repo.log("speech")[0].message]
    repo.delete_dataset("speech")
    two = commit(repo, samples(11))
    assert [(r.seq, r.op, r.version) for r in repo.log("speech")] == [
        (5, "commit", two), (4, "remove", one), (3, "restore", one), (2, "remove", one), (1, "commit", one),
    ]  # fmt: skip


def test_retention(repo: Repository) -> None:
    versions = [commit(repo, samples(10 + i)) for i in range(4)]
    repo.tag("speech", "v0", versions[0])
    plan = repo.retain("speech", keep_last=2, dry_run=True)
    assert [(p.version, p.kept) for p in plan] == [
        (versions[3], True), (versions[2], True), (versions[1], False), (versions[0], True),
    ]  # fmt: skip
    assert "latest" in plan[0].reason
    assert "last 2" in plan[1].reason
    assert "tagged v0" in plan[3].reason
    assert len(repo.versions("speech")) == 4
    repo.retain("speech", keep_last=2)
    assert [m.version for m in repo.versions("speech")] == [versions[3], versions[2], versions[0]]
    assert all(p.kept for p in repo.retain("speech", keep_within=3600, dry_run=True))


# ---- copying
def test_copy_keeps_ids_and_sends_only_what_is_missing(repo: Repository, tmp_path: Path) -> None:
    other = Repository(FolderStore(tmp_path / "other"), ShardCache(tmp_path / "cache2"), tmp_path / "dload.lock")
    one = commit(repo, samples(200))
    assert repo.copy("speech", to=other).version == one
    assert list(other.dataset("speech").samples()) == samples(200)
    assert other.manifest("speech").created == other.log("speech")[0].time
    two = commit(repo, [*samples(200), ("z", {"x": b"1"})])
    lines: list[str] = []
    assert repo.copy("speech", to=other, progress=lines.append).version == two
    assert 1 <= len(lines) <= 2
    assert [r.version for r in other.log("speech")] == [two, one]
    repo.copy("speech", to=other)
    assert len(other.log("speech")) == 2


def test_repositories_and_data_sets_pickle(repo: Repository) -> None:
    data = samples(50)
    commit(repo, data)
    dataset = pickle.loads(pickle.dumps(repo.dataset("speech")))
    assert list(dataset.samples()) == data
    assert dataset[3] == data[3]
    again = pickle.loads(pickle.dumps(repo))
    assert again.list_datasets() == ["speech"]
