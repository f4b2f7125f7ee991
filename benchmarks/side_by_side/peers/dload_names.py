"""What dload-ml 0.3 and this dload call alike."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from .base import Peer, Place
from .samples import Sample


class DloadNames(Peer):
    """A data set in the repository of a place."""

    packages = ("dload-ml", "torch", "numpy", "boto3")
    has_budget = True

    @abstractmethod
    def _repository(self, place: Place) -> Any: ...

    def _samples(self, place: Place, shuffled: bool) -> Any:
        samples = self._repository(place).dataset(place.name).samples()
        return samples.shuffle(place.window, seed=1) if shuffled else samples

    def sample(self, found: Any) -> Sample:
        key, fields = found
        return key, fields["a"], fields["b"]

    def write(self, place: Place, samples: Iterable[Sample], count: int) -> None:
        made = ((key, {"a": a, "b": b}) for key, a, b in samples)
        self._repository(place).commit(place.name, made, target_shard_size=place.shard)

    def insert_first(self, place: Place, samples: Iterable[Sample]) -> None:
        self.write(place, samples, 0)

    def open(self, place: Place, shuffled: bool) -> Iterable[Any]:
        return self._samples(place, shuffled)

    def mixed(self, places: list[Place]) -> Iterable[Any]:
        import dload

        return dload.mix([self._samples(place, True) for place in places], seed=1)
