"""Leases: what a writer relies on is written down before he relies on it, so that gc leaves it alone.

A lease holds no time of day. Its age is the store's clock minus its Last-Modified; renewing it is writing it again,
which only works while it is there: a gc deletes the leases of the dead before it deletes what they covered.
Writing it is also the permission check, before anything is read or hashed.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from dload.errors import AccessError, ConflictError, DloadError, LockTimeoutError, NotFoundError, PackFormatError
from dload.repo import keys
from dload.repo.refs import author
from dload.store.base import ObjectInfo, Store

TTL = 3600.0  # seconds that a lease holds without being renewed
SLACK = 900.0  # what a lease or plan counts beyond its ttl, for whoever would delete by it
BATCH = 1000  # ids in one object below a lease


class Lease:
    """One writer's lease, renewed by a thread of its own until it is left. A context manager.

    It covers every shard of `parent` (a version of `name`), and the ids (digests of shards, versions) given to `cover`.
    """

    def __init__(self, store: Store, name: str, parent: str | None, *, ttl: float = TTL) -> None:
        """Write the lease: one PUT. Raises AccessError where the credentials don't allow writing."""
        self.store = store
        self.ttl = ttl
        self.id = secrets.token_hex(16)
        self._facts = {"dataset": name, "parent": parent, "ttl": ttl, "author": author()}
        self._text = self._encoded()
        self._lock = threading.Lock()
        self._named = {parent} if parent is not None else set()
        self._ids: list[str] = []  # of the batch under way
        self._written = 0  # how many of them the store holds
        self._batches = 0  # batches that are full
        self._done = threading.Event()
        self.store.put(keys.lease_key(self.id), self._text)
        self._renewer = threading.Thread(target=self._renew, name="dload-lease", daemon=True)
        self._renewer.start()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Someone who presses Ctrl-C is not made to wait for a store that doesn't answer: the lease runs out by itself.
        self.drop(patience=None if kind is None or issubclass(kind, Exception) else 1.0)

    def _encoded(self, **more: object) -> bytes:
        return json.dumps({**self._facts, **more}).encode()

    def _renew(self) -> None:
        while not self._done.wait(self.ttl / 4):
            try:
                self._write_again()
            except DloadError:
                continue  # the next round tries again; publishing checks the lease's age by itself

    def _write_again(self) -> None:
        """Renew the lease. One that is gone or has run out is never brought back: what it covered may be gone, too."""
        key = keys.lease_key(self.id)
        body = self.store.get(key)
        if self.store.clock() >= body.modified + self.ttl:
            return
        if self.store.conditional():
            self.store.put_if(key, self._text, etag=body.etag)
        else:
            self.store.put(key, self._text)

    def remaining(self) -> float:
        """Seconds until it runs out, by the store's clock; 0 where it has, or is gone. Two requests."""
        info = self.store.head(keys.lease_key(self.id))
        return max(0.0, info.modified + self.ttl - self.store.clock()) if info else 0.0

    def held(self, moment: float) -> bool:
        """Whether it still held at a moment of the store's clock. One request."""
        info = self.store.head(keys.lease_key(self.id))
        return info is not None and moment <= info.modified + self.ttl

    def check(self) -> None:
        """Raises ConflictError where the lease has run out or is gone: what it covered may have been deleted."""
        if self.remaining() <= 0:
            raise ConflictError(
                "this writer's lease ran out or was removed, so a gc may have deleted what it relied on",
                remedy="do it again: only what is missing is sent",
            )

    def note(self, ids: Iterable[str]) -> None:
        """Cover what this writer has just uploaded; written with the next full batch or the next `cover`."""
        with self._lock:
            self._take(ids)
            while len(self._ids) >= BATCH:
                self._write_batch()

    def cover(self, ids: Iterable[str], *, waiting: Callable[[str], object] | None = None) -> None:
        """Before relying on objects that are there already: name them, then let no gc be about to delete them.

        After this, and only then, look whether they are there. Waits while a gc's plan names one of them; `waiting` is
        told so once. Raises LockTimeoutError after two hours of that.
        """
        wanted = set(ids)
        with self._lock:
            self._take(sorted(wanted))
            while self._ids and self._written < len(self._ids):
                self._write_batch()
        deadline = time.monotonic() + 2 * (TTL + SLACK)
        told = False
        while wanted & planned(self.store):
            if time.monotonic() > deadline:
                raise LockTimeoutError(
                    "a gc of this store has held objects of this commit for hours",
                    remedy="look at it with: dload doctor",
                )
            if waiting is not None and not told:
                waiting("waiting for a gc of this store to end")
                told = True
            time.sleep(1.0)

    def _take(self, ids: Iterable[str]) -> None:
        for each in ids:
            if each not in self._named:
                self._named.add(each)
                self._ids.append(each)

    def _write_batch(self) -> None:
        batch = self._ids[:BATCH]
        self.store.put(keys.lease_batch_key(self.id, self._batches), json.dumps(batch).encode())
        self._written = len(batch)
        if len(batch) == BATCH:
            self._batches += 1
            self._written = 0
            del self._ids[:BATCH]

    def drop(self, patience: float | None = None) -> None:
        """End the lease, waiting at most `patience` seconds. A key that may not delete writes into it that it ended.
        Failing to do either does no harm: it runs out by itself."""
        self._done.set()
        ending = threading.Thread(target=self._delete, name="dload-lease-end", daemon=True)
        ending.start()
        ending.join(patience)

    def _delete(self) -> None:
        self._renewer.join()  # else it might write the lease once more behind its deletion
        batches = self._batches + (1 if self._ids and self._written else 0)
        try:
            self.store.delete(keys.lease_key(self.id))
            if batches:
                self.store.delete_many([keys.lease_batch_key(self.id, number) for number in range(batches)])
        except AccessError:
            with suppress(DloadError):
                self.store.put(keys.lease_key(self.id), self._encoded(ended=True))
        except DloadError:
            pass


@dataclass(frozen=True, slots=True)
class Found:
    """A writer's lease as others see it. `ended`: its writer is done, or it ran out so long ago that he must be dead.
    `dataset`, `parent`: whose shards it covers besides the ids of its batches; `holder`: user@host."""

    ended: bool
    dataset: str
    parent: str | None
    holder: str


def read_lease(store: Store, info: ObjectInfo, now: float) -> Found | None:
    """The lease in an object that was listed; None where it is gone since. `now`: by the store's clock.

    Raises PackFormatError for what is no lease.
    """
    try:
        raw = json.loads(store.get(info.key).data)
        ended = bool(raw.get("ended")) or now > info.modified + float(raw["ttl"]) + SLACK
        return Found(ended, raw["dataset"], raw["parent"], str(raw.get("author")))
    except NotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PackFormatError(
            f"{info.key} is not a lease: {error!r}", remedy="nothing was deleted; look at it with: dload doctor"
        ) from error


def planned(store: Store) -> set[str]:
    """The ids that an active gc is about to delete. At most two requests.

    A plan counts until its lock's ttl and some slack have passed without a renewal.
    """
    try:
        body = store.get(keys.GC_PLAN)
    except NotFoundError:
        return set()
    try:
        plan = json.loads(body.data)
        ttl, ids = float(plan["ttl"]), set(plan["ids"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackFormatError(
            f"{keys.GC_PLAN} in {store.url} is not a gc's plan: {error!r}", remedy="look at it with: dload doctor"
        ) from error
    lock = store.head(keys.GC_LOCK)
    last = max(body.modified, lock.modified if lock else 0.0)
    return ids if store.clock() <= last + ttl + SLACK else set()
