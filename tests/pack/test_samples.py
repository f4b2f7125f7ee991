"""What can be stored, and what is said about what can't."""

from __future__ import annotations

import io
import mmap
import pickle

import pytest

from dload.errors import SampleError
from dload.pack import ShardWriter, sample_size, validate_key, validate_sample


@pytest.mark.parametrize("key", ["k", "a" * 1024, "é" * 512, "a/b\\c", " ", "\0"])
def test_good_keys(key: str) -> None:
    validate_key(key)
    ShardWriter(io.BytesIO()).add(key, {"x": b""})


@pytest.mark.parametrize(
    ("key", "why"),
    [("", "1 to 1024 bytes of UTF-8, got 0"), ("a" * 1025, "got 1025"), ("é" * 513, "got 1026"),
     ("bad\udcff", "half of a surrogate pair at character 3"), (b"bytes", "must be a text .*got bytes"),
     (7, "must be a text .*got int"), (None, "must be a text .*NoneType")],
)  # fmt: skip
def test_bad_keys(key: object, why: str) -> None:
    with pytest.raises(SampleError, match=why) as caught:
        validate_key(key)
    with pytest.raises(SampleError, match=why):
        ShardWriter(io.BytesIO()).add(key, {"x": b""})
    # Messages reach terminals, logs and other processes: they must be printable and picklable.
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("fields", "why"),
    [({"": b""}, "sample 'k': the name of a field must have 1 to 100 bytes of UTF-8, got 0"),
     ({"a" * 101: b""}, "got 101"), ({"é" * 51: b""}, "got 102"), ({"\ud800": b""}, "surrogate"),
     ({7: b""}, "must be a text"), ({"x": "text"}, "got str — encode it first, for example by dload.codecs.text"),
     ({"x": None}, "got NoneType"), ({"x": 3}, "got int"), ({"x": [1]}, "got list")],
)  # fmt: skip
def test_bad_fields(fields: dict[str, bytes], why: str) -> None:
    with pytest.raises(SampleError, match=why):
        validate_sample("k", fields)
    with pytest.raises(SampleError, match=why):
        ShardWriter(io.BytesIO()).add("k", fields)


def test_fields_must_be_a_mapping() -> None:
    for fields in ([("x", b"")], b"bytes", None):
        with pytest.raises(SampleError, match="sample 'k': its fields must be a mapping"):
            validate_sample("k", fields)
        with pytest.raises(SampleError, match="sample 'k': its fields must be a mapping"):
            ShardWriter(io.BytesIO()).add("k", fields)


def test_a_value_of_four_gibibytes_is_refused_before_it_is_read() -> None:
    why = "field 'x' has 4,294,967,296 bytes, more than 4,294,967,295"
    with mmap.mmap(-1, 1 << 32) as large, memoryview(large) as view, pytest.raises(SampleError, match=why):
        validate_sample("k", {"x": view})


def test_sizes_count_values_key_and_sixteen() -> None:
    assert sample_size("key", {"x": b"12345", "y": b""}) == 5 + 3 + 16
    assert sample_size("é", {"x": memoryview(bytes(8)).cast("I")}) == 8 + 2 + 16
    assert sample_size("k", {}) == 17


def test_validated_fields_are_bytes() -> None:
    assert validate_sample("k", {"x": bytearray(b"1"), "y": memoryview(b"2")}) == {"x": b"1", "y": b"2"}
    value = b"3"
    assert validate_sample("k", {"x": value})["x"] is value
