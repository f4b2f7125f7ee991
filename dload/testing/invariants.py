"""What must hold of a store after anything: an operation that failed anywhere, a kill, a race.

`problems` looks at a store as it is, `lost` compares it with what was there before. Both return sentences; a test
asserts that there are none. They read with plain calls and know nothing of how dload writes, but for the formats.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping

from dload.errors import DloadError
from dload.manifest import Manifest, decode, is_version
from dload.pack import Sample, ShardReader
from dload.repo import keys
from dload.repo.history import History
from dload.repo.refs import Record, read_latest
from dload.store.base import Store

Expected = Mapping[str, Iterable[str]]  # data set -> ids of versions


def problems(store: Store, *, deep: bool = False) -> list[str]:
    """What is broken in a store, whoever may be at work in it. `deep`: also reads and hashes every shard.

    Refs and tags point at whole versions. Every published version that isn't removed is whole. The log has every number
    up to that of the latest. Leases and plans can be read, and none of them stands in gc's way for ever.
    """
    found: list[str] = []
    sizes = {info.key: info.size for info in store.list(keys.SHARDS)}
    for name in sorted(set(store.list_folders(keys.DATASETS))):
        found += _guarded(name, lambda name=name: _dataset(store, name, sizes))  # type: ignore[misc]
    found += _guarded("leases", lambda: _leases(store))
    if deep:
        found += _guarded("shards", lambda: _bytes(store, sizes))
    return found


def lost(store: Store, before: Expected) -> list[str]:
    """Which of the versions that must be there (living, or removed and not collected yet) aren't there whole.

    Ids are digests: a version whose shards are there, and have the bytes that their names say, is the version it was.
    """
    sizes = {info.key: info.size for info in store.list(keys.SHARDS)}
    wanted = [(name, version) for name, versions in before.items() for version in versions]
    return [problem for name, version in wanted for problem in _whole(store, name, version, sizes, version[:12])]


def content(store: Store, name: str, version: str) -> list[Sample]:
    """Every sample of a version, read from the store itself, each shard hashed. Raises DloadError."""
    samples: list[Sample] = []
    manifest = _manifest(store, name, version)
    for number, shard in enumerate(manifest.shards):
        data = store.get(keys.shard_key(shard.digest)).data
        if hashlib.sha256(data).hexdigest() != shard.digest:
            raise DloadError(f"shard {shard.digest} has other bytes than its name says")
        with ShardReader(data, name=shard.digest) as reader:
            rows = range(len(reader)) if manifest.rows is None else manifest.rows.of(number)
            samples += reader.read_many(rows)
    return samples


def living(store: Store) -> dict[str, set[str]]:
    """The versions of each data set that a user sees."""
    history = History(store)
    return {name: {manifest.version for manifest in history.versions(name)} for name in history.names()}


def foreign(store: Store) -> dict[str, bytes]:
    """Objects that dload didn't make, with their bytes: equal before and after anything."""
    return {info.key: store.get(info.key).data for info in store.list("") if not keys.is_ours(info.key)}


# ---- one data set
def _dataset(store: Store, name: str, sizes: Mapping[str, int]) -> Iterator[str]:
    latest = read_latest(store, name)
    records = {record.seq: record for record in _log(store, name)}
    if latest is None:
        if records:
            yield f"{name} has a log of {len(records)} records and no latest"
        return
    records.setdefault(latest.seq, latest.record) if latest.record else None
    yield from _gaps(name, records, latest.seq)
    removed = {info.key.rpartition("/")[2].removesuffix(".json") for info in store.list(keys.removed_prefix(name))}
    wanted = History(store).tags(name)
    if not latest.removed:
        wanted["latest"] = latest.version
    for ref, version in wanted.items():
        yield from _whole(store, name, version, sizes, ref)
    if latest.removed:
        return
    History(store).check_living(name, latest.version)
    there = {info.key.rpartition("/")[2].removesuffix(".json") for info in store.list(keys.manifests_prefix(name))}
    published = {record.version for record in records.values()} - removed
    for version in sorted(published & there):
        yield from _whole(store, name, version, sizes, "log")
    for info in store.list(keys.derived_prefix(name)):
        if not is_version(store.get(info.key).data.decode()):
            yield f"{info.key} holds no version id"


def _log(store: Store, name: str) -> Iterator[Record]:
    for info in store.list(keys.log_prefix(name)):
        record = Record.decode(store.get(info.key).data, info.key)
        if info.key != keys.log_key(name, record.seq):
            raise DloadError(f"{info.key} is the record number {record.seq}")
        yield record


def _gaps(name: str, records: Mapping[int, Record], last: int) -> Iterator[str]:
    first = 0 if 0 in records else 1  # 0: written by dload-ml 0.3
    missing = set(range(first, last + 1)) - set(records)
    if missing:
        yield f"the log of {name} lacks {sorted(missing)} of {first} to {last}"
    if max(records, default=last) > last:
        yield f"the log of {name} goes to {max(records)}, its latest is {last}"
    for seq in range(first + 1, last + 1):
        before, after = records.get(seq - 1), records.get(seq)
        if before is None or after is None:
            continue
        # Only what takes a removal back names it as its parent.
        named = after.op == "restore" or before.op != "remove"
        if after.parent != (before.version if named else None):
            yield f"record {seq} of {name} has the parent {after.parent}, the one before is {before.version}"


def _whole(store: Store, name: str, version: str, sizes: Mapping[str, int], ref: str) -> Iterator[str]:
    try:
        manifest = _manifest(store, name, version)
    except DloadError as error:
        yield f"{name}@{ref} names {version[:12]}, which can't be read: {error}"
        return
    for shard in manifest.shards:
        size = sizes.get(keys.shard_key(shard.digest))
        if size != shard.size:
            yield f"{name}@{ref} ({version[:12]}) needs {shard.digest[:12]} of {shard.size} B, the store has {size}"


def _manifest(store: Store, name: str, version: str) -> Manifest:
    key = keys.manifest_key(name, version)
    return decode(store.get(key).data, version=version, where=key)


# ---- the rest of the store
def _leases(store: Store) -> Iterator[str]:
    for info in store.list(keys.LEASES):
        raw = json.loads(store.get(info.key).data)
        if info.key.endswith("/lease"):
            if not 0 < float(raw["ttl"]) <= 86400:
                yield f"{info.key} would hold for {raw['ttl']} s"
        elif not all(is_version(each) for each in raw):
            yield f"{info.key} names what is no id"


def _bytes(store: Store, sizes: Iterable[str]) -> Iterator[str]:
    for key in sizes:
        digest = key.rpartition("/")[2]
        if keys.is_ours(key) and hashlib.sha256(store.get(key).data).hexdigest() != digest:
            yield f"{key} has other bytes than its name says"


def _guarded(what: str, look: Callable[[], Iterable[str]]) -> list[str]:
    try:
        return list(look())
    except (DloadError, ValueError, KeyError, TypeError) as error:
        return [f"{what}: {error!r}"]
