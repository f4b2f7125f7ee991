"""Patience with others who hold the room that is needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dload.cache import turn
from dload.cache.room import Blocked, Room
from dload.cache.turn import Seat
from dload.errors import CacheFullError
from dload.sizes import format_size

# Seconds between two looks: by who has the turn, and by who hasn't, which is cheap; by who fetches ahead and is in no
# hurry; and at what is in the way, which reads the directory.
_WITH_TURN = 0.02
_WITHOUT_TURN = 0.01
_AHEAD = 0.25
_LOOK = 0.5


class Waiting:
    """One reader's wait for one shard: as long as something changes hands, and a while longer. A context manager."""

    def __init__(
        self, room: Room, name: str, size: int, label: str, *, patience: float, seat: Seat | None,
        urgent: Callable[[], bool], pause: Callable[[float], object],
    ) -> None:  # fmt: skip
        self.waited = False
        self.seat = seat
        self._passing: Seat | None = None  # where the reader has none of his own
        self._room = room
        self._name = name
        self._size = size
        self._label = label
        self._patience = patience
        self._urgent = urgent
        self._pause = pause
        self._last: Blocked | None = None
        self._since = 0.0

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.over()
        if self._passing is not None:
            self._passing.close()

    def over(self) -> None:
        """It isn't room that is waited for any more."""
        if self._last is not None:
            turn.got(self._room.root, self._name)

    def for_room(self, blocked: Blocked, final: Path) -> None:
        """Wait a moment, then look again; also for `final`, which someone else may bring.

        Raises CacheFullError where nothing has changed for too long, and what the reader's `pause` raises.
        """
        self.waited = True
        now = time.monotonic()
        if blocked != self._last:
            self._last, self._since = blocked, now
        elif now - self._since > self._patience:
            raise self._in_vain(blocked)
        if not self._urgent():
            self._pause(_AHEAD)
            return
        if self.seat is None:
            self.seat = self._passing = Seat(self._room.root)
        if self._room.take_turn(self.seat, self._name, self._size):
            self._pause(_WITH_TURN)
            return
        while time.monotonic() < now + _LOOK and not final.exists():
            turn.make_way(self._room.root)
            self._pause(_WITHOUT_TURN)
            if self._room.take_turn(self.seat, self._name, self._size):
                return

    def _in_vain(self, blocked: Blocked) -> CacheFullError:
        who = ", ".join(blocked.holders) or "other processes"
        return CacheFullError(
            f"no room for {self._label} ({format_size(self._size)}) in the cache: what {who} hold "
            f"({len(blocked.files)} files) hasn't changed for {self._patience:g} s",
            remedy="raise the cache budget (DLOAD_CACHE_BUDGET) or end one of these processes",
            needed=self._size, holders=list(blocked.holders),
        )  # fmt: skip
