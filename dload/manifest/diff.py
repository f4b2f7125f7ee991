"""How two versions differ: by shards (a moment, from the manifests alone) and by samples. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from dload.manifest.model import ShardInfo, ShardList


@dataclass(frozen=True, slots=True)
class ShardDiff:
    """The shards only in the old version and those only in the new one (in their order, each once),
    and how many different shards both have."""

    removed: list[ShardInfo]
    added: list[ShardInfo]
    shared: int


@dataclass(frozen=True, slots=True)
class SampleDiff:
    """The keys that came, that went, and whose sample is another; each sorted."""

    added: list[str]
    removed: list[str]
    changed: list[str]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def shard_diff(old: ShardList, new: ShardList) -> ShardDiff:
    """What a reader of `old` need not fetch again, and what it must, to read `new`."""
    before, after = set(old.digests), set(new.digests)
    return ShardDiff(_only(old, before - after), _only(new, after - before), len(before & after))


def _only(shards: ShardList, digests: set[str]) -> list[ShardInfo]:
    rows = []
    for row, digest in enumerate(shards.digests):
        if digest in digests:
            digests.remove(digest)
            rows.append(shards[row])
    return rows


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
