"""Collecting garbage: the only code that deletes manifests and shards.

Roots are all manifests, superseded ones too, except those whose removal is past its time and those that were never
published. What no root reaches, no lease covers and is older than the grace is garbage. It is planned first, and the
plan is an object that can be shown; then it is written to the store, where writers see it; then everything that could
have changed meanwhile is read again; only then is anything deleted, manifests before shards.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType

from dload.errors import (
    ConflictError,
    NotFoundError,
    PackFormatError,
    PreconditionFailedError,
    UnavailableError,
)
from dload.manifest import decode, is_version
from dload.repo import keys
from dload.repo.history import History
from dload.repo.leases import SLACK, TTL, read_lease
from dload.repo.parallel import ordered
from dload.repo.refs import Record, author, read_latest, require_conditions
from dload.store.base import ObjectInfo, Store

GRACE = 7 * 86400.0  # seconds that unreachable objects and removed versions are kept
UNFINISHED = 86400.0  # seconds after which a write that hasn't ended was cut off, whatever the grace
_JOBS = 16
_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Item:
    """One manifest or shard that nothing living needs: `reason` says why it goes, or why it stays for now."""

    key: str
    size: int
    reason: str
    ready_in: float = 0.0  # seconds until it is old enough


@dataclass
class GcReport:
    """What gc found and did. Iterates as (shards deleted, bytes freed)."""

    dry_run: bool
    manifests: list[Item] = field(default_factory=list)  # deleted (or to be, in a dry run)
    shards: list[Item] = field(default_factory=list)
    kept: list[Item] = field(default_factory=list)  # garbage that stays for now
    unfinished: int = 0  # writes cut off whose remains were dropped

    @property
    def deleted_shards(self) -> int:
        return len(self.shards)

    @property
    def freed_bytes(self) -> int:
        return sum(item.size for item in self.shards)

    def __iter__(self) -> Iterator[int]:
        return iter((self.deleted_shards, self.freed_bytes))


def gc(
    history: History, *, grace: float = GRACE, dry_run: bool = False, tell: Callable[[str], object] | None = None
) -> GcReport:
    """Delete what no living version needs; with `dry_run`, only say what that would be (reads alone).

    `grace`: seconds. Raises ConflictError while another gc runs; PackFormatError where a manifest can't be read (then
    nothing is deleted); AccessError, naming the permission, where deleting is denied.
    """
    history = History(history.store)  # never trust a cache here
    if dry_run:
        return _plan(history, grace, GcReport(dry_run=True))
    with _Lock(history.store) as lock:
        report = _plan(history, grace, GcReport(dry_run=False))
        if report.manifests or report.shards:
            _execute(history, lock, grace, report, tell)
        else:
            _leases_now(history.store, drop=True)
        report.unfinished = drop_unfinished(history.store, max(grace, UNFINISHED))
        return report


def drop_unfinished(store: Store, age: float, *, dry_run: bool = False) -> int:
    """Drop what writes of dload's that were cut off more than `age` seconds ago have left. Returns how many."""
    return store.abort_unfinished(store.clock() - age, mine=keys.is_ours, dry_run=dry_run)


# ---- what lives
@dataclass
class _Living:
    """What a store's living versions need, at one look."""

    digests: set[str] = field(default_factory=set)
    dead: dict[str, tuple[ObjectInfo, str]] = field(default_factory=dict)  # key of a manifest -> why it may go
    waiting: list[Item] = field(default_factory=list)  # manifests that will go, not yet


def _survey(history: History, now: float, grace: float, leased: set[str]) -> _Living:
    found = _Living()
    for name in sorted(history.store.list_folders(keys.DATASETS)):
        keys.check_known_name(name)  # what a data set needs that can't be read isn't known
        _survey_dataset(history, name, now, grace, leased, found)
    return found


def _survey_dataset(history: History, name: str, now: float, grace: float, leased: set[str], found: _Living) -> None:
    # Refs, tags, derived, tombstones and the log first, manifests after: a version that is published meanwhile
    # has its manifest before its ref, so it is seen among the manifests at the latest.
    store = history.store
    latest = read_latest(store, name)
    visible = set(history.tags(name).values())  # and so never removed, whatever tombstone a race has left
    if latest is not None and not latest.removed:
        visible.add(latest.version)
    named = visible | _derived(store, name) | _logged(store, name)
    if latest is not None:
        named.add(latest.version)
    tombstones = {_version_of(info.key): info.modified for info in store.list(keys.removed_prefix(name))}
    if latest is not None and latest.removed:
        removed = store.head(keys.latest_key(name))
        whole = removed.modified if removed else now
    else:
        whole = None
    manifests = [info for info in store.list(keys.manifests_prefix(name)) if is_version(_version_of(info.key))]
    for info, (digests, fmt) in zip(
        manifests, ordered(lambda i: _shards_of(store, i.key), manifests, _JOBS), strict=True
    ):
        version = _version_of(info.key)
        verdict = _verdict(info, version in named or fmt == 1, tombstones.get(version, whole), now, grace)
        if verdict is None or version in leased or version in visible:
            found.digests.update(digests)
        elif verdict.ready_in > 0:
            found.digests.update(digests)
            found.waiting.append(verdict)
        else:
            found.dead[info.key] = (info, verdict.reason)


