"""Taking versions out of sight and bringing them back. Nothing here deletes a manifest or a shard: only gc does."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dload.errors import ConfigError, ConflictError, IntegrityError, NotFoundError
from dload.manifest import Manifest
from dload.repo import keys
from dload.repo.history import History, tombstone_bytes
from dload.repo.publish import missing_shards, publish
from dload.repo.refs import Record, Ref, author, move_latest, new_record, read_latest, record_again


@dataclass(frozen=True, slots=True)
class Retention:
    """What becomes of one version under a rule, and why."""

    version: str
    kept: bool
    reason: str


def revert(history: History, name: str, version: str, message: str | None = None) -> Record:
    """Make an old version (its full id) the latest again, as a new record. Raises ConflictError where latest moved."""
    ref = history.latest(name)
    history.manifest(name, version)
    if ref.version == version:
        raise ConfigError(f"{version[:12]} is the latest version of {name} already", remedy=f"see: dload log {name}")
    return _move(history, name, ref, version, message)


def _move(history: History, name: str, ref: Ref, version: str, message: str | None) -> Record:
    """Make another living version the latest."""
    with history.holding(name, version) as (lease, manifest):
        history.check_living(name, version)
        parent = None if ref.removed else ref.version
        record = new_record(manifest, seq=ref.seq + 1, parent=parent, op="revert", message=message)
        publish(history, lease, name, ref, manifest, record)
        return record


# ---- remove
def remove_version(history: History, name: str, version: str) -> None:
    """Hide one version (its full id). Where it is the latest, latest moves to the newest living one before.

    Raises ConflictError, naming the tags, where it is tagged; NotFoundError, RemovedError.
    """
    ref = history.latest(name)
    history.check_living(name, version)
    history.stored_manifest(name, version)
    tags = [tag for tag, tagged in history.tags(name).items() if tagged == version]
    if tags:
        raise ConflictError(
            f"version {version[:12]} of {name} is tagged {', '.join(tags)}",
            remedy=f"first: dload untag {name} {tags[0]}",
        )
    if ref.version == version:
        others = [manifest for manifest in history.versions(name) if manifest.version != version]
        if not others:
            raise ConflictError(
                f"{version[:12]} is the only version of {name}", remedy=f"to remove the data set: dload rm {name}"
            )
        _move(history, name, ref, others[0].version, f"version {version[:12]} was removed")
    history.store.put(keys.removed_key(name, version), tombstone_bytes(author()))
    # Whoever makes it the latest, or tags it, looks for a tombstone after that; so one of the two sees the other.
    _refuse_named(history, name, version)


def _refuse_named(history: History, name: str, version: str) -> None:
    ref = read_latest(history.store, name)
    named = [tag for tag, tagged in history.tags(name).items() if tagged == version]
    if ref is not None and not ref.removed and ref.version == version:
        named.append("latest")
    if named:
        history.forget_removal(name, version)
        raise ConflictError(
            f"version {version[:12]} of {name} was made {named[0]} while it was removed; it stays",
            remedy=f"see: dload log {name}, dload tag {name}",
        )


def remove_dataset(history: History, name: str) -> Record:
    """Hide a whole data set. Raises ConflictError, naming them, while it has tags; NotFoundError, RemovedError."""
    ref = history.latest(name)
    tags = history.tags(name)
    if tags:
        raise ConflictError(
            f"data set {name!r} has tags: {', '.join(tags)}", remedy=f"first: dload untag {name} {next(iter(tags))}"
        )
    record = _remarked(history, name, ref, "remove")
    history.preserve(name, ref)
    move_latest(history.store, name, ref, record)
    tags = history.tags(name)
    if tags:  # made meanwhile: whoever makes one looks at the ref after it
        restore_dataset(history, name)
        raise ConflictError(
            f"data set {name!r} was tagged {next(iter(tags))} while it was removed; it stays",
            remedy=f"first: dload untag {name} {next(iter(tags))}",
        )
    return record


def _remarked(history: History, name: str, ref: Ref, op: str) -> Record:
    """A new record of the same version: the data set is removed, or is back."""
    old = ref.record or history.record_of(name, ref.version)
    return record_again(old, seq=ref.seq + 1, parent=ref.version, op=op, message=None)


# ---- undo
def restore_version(history: History, name: str, version: str) -> None:
    """Take back the removal of one version (its full id). Raises NotFoundError where it isn't removed or is
    collected."""
    if history.tombstone(name, version) is None:
        raise NotFoundError(f"version {version[:12]} of {name} is not removed", remedy=f"see: dload log {name}")
    with history.holding(name, version) as (lease, manifest):
        _refuse_torn(history, name, manifest)
        lease.check()
        history.store.delete(keys.removed_key(name, version))


def restore_dataset(history: History, name: str) -> Record:
    """Take back the removal of a whole data set. Raises NotFoundError where it isn't removed or is collected."""
    ref = read_latest(history.store, keys.check_known_name(name))
    if ref is None or not ref.removed:
        history.latest(name)
        raise NotFoundError(f"data set {name!r} is not removed", remedy=f"see: dload log {name}")
    with history.holding(name, ref.version) as (lease, manifest):
        lease.cover(history.manifest_ids(name))  # all of its versions come back
        _refuse_torn(history, name, manifest)
        before = next((each for each in history.log(name) if each.op != "remove"), None)
        record = replace(_remarked(history, name, ref, "restore"), message=before.message if before else None)
        publish(history, lease, name, ref, manifest, record)
        return record


def _refuse_torn(history: History, name: str, manifest: Manifest) -> None:
    missing = missing_shards(history.store, manifest.shards)
    if missing:
        raise IntegrityError(
            f"version {manifest.version[:12]} of {name} can't come back: {len(missing)} of its shards were collected, "
            f"the first is {missing[0].digest}"
        )


# ---- retention
def retention(
    history: History, name: str, *, keep_last: int | None = None, keep_within: float | None = None
) -> list[Retention]:
    """What a rule keeps of a data set's living versions, newest first: the last `keep_last`, and those whose
    manifests are younger than `keep_within` seconds by the store's clock. Changes nothing.

    The latest version and tagged ones are kept, whatever the rule says.
    """
    latest, now, written = history.latest(name).version, history.store.clock(), history.written(name)
    tagged = {version: tag for tag, version in history.tags(name).items()}
    plan = []
    for place, manifest in enumerate(history.versions(name)):
        version, age = manifest.version, now - written.get(manifest.version, now)
        reasons = []
        if version == latest:
            reasons.append("is latest")
        if version in tagged:
            reasons.append(f"is tagged {tagged[version]}")
        if keep_last is not None and place < keep_last:
            reasons.append(f"is one of the last {keep_last}")
        if keep_within is not None and age <= keep_within:
            reasons.append(f"is {age / 86400:.1f} days old")
        plan.append(Retention(version, bool(reasons), ", ".join(reasons) or "no rule keeps it"))
    return plan
