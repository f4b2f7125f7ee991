"""Grain over ArrayRecord: a MapDataset with its threads, its worker processes, its checkpoints."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from .base import BATCH, Peer, Place, files, shard_rows
from .samples import Sample

_LENGTHS = struct.Struct("<II")
_LOCAL = "reads ArrayRecord files from a local disk (or Google's own storage) alone"


def _encode(sample: Sample) -> bytes:
    key, a, b = sample
    name = key.encode()
    return _LENGTHS.pack(len(name), len(a)) + name + a + b


def _decode(record: bytes) -> dict[str, Any]:
    name, first = _LENGTHS.unpack_from(record)
    begin = _LENGTHS.size + name
    return {
        "key": record[_LENGTHS.size : begin].decode(),
        "a": record[begin : begin + first],
        "b": record[begin + first :],
    }


class Grain(Peer):
    """ArrayRecord files in the folder; a record is key and fields behind their lengths. A group of one record, as is
    advised where records are read in random order."""

    packages = ("grain", "array_record", "numpy")
    cannot: ClassVar[dict[str, str]] = {
        "insert_first": "has no versions: all is written anew",
        "by_key": "has no index by key",
        "s3": _LOCAL,
    }

    def start(self) -> None:
        import grain  # noqa: F401
        from absl import flags

        flags.FLAGS(["grain"])  # its worker processes need flags that were parsed

    def write(self, place: Place, samples: Iterable[Sample], count: int) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        if place.endpoint:
            raise self._refuse("s3")
        writer: Any = None
        rows = 0
        for number, sample in enumerate(samples):
            record = _encode(sample)
            if number == 0:
                rows = shard_rows(place, count, len(record))
            if number % rows == 0:
                if writer is not None:
                    writer.close()
                path = Path(place.folder, f"part-{number // rows:05d}.arecord")
                writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
            writer.write(record)
        writer.close()

    def _dataset(self, place: Place, shuffled: bool) -> Any:
        import grain
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        if place.endpoint:
            raise self._refuse("s3")
        made = grain.MapDataset.source(ArrayRecordDataSource(files(place, "*.arecord")))
        return (made.shuffle(seed=1) if shuffled else made).map(_decode)

    def open(self, place: Place, shuffled: bool) -> Iterable[Any]:
        return self._dataset(place, shuffled).to_iter_dataset()

    def loader(self, place: Place, workers: int, collate: Any) -> Iterable[Any]:
        import grain

        epoch = self._dataset(place, True)
        made = epoch.repeat().to_iter_dataset().batch(BATCH, batch_fn=_Batched(collate))
        if workers:
            made = made.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        return _Epochs(made, -(-len(epoch) // BATCH), 4 * workers)

    def by_index(self, place: Place) -> Callable[[int], Any]:
        return self._dataset(place, False).__getitem__

    def batches(self, place: Place, state: Any) -> tuple[Iterator[list[Any]], Callable[[], Any]]:
        found = iter(self._dataset(place, True).to_iter_dataset().batch(BATCH, batch_fn=list))
        if state is not None:
            found.set_state(state)
        return found, found.get_state

    def mixed(self, places: list[Place]) -> Iterable[Any]:
        import grain

        return grain.MapDataset.mix([self._dataset(place, True) for place in places]).to_iter_dataset()

    def write_tokens(self, place: Place, documents: Iterable[bytes]) -> None:
        found = list(documents)
        self.write(place, [(str(number), tokens, b"") for number, tokens in enumerate(found)], len(found))

    def packed(self, place: Place, sizes: list[int], length: int) -> Iterable[Any]:
        import grain
        import numpy as np

        def tokens(found: dict[str, Any]) -> dict[str, Any]:
            return {"tokens": np.append(np.frombuffer(found["a"], "<i4"), np.int32(50_000))}

        parent = self._dataset(place, False).map(tokens).to_iter_dataset()
        return grain.experimental.ConcatThenSplitIterDataset(parent, length_struct={"tokens": length})


class _Epochs:
    """One iterator over all epochs, so that its worker processes persist."""

    def __init__(self, endless: Any, batches: int, ahead: int) -> None:
        self._endless = iter(endless)
        self._batches = batches
        self._ahead = ahead

    def settle(self) -> None:
        """Take what its workers made ahead while nobody measured: four batches each."""
        for _ in range(self._ahead):
            next(self._endless)

    def __iter__(self) -> Iterator[Any]:
        return islice(self._endless, self._batches)


class _Batched:
    def __init__(self, work: Any) -> None:
        self._work = work

    def __call__(self, found: Any) -> Any:
        if self._work is None:
            return list(found)
        return self._work([(one["key"], one["a"], one["b"]) for one in found])


PEER = Grain
