"""Scans that go over the same shards again and again, and the fewest downloads that a cache can need for them."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator, Sequence

from dload.cache import ShardCache

Epochs = Sequence[Sequence[int]]
"""For each epoch the shards, by number, in the order in which they are read."""


def orders(shards: int, epochs: int, *, shuffled: bool, seed: int = 7) -> list[list[int]]:
    rng = random.Random(seed)
    return [rng.sample(range(shards), shards) if shuffled else list(range(shards)) for _ in range(epochs)]


def uses(epochs: Epochs) -> list[tuple[int, float]]:
    """(shard, steps until its next use) at each step; infinite after the last."""
    demand = [shard for epoch in epochs for shard in epoch]
    upcoming: dict[int, int] = {}
    ahead = [float("inf")] * len(demand)
    for step in reversed(range(len(demand))):
        if demand[step] in upcoming:
            ahead[step] = upcoming[demand[step]] - step
        upcoming[demand[step]] = step
    return list(zip(demand, ahead, strict=True))


def optimum(epochs: Epochs, room: int) -> int:
    """Downloads of Belady's rule: the victim is what is needed farthest ahead. Nothing can need fewer."""
    return _simulated(epochs, room, lambda step, ahead: step + ahead)


def least_recently_used(epochs: Epochs, room: int) -> int:
    """Downloads of a cache whose victim is what was used longest ago."""
    return _simulated(epochs, room, lambda step, ahead: -step)  # noqa: ARG005


def _simulated(epochs: Epochs, room: int, rank: Callable[[int, float], float]) -> int:
    resident: dict[int, float] = {}
    downloads = 0
    for step, (shard, ahead) in enumerate(uses(epochs)):
        if shard not in resident:
            downloads += 1
            if len(resident) == room:
                del resident[max(resident, key=resident.__getitem__)]
        resident[shard] = rank(step, ahead)
    return downloads


def scan(
    cache: ShardCache, epochs: Epochs, size: int, *, informed: bool, clock: Callable[[], float] = time.monotonic
) -> int:
    """Read shards of `size` made-up bytes through a real cache; returns how many were downloaded.

    `informed`: whether the cache is told when each is needed again, estimated by the pace so far.
    """
    bodies = {shard: random.Random(shard).randbytes(size) for shard in {one for epoch in epochs for one in epoch}}
    digests = {shard: hashlib.sha256(body).hexdigest() for shard, body in bodies.items()}
    downloads = 0
    began = clock()
    for step, (shard, ahead) in enumerate(uses(epochs), 1):

        def open_stream(start: int, body: bytes = bodies[shard]) -> Iterator[bytes]:
            nonlocal downloads
            downloads += 1
            yield body[start:]

        pin = cache.ensure(digests[shard], size, open_stream)
        seconds = min(ahead, 1e9) * (clock() - began) / step
        pin.release(seconds if informed else None)
    return downloads
