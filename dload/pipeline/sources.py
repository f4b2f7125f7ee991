"""Where elements come from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from dload.errors import ConfigError
from dload.manifest import Manifest
from dload.pipeline.node import Node, function, pieces, seed_given, whole_number
from dload.pipeline.outside import OutsideCursor
from dload.pipeline.running import Cursor, Epoch, Need, Run
from dload.randomness import hash64

_UNIT = 2.0**-53
_WORD = (1 << 64) - 1


def numbered(places: Sequence[int], *parts: object) -> list[int]:
    """64-bit names of the elements of one source and epoch: as far apart as those of others, and one apart from each
    other, which the generators and hashes that are made from them don't mind."""
    base = hash64(*parts)
    return [(base + place) & _WORD for place in places]


class Samples(Node):
    """The samples of a version, in storage order: `(key, {field: bytes})`.

    `origin` is whatever the runner needs to read it (it is carried along, and never looked into here); `fields`: only
    these. `prefetch`: how many shards the user asked to hold at once, the current one included; None: the plan chooses.
    """

    kind = "samples"
    reads = True

    def __init__(
        self, manifest: Manifest, origin: Any, fields: Sequence[str] | None = None, prefetch: int | None = None
    ) -> None:
        super().__init__()
        if isinstance(fields, str):
            raise ConfigError(f"fields is the text {fields!r}, not names of fields", remedy=f"pass [{fields!r}]")
        self.manifest = manifest
        self.origin = origin
        self.fields = None if fields is None else tuple(fields)
        self.prefetch = None if prefetch is None else whole_number(prefetch, "prefetch", 0)

    @cached_property
    def mean_samples(self) -> float:
        return 1.0

    @cached_property
    def mean_bytes(self) -> float:
        return self.manifest.total_bytes / max(1, sum(self.manifest.shards.counts))

    def parameters(self) -> dict[str, Any]:
        fields = None if self.fields is None else list(self.fields)
        return {"name": self.manifest.name, "version": self.manifest.version, "fields": fields}

    @cached_property
    def length(self) -> int | None:
        return self.manifest.num_samples

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        return run.rows.read(self, places)

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        return numbered(places, self.manifest.version, epoch)

    def units(self) -> list[int]:
        return [count for count in self.manifest.counts if count]

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        if start >= stop:
            return
        starts = self.manifest.starts
        number = bisect_right(starts, start) - 1
        while number < len(starts) - 1 and starts[number] < stop:
            first, last = max(start, starts[number]), min(stop, starts[number + 1])
            if first < last:
                yield Need(first, last, self, number)
            number += 1


class Sequenced(Node):
    """A sequence that is in memory: a list, a NumPy array, anything with a length and items by number."""

    kind = "sequence"

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__()
        self.items = items

    def parameters(self) -> dict[str, Any]:
        return {"length": len(self.items)}

    @cached_property
    def length(self) -> int | None:
        return len(self.items)

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        items = self.items
        return [items[place] for place in places]

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        return numbered(places, "sequence", epoch)

    def units(self) -> list[int]:
        return pieces(len(self.items))

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        return iter(())


class RandomStream(Node):
    """Uniform floats in [0, 1), without end: a pure function of seed, epoch and place."""

    kind = "random_stream"
    draws = True

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.seed = seed_given(seed)

    @cached_property
    def length(self) -> int | None:
        return None

    def fetch(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[Any]:
        seed = run.seed_of(self)
        return [(hash64(seed, epoch, place) & (1 << 53) - 1) * _UNIT for place in places]

    def identities(self, run: Run, epoch: Epoch, places: Sequence[int]) -> list[int]:
        return numbered(places, "random", epoch)

    def demand(self, run: Run, epoch: Epoch, start: int, stop: int) -> Iterator[Need]:
        return iter(())


class Factory(Node):
    """What a function gives that is called at the start of each epoch: an iterable of any kind, in the stream tier.

    Each lane gets all of it, as for a stream that steers others; with `shard`, its rows are dealt to the lanes, each of
    which goes over all of it and keeps its own.

    An iterator with `get_state` and `set_state` (or `state_dict` and `load_state_dict`) resumes by them; any other by
    going over what was read before.
    """

    kind = "factory"

    def __init__(self, make: Callable[[], Iterable[Any]], shard: bool = False) -> None:
        super().__init__()
        self.make = function(make, "from_iterable")
        self.shard = shard

    def parameters(self) -> dict[str, Any]:
        return {"shard": True} if self.shard else {}

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.make,)

    @property
    def indexed(self) -> bool:
        return False

    @property
    def endless(self) -> bool:
        return False

    def stream(self, run: Run, epoch: Epoch) -> Cursor:
        return OutsideCursor(self.make, epoch, run.lane, dealt=self.shard)
