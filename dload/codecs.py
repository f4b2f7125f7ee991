"""Values <-> field bytes, at the edges of a pipeline. Fields are bytes; bring your own codec for anything else."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy


def json_bytes(obj: Any) -> bytes:
    """Compact JSON, ASCII only. Raises TypeError or ValueError for what JSON can't hold."""
    return json.dumps(obj, separators=(",", ":")).encode()


def json_from(data: bytes) -> Any:
    """The value of JSON bytes. Raises ValueError where they aren't JSON."""
    return json.loads(data)


def text_bytes(text: str) -> bytes:
    """UTF-8."""
    return text.encode()


def text_from(data: bytes) -> str:
    """The text of UTF-8 bytes. Raises UnicodeDecodeError (a ValueError) where they aren't."""
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
    """The array of .npy bytes, a copy that may be written to. Never unpickles; raises ValueError for what isn't
    .npy."""
    import numpy as np

    array: numpy.ndarray[Any, Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array
