"""Where a shard ends.

Boundaries come from the content (content-defined chunking, by the hash of each key), so that inserting, removing or
changing a sample rewrites the shard around it and not every shard behind it. With a target of t bytes, and the payload
being the sum of `sample_size` over a shard's samples:

- cut before a sample that would take the payload past 2t;
- cut after a sample that leaves the payload at t/2 or more and for which H(key) / 2**64 < size / (t/2), where H is the
  first 8 bytes, little-endian, of blake2b(key in UTF-8, digest_size=8). The mean is about t for samples below t/10.

Boundaries by "size" cut after the sample that reaches t. In both, a sample larger than 2t has a shard of its own, and a
shard ends before the sample that would give it its 65,536th layout. All by whole numbers: the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from dload.errors import ConfigError
from dload.pack.layout import MAX_LAYOUTS

BOUNDARIES = ("content", "size")


class Cutter:
    """Says, sample by sample, where shards begin. `target`: bytes, the mean size of a shard.

    Raises ConfigError for a target below 1 or boundaries that are neither "content" nor "size".
    """

    def __init__(self, target: int, boundaries: str = "content") -> None:
        if target < 1:
            raise ConfigError(f"the target size of shards must be at least 1 byte, got {target}")
        if boundaries not in BOUNDARIES:
            raise ConfigError(f"unknown boundaries {boundaries!r}", remedy='they are "content" or "size"')
        self._target = target
        self._by_content = boundaries == "content"
        self._payload = 0
        self._layouts: set[tuple[str, ...]] = set()
        self._cut_after = False
        self._started = False

    def begins(self, key: str, size: int, names: Iterable[str]) -> bool:
        """Whether this sample, the next in order, begins a new shard. The very first one doesn't.

        `size` is its `sample_size`, `names` its field names in its order.
        """
        layout = tuple(names)
        begins = self._started and (
            self._cut_after
            or self._too_large(size)
            or (len(self._layouts) == MAX_LAYOUTS and layout not in self._layouts)
        )
        if begins:
            self._payload = 0
            self._layouts = set()
        self._started = True
        self._payload += size
        self._layouts.add(layout)
        self._cut_after = self._ends_after(key, size)
        return begins

    @property
    def ended(self) -> bool:
        """Whether the last sample ends its shard, whatever comes behind it."""
        return self._cut_after

    def _too_large(self, size: int) -> bool:
        payload = self._payload + size if self._by_content else size
        return payload > 2 * self._target

    def _ends_after(self, key: str, size: int) -> bool:
        if not self._by_content:
            return self._payload >= self._target
        if 2 * self._payload < self._target:
            return False
        digest = blake2b(key.encode(), digest_size=8).digest()
        # H / 2**64 < size / (t/2), without fractions.
        return int.from_bytes(digest, "little") * self._target < size << 65


def cuts(items: Iterable[tuple[str, int, Iterable[str]]], target: int, boundaries: str = "content") -> Iterator[int]:
    """The number of samples of each shard, in order, from (key, `sample_size`, field names) of each sample.

    Pure: whoever runs it on the same samples gets the same shards. Raises ConfigError as Cutter does.
    """
    cutter = Cutter(target, boundaries)
    count = 0
    for key, size, names in items:
        if cutter.begins(key, size, names):
            yield count
            count = 0
        count += 1
    if count:
        yield count
