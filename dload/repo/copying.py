"""Copying a version to another store under the same ids: shards byte for byte, the manifest byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dload.errors import ConflictError, IntegrityError
from dload.manifest import Manifest, ShardInfo
from dload.repo import keys
from dload.repo.commit import staging
from dload.repo.history import History
from dload.repo.leases import Lease
from dload.repo.parallel import ordered
from dload.repo.publish import missing_shards, publish, put_once
from dload.repo.readback import fetched
from dload.repo.refs import OvertakenError, new_record, read_latest, require_conditions


def copy(
    source: History,
    target: History,
    name: str,
    version: str,
    *,
    jobs: int = 4,
    tell: Callable[[str], object] | None = None,
) -> Manifest:
    """Make a version (its full id) of `source` the latest of the same name in `target`, sending only what is missing
    there.

    Raises ConflictError where the target's latest moves meanwhile; IntegrityError where a shard doesn't arrive as its
    digest says; NotFoundError, RemovedError.
    """
    source.check_living(name, version)
    manifest, data = source.stored_manifest_and_bytes(name, version)
    base = read_latest(target.store, name)
    with Lease(target.store, name, base.version if base and not base.removed else None) as lease:
        require_conditions(target.store, unsafe=False)
        lease.cover([version, *manifest.shards.digests], waiting=tell)
        missing = missing_shards(target.store, manifest.shards)
        with staging(target.store) as folder:
            for number, shard in enumerate(ordered(lambda s: _transfer(source, target, s, folder), missing, jobs), 1):
                if tell is not None:
                    tell(f"shard {number} of {len(missing)}: {shard.size} B copied, {shard.digest[:12]}")
        still = missing_shards(target.store, manifest.shards)
        if still:
            raise IntegrityError(
                f"{len(still)} shards are missing from {target.store.url} after the copy", remedy="copy again"
            )
        put_once(target.store, keys.manifest_key(name, version), data)
        if base is not None and not base.removed and base.version == version:
            target.forget_removal(name, version)
            return manifest
        record = new_record(
            manifest,
            seq=base.seq + 1 if base else 1,
            parent=base.version if base and not base.removed else None,
            op="commit",
            message=f"copied from {source.store.url}",
        )
        try:
            publish(target, lease, name, base, manifest, record, data=data)
        except OvertakenError as error:
            raise ConflictError(
                f"{error.message}; everything of {version[:12]} is copied, but it isn't the latest",
                remedy=f"to make it so: dload revert {name} {version[:12]}",
            ) from error
    return manifest.with_created(record.time)


def _transfer(source: History, target: History, shard: ShardInfo, folder: Path) -> ShardInfo:
    key = keys.shard_key(shard.digest)
    with fetched(shard, lambda: source.store.stream(key), folder, f"{key} in {source.store.url}") as path:
        target.store.put_file(key, path, move=True)
    return shard
