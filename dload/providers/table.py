"""A split with places, as its provider gives it."""

from __future__ import annotations

from typing import Any

from dload.pipeline.provided import Origin


class Table:
    """A split of a provider's own kind, which has `len`, `[i]` and `__getitems__`: a `datasets.Dataset` (Arrow files,
    mapped into memory) or a TFDS data source (ArrayRecord files, decoded to NumPy)."""

    def __init__(self, origin: Origin, records: Any) -> None:
        self.origin, self._records = origin, records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, place: int) -> Any:
        return self._records[place]

    def __getitems__(self, places: list[int]) -> list[Any]:
        return list(self._records.__getitems__(places)) if places else []
