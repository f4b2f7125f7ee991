"""This dload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from .base import BATCH, Peer, Place
from .samples import Sample


class Dload(Peer):
    """A data set of one store, `place.prefix` below the bucket or `store` in the folder."""

    packages = ("dload-ml", "torch", "numpy", "boto3")
    has_budget = True
    cannot: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self._loaders: list[Any] = []

    def start(self) -> None:
        pass

    def _repository(self, place: Place) -> Any:
        from dload.api import Repository
        from dload.cache import ShardCache
        from dload.store import open_store

        where = place.url if place.endpoint else str(Path(place.folder, "store"))
        store = open_store(where, endpoint_url=place.endpoint or None, state_dir=Path(place.cache))
        return Repository(store, ShardCache(Path(place.cache), budget=place.budget or None))

    def _samples(self, place: Place, shuffled: bool) -> Any:
        samples = self._repository(place).dataset("data").samples()
        return samples.shuffle(place.window, seed=1) if shuffled else samples

    def sample(self, found: Any) -> Sample:
        key, fields = found
        return key, fields["a"], fields["b"]

    def write(self, place: Place, samples: Iterable[Sample], count: int) -> None:
        made = ((key, {"a": a, "b": b}) for key, a, b in samples)
        self._repository(place).commit("data", made, target_shard_size=place.shard)

    def insert_first(self, place: Place, samples: Iterable[Sample]) -> None:
        self.write(place, samples, 0)

    def open(self, place: Place, shuffled: bool) -> Iterable[Any]:
        return self._samples(place, shuffled)

    def loader(self, place: Place, workers: int, collate: Any) -> Iterable[Any]:
        from dload.torch import StreamLoader

        made = StreamLoader(
            self._samples(place, True), BATCH, num_workers=workers, persistent_workers=workers > 0,
            collate=_Collated(collate),
        )  # fmt: skip
        self._loaders.append(made)
        return made

    def by_index(self, place: Place) -> Callable[[int], Any]:
        return self._repository(place).dataset("data").__getitem__

    def by_key(self, place: Place) -> Callable[[str], Any]:
        dataset = self._repository(place).dataset("data")
        return lambda key: (key, dataset[key])

    def batches(self, place: Place, state: Any) -> tuple[Iterator[list[Any]], Callable[[], Any]]:
        from dload import Loader

        loader = Loader(self._samples(place, True), BATCH, collate=list)
        self._loaders.append(loader)
        if state is not None:
            loader.load_state_dict(state)
        return iter(loader), loader.state_dict

    def mixed(self, places: list[Place]) -> Iterable[Any]:
        from dload.api.pipeline import mix

        return mix([self._samples(place, True) for place in places], seed=1)

    def write_tokens(self, place: Place, documents: Iterable[bytes]) -> None:
        samples = ((f"d{number:07d}", {"tokens": tokens}) for number, tokens in enumerate(documents))
        self._repository(place).commit("data", samples, target_shard_size=place.shard)

    def packed(self, place: Place, sizes: list[int], length: int) -> Iterable[Any]:
        return self._samples(place, False).pack(length, eos_id=50_000, pad_id=50_001, dtype="int32")

    def forget(self) -> None:
        for loader in self._loaders:
            loader.close()
        self._loaders.clear()


class _Collated:
    def __init__(self, work: Any) -> None:
        self._work = work

    def __call__(self, found: list[Any]) -> Any:
        if self._work is None:
            return list(found)
        return self._work([(key, fields["a"], fields["b"]) for key, fields in found])


PEER = Dload
