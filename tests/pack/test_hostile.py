"""Shards cut off, damaged, or made to hurt: always one of our errors, never a crash, a hang or wrong bytes."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import Any

import msgpack
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dload.errors import IntegrityError, PackFormatError
from dload.pack import Sample, ShardIndex, ShardReader
from dload.testing.shards import packed_shard

SAMPLES: list[Sample] = [
    ("first", {"image": b"\x89PNG....", "label": b"7"}),
    ("second", {"image": b"", "label": b"12"}),
    ("third", {"text": b"words words words words"}),
    ("fourth", {}),
]


def format_2(samples: list[Sample] = SAMPLES, codecs: dict[str, str] | None = None) -> bytes:
    return packed_shard(samples, codecs)[0]


def format_1(samples: list[Sample] = SAMPLES) -> bytes:
    payload = b""
    places: list[dict[str, list[int]]] = []
    for _, fields in samples:
        places.append({})
        for name, value in fields.items():
            places[-1][name] = [len(payload), len(value)]
            payload += value
    return sealed_1(payload, msgpack.packb({"keys": [key for key, _ in samples], "samples": places}))


def sealed_1(payload: bytes, index: bytes) -> bytes:
    return payload + index + struct.pack("<Q", len(index)) + b"DLOADPK1"


def sealed_2(payload: bytes, index: bytes) -> bytes:
    """A shard whose trailer vouches for whatever index it is given."""
    return payload + index + struct.pack("<QII", len(index), zlib.crc32(index), 0) + b"DLOADPK2"


SHARDS = {
    "2": format_2(), "2, one layout": format_2(SAMPLES[:2]), "2, zstd": format_2(codecs={"text": "zstd"}),
    "2, empty": format_2([]), "1": format_1(), "1, empty": format_1([]),
}  # fmt: skip
OURS = (PackFormatError, IntegrityError)


def read_everything(data: bytes) -> list[Sample] | None:
    """All samples, read in every way; None if one of our errors said that they can't be."""
    try:
        reader = ShardReader(data)
        singles = [reader[row] for row in range(len(reader))]
        assert list(reader) == reader[:] == singles
        list(reader.samples(["label"]))
        reader.index.checksums(), reader.index.field_stats(), reader.index.rows
    except OURS as error:
        str(error).encode()
        return None
    return singles


@pytest.mark.parametrize("name", SHARDS)
def test_a_shard_cut_off_anywhere_is_refused(name: str) -> None:
    shard = SHARDS[name]
    for length in range(len(shard)):
        with pytest.raises(PackFormatError):
            ShardReader(shard[:length])
    for start in range(1, len(shard)):
        assert read_everything(shard[start:]) is None


@pytest.mark.parametrize("name", [name for name in SHARDS if name.startswith("2")])
def test_no_flipped_bit_of_format_2_goes_unseen(name: str) -> None:
    shard = SHARDS[name]
    expected = read_everything(shard)
    assert expected is not None
    for at in range(len(shard)):
        for bit in range(8):
            damaged = bytearray(shard)
            damaged[at] ^= 1 << bit
            assert read_everything(bytes(damaged)) is None


@pytest.mark.parametrize("name", [name for name in SHARDS if name.startswith("1")])
def test_flipped_bits_of_format_1_never_crash(name: str) -> None:
    """It has no checksums of its own: what can't be seen here, the digest of the whole shard shows."""
    shard = SHARDS[name]
    for at in range(len(shard)):
        for bit in range(8):
            damaged = bytearray(shard)
            damaged[at] ^= 1 << bit
            read_everything(bytes(damaged))


def test_a_damaged_sample_is_named() -> None:
    shard = bytearray(format_2())
    shard[0] ^= 1
    reader = ShardReader(bytes(shard), name="abc123")
    why = r"sample 'first' of shard abc123 .*expected crc32 .{8}, got .{8}"
    for read in (
        lambda: reader[0], lambda: reader["first"], lambda: reader.check(0), lambda: reader.read(0, ["label"])
    ):  # fmt: skip
        with pytest.raises(IntegrityError, match=why) as caught:
            read()
        assert caught.value.details == {"shard": "abc123", "key": "first"}
    assert reader[1] == SAMPLES[1]
    with pytest.raises(IntegrityError, match="expected 9 bytes, got 8"):
        reader.index.decode(0, b"\x89PNG....")


def test_a_damaged_index_is_told_from_a_missing_one() -> None:
    shard = bytearray(format_2())
    shard[40] ^= 1
    with pytest.raises(IntegrityError, match=r"index of shard s is damaged: expected crc32 .{8}, got .{8}"):
        ShardReader(bytes(shard), name="s")
    with pytest.raises(PackFormatError, match=r"index and trailer of shard s take .* bytes, got its last 50"):
        ShardIndex.from_footer(format_2()[-50:], len(shard), "s")


