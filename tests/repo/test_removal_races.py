"""A version that is removed while another makes it visible: one of the two is told, and it stays readable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dload.api import Repository
from dload.cache import ShardCache
from dload.errors import ConflictError, NotFoundError, RemovedError
from dload.pack import Sample
from dload.store.faulty import Call, Faulty

ONE: list[Sample] = [("a", {"x": b"1"})]
TWO: list[Sample] = [("a", {"x": b"2"})]


@pytest.fixture
def two(memory_repo: Repository) -> tuple[Repository, str]:
    """A data set with two versions, and the id of the first."""
    one = memory_repo.commit("speech", ONE).version
    memory_repo.commit("speech", TWO)
    return memory_repo, one


def meanwhile(repo: Repository, act: Callable[[], object], operation: str, key: str, folder: Path) -> Repository:
    """The same repository, for which `act` happens right before its first such call."""
    done: list[object] = []

    def plan(call: Call) -> None:
        if call.operation == operation and key in call.key and not done:
            done.append(True)
            act()

    return Repository(Faulty(repo.store, plan), ShardCache(folder / "other"))


def test_tagged_while_it_is_removed_it_stays(two: tuple[Repository, str], tmp_path: Path) -> None:
    repo, one = two
    remover = meanwhile(repo, lambda: repo.tag("speech", "v1", one), "put", "/removed/", tmp_path)
    with pytest.raises(ConflictError, match="was made v1 while it was removed; it stays"):
        remover.delete_dataset("speech", one)
    repo.cache.clear()
    assert list(repo.dataset("speech", "v1").samples()) == ONE
    assert repo.removed("speech") == []


def test_made_latest_while_it_is_removed_it_stays(two: tuple[Repository, str], tmp_path: Path) -> None:
    repo, one = two
    remover = meanwhile(repo, lambda: repo.commit("speech", ONE), "put", "/removed/", tmp_path)
    with pytest.raises(ConflictError, match="was made latest while it was removed; it stays"):
        remover.delete_dataset("speech", one)
    assert repo.resolve("speech") == one
    assert repo.removed("speech") == []


def test_a_data_set_that_is_tagged_while_it_is_removed_stays(two: tuple[Repository, str], tmp_path: Path) -> None:
    repo, one = two
    remover = meanwhile(repo, lambda: repo.tag("speech", "v1", one), "put_if", "refs/latest", tmp_path)
    with pytest.raises(ConflictError, match="was tagged v1 while it was removed; it stays"):
        remover.delete_dataset("speech")
    assert repo.list_datasets() == ["speech"]
    assert [record.op for record in repo.log("speech")] == ["restore", "remove", "commit", "commit"]


@pytest.mark.parametrize("version", [True, False], ids=["the version", "the data set"])
def test_removed_while_it_is_tagged_it_has_no_tag(two: tuple[Repository, str], version: bool, tmp_path: Path) -> None:
    repo, one = two

    def remove() -> None:
        repo.delete_dataset("speech", one if version else None)

    tagger = meanwhile(repo, remove, "put_if", "refs/tags/", tmp_path)
    with pytest.raises(RemovedError):
        tagger.tag("speech", "v1", one)
    assert repo.tags("speech") == {}


def test_a_tag_that_was_there_survives_a_removal_that_is_taken_back(
    two: tuple[Repository, str], tmp_path: Path
) -> None:
    repo, one = two
    repo.tag("speech", "v1", one)
    repo.store.put(f"datasets/speech/removed/{one}.json", b"{}")  # of a remover who hasn't seen the tag yet
    tagger = Repository(repo.store, ShardCache(tmp_path / "other"))
    with pytest.raises(RemovedError):
        tagger.tag("speech", "v1", one)
    assert repo.tags("speech") == {"v1": one}


def test_of_two_that_remove_the_last_two_versions_one_stays(two: tuple[Repository, str], tmp_path: Path) -> None:
    repo, one = two
    latest = repo.resolve("speech")
    remover = meanwhile(repo, lambda: repo.delete_dataset("speech", latest), "put", "/removed/", tmp_path)
    with pytest.raises(ConflictError, match="was made latest"):
        remover.delete_dataset("speech", one)
    assert list(repo.dataset("speech").samples()) == ONE
    assert [manifest.version for manifest in repo.versions("speech")] == [one]


def test_a_revert_to_what_was_collected_meanwhile_is_refused(two: tuple[Repository, str], tmp_path: Path) -> None:
    repo, one = two

    def collect() -> None:
        repo.delete_dataset("speech", one)
        repo.gc(grace=0)

    reverter = meanwhile(repo, collect, "put", "leases/", tmp_path)
    with pytest.raises(NotFoundError):
        reverter.revert("speech", one)
    assert list(repo.dataset("speech").samples()) == TWO


def test_a_tag_leaves_no_lease_behind(memory_repo: Repository) -> None:
    memory_repo.commit("speech", ONE)
    memory_repo.tag("speech", "v1")
    assert not list(memory_repo.store.list("leases/"))
