"""Writes the LitData data sets of this folder with the real library, litdata, and what it reads back from them.

    python tests/importers/foreign/make_litdata.py

litdata needs torchvision, and with it another torch than the tests have, so it isn't part of the test extra: the files
are kept. Written with litdata 0.2.76.
"""

import base64
import io
import json
import shutil
from pathlib import Path

import litdata
import numpy as np
import torch
from litdata.streaming.item_loader import TokensLoader
from PIL import Image

HERE = Path(__file__).parent


def encoded(form: str, color: tuple[int, int, int]) -> Image.Image:
    out = io.BytesIO()
    Image.new("RGB", (5, 4), color).save(out, form)
    return Image.open(io.BytesIO(out.getvalue()))


def row(number: int) -> dict[str, object]:
    return {
        "int": -number, "float": 0.1 * number, "text": "é" * number, "raw": bytes([0, 255]) * number,
        "flag": number == 1,
        "array": np.arange(6, dtype=np.int16).reshape(3, 2), "flat": np.arange(4.0), "empty": np.zeros((3, 0, 2)),
        "tensor": torch.full((2, 3), number), "vector": torch.arange(5), "bits": torch.ones((2, 2), dtype=torch.bool),
        "scalar": torch.tensor(0.5), "image": Image.new("RGB", (3, 2), (1, 2, number)),
        "jpeg": encoded("JPEG", (number, 0, 0)),
        "jpegs": [encoded("JPEG", (one, 0, 0)) for one in range(2)], "inner": {"x": number, "y": (1, "b")},
        "list": [1, number], "mixed": [1, "a", None, 2.5], "table": [{"a": 1, "b": "x"}, {"a": None, "b": 2.5}],
        "strings": ["a", ""], "floats": [0.5, 0.25], "flags": [True, False], "odd": {1, 2},
    }  # fmt: skip


def pair(number: int) -> tuple[int, str]:
    return number, "x" * number


def one(number: int) -> int:
    return number * 10**12


def simple(number: int) -> dict[str, object]:
    return {"n": number - 2**40, "f": number / 3, "flag": number == 1, "text": "é" * number, "raw": bytes([0, number])}


def tokens(number: int) -> torch.Tensor:
    return torch.arange(number + 2, dtype=torch.int32)


def plain(value: object) -> object:
    """A value as JSON that a test compares with."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, Image.Image):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        return {
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "data": base64.b64encode(value.tobytes()).decode(),
        }
    if isinstance(value, bytes | memoryview | bytearray):
        return {"bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def main() -> None:
    expected: dict[str, object] = {}
    for name, make, count, more in [
        ("litdata-plain", row, 4, {"chunk_size": 3}),
        ("litdata-zstd", row, 3, {"chunk_size": 2, "compression": "zstd"}),
        ("litdata-whole", row, 2, {"chunk_size": 2, "compression": "zstd", "compression_level": "chunk"}),
        ("litdata-arrow", simple, 5, {"chunk_size": 3}),  # where pyarrow is installed, else plain
        ("litdata-pair", pair, 3, {"chunk_size": 2}),
        ("litdata-one", one, 3, {"chunk_size": 2}),
        ("litdata-tokens", tokens, 3, {"chunk_bytes": "1MB", "item_loader": TokensLoader()}),
    ]:
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        litdata.optimize(fn=make, inputs=list(range(count)), output_dir=str(folder), num_workers=1, **more)
        if name == "litdata-tokens":  # the library gives blocks of them; a row is what was written
            expected[name] = [plain(make(number)) for number in range(count)]
        else:
            copy = Path("/tmp") / f"{name}-read"  # reading decompresses in place
            shutil.rmtree(copy, ignore_errors=True)
            rows = litdata.StreamingDataset(str(shutil.copytree(folder, copy)), shuffle=False)
            expected[name] = [plain(rows[number]) for number in range(count)]
            shutil.rmtree(copy)
    (HERE / "litdata.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
