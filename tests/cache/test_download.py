from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dload.cache.download import ATTEMPTS, fill
from dload.errors import IntegrityError, UnavailableError

BODY = bytes(range(256)) * 40
DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def partial(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "partial", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def content(descriptor: int) -> bytes:
    return os.pread(descriptor, 1 << 20, 0)


def fetch(partial: int, open_stream: Callable[[int], Iterator[bytes]]) -> None:
    fill(partial, DIGEST, len(BODY), open_stream, name="s3://bucket/shards/ab", relieve=lambda: 0)


def chunks(data: bytes, size: int = 100) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def test_a_body_arrives_whole(partial: int) -> None:
    fetch(partial, lambda start: chunks(BODY[start:]))
    assert content(partial) == BODY


@given(have=st.integers(0, len(BODY)), size=st.integers(1, 3000))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_download_goes_on_where_it_was_cut_off(partial: int, have: int, size: int) -> None:
    os.ftruncate(partial, 0)
    os.pwrite(partial, BODY[:have], 0)
    starts = []

    def open_stream(start: int) -> Iterator[bytes]:
        starts.append(start)
        return chunks(BODY[start:], size)

    fetch(partial, open_stream)
    assert content(partial) == BODY
    assert starts == ([have] if have < len(BODY) else [])


def test_what_was_left_is_fetched_again_if_it_was_damaged(partial: int) -> None:
    os.pwrite(partial, b"zeros that a power cut left" + bytes(1000), 0)
    fetch(partial, lambda start: chunks(BODY[start:]))
    assert content(partial) == BODY


@pytest.mark.parametrize("left", [BODY + b"more", bytes(len(BODY))], ids=["too long", "wrong"])
def test_a_full_leftover_that_is_not_the_body(partial: int, left: bytes) -> None:
    os.pwrite(partial, left, 0)
    fetch(partial, lambda start: chunks(BODY[start:]))
    assert content(partial) == BODY


def test_a_break_passes_through_and_keeps_what_came(partial: int) -> None:
    def broken(start: int) -> Iterator[bytes]:
        yield BODY[:1000]
        raise UnavailableError("the line is dead")

    with pytest.raises(UnavailableError, match="dead"):
        fetch(partial, broken)
    assert content(partial) == BODY[:1000]


def test_a_short_body_is_continued(partial: int) -> None:
    fetch(partial, lambda start: chunks(BODY[start : start + len(BODY) // 2]))
    assert content(partial) == BODY


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (BODY[:-1] + b"!", hashlib.sha256(BODY[:-1] + b"!").hexdigest()),
        (BODY + b"!", f"more than {len(BODY)} bytes"),
        (b"", "0 bytes"),
    ],
    ids=["wrong", "long", "empty"],
)
def test_case_c45_a_bad_body_is_fetched_a_few_times_then_named(partial: int, body: bytes, got: str) -> None:
    asked = []

    def open_stream(start: int) -> Iterator[bytes]:
        asked.append(start)
        return chunks(body[start:])

    with pytest.raises(IntegrityError) as caught:
        fetch(partial, open_stream)
    assert len(asked) == ATTEMPTS
    for part in ("s3://bucket/shards/ab", DIGEST, got):
        assert part in str(caught.value)
    assert content(partial) == b""


def test_nothing_is_written_past_the_size(partial: int) -> None:
    largest = 0

    def endless(start: int) -> Iterator[bytes]:
        nonlocal largest
        while True:
            largest = max(largest, os.fstat(partial).st_size)
            yield b"x" * 999

    with pytest.raises(IntegrityError):
        fetch(partial, endless)
    assert 0 < largest <= len(BODY)


def test_a_stream_is_closed_also_when_it_is_not_read_to_its_end(partial: int) -> None:
    closed = []

    def open_stream(start: int) -> Iterator[bytes]:
        try:
            yield from chunks(BODY + b"too long")
        finally:
            closed.append(start)

    with pytest.raises(IntegrityError):
        fetch(partial, open_stream)
    assert len(closed) == ATTEMPTS


def test_on_a_full_disk_writing_goes_on_as_long_as_room_is_made(partial: int, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 500
    made = [3000, 6000, 0]
    real = os.pwrite

    def pwrite(descriptor: int, data: memoryview, position: int) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "full")
        written = real(descriptor, data[:room], position)
        room -= written
        return written

    def relieve() -> int:
        nonlocal room
        room = made.pop(0)
        return room

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="full") as caught:
        fill(partial, DIGEST, len(BODY), lambda start: chunks(BODY[start:]), name="x", relieve=relieve)
    assert caught.value.errno == errno.ENOSPC
    made, room = [20_000], 0
    fill(partial, DIGEST, len(BODY), lambda start: chunks(BODY[start:]), name="x", relieve=relieve)
    assert content(partial) == BODY