@settings(max_examples=400, deadline=None)
@given(shard=st.sampled_from(list(SHARDS.values())), data=st.data())
def test_spliced_shards_never_crash(shard: bytes, data: st.DataObject) -> None:
    """Anything put over the index or the payload, with the trailer set right again."""
    size = 16 if shard.endswith(b"1") else 24
    body = bytearray(shard[:-size])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    index_size = data.draw(st.integers(0, len(body)) | st.just(struct.unpack("<Q", shard[-size:][:8])[0]))
    payload, index = bytes(body[: max(0, len(body) - index_size)]), bytes(body[max(0, len(body) - index_size) :])
    read_everything(sealed_1(payload, index) if size == 16 else sealed_2(payload, index))


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
    | st.binary(max_size=12),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=5) | st.integers(-9, 9), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
numbers = st.lists(st.sampled_from([0, 1, 2, 3, 65_535]), max_size=4)
entries_2 = st.fixed_dictionaries(
    {},
    optional={
        "keys": st.lists(st.text(max_size=3), max_size=3) | anything,
        "layouts": st.lists(st.lists(st.sampled_from(["a", "b", ""]), max_size=3), max_size=3) | anything,
        "layout": numbers.map(lambda column: struct.pack(f"<{len(column)}H", *column)) | anything,
        "lengths": numbers.map(lambda column: struct.pack(f"<{len(column)}I", *column)) | anything,
        "crc": numbers.map(lambda column: struct.pack(f"<{len(column)}I", *column)) | anything,
        "codecs": st.dictionaries(st.sampled_from("ab"), st.sampled_from(["zstd", "new"]), max_size=2) | anything,
        "more": anything,
    },
)


@settings(max_examples=600, deadline=None)
@given(entries=entries_2 | anything, payload=st.binary(max_size=6))
@example(entries={"keys": ["a", "a"], "layouts": [[]], "lengths": b"", "crc": bytes(8)}, payload=b"")
@example(entries={"keys": ["a"], "layouts": [["x", "x"]], "lengths": bytes(8), "crc": bytes(4)}, payload=b"")
@example(entries={"keys": [], "layouts": [], "lengths": b"", "crc": b""}, payload=b"")
def test_any_index_of_format_2_is_read_or_refused(entries: Any, payload: bytes) -> None:
    samples = read_everything(sealed_2(payload, msgpack.packb(entries)))
    if samples is not None:
        assert b"".join(value for _, fields in samples for value in fields.values()) == payload or entries.get("codecs")


places = st.lists(st.integers(-1, 7) | st.just(1 << 63), min_size=2, max_size=2) | anything
samples_1 = st.lists(st.dictionaries(st.text(max_size=2), places, max_size=2) | anything, max_size=3)


@settings(max_examples=400, deadline=None)
@given(
    entries=st.fixed_dictionaries(
        {}, optional={"keys": st.lists(st.text(max_size=3), max_size=3) | anything, "samples": samples_1 | anything}
    )
    | anything,
    payload=st.binary(max_size=6),
)
def test_any_index_of_format_1_is_read_or_refused(entries: Any, payload: bytes) -> None:
    read_everything(sealed_1(payload, msgpack.packb(entries)))


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60), magic=st.sampled_from([b"", b"DLOADPK1", b"DLOADPK2", b"DLOADPK9"]))
def test_any_bytes_are_refused_or_read(data: bytes, magic: bytes) -> None:
    read_everything(data + magic)


def good_entries(**changes: Any) -> bytes:
    entries = {"keys": ["k"], "layouts": [["x"]], "lengths": struct.pack("<I", 3), "crc": bytes(4)} | changes
    return sealed_2(b"abc", msgpack.packb({name: value for name, value in entries.items() if value is not None}))


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"keys": [""]}, "a key is no text or empty"), ({"keys": [b"k"]}, "a key is no text"),
     ({"keys": ["a" * 1025]}, "exceeds max_str_len"), ({"keys": ["k", "l"]}, "expected 2 lengths of values, got 1"),
     ({"keys": None}, "its index must hold"), ({"more": 1}, "its index must hold"),
     ({"layouts": []}, "0 layouts and doesn't say"), ({"layouts": [["x"], ["y"]]}, "2 layouts and doesn't say"),
     ({"layouts": [["x" * 101]]}, "longer than 100 bytes"), ({"layouts": [["x", "x"]]}, "a field twice"),
     ({"layouts": ["x"]}, "a list of lists"), ({"layout": struct.pack("<H", 1)}, "1 layout numbers for 1 keys"),
     ({"layout": b"\0"}, "layout must be bytes, 2 for each number"), ({"lengths": b"\0" * 5}, "lengths must be bytes"),
     ({"lengths": struct.pack("<I", 2)}, "add up to 2 bytes, its payload has 3"),
     ({"lengths": b"\xff" * 4}, "add up to 4,294,967,295 bytes"), ({"crc": b""}, "expected 1 checksums, got 0"),
     ({"codecs": ["zstd"]}, "its codecs must be a map"),
     ({"codecs": {"x": "brotli"}}, "codec 'brotli'; this dload knows: zstd — upgrade dload"),
     ({"codecs": {"x": ["zstd"]}}, "codec \\['zstd'\\]")],
)  # fmt: skip
def test_what_does_not_add_up_is_said(changes: dict[str, Any], why: str) -> None:
    assert ShardReader(good_entries()).keys == ["k"]
    with pytest.raises(PackFormatError, match=f"shard named .*{why}"):
        ShardReader(good_entries(**changes), name="named")


