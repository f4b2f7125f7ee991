"""tf.train.Example, the record of TFDS, read without TensorFlow.

The message, from tensorflow/core/example: field 1 is a map (entries of key 1 and value 2) whose values hold in one of
the fields 1, 2 and 3 a list (its field 1) of byte strings, of floats or of integers. The wire format: protobuf.dev,
"Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Feature = list[bytes] | list[float] | list[int]
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def parse_example(record: bytes) -> dict[str, Feature]:
    """The features of an example. Raises ValueError for what is none."""
    features: dict[str, Feature] = {}
    for _, _, message in _fields(record, 1):
        for _, _, entry in _fields(_as_bytes(message), 1):
            parts = {number: value for number, _, value in _fields(_as_bytes(entry), None)}
            features[_as_bytes(parts.get(1, b"")).decode()] = _feature(_as_bytes(parts.get(2, b"")))
    return features


def _feature(data: bytes) -> Feature:
    for number, _, value in _fields(data, None):
        body = _as_bytes(value)
        if number == 1:
            return [_as_bytes(one) for _, _, one in _fields(body, 1)]
        if number == 2:
            return _floats(body)
        if number == 3:
            return _integers(body)
    return []


def _floats(data: bytes) -> list[float]:
    found: list[float] = []
    for _, wire, value in _fields(data, 1):
        packed = value if wire == _BYTES else struct.pack("<I", value)
        found.extend(struct.unpack(f"<{len(_as_bytes(packed)) // 4}f", _as_bytes(packed)))
    return found


def _integers(data: bytes) -> list[int]:
    found: list[int] = []
    for _, wire, value in _fields(data, 1):
        if wire == _BYTES:
            packed, at = _as_bytes(value), 0
            while at < len(packed):
                one, at = _varint(packed, at)
                found.append(one)
        elif isinstance(value, int):
            found.append(value)
    return [one - (1 << 64) if one >> 63 else one for one in found]


def _fields(data: bytes, wanted: int | None) -> Iterator[tuple[int, int, bytes | int]]:
    """The fields of a message: number, wire type, value."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        value: bytes | int
        if wire == _VARINT:
            value, at = _varint(data, at)
        elif wire in (_BYTES, _FIXED32, _FIXED64):
            size, at = _varint(data, at) if wire == _BYTES else ({_FIXED32: 4, _FIXED64: 8}[wire], at)
            raw = data[at : at + size]
            if len(raw) < size:
                raise ValueError(f"a field of {size:,} bytes in {len(data) - at:,}")
            value, at = raw if wire == _BYTES else int.from_bytes(raw, "little"), at + size
        else:
            raise ValueError(f"a field of the wire type {wire}")
        if wanted is None or number == wanted:
            yield number, wire, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number that doesn't end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
        shift += 7


def _as_bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message must be")
    return value
