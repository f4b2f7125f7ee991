"""The least that must be done, with the standard library: what a system's figures are measured by.

A loop that slices one map of a file by offsets that are known, a map made anew for each pass; a download by 16 threads
into files; one pass of writing and hashing.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from .base import BATCH, Peer, Place
from .samples import Sample

THREADS = 16
_RAW = "nothing but bytes in a file"


class Loop:
    """Slices of one map, each a sample."""

    def __init__(self, path: Path, shuffled: bool, keep: bool) -> None:
        self._path = path
        self._kept = self._map() if keep else None
        self._places: list[tuple[str, int, int, int]] = []
        at = 0
        for line in path.with_suffix(".index").read_text().splitlines():
            key, a, b = line.split()
            middle = at + int(a)
            self._places.append((key, at, middle, middle + int(b)))
            at = middle + int(b)
        if shuffled:
            random.Random(1).shuffle(self._places)

    def _map(self) -> mmap.mmap:
        with self._path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __iter__(self) -> Iterator[Any]:
        mapped = self._kept or self._map()
        for key, begin, middle, end in self._places:
            yield key, {"a": mapped[begin:middle], "b": mapped[middle:end]}

    def batches(self) -> Iterator[list[Any]]:
        batch = []
        for found in self:
            batch.append(found)
            if len(batch) == BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    def __getitem__(self, row: int) -> Any:
        key, begin, middle, end = self._places[row]
        mapped = self._kept or self._map()
        return key, {"a": mapped[begin:middle], "b": mapped[middle:end]}

    def keys(self) -> dict[str, int]:
        return {place[0]: row for row, place in enumerate(self._places)}


class _Batches:
    def __init__(self, loop: Loop, work: Any) -> None:
        self._loop = loop
        self._work = work

    def __iter__(self) -> Iterator[Any]:
        batches = self._loop.batches()
        if self._work is None:
            return batches
        return (self._work([(key, fields["a"], fields["b"]) for key, fields in batch]) for batch in batches)


class Bare(Peer):
    """A map anew for each pass, since whatever a cache evicts must not stay mapped; downloads go to files."""

    keep = False
    packages = ("boto3",)
    cannot: ClassVar[dict[str, str]] = {
        "insert_first": _RAW, "batches": _RAW, "packed": _RAW, "loader": "one process is all that it has",
    }  # fmt: skip

    def sample(self, found: Any) -> Sample:
        key, fields = found
        return key, fields["a"], fields["b"]

    def write(self, place: Place, samples: Iterable[Sample], count: int) -> None:
        if place.endpoint:
            self._upload(place, samples)
            return
        self._pack(Path(place.folder, "bare"), place.shard, samples)

    @staticmethod
    def _pack(path: Path, shard: int, samples: Iterable[Sample]) -> None:
        """One pass of writing and hashing; synced each time that a shard is full. In pieces of 256 KiB: larger pieces
        are larger pages, of which a map that is made anew has fewer faults."""
        digest, room = hashlib.sha256(), shard
        with path.open("wb", buffering=1 << 18) as file, path.with_suffix(".index").open("w") as index:
            for key, a, b in samples:
                digest.update(a)
                digest.update(b)
                file.write(a + b)
                index.write(f"{key} {len(a)} {len(b)}\n")
                room -= len(a) + len(b)
                if room < 0:
                    file.flush()
                    os.fsync(file.fileno())
                    digest, room = hashlib.sha256(), shard
            file.flush()
            os.fsync(file.fileno())

    def _client(self, place: Place) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(max_pool_connections=THREADS, s3={"addressing_style": "path"})
        return boto3.client("s3", endpoint_url=place.endpoint, config=config)

    def _upload(self, place: Place, samples: Iterable[Sample]) -> None:
        """Files of the size of a shard, four at once."""
        folder = Path(place.folder)
        parts, room = [folder / "part-0"], place.shard
        file = parts[0].open("wb")
        for _, a, b in samples:
            file.write(a + b)
            room -= len(a) + len(b)
            if room < 0:
                file.close()
                parts.append(folder / f"part-{len(parts)}")
                file, room = parts[-1].open("wb"), place.shard
        file.close()
        client = self._client(place)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda part: client.upload_file(part, place.bucket, f"{place.prefix}/{part.name}"), parts))
        for part in parts:
            part.unlink()

    def open(self, place: Place, shuffled: bool) -> Iterable[Any]:
        if place.endpoint:
            return self._download(place)
        return Loop(Path(place.folder, "bare"), shuffled, self.keep)

    def _download(self, place: Place) -> Iterator[None]:
        """All objects, by 16 threads; there are no samples: an element for each 100 KB that have come."""
        client = self._client(place)
        listed = client.list_objects_v2(Bucket=place.bucket, Prefix=place.prefix + "/")["Contents"]
        shutil.rmtree(place.cache, ignore_errors=True)
        Path(place.cache).mkdir(parents=True)

        def one(key: str) -> int:
            body, length = client.get_object(Bucket=place.bucket, Key=key)["Body"], 0
            with Path(os.devnull if self.keep else f"{place.cache}/{key.replace('/', '-')}").open("wb") as file:
                while chunk := body.read(1 << 20):
                    length += file.write(chunk)
            return length

        with ThreadPoolExecutor(THREADS) as pool:
            lengths = pool.map(one, [each["Key"] for each in listed])
            yield from chain.from_iterable([None] * round(length / 100_000) for length in lengths)

    def by_index(self, place: Place) -> Callable[[int], Any]:
        return Loop(Path(place.folder, "bare"), False, True).__getitem__

    def by_key(self, place: Place) -> Callable[[str], Any]:
        loop = Loop(Path(place.folder, "bare"), False, True)
        rows = loop.keys()
        return lambda key: loop[rows[key]]

    def mixed(self, places: list[Place]) -> Iterable[Any]:
        return _Turns([Loop(Path(place.folder, "bare"), True, self.keep) for place in places])

    def loader(self, place: Place, workers: int, collate: Any) -> Iterable[Any]:
        if workers:
            raise self._refuse("loader")
        return _Batches(Loop(Path(place.folder, "bare"), True, self.keep), collate)


class _Turns:
    """One of each in turn."""

    def __init__(self, loops: list[Loop]) -> None:
        self._loops = loops

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(zip(*self._loops, strict=False))


PEER = Bare
