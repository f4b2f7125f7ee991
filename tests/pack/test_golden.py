"""The bytes of both formats, made by hand here: what is written must be these, and these must be read."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib

import msgpack
import pytest

from dload.errors import PackFormatError
from dload.pack import PackedShard, ShardReader, ShardWriter

SAMPLES = [("a", {"x": b"one", "y": b""}), ("b", {"y": b"22"}), ("é", {"x": b"3", "y": b"4444"}), ("none", {})]


def golden_2() -> bytes:
    index = (
        b"\x85"
        + (b"\xa4keys" + b"\x94" + b"\xa1a" + b"\xa1b" + b"\xa2\xc3\xa9" + b"\xa4none")
        + (b"\xa7layouts" + b"\x93" + b"\x92\xa1x\xa1y" + b"\x91\xa1y" + b"\x90")
        + (b"\xa6layout" + b"\xc4\x08" + struct.pack("<4H", 0, 1, 0, 2))
        + (b"\xa7lengths" + b"\xc4\x14" + struct.pack("<5I", 3, 0, 2, 1, 4))
        + (b"\xa3crc" + b"\xc4\x10" + struct.pack("<4I", *map(zlib.crc32, (b"one", b"22", b"34444", b""))))
    )
    return b"one2234444" + index + struct.pack("<QII", len(index), zlib.crc32(index), 0) + b"DLOADPK2"


def golden_2_of_one_layout() -> bytes:
    index = msgpack.packb(
        {
            "keys": ["k1", "k2"],
            "layouts": [["v"]],
            "lengths": struct.pack("<2I", 2, 1),
            "crc": struct.pack("<2I", zlib.crc32(b"ab"), zlib.crc32(b"c")),
        }
    )
    return b"abc" + index + struct.pack("<QII", len(index), zlib.crc32(index), 0) + b"DLOADPK2"


def golden_1(samples: list[dict[str, list[int]]], payload: bytes) -> bytes:
    index = msgpack.packb({"keys": [f"k{row}" for row in range(len(samples))], "samples": samples})
    return payload + index + struct.pack("<Q", len(index)) + b"DLOADPK1"


def written(samples: list[tuple[str, dict[str, bytes]]]) -> tuple[bytes, PackedShard]:
    file = io.BytesIO()
    writer = ShardWriter(file)
    for key, fields in samples:
        writer.add(key, fields)
    packed = writer.finish()
    return file.getvalue(), packed


def test_format_2_is_written_as_specified() -> None:
    data, packed = written(SAMPLES)
    assert data == golden_2()
    assert packed == PackedShard(
        digest=hashlib.sha256(data).hexdigest(), size=len(data), num_samples=4, index_size=len(data) - 10 - 24,
        fields={"x": (2, 4), "y": (3, 6)},
    )  # fmt: skip


def test_one_layout_is_left_out() -> None:
    data, _ = written([("k1", {"v": b"ab"}), ("k2", {"v": b"c"})])
    assert data == golden_2_of_one_layout()


def test_format_2_is_read() -> None:
    assert list(ShardReader(golden_2())) == SAMPLES
    assert list(ShardReader(golden_2_of_one_layout())) == [("k1", {"v": b"ab"}), ("k2", {"v": b"c"})]


def test_format_1_is_read() -> None:
    data = golden_1([{"x": [0, 3], "y": [3, 0]}, {"x": [3, 2], "y": [5, 1]}], b"one22z")
    reader = ShardReader(data)
    assert reader.index.starts is None
    assert list(reader) == [("k0", {"x": b"one", "y": b""}), ("k1", {"x": b"22", "y": b"z"})]
    assert reader.index.checksums() is None
    assert reader.index.field_stats() == {"x": (2, 5), "y": (2, 1)}
    assert reader.index.size == len(data) - 6 - 16


def test_values_of_format_1_may_lie_anywhere() -> None:
    reader = ShardReader(golden_1([{"x": [7, 2], "y": [1, 3]}, {"z": [4, 2]}, {}], b"?abcde-fg"))
    expected = [("k0", {"x": b"fg", "y": b"abc"}), ("k1", {"z": b"de"}), ("k2", {})]
    assert list(reader) == expected
    assert [reader[row] for row in range(3)] == expected
    assert reader.index.span(0) == (1, 8)
    assert reader.index.decode(0, b"abcde-fg") == expected[0][1]
    assert list(reader.samples(["y"])) == [("k0", {"y": b"abc"}), ("k1", {}), ("k2", {})]


@pytest.mark.parametrize(
    ("place", "why"),
    [([0, 4], "outside"), ([4, 0], "outside"), ([-1, 1], "outside"), ([1 << 63, 1 << 63], "outside"),
     ([0], "offset, length"), ([0, 1, 2], "offset, length"), (["0", 1], "offset, length"), ([True, 1], "offset"),
     ([0.0, 1], "offset, length"), (7, "offset, length")],
)  # fmt: skip
def test_format_1_checks_where_values_lie(place: object, why: str) -> None:
    with pytest.raises(PackFormatError, match=why):
        ShardReader(golden_1([{"x": place}], b"abc"))


def test_values_of_format_1_must_not_share_bytes() -> None:
    with pytest.raises(PackFormatError, match="more than its payload"):
        ShardReader(golden_1([{"x": [0, 3]}, {"x": [0, 3]}], b"abc"))


def test_a_newer_format_asks_for_an_upgrade() -> None:
    with pytest.raises(PackFormatError, match="format 3; this dload reads 1 and 2 — upgrade dload"):
        ShardReader(golden_2()[:-1] + b"3", name="s")
