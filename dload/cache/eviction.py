"""Who goes first when room is needed: a pure rule over what the files say.

A file's mtime is the moment of its next expected use. On a scan that begins again and again, the best victim
is the one needed farthest ahead (Belady 1966); one that is long overdue was expected by a plan that isn't
running any more. So the victim is the file with the largest |mtime - now|. Where no next use is known, mtime
is the last use: the rule is LRU.
"""

from __future__ import annotations

from collections.abc import Iterable

from dload.cache.inventory import Entry, Kind

# Unfinished downloads that nobody works on go first; manifests, small and what an offline start needs, go
# last.
_RANK: dict[Kind, int] = {"failure": 0, "partial": 0, "shard": 1, "keys": 1, "manifest": 2}

# Estimates should err long: what is stamped too near stays while it isn't needed, and pushes out what is.
MARGIN = 1.5


def victims(entries: Iterable[Entry], now: float) -> list[Entry]:
    """The files that may be deleted, the first to go first. Whether one is in use is for the caller to find
    out.
    """
    candidates = [entry for entry in entries if entry.kind in _RANK]
    return sorted(candidates, key=lambda entry: (_RANK[entry.kind], -abs(entry.mtime - now), entry.name))


def stamp(now: float, next_use: float | None, current: float) -> float:
    """The mtime of a file that is released at `now` and expected again in `next_use` seconds (None: not
    known).

    `current` is its mtime: if another job expects it sooner, that stays.
    """
    if next_use is None:
        return now
    expected = now + MARGIN * next_use
    return current if now < current < expected else expected
