"""Values to field bytes and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dload import codecs


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(), st.lists))
def test_json_round_trip(value: object) -> None:
    assert codecs.json_from(codecs.json_bytes(value)) == value


def test_json_is_compact_and_ascii() -> None:
    assert codecs.json_bytes({"b": 1, "a": "é"}) == b'{"b":1,"a":"\\u00e9"}'


@given(st.text(st.characters(codec="utf-8")))
def test_text_round_trip(text: str) -> None:
    assert codecs.text_from(codecs.text_bytes(text)) == text


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex128", "<U3"])
def test_case_c85_arrays_of_any_shape_are_exact(shape: tuple[int, ...], dtype: str) -> None:
    array = np.ones(shape, dtype)
    back = codecs.npy_from(codecs.npy_bytes(array))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert np.array_equal(back, array)
    back[...] = 0  # a copy that may be written to


def test_arrays_of_objects_are_refused_both_ways() -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        codecs.npy_bytes(np.array([object()]))
    import io

    out = io.BytesIO()
    np.save(out, np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        codecs.npy_from(out.getvalue())
