"""dload-ml 0.3.1, by its public names. It keeps data sets in a bucket alone, so warm rows begin from one, too."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from .base import Collated, Peer, Place, torch_loader
from .samples import Sample


class DloadML(Peer):
    """A data set in the bucket, read through its cache."""

    packages = ("dload-ml", "torch", "numpy", "boto3")
    has_budget = True
    cannot: ClassVar[dict[str, str]] = {
        "folder": "keeps data sets in a bucket alone",
        "by_index": "has no access to single samples",
        "by_key": "has no access to single samples",
        "batches": "has no state that could be saved and restored",
        "packed": "has no packing",
    }

    def start(self) -> None:
        import dload  # noqa: F401

    def _repository(self, place: Place) -> Any:
        import dload

        if not place.endpoint:
            raise self._refuse("folder")
        return dload.Repository.open(
            dload.Config(place.endpoint, place.bucket, place.prefix, Path(place.cache), place.budget or None, "")
        )

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
        from dload.torch import as_iterable_dataset

        return torch_loader(as_iterable_dataset(self._samples(place, True)), workers, Collated(DloadML, collate))

    def mixed(self, places: list[Place]) -> Iterable[Any]:
        import dload

        return dload.mix([self._samples(place, True) for place in places], seed=1)


PEER = DloadML
