"""What versions a data set has: manifests, the log, tags, tombstones, and which version a name means."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from dload.errors import (
    AccessError,
    ConfigError,
    ConflictError,
    DloadError,
    IntegrityError,
    NotFoundError,
    PackFormatError,
    PreconditionFailedError,
    RemovedError,
    UnavailableError,
)
from dload.manifest import Manifest, decode, is_name, is_version
from dload.repo import keys
from dload.repo.leases import Lease
from dload.repo.parallel import ordered
from dload.repo.refs import Record, Ref, kind_of, read_latest, ref_bytes, utc_now, write_record
from dload.store.base import Store

_JOBS = 16
_PREFIX = re.compile(r"[0-9a-f]{4,63}")


class ManifestCache(Protocol):
    """Where manifests are kept on this machine, by version."""

    def read_manifest(self, version: str) -> bytes | None: ...

    def write_manifest(self, version: str, data: bytes) -> object: ...

    def drop_manifest(self, version: str) -> object: ...


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """A data set at a glance: its latest version and the record that made it so (None where dload-ml 0.3 did). `kind`:
    "samples", "derived" or "view"; None where the record doesn't say."""

    name: str
    version: str
    num_samples: int
    total_bytes: int
    num_shards: int
    time: str | None
    author: str | None
    message: str | None
    kind: str | None


@dataclass(frozen=True, slots=True)
class Removal:
    """A version that was removed and can be brought back until gc takes it."""

    version: str
    time: str | None
    author: str | None