def test_a_trailer_is_not_believed() -> None:
    shard = format_2()
    for length in (len(shard) - 24 + 1, 1 << 40, (1 << 64) - 1):
        with pytest.raises(PackFormatError, match="announces an index of"):
            ShardReader(shard[:-24] + struct.pack("<QII", length, 0, 0) + b"DLOADPK2")
        with pytest.raises(PackFormatError, match="announces an index of"):
            ShardReader(shard[:-24] + struct.pack("<Q", length) + b"DLOADPK1")
    with pytest.raises(PackFormatError, match="larger than the limit"):
        ShardIndex.footer_size(struct.pack("<QII", 1 << 31, 0, 0) + b"DLOADPK2", 1 << 32, "s")
    with pytest.raises(PackFormatError, match="where format 2 has zero"):
        ShardReader(shard[:-16] + shard[-16:-12] + b"\1\0\0\0" + b"DLOADPK2")


BOMBS = {
    "a list that claims four billion items": b"\xdd\xff\xff\xff\xff",
    "lists in lists": b"\x91" * 100_000 + b"\x90",
    "long lists in lists": b"\xdd\x00\x0f\xff\xff" * 500,
    "maps in maps": b"\x81\xa1a" * 100_000 + b"\xc0",
    "a map that claims four billion entries": b"\xdf\xff\xff\xff\xff",
    "bytes that claim four billion": b"\xc6\xff\xff\xff\xff",
    "many empty lists": b"\x84\xa4keys\xdd\x00\x04\x93\xe0" + b"\x90" * 300_000 + b"\xa1a\xc0\xa1b\xc0\xa1c\xc0",
    "many empty maps": b"\x84\xa4keys\xdd\x00\x04\x93\xe0" + b"\x80" * 300_000 + b"\xa1a\xc0\xa1b\xc0\xa1c\xc0",
    "an extension type": b"\xd4\x01\x00",
    "a time": b"\xd6\xff\x00\x00\x00\x00",
    "nothing": b"",
    "two values": b"\xc0\xc0",
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("seal", [sealed_1, sealed_2])
def test_bombs_are_refused_without_memory(name: str, seal: Any) -> None:
    shard = seal(b"", BOMBS[name])
    tracemalloc.start()
    try:
        with pytest.raises(PackFormatError):
            ShardReader(shard)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (1 << 20) + 90 * len(shard)


@pytest.mark.parametrize("name", ["many empty lists", "many empty maps"])
def test_many_containers_end_early(name: str) -> None:
    shard = sealed_2(b"", BOMBS[name])
    tracemalloc.start()
    try:
        with pytest.raises(PackFormatError, match="too many"):
            ShardReader(shard)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(shard)


def encoded(stored: bytes) -> bytes:
    entries = {
        "keys": ["k"], "layouts": [["x"]], "lengths": struct.pack("<I", len(stored)),
        "crc": struct.pack("<I", zlib.crc32(stored)), "codecs": {"x": "zstd"},
    }  # fmt: skip
    return sealed_2(stored, msgpack.packb(entries))


FRAME = zstandard.compress(b"content " * 100)


@pytest.mark.parametrize(
    "stored",
    [b"", b"not zstd at all", FRAME[:-1], FRAME + b"more", FRAME + FRAME, FRAME[:9] + b"\xff" + FRAME[10:],
     zstandard.ZstdCompressor(write_content_size=False).compress(b"content"),
     # A frame that claims 2 GiB and holds nothing.
     b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 1 << 31) + b"\x01\x00\x00",
     b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 63) + b"\x01\x00\x00",
     # One that claims a byte less than it holds.
     b"\x28\xb5\x2f\xfd\x20\x02" + b"\x19\x00\x00abc"],
)  # fmt: skip
def test_damaged_compression_is_refused_without_memory(stored: bytes) -> None:
    reader = ShardReader(encoded(stored), name="s")
    tracemalloc.start()
    try:
        for read in (lambda: reader["k"], lambda: list(reader), lambda: reader[:]):
            with pytest.raises(IntegrityError, match="field 'x' of sample 'k' in shard s is damaged"):
                read()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_honest_compression_may_be_extreme() -> None:
    zeros = bytes(50_000_000)
    assert ShardReader(encoded(zstandard.ZstdCompressor(level=19).compress(zeros)))["k"] == {"x": zeros}
    assert ShardReader(encoded(zstandard.compress(b"")))["k"] == {"x": b""}