def _verdict(info: ObjectInfo, published: bool, removed: float | None, now: float, grace: float) -> Item | None:
    """Why and when a manifest may go; None where it is a root."""
    if removed is not None:
        return Item(info.key, info.size, "removed", max(0.0, removed + grace - now))
    if not published:
        return Item(info.key, info.size, "never published", max(0.0, info.modified + grace - now))
    return None


def _version_of(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(".json")


def _shards_of(store: Store, key: str) -> tuple[list[str], int]:
    """The shards that a manifest names, and its format."""
    try:
        manifest = decode(store.get(key).data, version=_version_of(key), where=key)
    except NotFoundError:  # deleted since it was listed
        return [], 2
    return list(manifest.shards.digests), manifest.format


def _derived(store: Store, name: str) -> set[str]:
    found = [info.key for info in store.list(keys.derived_prefix(name))]
    return {text.strip().decode("ascii", "replace") for text in ordered(lambda key: _text(store, key), found, _JOBS)}


def _logged(store: Store, name: str) -> set[str]:
    found = [info.key for info in store.list(keys.log_prefix(name))]
    return {
        Record.decode(text, key).version
        for key, text in zip(found, ordered(lambda k: _text(store, k), found, _JOBS), strict=True)
    }


def _text(store: Store, key: str) -> bytes:
    return store.get(key).data


@dataclass
class _Leases:
    """What live leases name, their parents and the shards of those included; who holds them."""

    ids: set[str] = field(default_factory=set)
    holders: list[str] = field(default_factory=list)


def _leases_now(store: Store, *, drop: bool) -> _Leases:
    """`drop`: delete the leases of the dead first, so that none of them can be renewed: whoever held one was frozen."""
    now, leases = store.clock(), _Leases()
    live, ended, dead, parts = set(), set(), [], []
    for info in store.list(keys.LEASES):
        lease, _, part = info.key.removeprefix(keys.LEASES).partition("/")
        if not keys.is_ours(info.key):
            continue
        if part != "lease":
            parts.append((lease, info))
            continue
        found = read_lease(store, info, now)
        if found is None:
            continue
        if found.ended:
            ended.add(lease)
            dead.append(info.key)
            continue
        live.add(lease)
        leases.holders.append(found.holder)
        if found.parent is not None:
            leases.ids.add(found.parent)
            leases.ids |= _parent_shards(store, found.dataset, found.parent)
    for lease, info in parts:
        if lease in live:
            leases.ids |= _batch(store, info.key)
        elif lease in ended or now > info.modified + TTL + SLACK:
            dead.append(info.key)
    if drop:
        store.delete_many(dead)
    return leases


def _parent_shards(store: Store, dataset: str, parent: str) -> set[str]:
    key = keys.manifest_key(dataset, parent)
    try:
        return set(decode(store.get(key).data, version=parent, where=key).shards.digests)
    except NotFoundError:
        return set()


def _batch(store: Store, key: str) -> set[str]:
    try:
        return set(json.loads(store.get(key).data))
    except NotFoundError:
        return set()
    except (ValueError, TypeError, RecursionError) as error:
        raise PackFormatError(f"{key} is not a list of ids: {error!r}", remedy="nothing was deleted") from error


# ---- plan and execute
def _plan(history: History, grace: float, report: GcReport) -> GcReport:
    store = history.store
    shards = list(store.list(keys.SHARDS))  # first: a shard that comes later is no candidate
    now = store.clock()
    leases = _leases_now(store, drop=False)
    living = _survey(history, now, grace, leases.ids)
    report.manifests = [Item(key, info.size, reason) for key, (info, reason) in living.dead.items()]
    report.kept = living.waiting
    for info in shards:
        digest = info.key.rpartition("/")[2]
        if not is_version(digest) or info.key != keys.shard_key(digest) or digest in living.digests:
            continue
        young = max(0.0, info.modified + grace - now)
        if digest in leases.ids:
            report.kept.append(Item(info.key, info.size, "a commit under way relies on it"))
        elif young > 0:
            report.kept.append(Item(info.key, info.size, "too young", young))
        else:
            report.shards.append(Item(info.key, info.size, "no version needs it"))
    if leases.holders:
        # What a commit has uploaded and not yet named in its lease is covered by this alone, whatever the grace.
        reason = f"a commit by {leases.holders[0]} is under way"
        report.kept += [Item(item.key, item.size, reason) for item in (*report.manifests, *report.shards)]
        report.manifests, report.shards = [], []
    return report


def _execute(
    history: History, lock: _Lock, grace: float, report: GcReport, tell: Callable[[str], object] | None
) -> None:
    store = history.store
    candidates = [*report.manifests, *report.shards]
    ids = [item.key.rpartition("/")[2].removesuffix(".json") for item in candidates]
    lock.renew()
    store.put(keys.GC_PLAN, json.dumps({"ids": ids, "ttl": lock.ttl, "author": author()}).encode())
    try:
        # A commit that saw no plan has its lease in the store by now; one that has ended since has dropped its lease
        # after its ref.
        leased = _leases_now(store, drop=True).ids
        living = _survey(history, store.clock(), grace, leased)
        _subtract(report, leased, living)
        spared: set[str] = set()
        for kind, items in (("manifests", report.manifests), ("shards", report.shards)):
            for start in range(0, len(items), _BATCH):
                batch = items[start : start + _BATCH]
                lock.renew()
                leased = _leases_now(store, drop=True).ids | spared
                staying = [item for item in batch if _id(item) in leased]
                if kind == "manifests":  # and with a manifest its shards stay
                    spared.update(*(_shards_of(store, item.key)[0] for item in staying))
                lock.check()
                store.delete_many(item.key for item in batch if _id(item) not in leased)
                report.kept += [Item(item.key, item.size, "a commit under way relies on it") for item in staying]
                if tell is not None:
                    tell(f"deleted {min(start + _BATCH, len(items))} of {len(items)} {kind}")
            kept = {item.key for item in report.kept}
            items[:] = [item for item in items if item.key not in kept]
    finally:
        if lock.owned():
            store.delete(keys.GC_PLAN)


def _id(item: Item) -> str:
    return item.key.rpartition("/")[2].removesuffix(".json")


def _subtract(report: GcReport, leased: set[str], living: _Living) -> None:
    """Take out of the plan what has come to life since it was made."""
    alive = {_id(item) for item in report.manifests if item.key not in living.dead} | living.digests | leased
    for items in (report.manifests, report.shards):
        for item in [item for item in items if _id(item) in alive]:
            items.remove(item)
            report.kept.append(Item(item.key, item.size, "came into use while gc looked"))


class _Lock:
    """The one gc of a store: an object written only where there is none, renewed, deleted at the end."""

    def __init__(self, store: Store, ttl: float = TTL) -> None:
        self.store = store
        self.ttl = ttl
        self._text = json.dumps({"id": secrets.token_hex(16), "author": author(), "ttl": ttl}).encode()
        self._etag = ""

    def __enter__(self) -> _Lock:
        require_conditions(self.store, unsafe=False)
        old = self._passed_over()
        self._write(old, "another gc took the lock first")
        if old is not None:  # the plan of whoever was killed counts no more
            self.store.delete(keys.GC_PLAN)
        return self

    def _passed_over(self) -> str | None:
        """The ETag of the lock of a gc that is dead, or None where there is no lock. Raises where one is alive."""
        try:
            body = self.store.get(keys.GC_LOCK)
        except NotFoundError:
            return None
        try:
            raw = json.loads(body.data)
            ttl, holder = float(raw["ttl"]), str(raw["author"])
        except (ValueError, KeyError, TypeError, RecursionError):
            ttl, holder = TTL, "unknown"
        # Whoever holds it may be frozen, not dead: its plan and lock block for a while beyond their ttl.
        if self.store.clock() > body.modified + ttl + SLACK:
            return body.etag
        raise ConflictError(
            f"another gc of {self.store.url} is running, by {holder}",
            remedy=f"wait for it; if it was killed, it is passed over after {(ttl + SLACK) / 60:.0f} minutes",
        )

    def _write(self, etag: str | None, lost: str) -> None:
        try:
            self._etag = self.store.put_if(keys.GC_LOCK, self._text, etag=etag)
        except PreconditionFailedError as error:
            raise ConflictError(f"gc stopped: {lost}", remedy="run it again") from error
        except UnavailableError:
            if not self.owned():  # else only the reply was lost
                raise

    def renew(self) -> None:
        """Before each batch. Raises ConflictError where it may not be the only gc any more."""
        self.check()
        self._write(self._etag, "its lock was taken over by another")

    def check(self) -> None:
        """Right before deleting. Raises ConflictError where the lock is another's, or was last renewed so long ago, by
        the store's clock, that a writer may soon take its plan for that of a dead gc."""
        if not self.owned(younger=self.ttl / 2):
            raise ConflictError(
                "gc stopped: its lock was not renewed in time, so it may not be the only one any more",
                remedy="run it again",
            )

    def owned(self, younger: float = float("inf")) -> bool:
        """Whether the lock is there and this gc's own, and was renewed less than so many seconds ago."""
        try:
            body = self.store.get(keys.GC_LOCK)
        except NotFoundError:
            return False
        if body.data != self._text:
            return False
        self._etag = body.etag
        return self.store.clock() < body.modified + younger

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (kind is None or issubclass(kind, Exception)) and self.owned():
            self.store.delete(keys.GC_LOCK)
