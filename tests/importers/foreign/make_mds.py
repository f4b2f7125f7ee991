"""Writes the MDS data sets of this folder with the real library, mosaicml-streaming, and what it reads back from them.

    python tests/importers/foreign/make_mds.py            # writes mds-*/ and mds.json
    python tests/importers/foreign/make_mds.py FOLDER     # prints what the library reads from an MDS folder

mosaicml-streaming 0.13 pins versions that the test extra can't have, so it isn't part of it: the files are kept.
"""

import base64
import decimal
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from streaming import MDSWriter, StreamingDataset

HERE = Path(__file__).parent
COLUMNS = {
    "__key__": "str", "raw": "bytes", "text": "str", "int": "int", "i8": "int8", "i16": "int16", "i32": "int32",
    "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "f16": "float16",
    "f32": "float32", "f64": "float64", "str_int": "str_int", "str_float": "str_float", "str_dec": "str_decimal",
    "json": "json", "free": "ndarray", "typed": "ndarray:int16", "fixed": "ndarray:float32:2,3",
}  # fmt: skip
IMAGES = {
    "pil": "pil", "jpeg": "jpeg", "png": "png", "jpegs": "list[jpeg]", "pngs": "list[png]", "pils": "list[pil]",
    "jpeg_array": "jpeg_array", "pickle": "pkl",
}  # fmt: skip
# Only what has one layout in both directions: what an export must write byte for byte.
BACK = {
    "__key__": "str", "raw": "bytes", "text": "str", "i16": "int16", "u64": "uint64", "f16": "float16",
    "f64": "float64", "json": "json", "free": "ndarray", "str_int": "str_int", "str_dec": "str_decimal",
}  # fmt: skip


def row(number: int) -> dict[str, object]:
    shapes = [(4,), (2, 3), (300,), (2, 70_000 if number == 3 else 7), (1, 2, 3)]
    dtypes = ["uint8", "int64", "float16", "uint8", "float64"]
    return {
        "__key__": f"föö/{number}", "raw": bytes([0, 255, number]) * number, "text": "é\n" * number, "int": -5 - number,
        "i8": -8, "i16": -(2**15), "i32": -(2**31), "i64": -(2**63), "u8": 255, "u16": 2**16 - 1, "u32": 2**32 - 1,
        "u64": 2**64 - 1, "f16": np.float16(0.1), "f32": np.float32(0.1), "f64": 0.1 + number, "str_int": 10**30,
        "str_float": 1e300, "str_dec": decimal.Decimal("1.10"), "json": {"a": [number, None, "é"]},
        "free": (np.arange(np.prod(shapes[number])) % 100).astype(dtypes[number]).reshape(shapes[number]),
        "typed": np.arange(number + 1, dtype=np.int16), "fixed": np.full((2, 3), number, np.float32),
    }  # fmt: skip


def encoded(form: str, color: tuple[int, int, int]) -> Image.Image:
    out = io.BytesIO()
    Image.new("RGB", (5, 4), color).save(out, form)
    return Image.open(io.BytesIO(out.getvalue()))


def image_row(number: int) -> dict[str, object]:
    some = [encoded("JPEG", (one, 2, 3)) for one in range(number + 1)]
    modes = ["L", "RGB", "RGBA"]
    return {
        "pil": Image.new(modes[number], (3, 2), 7), "jpeg": encoded("JPEG", (number, 0, 0)),
        "png": encoded("PNG", (number, 0, 0)), "jpegs": some,
        "pngs": [encoded("PNG", (one, 2, 3)) for one in range(number + 1)],
        "pils": [Image.new("RGB", (2, 1), (one, 1, 1)) for one in range(number + 1)],
        "jpeg_array": [np.frombuffer(one.fp.getvalue(), np.uint8) for one in some], "pickle": {1, 2},
    }  # fmt: skip


def plain(value: object) -> object:  # noqa: PLR0911
    """A value as JSON that a test compares with."""
    if isinstance(value, np.ndarray):
        return {
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "data": base64.b64encode(value.tobytes()).decode(),
        }
    if isinstance(value, Image.Image):
        return plain(np.asarray(value))
    if isinstance(value, bytes | memoryview | bytearray):
        return {"bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, list) and value and isinstance(value[0], (Image.Image, np.ndarray)):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, set):
        return sorted(value)
    return value if not isinstance(value, decimal.Decimal) else str(value)


def read(folder: Path) -> list[dict[str, object]]:
    rows = StreamingDataset(local=str(folder), shuffle=False, batch_size=1, allow_unsafe_types=True)
    return [{name: plain(value) for name, value in rows[number].items()} for number in range(len(rows))]


def main() -> None:
    if sys.argv[1:]:
        print(json.dumps(read(Path(sys.argv[1]))))
        return
    expected = {}
    for name, columns, make, count, more in [
        ("mds-plain", COLUMNS, row, 5, {"size_limit": 1 << 15}),
        ("mds-zstd", COLUMNS, row, 3, {"compression": "zstd:7", "hashes": ["sha1"], "size_limit": 3000}),
        ("mds-gz", COLUMNS, row, 2, {"compression": "gz"}),
        ("mds-images", IMAGES, image_row, 3, {}),
        ("mds-back", BACK, row, 5, {"size_limit": 1000}),
    ]:
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        with MDSWriter(out=str(folder), columns=columns, **more) as writer:
            for number in range(count):
                writer.write({column: value for column, value in make(number).items() if column in columns})
        copy = Path("/tmp") / f"{name}-read"  # reading decompresses in place
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        expected[name] = read(copy)
        shutil.rmtree(copy)
    (HERE / "mds.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
