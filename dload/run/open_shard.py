"""One shard, from the store through the cache to its reader."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple

from dload.cache import Pin, Seat, ShardCache
from dload.errors import IntegrityError, PackFormatError
from dload.manifest import ShardInfo
from dload.pack import ShardReader
from dload.repo.keys import shard_key
from dload.run.indexes import indexes
from dload.store.base import Store

# A shard that someone stands still without comes over several connections, since a distant store gives each only so
# much: at 90 MB/s a connection, 64 MiB take 0.75 s over one and 0.15 s over these (benchmarks/cold.py). So does the
# rest of one that was begun before someone came to wait for it. Not a small one, which is there soon enough, and none
# that is fetched ahead, for which it is one request a shard: each costs two milliseconds of the interpreter.
_SPLIT_FROM = 16 << 20
_CONNECTIONS = 8
_LEAST_PIECE, _MOST_PIECE = 2 << 20, 8 << 20  # an eighth of the shard within these
_ATTEMPTS = 5


class OpenShard(NamedTuple):
    """A shard that is being read, and what keeps it in the cache."""

    pin: Pin
    reader: ShardReader

    def close(self, next_use: float | None = None) -> None:
        """Let both go; `next_use` as in Pin.release."""
        self.reader.close()
        self.pin.release(next_use)


def open_shard(
    store: Store,
    cache: ShardCache,
    shard: ShardInfo,
    *,
    next_use: float | None = None,
    pause: Callable[[float], object] = time.sleep,
    seat: Seat | None = None,
    urgent: Callable[[], bool] = lambda: True,
    hasten: Callable[[], bool] = lambda: False,
) -> OpenShard:
    """A shard, pinned and opened; fetched into the cache if it isn't there.

    Its digest has been checked by this process. `next_use`, `pause`, `seat` and `urgent` are ShardCache.ensure's;
    `pause(0)` is also called as bytes come, so that it can end a download by raising. Where `hasten` says so, at first
    or after a while, a large shard, or its rest, comes over several connections.
    Raises what the store, the cache and the reader raise.
    """
    name = f"{store.url}/{shard_key(shard.digest)}"

    def open_stream(start: int) -> Iterator[bytes]:
        for chunk in _fetched(store, shard, start, hasten):
            pause(0)
            yield chunk

    damaged = False
    for attempt in range(_ATTEMPTS):
        pin = cache.ensure(
            shard.digest, shard.size, open_stream, name=name, next_use=next_use, pause=pause, seat=seat,
            urgent=urgent,
        )  # fmt: skip
        try:
            reader = ShardReader.open(pin.path, name=name, index=indexes.get(store, shard))
            if len(reader) != shard.num_samples:
                reader.close()
                raise PackFormatError(
                    f"{name} has {len(reader)} samples, its manifest says {shard.num_samples}", key=name
                )
            indexes.keep(store, shard, reader.index)
            return OpenShard(pin, reader)
        except FileNotFoundError:  # someone else has found it damaged, and dropped it
            pin.release()
            if attempt == _ATTEMPTS - 1:
                raise
        except (PackFormatError, IntegrityError):
            if not damaged:
                cache.drop(pin)  # damaged on this disk after it was hashed, if it is sound in the store
            pin.release()
            if damaged:
                raise
            damaged = True
        except BaseException:
            pin.release()
            raise
    raise AssertionError("unreachable")


def _fetched(store: Store, shard: ShardInfo, start: int, hasten: Callable[[], bool]) -> Iterator[bytes]:
    """From a position on, by one request; where it comes to be hastened, the rest by several."""
    at = start
    divisible = shard.size >= _SPLIT_FROM and store.staging is None
    if not (divisible and hasten()):
        with closing(store.stream(shard_key(shard.digest), start)) as chunks:
            for chunk in chunks:
                yield chunk
                at += len(chunk)
                if divisible and shard.size - at > 2 * _piece(shard) and hasten():  # for less it isn't worth it
                    break
            else:
                return
    yield from _in_pieces(store, shard, at)


def _piece(shard: ShardInfo) -> int:
    return max(_LEAST_PIECE, min(shard.size // _CONNECTIONS, _MOST_PIECE))


def _in_pieces(store: Store, shard: ShardInfo, start: int) -> Iterator[bytes]:
    """By ranges side by side, in order: what has come early waits in memory, at most a piece a connection and two.

    Who closes it doesn't wait for requests under way: their threads end with them, or with the process.
    """
    key, size = shard_key(shard.digest), _piece(shard)
    wanted: SimpleQueue[tuple[int, Future[bytes]] | None] = SimpleQueue()

    def work() -> None:
        while (job := wanted.get()) is not None:
            at, piece = job
            try:
                piece.set_result(store.get_range(key, at, min(size, shard.size - at)))
            except BaseException as error:
                piece.set_exception(error)

    for number in range(_CONNECTIONS):
        threading.Thread(target=work, name=f"dload-piece-{number}", daemon=True).start()
    coming: deque[Future[bytes]] = deque()
    try:
        for at in range(start, shard.size, size):
            coming.append(Future())
            wanted.put((at, coming[-1]))
            if len(coming) == _CONNECTIONS + 2:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        with suppress(Empty):
            while True:
                wanted.get_nowait()
        for _ in range(_CONNECTIONS):
            wanted.put(None)
