"""What a cache holds, for people and programs that ask."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dload.cache.budget import Budget, allowed
from dload.cache.inventory import Entry, Kind, scan
from dload.cache.pins import in_use
from dload.errors import DloadError
from dload.files.atomic import free_space
from dload.manifest import Manifest, decode


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """What a cache holds, in bytes and files. `used` counts every file, unfinished downloads at their
    reserved size. `coming`: those of the unfinished that someone is filling now.
    """

    root: Path
    budget: int | None
    used: int
    free_disk: int
    shards: int
    shard_bytes: int
    pinned: int
    pinned_bytes: int
    partials: int
    partial_bytes: int
    coming: int
    manifests: int
    manifest_bytes: int
    key_indexes: int
    key_index_bytes: int


@dataclass(frozen=True, slots=True)
class DatasetShare:
    """What a cache holds of one data set (None: of no data set that it has a manifest of). A shard that several data
    sets have counts for each of them. `partials`: its unfinished downloads, at their reserved size.
    """

    name: str | None
    versions: int
    shards: int
    shard_bytes: int
    pinned: int
    pinned_bytes: int
    partials: int
    partial_bytes: int


def status_of(root: Path, budget: Budget) -> CacheStatus:
    """Reads the directory and tries each shard's lock."""
    entries = scan(root)
    kinds: tuple[Kind, ...] = ("shard", "partial", "manifest", "keys")
    shards, partials, manifests, indexes = ([entry for entry in entries if entry.kind == kind] for kind in kinds)
    pinned = [entry for entry in shards if in_use(entry.path)]
    return CacheStatus(
        root=root,
        budget=allowed(budget, root, sum(entry.stored for entry in entries)),
        used=_total(entries), free_disk=free_space(root),
        shards=len(shards), shard_bytes=_total(shards),
        pinned=len(pinned), pinned_bytes=_total(pinned),
        partials=len(partials), partial_bytes=_total(partials),
        coming=sum(in_use(entry.path) for entry in partials),
        manifests=len(manifests), manifest_bytes=_total(manifests),
        key_indexes=len(indexes), key_index_bytes=_total(indexes),
    )  # fmt: skip


def by_dataset(root: Path) -> list[DatasetShare]:
    """Whose the shards in a cache are, by the manifests in it: by name, what belongs to none last."""
    entries = scan(root)
    held = [entry for entry in entries if entry.kind in ("shard", "partial")]
    pinned = {entry.path for entry in held if entry.kind == "shard" and in_use(entry.path)}
    manifests = [manifest for entry in entries if entry.kind == "manifest" and (manifest := _read(entry.path))]
    named: set[str] = set()
    shares = []
    for name in sorted({manifest.name for manifest in manifests}):
        versions = [manifest for manifest in manifests if manifest.name == name]
        digests = {digest for version in versions for digest in version.shards.digests}
        named |= digests
        shares.append(_share(name, len(versions), [entry for entry in held if _digest(entry) in digests], pinned))
    rest = [entry for entry in held if _digest(entry) not in named]
    return [*shares, _share(None, 0, rest, pinned)] if rest else shares


def _share(name: str | None, versions: int, held: list[Entry], pinned: set[Path]) -> DatasetShare:
    shards = [entry for entry in held if entry.kind == "shard"]
    partials = [entry for entry in held if entry.kind == "partial"]
    used = [entry for entry in shards if entry.path in pinned]
    return DatasetShare(
        name, versions, len(shards), _total(shards), len(used), _total(used), len(partials), _total(partials)
    )


def _digest(entry: Entry) -> str:
    return entry.name.partition(".")[0]


def _read(path: Path) -> Manifest | None:
    try:
        return decode(path.read_bytes(), version=path.stem, where=str(path))
    except (OSError, DloadError):
        return None


def _total(entries: list[Entry]) -> int:
    return sum(entry.size for entry in entries)
