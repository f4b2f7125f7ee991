"""How two versions differ: by shards (a moment, from the manifests alone) and by samples. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import repeat

from dload.manifest.model import Manifest


@dataclass(frozen=True, slots=True)
class ShardDiff:
    """The numbers of the shards that only the old version has and of those that only the new one has (each once), and
    how many different shards both have. Of a shard of which a view has other rows than the other version, each has its
    own."""

    removed: list[int]
    added: list[int]
    shared: int


@dataclass(frozen=True, slots=True)
class SampleDiff:
    """The keys that came, that went, and whose sample is another; each sorted."""

    added: list[str]
    removed: list[str]
    changed: list[str]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def shard_diff(old: Manifest, new: Manifest) -> ShardDiff:
    """What a reader of `old` need not look at again, and what it must, to read `new`."""
    before, after = _numbers(old), _numbers(new)
    removed = [number for key, number in before.items() if key not in after]
    added = [number for key, number in after.items() if key not in before]
    return ShardDiff(removed, added, len(before) - len(removed))


def _numbers(manifest: Manifest) -> dict[tuple[str, bytes], int]:
    """Each shard, with the rows that a view has of it -> its number."""
    bitmaps = repeat(b"") if manifest.rows is None else manifest.rows.bitmaps
    found: dict[tuple[str, bytes], int] = {}
    for number, key in enumerate(zip(manifest.shards.digests, bitmaps, strict=False)):
        found.setdefault(key, number)
    return found


def sample_diff(old: Iterable[tuple[str, Hashable]], new: Iterable[tuple[str, Hashable]]) -> SampleDiff:
    """Compare samples given as (key, what stands for its content). Their order plays no part.

    Keys are unique in each. Holds all of `old` in memory: leave out what lies in shards that both have.
    """
    remaining = dict(old)
    added, changed = [], []
    for key, content in new:
        if key not in remaining:
            added.append(key)
        elif remaining.pop(key) != content:
            changed.append(key)
    return SampleDiff(sorted(added), sorted(remaining), sorted(changed))
