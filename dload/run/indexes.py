"""The indexes that this process has parsed, for who opens the same shards again: the next pass, a single sample."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

from dload.manifest import ShardInfo
from dload.pack import ShardIndex
from dload.store.base import Store

# Samples that all of them have together, at about 100 bytes each: four shards of 1 KB samples, or 500 of 100 KB.
_MOST = 1 << 19


class Indexes:
    """Those that were used last, as many as have `most` samples together, and the very last in any case. A shard is
    known by its content, and by its store only since messages name that. Threads may share it."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self.clear()

    def clear(self) -> None:
        """Keep none."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], ShardIndex] = OrderedDict()
        self._samples = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, store: Store, shard: ShardInfo) -> ShardIndex | None:
        """The index of a shard, if it is kept."""
        key = store.url, shard.digest
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, store: Store, shard: ShardInfo, index: ShardIndex) -> None:
        """Keep it, and let go of what was used longest ago."""
        key = store.url, shard.digest
        with self._lock:
            if key not in self._kept:
                self._kept[key] = index
                self._samples += len(index)
            while self._samples > self._most and len(self._kept) > 1:
                _, gone = self._kept.popitem(last=False)
                self._samples -= len(gone)


indexes = Indexes()
"""Those of this process. A forked child begins anew: a thread of its parent may hold the lock."""

os.register_at_fork(after_in_child=indexes.clear)
