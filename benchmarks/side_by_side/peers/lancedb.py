"""LanceDB: a table, and lancedb.streaming's StreamingDataset over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar

from .base import BATCH, Collated, Peer, Place
from .samples import Sample


class LanceDB(Peer):
    """A table in the folder or the bucket; it has no cache on disk. Shuffled in clumps of a read's size, since single
    rows in random order are a request each."""

    packages = ("lancedb", "pyarrow", "torch", "numpy")
    cannot: ClassVar[dict[str, str]] = {
        "insert_first": "appends rows behind a table; it puts none in front",
        "mixed": "streams one table; mixing is left to the user",
    }

    def start(self) -> None:
        import lancedb.streaming  # noqa: F401

    def _database(self, place: Place) -> Any:
        import lancedb

        if not place.endpoint:
            return lancedb.connect(place.folder)
        access, secret = place.keys
        options = {
            "endpoint": place.endpoint, "allow_http": "true", "aws_access_key_id": access,
            "aws_secret_access_key": secret, "region": "us-east-1",
        }  # fmt: skip
        return lancedb.connect(place.url, storage_options=options)

    def write(self, place: Place, samples: Iterable[Sample], count: int) -> None:
        import pyarrow as pa

        schema = pa.schema([("key", pa.string()), ("a", pa.large_binary()), ("b", pa.large_binary())])

        def batches() -> Iterator[Any]:
            left = iter(samples)
            while rows := list(islice(left, 256)):
                columns = zip(*rows, strict=True)
                arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

        self._database(place).create_table("data", batches(), schema=schema, mode="overwrite")

    def _table(self, place: Place) -> Any:
        return self._database(place).open_table("data")

    def _dataset(self, place: Place, shuffled: bool, epoch: int = 0, splits: int = 1) -> Any:
        from lancedb.streaming import StreamingDataset

        return StreamingDataset(
            self._table(place), num_splits=splits, shuffle=shuffled, shuffle_seed=1, shuffle_clump_size=64, epoch=epoch
        )

    def open(self, place: Place, shuffled: bool) -> Iterable[Any]:
        return _Epochs(lambda epoch: self._dataset(place, shuffled, epoch))

    def loader(self, place: Place, workers: int, collate: Any) -> Iterable[Any]:
        from lancedb.streaming import StreamingDataLoader

        more = {"multiprocessing_context": self._context()} if workers else {}

        def batches(epoch: int) -> Any:  # it doesn't let its workers persist
            dataset = self._dataset(place, True, epoch, splits=max(1, workers))
            return StreamingDataLoader(
                dataset, batch_size=BATCH, num_workers=workers, collate_fn=Collated(LanceDB, collate), **more
            )

        return _Epochs(batches)

    @staticmethod
    def _context() -> Any:
        """Its threads don't outlive a fork, so workers come from a server that has it imported and not begun."""
        import multiprocessing

        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "lancedb.streaming"])
        return context

    def by_index(self, place: Place) -> Callable[[int], Any]:
        table = self._table(place)
        return lambda row: table.take_offsets([row]).to_list()[0]

    def by_key(self, place: Place) -> Callable[[str], Any]:
        table = self._table(place)
        table.create_scalar_index("key", replace=True)
        return lambda key: table.search().where(f"key = '{key}'").limit(1).to_list()[0]

    def batches(self, place: Place, state: Any) -> tuple[Iterator[list[Any]], Callable[[], Any]]:
        from lancedb.streaming import StreamingDataLoader

        dataset = self._dataset(place, True)
        if state is not None:
            dataset.load_state_dict(state)
        return iter(StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=list)), dataset.state_dict

    def write_tokens(self, place: Place, documents: Iterable[bytes]) -> None:
        import numpy as np
        import pyarrow as pa

        schema = pa.schema([("tokens", pa.list_(pa.int32()))])

        def batches() -> Iterator[Any]:
            left = iter(documents)
            while rows := [np.frombuffer(tokens, "<i4") for tokens in islice(left, 1000)]:
                yield pa.record_batch([pa.array(rows, type=schema.field(0).type)], schema=schema)

        self._database(place).create_table("data", batches(), schema=schema, mode="overwrite")

    def packed(self, place: Place, sizes: list[int], length: int) -> Iterable[Any]:
        from lancedb.streaming import StreamingDataset

        blocks = -(-(sum(sizes) + len(sizes)) // length)
        return _Epochs(
            lambda epoch: StreamingDataset(
                self._table(place), shuffle=False, num_splits=1, columns=["tokens"], pack_sequences=length,
                eos_id=50_000, pad_id=50_001, blocks_per_epoch=blocks, epoch=epoch,
            )
        )  # fmt: skip


class _Epochs:
    """A data set of its is good for one epoch."""

    def __init__(self, make: Callable[[int], Iterable[Any]]) -> None:
        self._make = make
        self._epoch = -1

    def __iter__(self) -> Iterator[Any]:
        self._epoch += 1
        return iter(self._make(self._epoch))


PEER = LanceDB
