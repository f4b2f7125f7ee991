"""Reading the index of a shard of format 1, which programs before this one wrote. It is never written.

A msgpack map of `keys`, a list of str, and `samples`, a list of maps of field name to [offset, length] in the payload.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Any, NamedTuple

from dload.errors import PackFormatError
from dload.pack import wire


class Columns(NamedTuple):
    """The same index as columns, in the order of ShardIndex's fields."""

    keys: list[str]
    layouts: list[tuple[str, ...]]
    layout: array[int] | None
    lengths: array[int]
    crc: None
    codecs: dict[str, str]
    starts: array[int] | None


def parse(data: bytes | memoryview, payload_size: int, name: str) -> Columns:
    """The columns of an index of format 1. Raises PackFormatError for anything that doesn't add up."""
    unpacker = wire.unpacker(data, name)
    keys: Any = None
    samples: _Samples | None = None
    with wire.guarded(name):
        for _ in range(unpacker.read_map_header()):
            entry = unpacker.unpack()
            if entry == "keys" and keys is None:
                keys = unpacker.unpack()
            elif entry == "samples" and samples is None:
                samples = _Samples(payload_size, name)
                # One sample at a time: as Python objects, all at once, they would take fifty times their bytes.
                for _ in range(unpacker.read_array_header()):
                    samples.add(unpacker.unpack())
            else:
                raise wire.damaged(name, f"its index must hold 'keys' and 'samples', got {entry!r:.100}")
    if type(keys) is not list or samples is None or not set(map(type, keys)) <= {str}:
        raise wire.damaged(name, "its index must hold 'keys', a list of texts, and 'samples'")
    if len(keys) != len(samples.layout):
        raise wire.damaged(name, f"it has {len(keys)} keys and {len(samples.layout)} samples")
    return samples.columns(keys)


class _Samples:
    """Samples of format 1 turned into columns, one by one."""

    def __init__(self, payload_size: int, name: str) -> None:
        self._payload_size = payload_size
        self._name = name
        self._layouts: dict[tuple[str, ...], int] = {}
        self.layout = array("L")
        self._starts = array("Q")
        self._lengths = array("Q")
        self._total = 0

    def add(self, sample: Any) -> None:
        if type(sample) is not dict or not all(type(field) is str for field in sample):
            raise self._damaged(f"a sample must be a map of field names, got {sample!r:.100}")
        self.layout.append(self._layouts.setdefault(tuple(sample), len(self._layouts)))
        for place in sample.values():
            if type(place) is not list or list(map(type, place)) != [int, int]:
                raise self._damaged(f"a field must be [offset, length], got {place!r:.100}")
            start, length = place
            if start < 0 or length < 0 or start + length > self._payload_size:
                raise self._damaged(
                    f"a field at [{start}, {length}] is outside the payload of {self._payload_size} bytes"
                )
            self._starts.append(start)
            self._lengths.append(length)
            self._total += length
        # Values never share bytes. If they could, a small file could hold samples of any size.
        if self._total > self._payload_size:
            raise self._damaged(f"its fields add up to more than its payload of {self._payload_size} bytes")

    def columns(self, keys: list[str]) -> Columns:
        in_order = array("Q", accumulate(self._lengths, initial=0))
        in_order.pop()
        starts = None if in_order == self._starts and self._total == self._payload_size else self._starts
        layout = self.layout if len(self._layouts) > 1 else None
        return Columns(keys, list(self._layouts), layout, self._lengths, None, {}, starts)

    def _damaged(self, what: str) -> PackFormatError:
        return wire.damaged(self._name, what)
