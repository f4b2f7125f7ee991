"""Trying again, with a clock that only the pauses move."""

from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dload.errors import AccessError, NotFoundError, PreconditionFailedError, UnavailableError
from dload.store.faulty import Call, Fault, Faulty, Plan, fail_at
from dload.store.local import FolderStore
from dload.store.memory import MemoryStore
from dload.store.retrying import Backoff, Retrying


@dataclass
class Time:
    """A clock that stands still unless somebody sleeps."""

    now: float = 1000.0
    pauses: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now

    def backoff(self, **changes: float) -> Backoff:
        return Backoff(sleep=self.sleep, clock=self.clock, random=lambda: 0.5, **changes)


def _store(plan: Plan, time: Time) -> tuple[Faulty, Retrying]:
    faulty = Faulty(MemoryStore(), plan)
    return faulty, Retrying(faulty, time.backoff())


def test_case_c30_an_outage_of_a_minute_is_survived() -> None:
    time = Time()
    end = time.now + 60
    faulty, store = _store(lambda _: Fault.BEFORE if time.now < end else None, time)
    store.put("a", b"x")
    assert time.now >= end
    assert store.get("a").data == b"x"
    assert faulty.count()["put"] < 30  # it doesn't hammer


def test_pauses_double_up_to_a_limit_and_are_shortened_by_chance() -> None:
    time = Time()
    _, store = _store(lambda call: Fault.BEFORE if call.number <= 9 else None, time)
    store.put("a", b"x")
    assert time.pauses == pytest.approx([0.75 * pause for pause in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 8, 8)])


def test_two_clients_pause_differently() -> None:
    times = Time(), Time()
    for time in times:
        store = Retrying(Faulty(MemoryStore(), fail_at(1)), Backoff(sleep=time.sleep, clock=time.clock))
        store.put("a", b"x")
    assert times[0].pauses != times[1].pauses
    assert all(0.05 <= time.pauses[0] <= 0.1 for time in times)


def test_patience_ends_with_the_error_itself() -> None:
    time = Time()
    faulty, store = _store(lambda _: Fault.BEFORE, time)
    with pytest.raises(UnavailableError, match=r"a fault by plan \(tried \d+ times in 1\d\d s\)"):
        store.get("a")
    assert 170 <= time.now - 1000 <= 180
    assert faulty.count()["get"] == len(time.pauses) + 1


def test_a_server_that_never_answered_is_given_up_sooner() -> None:
    time = Time()
    dead = UnavailableError("can't be reached", answered=False)
    _, store = _store(lambda _: dead, time)
    with pytest.raises(UnavailableError):
        store.get("a")
    assert time.now - 1000 <= 10

    time = Time()
    was_there = UnavailableError("can't be reached", answered=True)
    _, store = _store(lambda _: was_there if time.now < 1060 else None, time)
    store.put("a", b"x")
    assert time.now >= 1060


@pytest.mark.parametrize("error", [AccessError("no"), NotFoundError("none"), PreconditionFailedError("lost")])
def test_what_is_final_is_raised_at_once(error: Exception) -> None:
    time = Time()
    _, store = _store(lambda _: error, time)  # type: ignore[arg-type, return-value]
    with pytest.raises(type(error)):
        store.put_if("a", b"x", etag=None)
    with pytest.raises(type(error)):
        list(store.stream("a"))
    assert time.pauses == []


def test_every_operation_is_tried_again(tmp_path: Path) -> None:
    time = Time()
    faulty, store = _store(lambda call: Fault.BEFORE if call.number % 2 else None, time)
    (tmp_path / "file").write_bytes(b"file")
    store.put("d/a", b"abc")
    store.put_file("d/b", tmp_path / "file")
    etag = store.put_if("d/c", b"1", etag=None)
    store.put_if("d/c", b"2", etag=etag)
    assert store.conditional()
    assert store.get("d/c").data == b"2"
    assert store.get_range("d/a", 1, 2) == b"bc"
    assert b"".join(store.stream("d/b")) == b"file"
    head = store.head("d/a")
    assert head is not None and head.size == 3
    assert {found.key for found in store.list("d/")} == {"d/a", "d/b", "d/c"}
    assert list(store.list_folders("")) == ["d"]
    assert store.clock() > 0
    assert store.abort_unfinished(0) == 0
    store.delete("d/a")
    store.delete_many(iter(["d/b", "d/c"]))
    assert list(store.list("")) == []
    assert len(time.pauses) == len(faulty.calls) / 2


