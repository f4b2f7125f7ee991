"""MosaicML Streaming: MDS, StreamingDataset, StreamingDataLoader."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from .base import BATCH, Collated, Peer, Place, torch_loader
from .samples import Sample

_COLUMNS = {"key": "str", "a": "bytes", "b": "bytes"}


class MosaicML(Peer):
    """MDS in the folder, read in place; from S3 through its local folder. No two of its data sets may be open over
    one folder, so what is open is closed first."""

    packages = ("mosaicml-streaming", "torch", "numpy", "boto3")
    has_budget = True
    cannot: ClassVar[dict[str, str]] = {
        "insert_first": "has no versions: all is written anew",
        "by_key": "has no index by key",
        "packed": "has no packing of its own (LLM Foundry brings one)",
    }

    def __init__(self) -> None:
        self._open: list[Any] = []

    def start(self) -> None:
        import streaming  # noqa: F401

    def write(self, place: Place, samples: Iterable[Sample], count: int) -> None:
        from streaming import MDSWriter

        self._environment(place)
        out = place.url
        with MDSWriter(out=out, columns=_COLUMNS, size_limit=place.shard) as writer:
            for key, a, b in samples:
                writer.write({"key": key, "a": a, "b": b})

    @staticmethod
    def _environment(place: Place) -> None:
        if place.endpoint:
            os.environ["S3_ENDPOINT_URL"] = place.endpoint

    def _stream(self, place: Place) -> dict[str, Any]:
        self._environment(place)
        if not place.endpoint:
            return {"local": place.folder}
        return {"remote": place.url, "local": str(Path(place.cache, "local"))}

    def _dataset(self, place: Place, shuffled: bool) -> Any:
        from streaming import StreamingDataset

        self.forget()
        made = StreamingDataset(
            **self._stream(place), shuffle=shuffled, shuffle_seed=1, batch_size=BATCH, num_canonical_nodes=1,
            cache_limit=place.budget or None,
        )  # fmt: skip
        self._open.append(made)
        return made

    def open(self, place: Place, shuffled: bool) -> Iterable[Any]:
        return self._dataset(place, shuffled)

    def loader(self, place: Place, workers: int, collate: Any) -> Iterable[Any]:
        made = torch_loader(self._dataset(place, True), workers, Collated(MosaicML, collate))
        self._open.append(made)
        return made

    def by_index(self, place: Place) -> Callable[[int], Any]:
        return self._dataset(place, False).__getitem__

    def batches(self, place: Place, state: Any) -> tuple[Iterator[list[Any]], Callable[[], Any]]:
        from streaming import StreamingDataLoader

        dataset = self._dataset(place, True)
        loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0, collate_fn=_columns)
        if state is not None:
            loader.load_state_dict(state)
        rows = ([dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)] for batch in loader)
        return rows, loader.state_dict

    def mixed(self, places: list[Place]) -> Iterable[Any]:
        from streaming import Stream, StreamingDataset

        self.forget()
        streams = [Stream(**self._stream(place), proportion=1 / len(places)) for place in places]
        made = StreamingDataset(streams=streams, shuffle=True, shuffle_seed=1, batch_size=BATCH, num_canonical_nodes=1)
        self._open.append(made)
        return made

    def forget(self) -> None:
        from streaming.base.util import clean_stale_shared_memory

        self._open.clear()
        gc.collect()
        clean_stale_shared_memory()


def _columns(found: list[Any]) -> dict[str, Any]:
    """Its loader counts samples by the length of a batch's first column."""
    return {name: [one[name] for one in found] for name in _COLUMNS}


PEER = MosaicML
