"""All shards of a version into the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dload.cache import ShardCache
from dload.errors import CacheFullError, DiskFullError
from dload.manifest import Manifest, ShardInfo
from dload.repo.parallel import ordered
from dload.run.open_shard import open_shard
from dload.sizes import format_size
from dload.store.base import Store


@dataclass(frozen=True, slots=True)
class ShardFetched:
    """One shard is in the cache; `downloaded`: it wasn't there before. `number` counts from 1, of `total`."""

    number: int
    total: int
    shard: ShardInfo
    downloaded: bool


def fetch_shards(
    store: Store, cache: ShardCache, manifest: Manifest, jobs: int, report: Callable[[ShardFetched], object] | None
) -> None:
    """Bring every shard of a version into the cache, `jobs` at a time (or as the cache allows); each is hashed by this
    process.

    Raises CacheFullError or DiskFullError before any byte moves where the version can't be resident as a whole.
    """
    distinct = list({shard.digest: shard for shard in manifest.shards}.values())
    needed, room = sum(shard.size for shard in distinct), cache.room_for_shards()
    if room is not None and needed > room:
        raise CacheFullError(
            f"{manifest.name}@{manifest.version[:12]} has {format_size(needed)} ({needed} bytes), the cache budget has "
            f"room for {format_size(room)} of shards",
            remedy=f"raise it by {needed - room} bytes (DLOAD_CACHE_BUDGET), or stream it with samples()",
            needed=needed, room=room,
        )  # fmt: skip

    status = cache.status()
    disk = status.free_disk + status.used
    if needed > disk:
        raise DiskFullError(
            f"{manifest.name}@{manifest.version[:12]}: {format_size(needed)} needed, {format_size(disk)} free on the "
            f"disk of the cache {cache.root}, what the cache holds included",
            remedy="free some space there, choose another disk (DLOAD_CACHE_DIR), or stream it with samples()",
            needed=needed, free=disk,
        )  # fmt: skip

    def fetch(shard: ShardInfo) -> bool:
        missing = not cache.contains(shard.digest)
        open_shard(store, cache, shard).close()
        return missing

    fetched = ordered(fetch, distinct, cache.downloads(jobs))
    for number, (shard, downloaded) in enumerate(zip(distinct, fetched, strict=True), 1):
        if report is not None:
            report(ShardFetched(number, len(distinct), shard, downloaded))
