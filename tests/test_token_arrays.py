"""Token arrays: their type is in the bytes."""

from __future__ import annotations

import importlib.util
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dload import codecs


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_any_integers_come_back(tokens: list[int]) -> None:
    assert codecs.tokens_from(codecs.tokens_bytes(tokens)).tolist() == tokens


@pytest.mark.parametrize("dtype", codecs.INTEGERS)
def test_types_are_kept(dtype: str) -> None:
    for given_as in (dtype, np.dtype(dtype), np.dtype(dtype).type):
        data = codecs.tokens_bytes([1, 2, 3], given_as)
        found = codecs.tokens_from(data)
        assert found.dtype == np.dtype(dtype) and found.tolist() == [1, 2, 3]
        assert len(data) == 8 + 3 * found.itemsize
    assert codecs.tokens_bytes(np.array([1, 2, 3], dtype)) == data
    assert codecs.tokens_bytes(np.array([1, 9, 2, 9, 3], dtype)[::2]) == data
    assert codecs.tokens_bytes(np.array([1, 2, 3], np.dtype(dtype).newbyteorder(">"))) == data
    assert codecs.tokens_bytes(array(codecs.INTEGERS[dtype], [1, 2, 3])) == data


def test_a_list_takes_the_smallest_of_three() -> None:
    types = [
        codecs.tokens_from(codecs.tokens_bytes(tokens)).dtype.name for tokens in ([0, 65535], [65536], [-1], [1 << 40])
    ]
    assert types == ["uint16", "int32", "int32", "int64"]
    assert codecs.tokens_bytes([]) == b"\x93tokensH"


def test_the_bytes_are_these() -> None:
    assert codecs.tokens_bytes([1, 258], "int32") == b"\x93tokensi\1\0\0\0\2\1\0\0"


@pytest.mark.parametrize("tokens", [[1.0], [None], [True], ["a"], np.array([1.5]), np.array([True])])
def test_what_is_no_integer_is_refused(tokens: Any) -> None:
    with pytest.raises(ValueError, match=r"integers|type of tokens"):
        codecs.tokens_bytes(tokens)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="don't fit"):
        codecs.tokens_bytes([70_000], "uint16")
    with pytest.raises(ValueError, match="'float32' is no type of tokens"):
        codecs.tokens_bytes([1], "float32")


@pytest.mark.parametrize("data", [b"", b"\x93tokens", b"\x93tokensx", b"\x93tokensi\1\2\3", b"\x93NUMPYi\1\2\3\4"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a token array"):
        codecs.tokens_from(data)


def test_without_numpy_it_is_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "find_spec", lambda _: None)
    assert codecs.tokens_from(codecs.tokens_bytes([1, 2])) == array("H", [1, 2])
    assert importlib.util.find_spec("numpy") is not None
