"""WebDataset: tar files by its ShardWriter, WebDataset with shuffled shards and a buffer, WebLoader."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from .base import Collated, Peer, Place, files, torch_loader
from .samples import Sample


class WebDataset(Peer):
    """Tar files in the folder. From S3 by HTTP, as from a bucket that is open to be read, through its cache folder:
    it leaves S3 to the programs that it can be told to pipe from."""

    packages = ("webdataset", "torch", "numpy")
    cannot: ClassVar[dict[str, str]] = {
        "insert_first": "has no versions: all is written anew",
        "by_index": "reads tar files from their beginning: no index",
        "by_key": "reads tar files from their beginning: no index",
        "batches": "has no state that could be saved and restored",
        "packed": "has no packing",
    }

    def start(self) -> None:
        import torch  # noqa: F401
        import webdataset  # noqa: F401

    def write(self, place: Place, samples: Iterable[Sample], count: int) -> None:
        import webdataset

        pattern = str(Path(place.folder, "part-%05d.tar"))
        with webdataset.ShardWriter(pattern, maxsize=place.shard, maxcount=1 << 40, verbose=0) as writer:
            for key, a, b in samples:
                writer.write({"__key__": key, "a": a, "b": b})
        if place.endpoint:
            self._upload(place)

    def _upload(self, place: Place) -> None:
        import boto3

        client = boto3.client("s3", endpoint_url=place.endpoint)
        for path in files(place, "*.tar"):
            client.upload_file(path, place.bucket, f"{place.prefix}/{Path(path).name}")

    def sample(self, found: Any) -> Sample:
        return found["__key__"], found["a"], found["b"]

    def _urls(self, place: Place) -> list[str]:
        paths = files(place, "*.tar")
        if not place.endpoint:
            return paths
        return [f"{place.endpoint}/{place.bucket}/{place.prefix}/{Path(path).name}" for path in paths]

    def _dataset(self, place: Place, shuffled: bool) -> Any:
        import webdataset

        urls = self._urls(place)
        more = {"cache_dir": place.cache} if place.endpoint else {}
        made = webdataset.WebDataset(urls, shardshuffle=len(urls) if shuffled else False, empty_check=False, **more)
        return made.shuffle(place.window, rng=random.Random(1)) if shuffled else made

    def open(self, place: Place, shuffled: bool) -> Iterable[Any]:
        return self._dataset(place, shuffled)

    def loader(self, place: Place, workers: int, collate: Any) -> Iterable[Any]:
        return torch_loader(self._dataset(place, True), workers, Collated(WebDataset, collate))

    def mixed(self, places: list[Place]) -> Iterable[Any]:
        import webdataset

        datasets = [self._dataset(place, True) for place in places]
        return webdataset.RandomMix(datasets, [1 / len(places)] * len(places))


PEER = WebDataset
