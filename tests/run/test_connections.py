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
from dload.pipeline.sources import Samples
from dload.repo.keys import shard_key
from dload.run import window
from dload.store.memory import MemoryStore
from dload.testing.shards import made_samples, manifest_of, put_shard

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


def eventually(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.002)


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


def test_what_is_waited_for_goes_before_what_is_fetched_ahead(tmp_path: Path) -> None:
    line = Line(10)
    others = threading.Event()
    line.flows = lambda number: number == 0 or others.is_set()
    with line.pipeline(tmp_path / "cache", 10).iter() as samples:
        assert next(samples) == line.samples[0]
        eventually(lambda: len({*line.begun, *line.ranges}) == 10)
        line.ranges.clear()
        assert next(samples) == line.samples[1]
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
    line = Line(3)
    ahead = threading.Event()
    line.flows = lambda number: number < 2 or ahead.is_set()
    with line.pipeline(tmp_path / "cache", 2).iter() as samples:
        assert [next(samples), next(samples)] == line.samples[:2]
        eventually(lambda: 2 in line.begun)
        time.sleep(0.05)  # in which chunks come, and nobody stands still
        assert 2 not in line.ranges
        ahead.set()
        assert [*samples] == line.samples[2:]
