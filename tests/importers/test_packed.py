"""MDS and LitData data sets that the real libraries wrote (`foreign/`), read without them; and damaged ones."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dload.codecs import npy_from
from dload.errors import ConfigError, DloadError, NotFoundError, SampleError
from dload.importers import open_source, packed
from dload.importers.columns import Column
from dload.importers.target import Request
from dload.importers.to_mds import write
from dload.store.s3 import S3Store
from dload.testing.s3_server import S3Server

FOREIGN = Path(__file__).parent / "foreign"
EXPECTED = {**json.loads((FOREIGN / "mds.json").read_text()), **json.loads((FOREIGN / "litdata.json").read_text())}


def plain(value: bytes, column: Column) -> Any:
    """A field as the scripts of `foreign/` wrote down what the library gave."""
    if column.type == "pickle":
        return sorted(__import__("pickle").loads(value))  # the tests wrote it
    if column.type in ("jpeg", "png"):
        return described(np.asarray(Image.open(io.BytesIO(value))))
    if column.codec == "npy":
        return described(npy_from(value))
    if column.type == "str_float":
        return float(value)
    if column.codec == "json":
        return json.loads(value)
    return value.decode() if column.codec == "text" else {"bytes": base64.b64encode(value).decode()}


def described(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode()}


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """What is at the places that become fields: of dicts, tuples and lists of images."""
    if isinstance(value, dict) and {"dtype", "shape", "data"} != value.keys() and "bytes" not in value:
        children: Any = value.items()
    elif isinstance(value, list) and value and isinstance(value[0], dict) and "dtype" in value[0]:
        children = enumerate(value)
    else:
        return {path: value}
    return {
        name: one for key, child in children for name, one in flat(child, f"{path}.{key}" if path else f"{key}").items()
    }


# ---- MDS
@pytest.mark.parametrize("name", ["mds-plain", "mds-zstd", "mds-gz", "mds-images"])
def test_mds_is_what_the_library_reads(name: str) -> None:
    importer = open_source(FOREIGN / name)
    assert (importer.kind, importer.total) == ("mds", len(EXPECTED[name]))
    got = list(importer)
    for (key, fields), row in zip(got, EXPECTED[name], strict=True):
        assert key == row.get("__key__", key)
        expected = {field: value for column, one in row.items() for field, value in mds_flat(column, one).items()}
        expected.pop("__key__", None)
        assert {name: plain(value, importer.columns[name]) for name, value in fields.items()} == expected
    assert got == list(open_source(FOREIGN / name)), "the same samples each time"


def mds_flat(name: str, value: Any) -> dict[str, Any]:
    return {name: value} if name == "json" else flat(value, name)


def test_mds_keeps_json_and_files_byte_for_byte() -> None:
    key, fields = next(iter(open_source(FOREIGN / "mds-plain")))
    assert (key, fields["json"]) == ("föö/0", b'{"a": [0, null, "\\u00e9"]}')
    images = next(iter(open_source(FOREIGN / "mds-images")))[1]
    assert images["jpegs.0"] == images["jpeg_array.0"] and images["jpeg"][:3] == b"\xff\xd8\xff"


def test_mds_options() -> None:
    importer = open_source(FOREIGN / "mds-plain", columns=("text", "i64"), key="int")
    assert [key for key, _ in importer] == ["-5", "-6", "-7", "-8", "-9"]
    assert [sorted(fields) for _, fields in importer] == [["i64", "text"]] * 5
    assert [key for key, _ in open_source(FOREIGN / "mds-images")] == ["00000000", "00000001", "00000002"]
    with pytest.raises(ConfigError, match=r"no column 'nope' — there are '__key__', 'f16'"):
        open_source(FOREIGN / "mds-plain", columns=("nope",))
    with pytest.raises(ConfigError, match="the key 'free' is ndarray, neither a text nor an integer"):
        open_source(FOREIGN / "mds-plain", key="free")


def damaged(name: str, tmp_path: Path, change: Callable[[Path, dict[str, Any]], object]) -> Path:
    folder = shutil.copytree(FOREIGN / name, tmp_path / name)
    index = json.loads((folder / "index.json").read_text())
    change(folder, index)
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def _flip(file: str, at: int) -> Callable[[Path, dict[str, Any]], object]:
    def change(folder: Path, _: dict[str, Any]) -> None:
        data = bytearray((folder / file).read_bytes())
        data[at] ^= 0xFF
        (folder / file).write_bytes(data)

    return change


def _cut(file: str) -> Callable[[Path, dict[str, Any]], object]:
    return lambda folder, _: (folder / file).write_bytes((folder / file).read_bytes()[:-9])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mds-back", _cut("shard.00000.mds"), r"shard.00000.mds has \d+ bytes, its index says \d+"),
        ("mds-back", _flip("shard.00000.mds", 3), "damaged: its table of rows makes no sense"),
        ("mds-back", _flip("shard.00000.mds", 7), "damaged: its table of rows makes no sense"),
        ("mds-zstd", _flip("shard.00000.mds.zstd", 40), r"shard.00000.mds.zstd.* damaged|its sha1 is"),
        ("mds-back", lambda _, i: i["shards"][0]["raw_data"].update(basename="../x"), "leads out of its folder"),
        ("mds-back", lambda _, i: i["shards"][0]["raw_data"].update(basename="/etc/passwd"), "leads out of its folder"),
        ("mds-back", lambda _, i: i["shards"][0].update(format="jsonl"), "'jsonl' aren't MDS"),
        ("mds-back", lambda _, i: i["shards"][0].pop("column_sizes"), "is no index of MDS shards: KeyError"),
        ("mds-back", lambda f, _: (f / "shard.00001.mds").unlink(), r"names shard.00001.mds, which isn't there"),
        ("mds-zstd", lambda f, _: [x.unlink() for x in f.glob("*.zstd")], r"shard.00000.mds.zstd, which isn't there"),
        ("litdata-zstd", lambda f, _: (f / "chunk-0-0.bin").unlink(), r"index.json names chunk-0-0.bin, which isn't"),
        ("litdata-plain", lambda _, i: i["config"].update(data_spec="[1, " + "[" * 9000), "nested too deeply"),
        ("mds-zstd", lambda _, i: i["shards"][0]["raw_data"].update(bytes=100), "grows to more than 100 bytes"),
        ("mds-zstd", lambda _, i: i["shards"][0]["raw_data"]["hashes"].update(sha1="0"), "its sha1 is .* says 0"),
        ("mds-zstd", lambda _, i: i["shards"][0].update(compression="br:3"), "compressed by br:3; zstd, gz and bz2"),
        ("mds-back", lambda _, i: i["shards"][0]["column_encodings"].__setitem__(1, "new"), "unknown encoding 'new'"),
        ("litdata-plain", _cut("chunk-0-0.bin"), "damaged: its table of rows makes no sense"),
        ("litdata-plain", lambda _, i: i["chunks"][0].update(filename="../../x"), "leads out of its folder"),
        ("litdata-plain", lambda _, i: i["chunks"][0].update(chunk_size=7), "has 3 rows, its index says 7"),
        ("litdata-plain", lambda _, i: i["config"].update(encryption={"algorithm": "fernet"}), "are encrypted"),
        ("litdata-plain", lambda _, i: i["config"].update(item_loader="ParquetLoader"), "--format parquet"),
        ("litdata-plain", lambda _, i: i["config"]["data_format"].pop(), "serializers for"),
        ("litdata-zstd", _flip("chunk-0-0.bin", 30), r"chunk-0-0.bin is damaged"),
        ("litdata-zstd", _flip("chunk-0-0.bin", 61), r"chunk-0-0.bin is damaged"),
        ("litdata-arrow", _flip("chunk-0-0.bin", -9), "chunk-0-0.bin is damaged: an Arrow file of"),
        ("litdata-whole", _flip("chunk-0-0.zstd.bin", 5), r"chunk-0-0.zstd.bin"),
    ],
)  # fmt: skip
def test_what_is_damaged_or_hostile_is_refused_by_name(
    name: str, change: Callable[[Path, dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    folder = damaged(name, tmp_path, change)
    with pytest.raises(DloadError, match=message) as caught:
        list(open_source(folder))
    assert name in str(caught.value)


def test_a_row_that_lies_about_its_sizes_is_named(tmp_path: Path) -> None:
    folder = damaged("mds-back", tmp_path, lambda *_: None)
    data = bytearray((folder / "shard.00000.mds").read_bytes())
    first = int.from_bytes(data[4:8], "little")
    data[first] += 1
    (folder / "shard.00000.mds").write_bytes(data)
    with pytest.raises(SampleError, match=r"shard.00000.mds, row 0: "):
        list(open_source(folder))


def test_what_is_missing_is_seen_before_the_first_row(tmp_path: Path) -> None:
    folder = damaged("mds-back", tmp_path, lambda folder, _: (folder / "shard.00002.mds").unlink())
    with pytest.raises(NotFoundError, match=r"index.json names shard.00002.mds, which isn't there"):
        open_source(folder)


def test_a_row_that_is_longer_than_its_columns_is_named(tmp_path: Path) -> None:
    write(Request([("k", {"x": b"abc"})], {"x": Column("bytes", "binary")}, "any"), tmp_path)
    data = bytearray((tmp_path / "shard.00000.mds").read_bytes())
    first = int.from_bytes(data[4:8], "little")
    assert data[first + 4] == 3
    data[first + 4] = 2
    (tmp_path / "shard.00000.mds").write_bytes(data)
    with pytest.raises(SampleError, match=r"row 0: its columns have 11 bytes, the row 12"):
        list(open_source(tmp_path))


def test_a_chunk_that_grows_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zstandard = pytest.importorskip("zstandard")
    monkeypatch.setattr(packed, "ALWAYS_ALLOWED", 1 << 20)
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    folder = damaged("litdata-zstd", tmp_path, lambda folder, _: (folder / "chunk-0-0.bin").write_bytes(bomb))
    with pytest.raises(SampleError, match="grows to more than 1,048,576 bytes, like a bomb"):
        list(open_source(folder))


# ---- MDS, the way back
def test_an_exported_mds_shard_is_the_librarys_byte_for_byte(tmp_path: Path) -> None:
    importer = open_source(FOREIGN / "mds-back")
    samples = list(importer)
    write(Request(samples, importer.columns, "any", 1000), tmp_path / "out")
    index = json.loads((FOREIGN / "mds-back" / "index.json").read_text())
    assert json.loads((tmp_path / "out" / "index.json").read_text()) == index
    assert len(index["shards"]) > 2
    for shard in index["shards"]:
        name = shard["raw_data"]["basename"]
        assert (tmp_path / "out" / name).read_bytes() == (FOREIGN / "mds-back" / name).read_bytes(), name


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_case_c85_what_mds_can_not_hold_is_refused_or_kept_as_npy(shape: tuple[int, ...], tmp_path: Path) -> None:
    from dload.codecs import npy_bytes

    data = npy_bytes(np.zeros(shape, "f4"))
    samples = [("k", {"x": data})]
    with pytest.raises(SampleError, match=r"sample 'k': MDS can't hold an array of the shape .*--codec FIELD=bytes"):
        write(Request(samples, {"x": Column("npy", "array")}, "any"), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    write(Request(samples, {"x": Column("bytes", "binary")}, "any"), tmp_path / "out")
    assert list(open_source(tmp_path / "out")) == samples


def test_mds_has_no_null(tmp_path: Path) -> None:
    columns = {"x": Column("bytes", "binary"), "y": Column("bytes", "binary")}
    with pytest.raises(SampleError, match=r"sample 'k': it has no field 'y', and MDS has no null — .*--fields"):
        write(Request([("k", {"x": b""})], columns, "any"), tmp_path / "out")


# ---- LitData
@pytest.mark.parametrize("name", ["litdata-plain", "litdata-zstd", "litdata-whole"])
def test_litdata_is_what_the_library_reads(name: str) -> None:
    importer = open_source(FOREIGN / name)
    assert (importer.kind, importer.total) == ("litdata", len(EXPECTED[name]))
    for number, ((key, fields), row) in enumerate(zip(importer, EXPECTED[name], strict=True)):
        assert key == f"{number:08d}"
        expected = flat(row)
        y = expected.pop("inner.y")
        expected |= {"inner.y.0": y[0], "inner.y.1": y[1]}
        got = {name: plain(value, importer.columns[name]) for name, value in fields.items() if "jpeg" not in name}
        assert got == {name: value for name, value in expected.items() if "jpeg" not in name}
        pictures = {name: np.asarray(Image.open(io.BytesIO(fields[name]))) for name in ("jpeg", "jpegs.0", "jpegs.1")}
        for field, picture in pictures.items():  # the library turns them to (channels, height, width)
            assert described(picture.transpose(2, 0, 1).copy())["data"] == expected[field]["data"], field


def test_litdata_rows_that_are_an_arrow_file() -> None:
    importer = open_source(FOREIGN / "litdata-arrow")
    assert (FOREIGN / "litdata-arrow" / "chunk-0-0.bin").read_bytes().endswith(b"LDARW01\0")
    got = [{name: plain(value, importer.columns[name]) for name, value in row.items()} for _, row in importer]
    assert got == EXPECTED["litdata-arrow"] and len(got) == importer.total == 5


@pytest.mark.parametrize(
    ("name", "fields"), [("litdata-pair", ("0", "1")), ("litdata-one", ("data",)), ("litdata-tokens", ("data",))]
)
def test_litdata_rows_of_other_shapes(name: str, fields: tuple[str, ...]) -> None:
    importer = open_source(FOREIGN / name)
    got = [[plain(row[field], importer.columns[field]) for field in fields] for _, row in importer]
    assert got == [one if isinstance(one, list) else [one] for one in EXPECTED[name]]
    assert [sorted(row) for _, row in importer] == [sorted(fields)] * 3


def test_litdata_columns() -> None:
    importer = open_source(FOREIGN / "litdata-plain", columns=("text", "inner.x"))
    assert [fields for _, fields in importer][1] == {"text": "é".encode(), "inner.x": b"1"}
    with pytest.raises(ConfigError, match="--key makes no sense for a source of the kind litdata"):
        open_source(FOREIGN / "litdata-plain", key="int")


# ---- in a bucket
@pytest.mark.parametrize("name", ["mds-plain", "mds-zstd", "litdata-zstd", "litdata-arrow"])
def test_shards_in_a_bucket_are_read_one_by_one(name: str, s3_server: S3Server, s3_place: tuple[str, str]) -> None:
    bucket, prefix = s3_place
    store = S3Store(bucket, prefix, endpoint_url=s3_server.endpoint_url)
    for path in (FOREIGN / name).iterdir():
        store.put(f"{name}/{path.name}", path.read_bytes())
    importer = open_source(f"s3://{bucket}/{prefix}/{name}", endpoint_url=s3_server.endpoint_url)
    assert importer.kind == name.partition("-")[0]
    assert list(importer) == list(open_source(FOREIGN / name))