class History:
    """Reads a store's data sets. Writes nothing but what keeps the log whole."""

    def __init__(self, store: Store, cache: ManifestCache | None = None) -> None:
        self.store = store
        self.cache = cache

    # ---- data sets
    def names(self) -> list[str]:
        """The data sets that have a latest version and aren't removed, sorted. One request each, side by side."""
        return [name for name, _ in self._living()]

    def overview(self) -> list[DatasetInfo]:
        """Every data set at a glance, sorted by name. One request each, one more where dload-ml 0.3 wrote the
        latest."""
        living = list(self._living())
        return list(ordered(lambda pair: self._glance(*pair), living, _JOBS))

    def _living(self) -> Iterator[tuple[str, Ref]]:
        found = sorted(filter(keys.is_known_name, self.store.list_folders(keys.DATASETS)))
        for name, ref in zip(found, ordered(lambda name: read_latest(self.store, name), found, _JOBS), strict=True):
            if ref is not None and not ref.removed:
                yield name, ref

    def _glance(self, name: str, ref: Ref) -> DatasetInfo:
        record = ref.record
        if record is None:
            manifest = self.manifest(name, ref.version)
            return DatasetInfo(
                name,
                ref.version,
                manifest.num_samples,
                manifest.total_bytes,
                len(manifest.shards),
                manifest.created,
                None,
                None,
                kind_of(manifest),
            )
        return DatasetInfo(
            name,
            ref.version,
            record.num_samples,
            record.total_bytes,
            record.num_shards,
            record.time,
            record.author,
            record.message,
            record.kind,
        )

    def latest(self, name: str) -> Ref:
        """`refs/latest` of a living data set. Raises NotFoundError; RemovedError where the data set was removed."""
        ref = read_latest(self.store, keys.check_known_name(name))
        if ref is None:
            raise NotFoundError(
                f"no data set {name!r} in {self.store.url}", remedy="list them with: dload ls", name=name
            )
        if ref.removed:
            raise _removed(
                name, None, ref.record.time if ref.record else None, ref.record.author if ref.record else None
            )
        return ref

    def is_removed(self, name: str) -> bool:
        """Whether the whole data set was removed. Raises NotFoundError where there never was one."""
        try:
            self.latest(name)
        except RemovedError:
            return True
        return False

    # ---- versions
    def resolve(self, name: str, version: str) -> str:
        """The full id of a version given as "latest", as a tag, as a full id or as its first four or more digits.

        Raises NotFoundError, RemovedError, and ConfigError where a prefix fits several versions. A full id that the
        local cache holds isn't asked for.
        """
        keys.check_known_name(name)
        if version == "latest":
            return self.latest(name).version
        if is_version(version):
            self.manifest(name, version)
            return version
        tagged = self._tagged(name, version)
        if tagged is not None:
            return tagged
        return self._by_prefix(name, version)

    def _tagged(self, name: str, tag: str) -> str | None:
        if not is_name(tag):
            return None
        key = keys.tag_key(name, tag)
        try:
            return Ref.parse(self.store.get(key), key).version
        except NotFoundError:
            return None

    def _by_prefix(self, name: str, prefix: str) -> str:
        found = list(self.manifest_ids(name, prefix)) if _PREFIX.fullmatch(prefix) else []
        alive = [version for version in found if self.tombstone(name, version) is None] if len(found) > 1 else found
        if len(alive) > 1:
            raise ConfigError(
                f"{name}@{prefix} could be any of {len(alive)} versions: "
                f"{', '.join(sorted(v[:12] for v in alive)[:5])}",
                remedy="give more digits",
            )
        if not alive:
            self.latest(name)  # whether the data set itself is what is missing
            raise NotFoundError(
                f"{name} has no version or tag {prefix!r} in {self.store.url}",
                remedy=f"see: dload log {name}, dload tag {name}",
                name=name,
            )
        self.check_living(name, alive[0])
        return alive[0]

    def manifest_ids(self, name: str, prefix: str = "") -> Iterator[str]:
        """The ids of all manifests that the store holds of a data set and that begin with `prefix`."""
        start = keys.manifests_prefix(name)
        for info in self.store.list(start + prefix):
            version = info.key[len(start) :].removesuffix(".json")
            if is_version(version):
                yield version

    def manifest(self, name: str, version: str) -> Manifest:
        """A version's manifest, checked against its id, from the local cache or the store. `version`: the full id.

        Raises NotFoundError, RemovedError (not for a cached one), IntegrityError, PackFormatError.
        """
        cached = self._cached(version)
        if cached is None:
            self.check_living(name, version)
        return cached or self.stored_manifest(name, version)

    def _cached(self, version: str) -> Manifest | None:
        data = self.cache.read_manifest(version) if self.cache else None
        if self.cache is None or data is None:
            return None
        try:
            return decode(data, version=version, where=f"the cached manifest {version[:12]}")
        except (IntegrityError, PackFormatError):
            self.cache.drop_manifest(version)
            return None

    def stored_manifest(self, name: str, version: str) -> Manifest:
        """A version's manifest from the store, whether or not it is removed."""
        return self.stored_manifest_and_bytes(name, version)[0]

    def stored_manifest_and_bytes(self, name: str, version: str) -> tuple[Manifest, bytes]:
        """As `stored_manifest`, and the bytes as they are stored, checked."""
        key = keys.manifest_key(name, version)
        try:
            data = self.store.get(key).data
        except NotFoundError as error:
            raise NotFoundError(
                f"{name} has no version {version[:12]} in {self.store.url} (it may have been removed and collected)",
                remedy=f"see what there is: dload log {name}",
                name=name,
                version=version,
            ) from error
        manifest = decode(data, version=version, where=key)
        if manifest.name != name:
            raise PackFormatError(f"{key} is the manifest of {manifest.name!r}, not of {name!r}")
        if self.cache:
            self.cache.write_manifest(version, data)
        return manifest, data

    def versions(self, name: str) -> list[Manifest]:
        """The manifests of all living versions, newest first; each with `created` of the last record that names it.

        Versions that dload-ml 0.3 wrote and no record names come last, newest first.
        """
        latest = self.latest(name).version
        times: dict[str, str] = {}
        for record in self.log(name):
            times.setdefault(record.version, record.time)
        gone = {removal.version for removal in self.removed(name)} - {latest}
        stored = set(self.manifest_ids(name)) - gone
        known = [version for version in times if version in stored]
        manifests = list(
            ordered(lambda v: self.stored_or_cached(name, v), [*known, *sorted(stored - times.keys())], _JOBS)
        )
        old = sorted((m for m in manifests[len(known) :] if m.format == 1), key=lambda m: m.created or "", reverse=True)
        return [manifest.with_created(times[manifest.version]) for manifest in manifests[: len(known)]] + old

    def stored_or_cached(self, name: str, version: str) -> Manifest:
        """As `manifest`, without asking whether it was removed."""
        return self._cached(version) or self.stored_manifest(name, version)

    # ---- the log
    def log(self, name: str) -> list[Record]:
        """Every record of a data set, newest first, also of one that was removed."""
        ref = read_latest(self.store, keys.check_known_name(name))
        if ref is None:
            self.latest(name)
        logged = [info.key for info in self.store.list(keys.log_prefix(name))]
        records = {r.seq: r for r in ordered(lambda key: Record.decode(self.store.get(key).data, key), logged, _JOBS)}
        if ref is not None and ref.record is not None:
            records[ref.record.seq] = ref.record
        return [records[seq] for seq in sorted(records, reverse=True)]

    def preserve(self, name: str, ref: Ref | None) -> None:
        """Make the log hold the record of a ref that is about to be replaced, and its version not look removed."""
        if ref is None:
            return
        write_record(self.store, name, ref.record or self._first_record(name, ref.version))
        if not ref.removed:
            self.forget_removal(name, ref.version)

    def _first_record(self, name: str, version: str) -> Record:
        """What stands for the history before records existed: number 0, made from the manifest that dload-ml wrote."""
        manifest = self.stored_or_cached(name, version)
        return Record(
            seq=0,
            version=version,
            parent=None,
            write_id="",
            time=manifest.created or "",
            author=None,
            message=None,
            num_samples=manifest.num_samples,
            total_bytes=manifest.total_bytes,
            num_shards=len(manifest.shards),
            op="commit",
        )

    def written(self, name: str) -> dict[str, float]:
        """Version -> when its manifest was written, by the store's clock."""
        start = keys.manifests_prefix(name)
        return {info.key[len(start) :].removesuffix(".json"): info.modified for info in self.store.list(start)}

    def record_of(self, name: str, version: str) -> Record:
        """The newest record that names a version; made from its manifest where none does. One request for the latest
        version, one for each record else."""
        ref = read_latest(self.store, name)
        if ref is not None and ref.record is not None and ref.version == version:
            return ref.record
        for record in self.log(name):
            if record.version == version:
                return record
        return self._first_record(name, version)

    # ---- tombstones
    def forget_removal(self, name: str, version: str) -> None:
        """Delete the tombstone of a version, if there is one."""
        key = keys.removed_key(name, version)
        if self.store.head(key) is not None:
            self.store.delete(key)

    @contextmanager
    def holding(self, name: str, version: str) -> Iterator[tuple[Lease, Manifest]]:
        """A version that no gc takes while this is open, and the lease that sees to it; waits for one that is about
        to. Raises NotFoundError where one has taken it."""
        with Lease(self.store, name, version) as lease:
            lease.cover([version])
            yield lease, self.stored_manifest(name, version)

    def tombstone(self, name: str, version: str) -> Removal | None:
        """The tombstone of one version, or None; a key that may not ask counts as none. One request."""
        key = keys.removed_key(name, version)
        try:
            return _removal(version, self.store.get(key).data, key)
        except (NotFoundError, AccessError):
            return None

    def removed(self, name: str) -> list[Removal]:
        """The tombstones of a data set, one for each removed version."""
        start = keys.removed_prefix(name)
        found = [info.key for info in self.store.list(start)]
        versions = [key[len(start) :].removesuffix(".json") for key in found]
        return [r for r in ordered(lambda v: self.tombstone(name, v), versions, _JOBS) if r is not None]

    def check_living(self, name: str, version: str) -> None:
        """Raises RemovedError where a version, or its whole data set, was removed. Two requests.

        What is latest isn't removed: a tombstone that a race has left on it doesn't count.
        """
        removal = self.tombstone(name, version)
        try:
            ref = read_latest(self.store, name)
        except AccessError:
            ref = None
        if ref is not None and ref.removed and ref.record is not None:
            raise _removed(name, None, ref.record.time, ref.record.author)
        if removal is not None and (ref is None or ref.version != version):
            raise _removed(name, version, removal.time, removal.author)

    # ---- tags
    def tags(self, name: str) -> dict[str, str]:
        """Tag -> version id, sorted by tag."""
        start = keys.tags_prefix(keys.check_known_name(name))
        found = sorted(info.key for info in self.store.list(start))
        refs = ordered(self.listed_tag, found, _JOBS)
        return {key[len(start) :]: ref.version for key, ref in zip(found, refs, strict=True) if ref is not None}

    def listed_tag(self, key: str) -> Ref | None:
        """A tag that a listing has named, by its object's key; None where it was removed since."""
        try:
            return Ref.parse(self.store.get(key), key)
        except NotFoundError:
            if self.store.head(key) is not None:
                raise
            return None

    def tag(self, name: str, tag: str, version: str) -> None:
        """Give a version (its full id) a name that never moves. Raises ConflictError where the tag names another."""
        keys.check_name(tag, "tag")
        if tag == "latest" or is_version(tag):
            raise ConfigError(
                f"a tag can't be called {tag!r}: that already means a version", remedy="choose another name"
            )
        with self.holding(name, version) as (lease, _):
            self.check_living(name, version)
            if not self._write_tag(name, tag, version):
                return
            try:  # whoever removes it looks at the tags after his tombstone
                self.check_living(name, version)
                lease.check()
            except DloadError:
                self.store.delete(keys.tag_key(name, tag))
                raise

    def _write_tag(self, name: str, tag: str, version: str) -> bool:
        """Whether it wasn't there yet."""
        try:
            self.store.put_if(keys.tag_key(name, tag), ref_bytes(self.record_of(name, version)), etag=None)
            return True
        except (PreconditionFailedError, UnavailableError) as error:
            there = self._tagged(name, tag)
            if there == version:
                return isinstance(error, UnavailableError)
            if there is None:
                raise
            raise ConflictError(
                f"the tag {tag!r} of {name} names {there[:12]} already, not {version[:12]}; tags don't move",
                remedy=f"choose another tag, or: dload untag {name} {tag}",
            ) from error

    def untag(self, name: str, tag: str) -> None:
        """Delete a tag; what it named stays. Raises NotFoundError."""
        keys.check_known_name(name)
        if self._tagged(name, tag) is None:
            raise NotFoundError(f"{name} has no tag {tag!r}", remedy=f"list them with: dload tag {name}")
        self.store.delete(keys.tag_key(name, tag))


def tombstone_bytes(author: str) -> bytes:
    return json.dumps({"author": author, "time": utc_now()}).encode()


def _removal(version: str, data: bytes, where: str) -> Removal:
    try:
        raw = json.loads(data)
        return Removal(version, raw.get("time"), raw.get("author"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise PackFormatError(f"{where} is not a tombstone: {error}") from error


def _removed(name: str, version: str | None, time: str | None, author: str | None) -> RemovedError:
    what = f"version {version[:12]} of {name}" if version else f"data set {name!r}"
    by, on = (f" by {author}" if author else ""), (f" on {time}" if time else "")
    target = f"{name}@{version[:12]}" if version else name
    return RemovedError(
        f"{what} was removed{by}{on}", remedy=f"undo with: dload undo {target}", name=name, version=version
    )
