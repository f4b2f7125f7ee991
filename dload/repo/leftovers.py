"""What lies in a store that isn't part of any data set: remains of what was cut off, and objects of others."""

from __future__ import annotations

from dataclasses import dataclass, field

from dload.repo import keys
from dload.repo.gc import UNFINISHED, drop_unfinished, gc
from dload.repo.history import History
from dload.repo.leases import SLACK, TTL, read_lease
from dload.store.base import ObjectInfo, Store

_NAMED = 10  # foreign keys that are named


@dataclass
class Leftovers:
    """What was found. The next gc drops all but what is foreign: that it never touches.

    `writers` at work now, `dead_leases` of those that were killed, or are done and may not delete; `gc`: whether one is
    at work or was cut off, maybe in the middle of deleting; `uploads` that never ended, begun more than a day ago;
    `foreign`: the first keys of `foreign_count` that dload doesn't make. `garbage`: how many shards and manifests no
    version needs, and their bytes; None where the store wasn't listed whole.
    """

    writers: int = 0
    dead_leases: int = 0
    gc: str | None = None
    uploads: int = 0
    foreign: list[str] = field(default_factory=list)
    foreign_count: int = 0
    garbage: tuple[int, int] | None = None


def leftovers(store: Store, *, deep: bool = False) -> Leftovers:
    """Look for what was left. Reads leases and locks, lists the folders at the top; `deep` lists the whole store, a
    request for each thousand objects, and reads all manifests. Changes nothing.
    """
    found, now = Leftovers(), store.clock()
    _leases(store, now, found)
    marks = [info for info in map(store.head, (keys.GC_LOCK, keys.GC_PLAN)) if info is not None]
    if marks:
        alive = now <= max(info.modified for info in marks) + TTL + SLACK
        found.gc = "at work" if alive else "cut off"
    found.uploads = drop_unfinished(store, UNFINISHED, dry_run=True)
    if deep:
        strange = [info.key for info in store.list("") if not keys.is_ours(info.key)]
        report = gc(History(store), dry_run=True)
        items = [*report.manifests, *report.shards, *report.kept]
        found.garbage = len(items), sum(item.size for item in items)
    else:
        ours = {key.partition("/")[0] for key in (keys.DATASETS, keys.SHARDS, keys.LEASES, keys.GC_LOCK)}
        strange = [f"{name}/" for name in store.list_folders("") if name not in ours]
    found.foreign, found.foreign_count = sorted(strange)[:_NAMED], len(strange)
    return found


def _leases(store: Store, now: float, found: Leftovers) -> None:
    parts: dict[str, list[ObjectInfo]] = {}
    for info in store.list(keys.LEASES):
        if keys.is_ours(info.key):
            parts.setdefault(info.key.split("/")[1], []).append(info)
    for lease, objects in parts.items():
        alive = now <= max(info.modified for info in objects) + TTL + SLACK and not _ended(store, lease, objects, now)
        found.writers += alive
        found.dead_leases += not alive


def _ended(store: Store, lease: str, objects: list[ObjectInfo], now: float) -> bool:
    """Whether its writer is done, and may only not delete it."""
    own = [info for info in objects if info.key == keys.lease_key(lease)]
    read = read_lease(store, own[0], now) if own else None
    return read is not None and read.ended