def test_case_c31_a_stream_goes_on_from_where_it_broke() -> None:
    time = Time()
    faulty, store = _store(lambda call: Fault.TORN if 1 < call.number <= 5 else None, time)
    data = bytes(range(256)) * 1000
    store.put("s", data)
    assert b"".join(store.stream("s", 7)) == data[7:]
    assert faulty.count()["stream"] == 5


def test_a_stream_that_goes_on_has_patience_anew() -> None:
    """Each break takes 100 s to get over; there are ten of them, with progress in between."""
    time = Time()
    breaks = 0

    def plan(call: Call) -> Fault | None:
        nonlocal breaks
        if call.operation != "stream" or breaks == 10:
            return None
        if time.now < 1000 + 100 * (breaks + 1):
            return Fault.BEFORE
        breaks += 1
        return Fault.TORN

    _, store = _store(plan, time)
    store.put("s", b"x" * 5000)
    assert b"".join(store.stream("s")) == b"x" * 5000
    assert time.now >= 2000


def test_a_lost_reply_is_no_lost_race() -> None:
    time = Time()
    faulty, store = _store(fail_at(1, Fault.AFTER), time)
    etag = store.put_if("ref", b"mine", etag=None)
    assert faulty.get("ref").etag == etag
    assert faulty.count()["put_if"] == 2


def test_a_lost_reply_and_then_somebody_else() -> None:
    time = Time()
    inner = MemoryStore()
    store = Retrying(Faulty(inner, fail_at(1, Fault.AFTER)), time.backoff())
    time.sleep = lambda _: inner.put("ref", b"theirs")  # type: ignore[assignment, method-assign, return-value]
    store = Retrying(store.inner, time.backoff())
    with pytest.raises(PreconditionFailedError):
        store.put_if("ref", b"mine", etag=None)


def test_a_race_lost_without_doubt_is_lost_though_the_bytes_agree() -> None:
    _, store = _store(lambda _: None, Time())
    store.put("ref", b"same")
    with pytest.raises(PreconditionFailedError):
        store.put_if("ref", b"same", etag=None)


def test_waiting_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    end = time.now + 20
    _, store = _store(lambda _: Fault.BEFORE if time.now < end else None, time)
    with caplog.at_level(logging.WARNING, logger="dload"):
        store.put("a", b"x")
    assert "trying again" in caplog.records[0].message


def test_it_pickles(tmp_path: Path) -> None:
    store = Retrying(FolderStore(tmp_path))
    store.put("a", b"x")
    assert pickle.loads(pickle.dumps(store)).get("a").data == b"x"


def test_faults_by_plan() -> None:
    store = Faulty(MemoryStore())
    store.put("a", b"0123456789")
    for fault, after in ((Fault.BEFORE, b"0123456789"), (Fault.TORN, b"0123456789"), (Fault.AFTER, b"new")):
        store.plan = lambda _, fault=fault: fault  # type: ignore[misc]
        with pytest.raises(UnavailableError):
            store.put("a", b"new")
        store.plan = lambda _: None
        assert store.get("a").data == after
    store.plan = lambda _: Fault.SHORT
    assert b"".join(store.stream("a")) == b"n"
    store.plan = lambda _: Fault.TORN
    came = []
    with pytest.raises(UnavailableError):
        came.extend(store.stream("a"))
    assert came == [b"n"]
    assert store.count() == {"put": 4, "get": 3, "stream": 2}
    assert [call.number for call in store.calls] == list(range(1, 10))
