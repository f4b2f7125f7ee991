"""TFDS folders in ArrayRecord that TFDS itself wrote, read without it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dload.codecs import npy_from
from dload.errors import ConfigError, DloadError
from dload.importers import open_source
from dload.importers.columns import Column
from dload.importers.example import parse_example
from dload.pack import Sample

# Writes a data set and prints what TFDS reads back from it. A process of its own: it loads half of a framework.
BUILDER = """
import base64, io, json, sys
import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

def png(number):
    out = io.BytesIO()
    Image.new("RGB", (2, 3), (number, 2, 3)).save(out, "PNG")
    out.seek(0)
    return out

class Birds(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.2.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="small")]

    def _info(self):
        f = tfds.features
        return tfds.core.DatasetInfo(builder=self, features=f.FeaturesDict({
            "image": f.Image(shape=(None, None, 3)), "label": f.ClassLabel(names=["cat", "dög"]), "text": f.Text(),
            "raw": f.Tensor(shape=(), dtype=np.object_), "id": np.int64, "u8": np.uint8, "flag": np.bool_,
            "f32": np.float32, "tensor": f.Tensor(shape=(2, 3), dtype=np.float32),
            "free": f.Tensor(shape=(None, 2), dtype=np.int16),
            "packed": f.Tensor(shape=(2, 2), dtype=np.uint16, encoding="zlib"),
            "box": f.BBoxFeature(), "seq": f.Sequence(np.int32), "words": f.Sequence(f.Text()),
            "inner": {"x": np.uint8, "y": {"z": f.Text()}}, "objects": f.Sequence({"id": np.int64, "name": f.Text()}),
        }))

    def _split_generators(self, _):
        return {"train": self._generate_examples(5), "test": self._generate_examples(2)}

    def _generate_examples(self, count):
        for n in range(count):
            yield n, {
                "image": png(n), "label": n % 2, "text": "é%d" % n, "raw": bytes([0, 255, n]),
                "id": n - 2, "u8": 255 - n,
                "flag": n == 1, "f32": 0.1, "tensor": np.full((2, 3), n, np.float32), "free": np.ones((n, 2), np.int16),
                "packed": np.full((2, 2), 65535 - n, np.uint16), "box": tfds.features.BBox(0.0, 0.25, 0.5, 1.0),
                "seq": list(range(n)), "words": ["w%d" % w for w in range(n)], "inner": {"x": n, "y": {"z": "z"}},
                "objects": [{"id": o, "name": "o%d" % o} for o in range(n)],
            }

def plain(value):
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray) and value.dtype != object:
        return {"dtype": value.dtype.str, "value": value.tolist()}
    if isinstance(value, (np.ndarray, list)):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    return value.item() if isinstance(value, np.generic) else value

