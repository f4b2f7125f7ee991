"""What training does to samples before they are batches: the same functions for every system, run in its workers."""

from __future__ import annotations

import io
import re
from typing import Any

from .samples import Sample

SIDE = 224

_WORDS = re.compile(rb"\w+|[^\w\s]")


def decode(samples: list[Sample]) -> Any:
    """JPEGs to one array of uint8, (samples, 224, 224, 3)."""
    import numpy as np
    from PIL import Image

    images = [
        np.asarray(Image.open(io.BytesIO(a)).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))
        for _, a, _ in samples
    ]
    return np.stack(images)


def tokenize(samples: list[Sample]) -> Any:
    """Texts to lists of token ids: words and signs, hashed into 50,000 ids."""
    return [[hash(word) % 50_000 for word in _WORDS.findall(a)] for _, a, _ in samples]


WORK = {"": None, "decode": decode, "tokenize": tokenize}
