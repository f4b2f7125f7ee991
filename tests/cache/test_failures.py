"""A download that fails for good, and those who were waiting for it."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dload.cache import ShardCache, failure
from dload.cache.inventory import partial_path
from dload.errors import AccessError, DloadError, IntegrityError, NotFoundError
from dload.testing.sources import LoggedSource

SIZE = 50_000

Python = Callable[..., subprocess.Popen[str]]

WAITER = """
from dload.errors import DloadError
root, folder, digest, size = sys.argv[1:]
source = LoggedSource(Path(folder))
say("ready")
hear()
try:
    with ShardCache(Path(root)).ensure(digest, int(size), source.opener(digest)) as pin:
        say(pin.path.read_bytes() == source.body(digest))
except DloadError as error:
    say(type(error).__name__, error.message, error.remedy, error.details)
"""


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def waits_for_a_lock(process: subprocess.Popen[str]) -> bool:
    words = [row.split() for row in Path("/proc/locks").read_text().splitlines()]
    return any(row[1] == "->" and str(process.pid) in row for row in words)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system doesn't tell who waits for a lock")
def test_who_was_waiting_gets_the_error_at_once_and_who_comes_later_tries(
    root: Path, source: LoggedSource, python: Python
) -> None:
    digest = source.make(1, SIZE)
    waiters = [python(WAITER, root, source.folder, digest, SIZE) for _ in range(3)]
    assert [line(waiter) for waiter in waiters] == ["ready"] * 3

    def refused(start: int) -> Iterator[bytes]:
        yield source.body(digest)[:1000]
        for waiter in waiters:
            tell(waiter)
        while not all(map(waits_for_a_lock, waiters)):
            time.sleep(0.005)
        raise AccessError("the token has expired", remedy="log in", key="k")

    cache = ShardCache(root)
    with pytest.raises(AccessError):
        cache.ensure(digest, SIZE, refused)
    expected = "AccessError the token has expired log in {'key': 'k'}"
    assert [line(waiter) for waiter in waiters] == [expected] * 3
    assert source.gets() == []
    partial = partial_path(root, digest, SIZE)
    assert failure.left(partial) is not None
    assert cache.status().partials == 1
    with cache.ensure(digest, SIZE, source.opener(digest)) as pin:
        assert pin.path.read_bytes() == source.body(digest)
    assert [get.start for get in source.gets()] == [1000]
    assert failure.left(partial) is None and list((root / "partial").iterdir()) == []


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system doesn't tell who waits for a lock")
def test_what_was_given_up_is_no_failure(root: Path, source: LoggedSource, python: Python) -> None:
    """A reader who loses interest, or an error that says nothing of the shard: those who wait try for themselves."""
    digest = source.make(1, SIZE)
    waiter = python(WAITER, root, source.folder, digest, SIZE)
    assert line(waiter) == "ready"

    def given_up(start: int) -> Iterator[bytes]:
        yield source.body(digest)[:1000]
        tell(waiter)
        while not waits_for_a_lock(waiter):
            time.sleep(0.005)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ShardCache(root).ensure(digest, SIZE, given_up)
    assert line(waiter) == "True"
    assert [(get.start, get.pid) for get in source.gets()] == [(1000, waiter.pid)]


def test_a_bad_body_is_told_to_those_who_wait_though_nothing_of_it_stays(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    started, errors = threading.Event(), []

    def bad(start: int) -> Iterator[bytes]:
        started.set()
        time.sleep(0.2)
        yield bytes(SIZE)

    def want() -> None:
        started.wait()
        try:
            ShardCache(root).ensure(digest, SIZE, lambda _: pytest.fail("downloaded again"))
        except IntegrityError as error:
            errors.append(error)

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    with pytest.raises(IntegrityError) as caught:
        ShardCache(root).ensure(digest, SIZE, bad)
    for thread in threads:
        thread.join()
    assert [str(error) for error in errors] == [str(caught.value)] * 4
    assert ShardCache(root).status().partials == 0
    assert ShardCache(root).clear() > 0 and list((root / "partial").iterdir()) == []


def used(root: Path) -> int:
    """Every byte below the cache, as files have them."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("more", [0, 500])
def test_what_is_told_keeps_to_the_budget(root: Path, source: LoggedSource, more: int) -> None:
    """Nothing is deleted for it: where it doesn't fit, it isn't told."""
    there, missing = source.make(1, SIZE), source.make(2, SIZE)
    ShardCache(root).ensure(there, SIZE, source.opener(there)).release()
    budget = used(root) + SIZE + more
    cache = ShardCache(root, budget)

    def breaks_off(start: int) -> Iterator[bytes]:
        yield source.body(missing)[: SIZE // 2]
        raise AccessError("the token has expired", remedy="log in")

    with pytest.raises(AccessError):
        cache.ensure(missing, SIZE, breaks_off)
    partial = partial_path(root, missing, SIZE)
    assert partial.stat().st_size == SIZE // 2
    assert used(root) + SIZE // 2 <= budget, "the unfinished one counts at its full size"
    assert (failure.left(partial) is not None) == bool(more)

    def useless(start: int) -> Iterator[bytes]:
        yield bytes(SIZE)

    with pytest.raises(IntegrityError):
        cache.ensure(missing, SIZE, useless)
    assert not partial.exists() and used(root) <= budget
    assert failure.left(partial) is not None, "the space of what was of no use is enough"
    assert cache.contains(there)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "x"}', '{"kind": "access"}', "null", "1" * 100_000])
def test_what_is_no_failure_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.1.err").write_text(text)
    assert failure.left(tmp_path / "a.1") is None


def _kinds(kind: type[DloadError]) -> Iterator[type[DloadError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _kinds(inner)


@pytest.mark.parametrize("kind", [kind for kind in _kinds(DloadError) if kind.__module__ == "dload.errors"])
def test_every_kind_of_error_arrives(tmp_path: Path, kind: type[DloadError]) -> None:
    error = kind("what", remedy="do", needed=3, holders=["1 (python)"])
    failure.leave(tmp_path / "a.1", error)
    found = failure.left(tmp_path / "a.1")
    assert (type(found), str(found)) == (kind, str(error))
    assert found is not None and found.details == error.details
    failure.forget(tmp_path / "a.1")
    assert failure.left(tmp_path / "a.1") is None
    failure.forget(tmp_path / "a.1")
    failure.leave(tmp_path / "nowhere" / "a.1", NotFoundError("x"))
    failure.leave(tmp_path / "a.1", NotFoundError("x", what=object()))
    assert failure.left(tmp_path / "a.1") is None
