"""The local cache as a source of good bytes, to mend a store from."""

from __future__ import annotations

from collections.abc import Iterator

from dload.cache import ShardCache


class CacheSource:
    """See `dload.repo.repair.Source`."""

    def __init__(self, cache: ShardCache) -> None:
        self._cache = cache

    def manifest(self, name: str, version: str) -> bytes | None:
        return self._cache.read_manifest(version)

    def shard(self, digest: str) -> Iterator[bytes] | None:
        return self._chunks(digest) if self._cache.contains(digest) else None

    def _chunks(self, digest: str) -> Iterator[bytes]:
        pin = self._cache.pin(digest)
        if pin is None:  # evicted since
            return
        with pin, pin.path.open("rb") as file:
            while chunk := file.read(1 << 20):
                yield chunk
