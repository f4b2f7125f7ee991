"""dload-ml 0.3.1, by its public names. It keeps data sets in a bucket alone, so warm rows begin from one, too."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from .base import Collated, Place, torch_loader
from .dload_names import DloadNames


class DloadML(DloadNames):
    """A data set in the bucket, read through its cache."""

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

    def loader(self, place: Place, workers: int, collate: Any) -> Iterable[Any]:
        from dload.torch import as_iterable_dataset

        return torch_loader(as_iterable_dataset(self._samples(place, True)), workers, Collated(DloadML, collate))


PEER = DloadML
