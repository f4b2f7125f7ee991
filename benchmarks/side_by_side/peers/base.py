"""What the runner asks of a system, and where its data are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from .samples import Sample

BATCH = 64


class UnableError(Exception):
    """The system can't do that; the text says why."""


@dataclass(frozen=True)
class Place:
    """One data set of a system: below `folder`, or below `prefix` in the bucket, read through `cache`; called `name`
    where a system has several there."""

    folder: str
    cache: str
    endpoint: str = ""  # of S3; empty: the data are in `folder`
    bucket: str = ""
    prefix: str = ""
    name: str = "data"
    shard: int = 64 << 20  # bytes of a shard, a chunk, a file
    window: int = 4096  # samples within which they are shuffled, where a system shuffles so
    budget: int = 0  # bytes that the cache may have; 0: all

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" if self.endpoint else self.folder

    @property
    def keys(self) -> tuple[str, str]:
        """The access key and the secret key, for systems that don't read AWS's files."""
        return os.environ["SIDE_BY_SIDE_ACCESS_KEY"], os.environ["SIDE_BY_SIDE_SECRET_KEY"]


class Peer:
    """A system. What it doesn't override it can't do; `cannot` says why, by the method's name."""

    cannot: ClassVar[dict[str, str]] = {}
    packages: tuple[str, ...] = ()  # whose versions are told
    has_budget = False  # a cache that keeps to so many bytes
    plain: Callable[[Any], Any] | None = None  # makes what can be sent of a sample that is views of memory

    def _refuse(self, what: str) -> UnableError:
        return UnableError(self.cannot[what])

    def start(self) -> None:
        """Import what is needed: memory is counted from here on."""

    def write(self, place: Place, samples: Iterable[Sample], count: int) -> None:
        """Store the samples as a data set."""
        raise self._refuse("write")

    def insert_first(self, place: Place, samples: Iterable[Sample]) -> None:
        """Store the samples, of which all but the first are in the data set already."""
        raise self._refuse("insert_first")

    def open(self, place: Place, shuffled: bool) -> Iterable[Any]:
        """Its samples; each pass is an epoch."""
        raise self._refuse("open")

    def sample(self, found: Any) -> Sample:
        """What `open` gives, as a sample."""
        return found["key"], bytes(found["a"]), bytes(found["b"])

    def loader(self, place: Place, workers: int, collate: Callable[[list[Sample]], Any] | None) -> Iterable[Any]:
        """Batches of shuffled samples out of worker processes: `collate(list of samples)`, or with None lists of what
        `open` gives. Each pass is an epoch."""
        raise self._refuse("loader")

    def by_index(self, place: Place) -> Callable[[int], Any]:
        """A function that gets one sample by its number in storage."""
        raise self._refuse("by_index")

    def by_key(self, place: Place) -> Callable[[str], Any]:
        """A function that gets one sample by its key."""
        raise self._refuse("by_key")

    def batches(self, place: Place, state: Any) -> tuple[Iterator[list[Any]], Callable[[], Any]]:
        """Batches of a shuffled epoch, from its beginning (None) or on from a state; and what gives the state."""
        raise self._refuse("batches")

    def mixed(self, places: list[Place]) -> Iterable[Any]:
        """Samples of all, shuffled each, interleaved in equal shares."""
        raise self._refuse("mixed")

    def packed(self, place: Place, sizes: list[int], length: int) -> Iterable[Any]:
        """Blocks of so many tokens from documents of these sizes that were written by `write_tokens`."""
        raise self._refuse("packed")

    def write_tokens(self, place: Place, documents: Iterable[bytes]) -> None:
        """Store documents of little-endian int32 tokens."""
        raise self._refuse("packed")

    def forget(self) -> None:
        """Close what was opened."""


class Collated:
    """A DataLoader's collate_fn, which pickles. Samples go through as they are, unless there is work to do on them or
    they can't be sent."""

    def __init__(self, peer: type[Peer], work: Callable[[list[Sample]], Any] | None) -> None:
        self._peer = peer
        self._work = work

    def __call__(self, found: list[Any]) -> Any:
        if self._work is not None:
            return self._work(list(map(self._peer().sample, found)))
        plain = self._peer.plain
        return list(found) if plain is None else list(map(plain, found))


def torch_loader(dataset: Any, workers: int, collate: Any) -> Any:
    """Torch's DataLoader as its users set it up."""
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0, collate_fn=collate
    )


def shard_rows(place: Place, count: int, size: int) -> int:
    """How many rows of `size` bytes fill a shard."""
    return min(count, max(1, place.shard // max(1, size)))


def files(place: Place, pattern: str) -> list[str]:
    return sorted(str(path) for path in Path(place.folder).glob(pattern))
