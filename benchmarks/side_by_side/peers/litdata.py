"""LitData: chunks by its own writer, StreamingDataset, StreamingDataLoader."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from .base import BATCH, Collated, Peer, Place
from .samples import Sample

_NO_KEYS = "has no index by a key that one chooses"


class LitData(Peer):
    """Chunks in the folder, read in place; from S3 through its cache folder."""

    packages = ("litdata", "torch", "numpy", "boto3", "obstore")
    has_budget = True
    cannot: ClassVar[dict[str, str]] = {
        "insert_first": "has no versions: all is written anew",
        "by_key": _NO_KEYS,
    }

    @staticmethod
    def plain(found: Any) -> Any:
        return {"key": found["key"], "a": bytes(found["a"]), "b": bytes(found["b"])}

    def start(self) -> None:
        from litdata.streaming import downloader

        # Its faster client refuses servers without TLS, and there is no option for it.
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True

    def write(self, place: Place, samples: Iterable[Sample], count: int) -> None:
        rows = ({"key": key, "a": a, "b": b} for key, a, b in samples)
        if not place.endpoint:
            self._chunks(place.folder, place.shard, rows)
            return
        with tempfile.TemporaryDirectory(dir=place.folder) as folder:
            self._chunks(folder, place.shard, rows)
            self._upload(place, Path(folder))

    @staticmethod
    def _chunks(folder: str, shard: int, rows: Iterable[Any], **more: Any) -> None:
        from litdata.streaming import Cache

        cache = Cache(folder, chunk_bytes=shard, **more)
        for number, row in enumerate(rows):
            cache[number] = row
        cache.done()
        cache.merge()

    @staticmethod
    def _upload(place: Place, folder: Path) -> None:
        """As its own `optimize` does it: a chunk after another by boto3."""
        import boto3

        client = boto3.client("s3", endpoint_url=place.endpoint)
        for path in sorted(folder.iterdir(), key=lambda path: path.name == "index.json"):
            client.upload_file(str(path), place.bucket, f"{place.prefix}/{path.name}")

    def _dataset(self, place: Place, shuffled: bool, **more: Any) -> Any:
        from litdata import StreamingDataset

        if place.budget:
            more["max_cache_size"] = place.budget
        if not place.endpoint:
            return StreamingDataset(place.folder, shuffle=shuffled, seed=1, **more)
        access, secret = place.keys
        options = {
            "endpoint_url": place.endpoint, "aws_access_key_id": access, "aws_secret_access_key": secret,
            "region_name": "us-east-1",
        }  # fmt: skip
        return StreamingDataset(
            place.url, cache_dir=place.cache, shuffle=shuffled, seed=1, storage_options=options, **more
        )

    def open(self, place: Place, shuffled: bool) -> Iterable[Any]:
        return self._dataset(place, shuffled)

    def loader(self, place: Place, workers: int, collate: Any) -> Iterable[Any]:
        from litdata import StreamingDataLoader

        return StreamingDataLoader(
            self._dataset(place, True, drop_last=False), batch_size=BATCH, num_workers=workers,
            persistent_workers=workers > 0, collate_fn=Collated(LitData, collate),
        )  # fmt: skip

    def by_index(self, place: Place) -> Callable[[int], Any]:
        return self._dataset(place, False).__getitem__

    def batches(self, place: Place, state: Any) -> tuple[Iterator[list[Any]], Callable[[], Any]]:
        from litdata import StreamingDataLoader

        loader = StreamingDataLoader(
            self._dataset(place, True), batch_size=BATCH, num_workers=0, collate_fn=Collated(LitData, None)
        )
        if state is not None:
            loader.load_state_dict(state)
        return iter(loader), loader.state_dict

    def mixed(self, places: list[Place]) -> Iterable[Any]:
        from litdata import CombinedStreamingDataset

        datasets = [self._dataset(place, True) for place in places]
        return CombinedStreamingDataset(
            datasets, seed=1, weights=[1 / len(places)] * len(places), iterate_over_all=False
        )

    def write_tokens(self, place: Place, documents: Iterable[bytes]) -> None:
        import torch
        from litdata.streaming.item_loader import TokensLoader

        eos = (50_000).to_bytes(4, "little")
        rows = (torch.frombuffer(bytearray(tokens + eos), dtype=torch.int32) for tokens in documents)
        self._chunks(place.folder, place.shard, rows, item_loader=TokensLoader())

    def packed(self, place: Place, sizes: list[int], length: int) -> Iterable[Any]:
        from litdata.streaming.item_loader import TokensLoader

        return self._dataset(place, False, item_loader=TokensLoader(block_size=length))


PEER = LitData