builder = Birds(data_dir=sys.argv[1], file_format="array_record")
builder.download_and_prepare()
skip = {"image": tfds.decode.SkipDecoding()}
rows = {split: [plain(row) for row in builder.as_data_source(split, decoders=skip)] for split in ("train", "test")}
json.dump(rows, open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder of a version, and what TFDS reads from it."""
    root = tmp_path_factory.mktemp("tfds")
    (root / "birds.py").write_text(BUILDER)
    arguments = [sys.executable, str(root / "birds.py"), str(root / "data"), str(root / "rows.json")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    return root / "data" / "birds" / "small" / "1.2.0", json.loads((root / "rows.json").read_text())


def of(path: Path, **options: Any) -> list[Sample]:
    return list(open_source(path, **options))  # type: ignore[arg-type]


def test_records_are_what_tfds_reads(birds: tuple[Path, dict[str, Any]]) -> None:
    folder, rows = birds
    importer = open_source(folder)
    assert (importer.kind, importer.total) == ("tfds", 7)
    samples = of(folder)
    assert [key for key, _ in samples] == [
        f"{s}/0000000{n}" for s, count in (("train", 5), ("test", 2)) for n in range(count)
    ]
    columns = importer.columns
    for (_, fields), row in zip(samples, rows["train"] + rows["test"], strict=True):
        for name in ("id", "u8", "flag", "f32", "label"):
            assert json.loads(fields[name]) == row[name], name
        assert fields["image"].startswith(b"\x89PNG") and fields["image"] == decoded(row["image"])
        assert fields["text"] == decoded(row["text"]) and fields["raw"] == decoded(row["raw"])
        for name in ("tensor", "free", "packed", "box", "seq"):
            array = npy_from(fields[name])
            if isinstance(row[name], list):  # of a sequence TFDS makes a list
                assert (array.dtype.str, array.tolist()) == ("<i4", row[name]), name
            else:
                assert (array.dtype.str, array.tolist()) == (row[name]["dtype"], row[name]["value"]), name
        assert fields["inner.x"] == str(row["inner"]["x"]).encode() and fields["inner.y.z"] == b"z"
        words = [fields[name] for name in sorted(fields) if name.startswith("words.")]
        assert words == [decoded(word) for word in row["words"]]
        assert npy_from(fields["objects.id"]).tolist() == ids(row["objects"])
    assert columns["label"] == Column("json", {"class_label": ["cat", "dög"]}) and columns["u8"].type == "uint8"
    list(importer)
    assert importer.columns["words.0"] == Column("text", "string") and "words" not in importer.columns
    assert {name for _, fields in samples for name in fields} == set(importer.columns)
    assert {npy_from(fields["free"]).shape for _, fields in samples} == {(n, 2) for n in range(5)}


def ids(objects: Any) -> Any:
    """TFDS gives a sequence of features as a list of them, or as features that are lists."""
    found = objects["id"] if isinstance(objects, dict) else [one["id"] for one in objects]
    return found["value"] if isinstance(found, dict) else found


def decoded(value: dict[str, str]) -> bytes:
    import base64

    return base64.b64decode(value["bytes"])


def test_options(birds: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = birds
    assert of(folder, split="test", columns=("id", "text")) == [
        (key, {"id": fields["id"], "text": fields["text"]}) for key, fields in of(folder)[5:]
    ]
    assert len(of(folder, builder="birds/small:1.2.0", split="test")) == 2
    for builder, message in [
        ("cats", "holds builder 'birds', not 'cats'"), ("birds/large", "holds config 'small', not 'large'"),
        ("birds:1.0.0", "holds version '1.2.0', not '1.0.0'"), (":", "is not NAME"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            of(folder, builder=builder)
    with pytest.raises(ConfigError, match="there is no split 'val'"):
        of(folder, split="val")
    with pytest.raises(ConfigError, match=r"its folder small/1\.2\.0 is one"):
        open_source(folder.parent.parent)


def edit(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        facts = json.loads((folder / name).read_text())
        change(facts)
        (folder / name).write_text(json.dumps(facts))

    return apply


RECORDS = "birds-test.array_record-00000-of-00001"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit("dataset_info.json", lambda info: info.update(fileFormat="tfrecord")), "written as tfrecord"),
        (edit("dataset_info.json", lambda info: info["splits"][0].update(filepathTemplate="../x")), "leads out of"),
        (edit("dataset_info.json", lambda info: info["splits"][1].update(shardLengths=["3"])), "has 2 records"),
        (edit("features.json", lambda features: features["featuresDict"]["features"].update(
            new={"pythonClassName": "tfds.Video", "video": {}})), r"feature 'new' is a Video .*--columns"),
        (edit("dataset_info.json", lambda info: info.pop("splits")), "dataset_info.json is damaged: KeyError"),
        (lambda folder: (folder / RECORDS).write_bytes(b"no records" * 10), "is no ArrayRecord"),
        (lambda folder: (folder / RECORDS).unlink(), "dataset_info.json names birds-test.*, which isn't there"),
        (lambda folder: (folder / "features.json").write_text("{"), "features.json is damaged"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_named(
    birds: tuple[Path, dict[str, Any]], damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(birds[0], tmp_path / "copy")
    damage(folder)
    with pytest.raises(DloadError, match=message):
        of(folder)


@given(st.binary(max_size=100))
def test_no_record_is_a_crash(record: bytes) -> None:
    with suppress(ValueError):
        parse_example(record)


def test_numbers_unpacked_and_negative() -> None:
    # {"a": ints [1, -1]}, each with a tag of its own; {"b": floats [0.5]}, with the wire type of one
    ints = b"\x08\x01\x08" + b"\xff" * 9 + b"\x01"
    floats = b"\x0d" + np.float32(0.5).tobytes()

    def entry(name: bytes, field: int, values: bytes) -> bytes:
        feature = bytes([field << 3 | 2, len(values)]) + values
        body = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
        return b"\x0a" + bytes([len(body)]) + body

    features = entry(b"a", 3, ints) + entry(b"b", 2, floats)
    assert parse_example(b"\x0a" + bytes([len(features)]) + features) == {"a": [1, -1], "b": [0.5]}
