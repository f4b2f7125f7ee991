"""This dload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from .base import BATCH, Collated, Place
from .dload_names import DloadNames


class Dload(DloadNames):
    """A data set of one store, `place.prefix` below the bucket or `store` in the folder."""

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

    def loader(self, place: Place, workers: int, collate: Any) -> Iterable[Any]:
        from dload.torch import StreamLoader

        made = StreamLoader(
            self._samples(place, True), BATCH, num_workers=workers, persistent_workers=workers > 0,
            collate=Collated(Dload, collate),
        )  # fmt: skip
        self._loaders.append(made)
        return made

    def by_index(self, place: Place) -> Callable[[int], Any]:
        return self._repository(place).dataset(place.name).__getitem__

    def by_key(self, place: Place) -> Callable[[str], Any]:
        dataset = self._repository(place).dataset(place.name)
        return lambda key: (key, dataset[key])

    def batches(self, place: Place, state: Any) -> tuple[Iterator[list[Any]], Callable[[], Any]]:
        from dload import Loader

        loader = Loader(self._samples(place, True), BATCH, collate=list)
        self._loaders.append(loader)
        if state is not None:
            loader.load_state_dict(state)
        return iter(loader), loader.state_dict

    def write_tokens(self, place: Place, documents: Iterable[bytes]) -> None:
        samples = ((f"d{number:07d}", {"tokens": tokens}) for number, tokens in enumerate(documents))
        self._repository(place).commit(place.name, samples, target_shard_size=place.shard)

    def packed(self, place: Place, sizes: list[int], length: int) -> Iterable[Any]:
        return self._samples(place, False).pack(length, eos_id=50_000, pad_id=50_001, dtype="int32")

    def forget(self) -> None:
        for loader in self._loaders:
            loader.close()
        self._loaders.clear()


PEER = Dload
