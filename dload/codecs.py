"""Values <-> field bytes, at the edges of a pipeline. Fields are bytes; bring your own codec for anything else."""

from __future__ import annotations

import io
import json
import sys
from array import array
from importlib.util import find_spec
from numbers import Integral
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy


def json_bytes(obj: Any) -> bytes:
    """`obj` as compact JSON, ASCII only. Raises TypeError or ValueError for what JSON can't hold."""
    return json.dumps(obj, separators=(",", ":")).encode()


def json_from(data: bytes) -> Any:
    """The value of `data`, JSON. Raises ValueError where they aren't JSON."""
    return json.loads(data)


def text_bytes(text: str) -> bytes:
    """`text` in UTF-8."""
    return text.encode()


def text_from(data: bytes) -> str:
    """The text of `data`, UTF-8. Raises UnicodeDecodeError (a ValueError) where they aren't."""
    return data.decode()


def npy_bytes(array: Any) -> bytes:
    """A NumPy array, or what `numpy.asarray` takes, as the bytes of a .npy file: dtype and shape included.

    Object arrays are refused with a ValueError: they would need pickle.
    """
    import numpy as np

    out = io.BytesIO()
    np.save(out, np.asarray(array), allow_pickle=False)
    return out.getvalue()


def npy_from(data: bytes) -> numpy.ndarray[Any, Any]:
    """The array of `data`, a .npy file: a copy that may be written to. Never unpickles; raises ValueError for what
    isn't .npy."""
    import numpy as np

    array: numpy.ndarray[Any, Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


# ---------------------------------------------------------------- tokens
INTEGERS = {
    "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q",
}  # fmt: skip
"""The types of tokens, with their letters in `array` and `struct`."""
TOKENS = b"\x93tokens"
"""What token arrays begin with. Then come the letter of their type and the numbers, little-endian: the header has eight
bytes, so that the numbers are aligned."""


def tokens_bytes(tokens: Any, dtype: Any = None) -> bytes:
    """`tokens`, integers (a list, an array of one dimension), as bytes that say their type.

    `dtype`: one of `INTEGERS`, or NumPy's name or type for it; None: that of an array, and for a list the smallest of
    uint16, int32 and int64 that holds all. Raises ValueError for what isn't an integer or doesn't fit.
    """
    letter = None if dtype is None else integer_letter(dtype)
    if letter is None and hasattr(tokens, "dtype"):
        letter = integer_letter(tokens.dtype)
    if letter is None and isinstance(tokens, array) and tokens.typecode in INTEGERS.values():
        letter = tokens.typecode
    numbers = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
    check_integers(numbers)
    if letter is None:
        least, most = min(numbers, default=0), max(numbers, default=0)
        letter = "H" if least >= 0 and most < 1 << 16 else "i" if least >= -(1 << 31) and most < 1 << 31 else "q"
    try:
        column = array(letter, numbers)
    except OverflowError as error:
        raise ValueError(f"tokens don't fit into their type, array code {letter!r}: {error}") from error
    return TOKENS + letter.encode() + _little_endian(column).tobytes()


def tokens_from(data: bytes) -> Any:
    """The integers of `data`, as `tokens_bytes` made it: a NumPy array (a copy), or an `array.array` where NumPy isn't
    installed.

    Raises ValueError for what isn't a token array.
    """
    letter = data[len(TOKENS) : 8].decode("latin-1")
    if not data.startswith(TOKENS) or letter not in INTEGERS.values() or (len(data) - 8) % array(letter).itemsize:
        raise ValueError(f"not a token array: {data[:8]!r} and {len(data):,} bytes in all")
    column = _little_endian(array(letter, data[8:]))
    if find_spec("numpy") is None:
        return column
    import numpy as np

    return np.array(column)


def integer_letter(dtype: Any) -> str:
    """The letter of an integer type that is given by name, or as NumPy gives it. Raises ValueError."""
    name = dtype.__name__ if isinstance(dtype, type) else getattr(dtype, "name", dtype)
    if name not in INTEGERS:
        raise ValueError(f"{dtype!r} is no type of tokens: expected one of {', '.join(INTEGERS)}")
    return INTEGERS[name]


def check_integers(numbers: list[Any] | tuple[Any, ...]) -> None:
    """That all are integers (and no truth values). Raises ValueError."""
    for kind in set(map(type, numbers)):
        if kind is bool or not issubclass(kind, Integral):
            raise ValueError(f"expected integers, got a {kind.__name__} among them")


def _little_endian(column: array[int]) -> array[int]:
    """The column in the byte order of stored arrays, or back in this machine's: a new one where that differs."""
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column
