"""Pipelines without storage, and what every node must hold to: it restores anywhere, and its places are what they
seem."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from dload.manifest import Manifest, ShardList
from dload.pipeline.cursors import SteadyCursor
from dload.pipeline.lanes import Lane
from dload.pipeline.node import Node, paths_of
from dload.pipeline.promises import settled
from dload.pipeline.running import Cursor, Epoch, Feed, Need, Run
from dload.pipeline.sources import Samples
from dload.run.demand import Demand

LARGE = 8 << 20  # bytes of a sample by which every chunk is one element, so that reads can be counted


def made_source(
    sizes: Sequence[int],
    name: str = "made",
    sample_bytes: int = 100,
    fields: Callable[[int], dict[str, bytes]] | None = None,
) -> Samples:
    """A source with shards of so many samples, that `MemoryRows` makes up when they are read; `fields(ordinal)` gives
    their fields, which have none otherwise."""
    digests = [hashlib.sha256(f"{name} {number}".encode()).hexdigest() for number in range(len(sizes))]
    shards = ShardList.of_columns(digests, [size * sample_bytes for size in sizes], sizes, [0] * len(sizes))
    version = hashlib.sha256(f"{name} {list(sizes)}".encode()).hexdigest()
    return Samples(Manifest(name, version, shards), fields)


class MemoryRows:
    """Samples `(name/ordinal, {})`, made up. Counts them in `count`, and refuses those that no cursor's demand
    holds."""

    def __init__(self) -> None:
        self.count = 0
        self.last: list[tuple[Samples, int]] = []  # source and shard of each sample of the latest read
        self.feeds: list[CheckingFeed] = []
        self.checking = True

    def read(self, source: Samples, ordinals: Sequence[int]) -> list[Any]:
        self.last = [(source, source.manifest.locate(ordinal)[0]) for ordinal in ordinals]
        self.count += len(ordinals)
        if self.checking:
            for key in set(self.last):
                assert self._demanded(*key), f"shard {key[1]} was read, and nobody needed it"
        name, fields = source.manifest.name, source.origin
        return [(f"{name}/{ordinal}", fields(ordinal) if fields else {}) for ordinal in ordinals]

    def _demanded(self, source: Samples, shard: int) -> bool:
        left = list(self.feeds)
        while not any(feed.holds(source, shard) for feed in self.feeds):
            left = [feed for feed in left if feed.look(1024)]
            if not left:
                return any(feed.holds(source, shard) for feed in self.feeds)
        return True

    def follow(self, demand: Iterator[Need], later: Callable[[int], Iterator[Need]] | None = None) -> Feed:
        feed = CheckingFeed(self, demand)
        self.feeds.append(feed)
        return feed


class CheckingFeed:
    """Knows what a cursor may read."""

    def __init__(self, rows: MemoryRows, demand: Iterator[Need]) -> None:
        self._rows, self._demand = rows, demand
        self._needs: list[Need] = []
        self.place = 0

    def holds(self, source: Samples, shard: int) -> bool:
        """Whether the shard is among what the cursor needs now, as far as that was looked at."""
        return any(need.shard == shard and need.source is source for need in self._needs)

    def look(self, places: int) -> bool:
        """Look a little further into the demand; False where it goes beyond so many places."""
        need = next(self._demand, None)
        if need is None:
            return False
        self._needs.append(need)
        return need.first < max(self.place, self._needs[0].first) + places

    def advance(self, place: int) -> None:
        assert place >= self.place
        self.place = place
        self._needs = [need for need in self._needs if need.last > place]

    def close(self) -> None:
        self._rows.feeds.remove(self)


class Ordinals:
    """Samples that are their numbers: nothing is read. Of a demand it looks at the first `ahead` needs, as a window
    does, and fetches nothing."""

    def __init__(self, ahead: int = 0) -> None:
        self._ahead = ahead

    def read(self, source: Samples, ordinals: Sequence[int]) -> list[Any]:
        return list(ordinals)

    def follow(self, demand: Iterator[Need], later: Callable[[int], Iterator[Need]] | None = None) -> Feed:
        return _Looking(demand, self._ahead)


class _Looking:
    def __init__(self, demand: Iterator[Need], ahead: int) -> None:
        self._demand = Demand(demand if ahead else iter(()))
        self._demand.look(ahead)

    def advance(self, place: int) -> None:
        self._demand.place = place

    def close(self) -> None:
        pass


class Streamed(Node):
    """The same elements in the stream tier."""

    kind = "streamed"

    def __init__(self, parent: Node) -> None:
        super().__init__(parent)

    @property
    def indexed(self) -> bool:
        return False

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        return self.parents[0].cursor(run, epoch)


def make_run(node: Node, seed: int = 5, homes: int = 1, lane: Lane | None = None) -> tuple[Run, MemoryRows]:
    """A run of a pipeline over made-up samples."""
    rows = MemoryRows()
    return Run(seed, rows, homes, paths_of(node), lane or Lane()), rows


def top_cursor(node: Node, run: Run, epoch: Epoch) -> Cursor:
    """A pass as a runner makes it."""
    cursor = node.cursor(run, epoch)
    return cursor if node.indexed else SteadyCursor(cursor)


def elements(
    node: Node, epoch: int = 0, most: int | None = None, seed: int = 5, homes: int = 1, lane: Lane | None = None
) -> list[Any]:
    """What one epoch gives (to a lane), HOLEs among it; at most so many."""
    run, rows = make_run(node, seed, homes, lane)
    cursor = top_cursor(node, run, (epoch,))
    cursor.reset(None)
    found = list(islice(cursor, most))
    if most is None:
        assert not rows.feeds, "a cursor at its end still asks for shards"
        assert next(cursor, None) is None, "a cursor at its end gives elements"
    cursor.close()
    run.workers.close()
    assert not rows.feeds, "a closed cursor still asks for shards"
    return found


def restores_everywhere(
    make: Callable[[], Node],
    *,
    most: int = 60,
    again: int | None = None,
    state_size: int = 600,
    lane: Lane | None = None,
) -> list[Any]:
    """Restore epochs 0 and 1 of `make()` at every step from their states, as JSON, in fresh nodes, runs and cursors,
    and compare all that follows and the next epoch. At most `most` elements of each epoch are looked at.

    `again`: how many samples going on may at most read that were read before; sources must be made of LARGE samples
    then. Gives the elements of epoch 0.
    """
    whole = [elements(make(), epoch, most, lane=lane) for epoch in range(3)]
    for epoch in range(2):
        for step, (state, reads_left) in enumerate(_states(make(), epoch, most, lane)):
            where = f"epoch {epoch}, step {step}, state {state}"
            assert len(state) <= state_size, where
            node = make()
            run, rows = make_run(node, lane=lane)
            cursor = top_cursor(node, run, (epoch,))
            cursor.reset(json.loads(state))
            assert json.dumps(cursor.get_state()) is not None
            rest = list(islice(cursor, max(0, most - step)))
            assert rest == whole[epoch][step:], where
            if again is not None:
                assert rows.count <= reads_left + again, where
            cursor.close()
            assert not rows.feeds, where
            following = top_cursor(node, run, (epoch + 1,))
            following.reset(None)
            assert list(islice(following, most)) == whole[epoch + 1], where
            run.workers.close()
    return whole[0]


def _states(node: Node, epoch: int, most: int, lane: Lane | None) -> list[tuple[str, int]]:
    """At each step of an epoch: the state as JSON, and how many samples are read from there on."""
    run, rows = make_run(node, lane=lane)
    cursor = top_cursor(node, run, (epoch,))
    cursor.reset(None)
    found = []
    for _ in range(most + 1):
        found.append((json.dumps(cursor.get_state()), rows.count))
        if next(cursor, found) is found:
            found.append((json.dumps(cursor.get_state()), rows.count))
            break
    run.workers.close()
    return [(state, rows.count - count) for state, count in found]


def places_hold(make: Callable[[], Node], *, most: int = 60, homes: int = 1, seed: int = 0) -> list[Any]:
    """Check an index-tier node against its own cursor: any places in any order, length, identities, units, and that its
    demand holds every shard that a place reads. Gives its elements."""
    node = make()
    expected = elements(make(), 0, most, homes=homes)
    run, rows = make_run(node, homes=homes)
    rows.checking = False
    epoch = (0,)
    if node.length is not None and node.length <= most:
        assert len(expected) == node.length
        assert sum(node.units()) == node.length
        assert all(size > 0 for size in node.units())
    count = len(expected)
    rng = random.Random(seed)
    names = node.identities(run, epoch, range(count))
    for places in (range(count), range(count)[::-1], rng.choices(range(count), k=20) if count else []):
        assert settled(node.fetch(run, epoch, places)) == [expected[place] for place in places]
        assert node.identities(run, epoch, places) == [names[place] for place in places]
    for _ in range(4):
        start, stop = sorted(rng.choices(range(count + 1), k=2))
        assert settled(node.fetch(run, epoch, range(start, stop))) == expected[start:stop]
        needs = list(node.demand(run, epoch, start, stop))
        assert [need.first for need in needs] == sorted(need.first for need in needs)
        assert all(start <= need.first < need.last <= stop for need in needs)
        for place in range(start, stop):
            rows.last = []
            node.fetch(run, epoch, [place])
            at_hand = {(need.source, need.shard) for need in needs if need.first <= place < need.last}
            assert set(rows.last) <= at_hand, f"place {place} reads a shard that isn't in the demand"
    return expected
