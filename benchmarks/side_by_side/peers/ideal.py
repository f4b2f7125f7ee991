"""Less than must be done: the map stays, so that its page tables are filled, and a download drops its bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from .bare import Bare
from .base import Place

_SAME = "the same as bare"


class Ideal(Bare):
    """What bare does, without what a cache's user pays for."""

    keep = True
    cannot: ClassVar[dict[str, str]] = {**Bare.cannot, "by_index": _SAME, "by_key": _SAME, "write": _SAME}

    def by_index(self, place: Place) -> Callable[[int], Any]:
        raise self._refuse("by_index")

    def by_key(self, place: Place) -> Callable[[str], Any]:
        raise self._refuse("by_key")


PEER = Ideal
