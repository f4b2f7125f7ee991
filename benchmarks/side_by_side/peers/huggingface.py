"""Hugging Face datasets: Parquet files, streamed; single rows from the Arrow table that it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

from .base import Collated, Peer, Place, shard_rows, torch_loader
from .samples import Sample

_GROUP = 16 << 20  # bytes of a row group


class HuggingFace(Peer):
    """Parquet in the folder or the bucket; what is streamed isn't cached."""

    packages = ("datasets", "pyarrow", "s3fs", "torch", "numpy")
    cannot: ClassVar[dict[str, str]] = {
        "insert_first": "has no versions of its own: all is written anew",
        "by_key": "has no index by key",
        "batches": "forgets what its shuffle buffer holds: a shuffled stream doesn't go on where it was",
        "packed": "has no packing of its own (TRL brings one)",
    }

    def start(self) -> None:
        import datasets

        datasets.disable_progress_bars()
        # It sleeps 5 s for each source at the end of a shuffled pass, until Arrow's threads have ended. An epoch of
        # hours wouldn't notice; these would hardly be anything else.
        datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0

    def _options(self, place: Place) -> dict[str, Any]:
        access, secret = place.keys
        return {"key": access, "secret": secret, "endpoint_url": place.endpoint}

    def _files(self, place: Place) -> tuple[Any, str]:
        import fsspec

        if place.endpoint:
            return fsspec.filesystem("s3", **self._options(place)), f"{place.bucket}/{place.prefix}"
        return fsspec.filesystem("file"), place.folder

    def write(self, place: Place, samples: Iterable[Sample], count: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([("key", pa.string()), ("a", pa.large_binary()), ("b", pa.large_binary())])
        system, folder = self._files(place)
        left, number = iter(samples), 0
        first = next(left)
        left, size = chain([first], left), len(first[1]) + len(first[2])
        rows_of_file, rows_of_group = shard_rows(place, count, size), max(1, min(count, _GROUP // size))
        while rows := list(islice(left, rows_of_file)):
            path = f"{folder}/part-{number:05d}.parquet"
            with system.open(path, "wb") as file, pq.ParquetWriter(file, schema, compression="none") as writer:
                for begin in range(0, len(rows), rows_of_group):
                    group = rows[begin : begin + rows_of_group]
                    columns = [
                        pa.array(column, field.type)
                        for column, field in zip(zip(*group, strict=True), schema, strict=True)
                    ]
                    writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            number += 1

    def _dataset(self, place: Place, shuffled: bool) -> Any:
        from datasets import load_dataset

        system, folder = self._files(place)
        found = sorted(system.glob(f"{folder}/*.parquet"))
        more: dict[str, Any] = {}
        if place.endpoint:
            found, more = [f"s3://{path}" for path in found], {"storage_options": self._options(place)}
        made = load_dataset("parquet", data_files=found, split="train", streaming=True, **more)
        return made.shuffle(seed=1, buffer_size=place.window) if shuffled else made

    def open(self, place: Place, shuffled: bool) -> Iterable[Any]:
        return self._dataset(place, shuffled)

    def loader(self, place: Place, workers: int, collate: Any) -> Iterable[Any]:
        return torch_loader(self._dataset(place, True), workers, Collated(HuggingFace, collate))

    def by_index(self, place: Place) -> Callable[[int], Any]:
        from datasets import load_dataset

        made = load_dataset(
            "parquet", data_files=str(Path(place.folder, "*.parquet")), split="train", cache_dir=place.cache
        )
        return made.__getitem__

    def mixed(self, places: list[Place]) -> Iterable[Any]:
        from datasets import interleave_datasets

        datasets = [self._dataset(place, True) for place in places]
        return interleave_datasets(datasets, probabilities=[1 / len(places)] * len(places), seed=1)


PEER = HuggingFace
