"""The samples of one shard, from when they come until they are packed."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SMALL = 1024  # bytes of values, below which a sample's objects are larger than what is in them
_RUN = 256  # samples


@dataclass(frozen=True, slots=True)
class LazySample:
    """A sample whose sizes are known before its bytes are read.

    `load` gives the fields, as many bytes each as `sizes` says, and may be called from any thread. Equal `stamp`s
    promise equal keys and bytes, so that a shard packed before need not be read again; None: always read.
    """

    key: str
    sizes: Mapping[str, int]
    load: Callable[[], Mapping[str, bytes]]
    stamp: bytes | None = None


Item = tuple[str, Mapping[str, bytes]] | LazySample


class _Run:
    """Small samples in a row, with fields of the same names: all keys as one text, all values as one piece of bytes."""

    __slots__ = ("_keys", "_names", "_sizes", "_values")

    def __init__(self, samples: list[tuple[str, Mapping[str, bytes]]]) -> None:
        keys = [key for key, _ in samples]
        values = [value for _, fields in samples for value in fields.values()]
        self._names = tuple(samples[0][1])
        self._sizes = array("H", map(len, keys)), array("H", map(len, values))
        self._keys, self._values = "".join(keys), b"".join(values)

    def __iter__(self) -> Iterator[tuple[str, Mapping[str, bytes]]]:
        keys, sizes = self._sizes
        text = at = next_size = 0
        for length in keys:
            fields = {}
            for name in self._names:
                size = sizes[next_size]
                fields[name] = self._values[at : at + size]
                at, next_size = at + size, next_size + 1
            yield self._keys[text : text + length], fields
            text += length


class Group:
    """Samples in order, in not much more memory than their bytes: about 70 bytes a sample beside them, where Python's
    objects for a small one are some 350. Large values stay the objects they are, and a LazySample has none yet."""

    def __init__(self) -> None:
        self._items: list[Item | _Run] = []
        self._run: list[tuple[str, Mapping[str, bytes]]] = []  # what becomes a _Run
        self._names: tuple[str, ...] = ()  # of its fields

    def add(self, item: Item, names: tuple[str, ...], size: int) -> None:
        """Put a sample behind the others; `names` of its fields, and its size in bytes."""
        if (
            size >= _SMALL
            or isinstance(item, LazySample)
            or not all(type(value) is bytes for value in item[1].values())
        ):
            self._end_run()
            self._items.append(item)
            return
        if names != self._names or len(self._run) == _RUN:
            self._end_run()
            self._names = names
        self._run.append(item)

    def _end_run(self) -> None:
        if self._run:
            self._items.append(_Run(self._run))
            self._run = []

    def lazy(self) -> list[LazySample] | None:
        """The samples, if all of them are lazy."""
        self._end_run()
        found = [item for item in self._items if isinstance(item, LazySample)]
        return found if len(found) == len(self._items) else None

    def taken(self) -> Iterator[Any]:
        """(key, fields) of each, once: its memory goes with it."""
        self._end_run()
        self._items.reverse()
        while self._items:
            item = self._items.pop()
            if isinstance(item, LazySample):
                yield item.key, item.load()
            elif isinstance(item, _Run):
                yield from item
            else:
                yield item

    def __bool__(self) -> bool:
        return bool(self._items or self._run)
