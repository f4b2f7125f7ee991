"""When a large shard comes over several connections, and how many are begun before the first is there."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dload.api.pipeline import Pipeline
from dload.cache import ShardCache
from dload.manifest import ShardInfo
from dload.pack import Sample
from dload.pipeline.node import Run, paths_of
from dload.pipeline.sources import Samples
from dload.repo.keys import shard_key
from dload.run import window
from dload.run.counters import Tally
from dload.run.window import ShardWindow
from dload.store.memory import MemoryStore
from dload.testing.shards import made_samples, manifest_of, put_shard
from dload.testing.waiting import eventually

CHUNK, ROWS = 1000, 16


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = sys.modules["dload.run.open_shard"]
    monkeypatch.setattr(opening, "_SPLIT_FROM", 8 * CHUNK)
    monkeypatch.setattr(opening, "_LEAST_PIECE", CHUNK)


class Line(MemoryStore):
    """Shards of ROWS samples of 1 KB. A stream gives its first chunk, and others one by one while `flows(shard)`; a
    range comes when `reaches(shard)`."""

    staging = None

    def __init__(self, shards: int) -> None:
        super().__init__()
        self.samples = [made_samples(number, ROWS) for number in range(shards)]
        self.shards: list[ShardInfo] = [put_shard(self, samples) for samples in self.samples]
        self._numbers = {shard_key(shard.digest): number for number, shard in enumerate(self.shards)}
        self.begun: list[int] = []  # shards whose streams were opened
        self.ranges: list[int] = []  # shards, one for each range
        self.flows: Callable[[int], bool] = lambda _: True
        self.reaches: Callable[[int], bool] = lambda _: True

    def stream(self, key: str, start: int = 0) -> Iterator[bytes]:
        number, data = self._numbers[key], self.get(key).data
        self.begun.append(number)
        for at in range(start, len(data), CHUNK):
            while at and not self.flows(number):
                time.sleep(0.002)
                yield b""
            yield data[at : at + CHUNK]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        number = self._numbers[key]
        self.ranges.append(number)
        while not self.reaches(number):
            time.sleep(0.002)
        return super().get_range(key, start, length)

    def pipeline(self, cache: Path, prefetch: int) -> Pipeline:
        """The samples of a shard at a time. Each takes so long that no two are read together."""
        origin = SimpleNamespace(store=self, cache=ShardCache(cache))
        samples = Pipeline(Samples(manifest_of(self.shards), origin, None, prefetch))
        return samples.batch(ROWS).tap(lambda _: time.sleep(0.01))


def test_few_are_begun_before_the_first_is_there(tmp_path: Path) -> None:
    line = Line(10)
    first = threading.Event()
    line.reaches = lambda _: first.is_set()
    line.flows = lambda number: number != 0 and first.is_set()
    found: list[list[Sample]] = []
    reader = threading.Thread(target=lambda: found.extend(line.pipeline(tmp_path / "cache", 10)))
    reader.start()
    eventually(lambda: 0 in line.ranges)  # which is waited for: the rest of it over several connections
    eventually(lambda: len({*line.begun, 0}) == window._FEW)
    time.sleep(0.05)
    assert len({*line.begun, 0}) == window._FEW
    assert set(line.ranges) == {0}
    first.set()
    reader.join()
    assert found == line.samples


def test_on_a_line_that_many_share_only_who_stands_still_too_long_is_hastened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(10)
    others = threading.Event()
    line.flows = lambda number: number == 0 or others.is_set()
    with line.pipeline(tmp_path / "cache", 10).iter() as samples:
        assert next(samples) == line.samples[0]
        eventually(lambda: len({*line.begun, *line.ranges}) == 10)
        line.ranges.clear()
        monkeypatch.setattr(window, "_STANDSTILL", 60.0)
        found: list[list[Sample]] = []
        reader = threading.Thread(target=lambda: found.append(next(samples)))
        reader.start()
        time.sleep(0.05)  # in which chunks come, none of which is the last
        assert line.ranges == []
        monkeypatch.setattr(window, "_STANDSTILL", 0.0)
        reader.join()
        assert found == line.samples[1:2]
        assert set(line.ranges) == {1}
        others.set()
        assert [*samples] == line.samples[2:]


def test_at_the_end_all_that_are_left_are_hastened_by_who_waits_for_one(tmp_path: Path) -> None:
    line = Line(9)
    line.flows = lambda number: number < 6
    line.reaches = lambda number: number < 6 or {6, 7, 8} <= set(line.ranges)
    assert list(line.pipeline(tmp_path / "cache", 9)) == line.samples
    assert {6, 7, 8} <= set(line.ranges)


def test_what_is_fetched_ahead_of_someone_who_does_not_wait_is_one_request(tmp_path: Path) -> None:
    line = Line(10)
    early, last = threading.Event(), threading.Event()
    line.flows = lambda number: number == 0 or (last if number >= 6 else early).is_set()
    tally = Tally()
    reading = ShardWindow(10, tally)
    node = line.pipeline(tmp_path / "cache", 10).node
    cursor = node.cursor(Run(0, reading, paths=paths_of(node)), (0,))
    cursor.reset(None)
    assert next(cursor) == line.samples[0]
    early.set()
    eventually(lambda: tally.at_hand() == 5 * ROWS and {6, 7, 8, 9} <= {*line.begun})
    assert [next(cursor) for _ in range(5)] == line.samples[1:6]
    time.sleep(0.05)  # in which chunks come, and nobody stands still
    assert not {6, 7, 8, 9} & {*line.ranges}
    last.set()
    assert [*cursor] == line.samples[6:]
    reading.close()
