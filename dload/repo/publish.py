"""The moment at which a version becomes the latest: what must hold before it, and what is looked at after it."""

from __future__ import annotations

from collections.abc import Iterable

from dload.errors import ConflictError, PreconditionFailedError
from dload.manifest import Manifest, ShardInfo
from dload.repo import keys
from dload.repo.history import History, tombstone_bytes
from dload.repo.leases import Lease
from dload.repo.parallel import ordered
from dload.repo.refs import Record, Ref, author, move_latest, read_latest, record_again
from dload.store.base import Store

_JOBS = 16


def publish(
    history: History,
    lease: Lease,
    name: str,
    base: Ref | None,
    manifest: Manifest,
    record: Record,
    *,
    data: bytes | None = None,
    unsafe: bool = False,
) -> None:
    """Make `record`, of this manifest, the latest in place of `base`, as it was read. The lease covers the version.

    `data`: the manifest's bytes, so that it can be written once more where a gc has just taken it. Raises ConflictError
    where someone else was first, and where the lease ran out and a gc was at the version: then latest is as before.
    """
    history.preserve(name, base)
    try:
        lease.check()
    except ConflictError:
        hide_torn(history.store, manifest)
        raise
    move_latest(history.store, name, base, record, unsafe=unsafe)
    # What is latest isn't removed, whatever its tombstone says; so that goes now, and not before the ref has moved.
    history.forget_removal(name, manifest.version)
    if _is_safe(history.store, lease, manifest, data):
        return
    hide_torn(history.store, manifest)
    moved_back = _move_back(history, name, base, record, unsafe)
    raise ConflictError(
        f"this change of {name} took longer than its lease, and a gc deleted shards of it meanwhile"
        + ("; latest was moved back" if moved_back else ""),
        remedy="do it again: only what is missing is sent",
    )


def _is_safe(store: Store, lease: Lease, manifest: Manifest, data: bytes | None) -> bool:
    """Whether the version is all there, now that the ref has moved."""
    key = keys.manifest_key(manifest.name, manifest.version)
    if data is not None and store.head(key) is None:
        put_once(store, key, data)
    landed = store.head(keys.latest_key(manifest.name))
    if landed is None or lease.held(landed.modified):
        return True
    return store.head(key) is not None and not missing_shards(store, manifest.shards)


def hide_torn(store: Store, manifest: Manifest) -> None:
    """Give a version a tombstone if its manifest is there and shards of it aren't: a gc took them from a writer who was
    frozen, before he wrote the manifest. Else an old record could make it look alive."""
    key = keys.manifest_key(manifest.name, manifest.version)
    if store.head(key) is not None and missing_shards(store, manifest.shards):
        store.put(keys.removed_key(manifest.name, manifest.version), tombstone_bytes(author()))


def _move_back(history: History, name: str, base: Ref | None, record: Record, unsafe: bool) -> bool:
    """Undo `record`, if it is still the latest."""
    now = read_latest(history.store, name)
    if now is None or now.record != record:
        return False
    before = record if base is None else base.record or history.record_of(name, base.version)
    back = record_again(
        before,
        seq=record.seq + 1,
        parent=record.version,
        message=f"undoes number {record.seq}, whose shards were collected before it landed",
        op="remove" if base is None or base.removed else "revert",
    )
    move_latest(history.store, name, now, back, unsafe=unsafe)
    return True


def missing_shards(store: Store, shards: Iterable[ShardInfo]) -> list[ShardInfo]:
    """Those that the store lacks, or has in another size. One request each, side by side."""

    def lacks(shard: ShardInfo) -> ShardInfo | None:
        info = store.head(keys.shard_key(shard.digest))
        return None if info is not None and info.size == shard.size else shard

    return [shard for shard in ordered(lacks, shards, _JOBS) if shard is not None]


def put_once(store: Store, key: str, data: bytes) -> None:
    """Write an object whose name says what is in it; one that is there already is as good."""
    if not store.conditional():
        store.put(key, data)
        return
    try:
        store.put_if(key, data, etag=None)
    except PreconditionFailedError:
        return
