"""One shard of those that a running pipeline has at hand, or is going to have."""

from __future__ import annotations

from dload.cache import Seat
from dload.manifest import ShardInfo
from dload.run.demand import Key, Origin
from dload.run.open_shard import OpenShard


class Entry:
    """One shard in the window. `result` is None while it isn't there.

    `parked`: there was no room for it, or others needed its room; it isn't tried again before the consumer has moved on
    or asks for it. `failed`: fetching it ahead has failed; it isn't tried again before the consumer asks for it.
    """

    __slots__ = ("blocked", "busy", "ended", "failed", "info", "key", "left", "origin", "parked", "result", "seat")

    def __init__(self, key: Key, origin: Origin, info: ShardInfo, seat: Seat) -> None:
        self.key = key
        self.origin = origin
        self.info = info
        self.seat = seat
        self.left = info.num_samples  # that weren't read yet
        self.busy = False
        self.parked = False
        self.failed = False
        self.blocked: tuple[int, float] | None = None  # bytes that other readers hold, since when
        self.result: OpenShard | BaseException | None = None
        self.ended = 0.0  # when it came

    @property
    def to_fetch(self) -> bool:
        return self.result is None and not (self.busy or self.parked or self.failed)

    def dispose(self, next_use: float | None = None) -> None:
        if isinstance(self.result, OpenShard):
            self.result.close(next_use)
        self.result = None
