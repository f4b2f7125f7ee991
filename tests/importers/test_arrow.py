"""Parquet, Arrow and Hugging Face data sets, written by the libraries themselves; and Parquet written for them."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dload.codecs import json_from, npy_bytes, npy_from
from dload.errors import ConfigError, NotFoundError, SampleError, UnavailableError
from dload.importers import open_source
from dload.importers.arrow_types import describe, type_of
from dload.importers.columns import Column, columns_from_meta, columns_meta
from dload.importers.target import Request
from dload.importers.to_parquet import write
from dload.pack import Sample
from dload.store.s3 import S3Store
from dload.testing.s3_server import S3Server

TABLE = pa.table(
    {
        "i8": pa.array([1, None, -128], pa.int8()),
        "u64": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "f32": pa.array([0.1, float("nan"), float("-inf")], pa.float32()),
        "f16": pa.array(np.array([1.5, 2, 65504], np.float16)),
        "f64": [0.1, -0.0, 1e-310],
        "flag": [True, None, False],
        "text": ["é\0", "", None],
        "large": pa.array(["a", "b", None], pa.large_string()),
        "raw": [b"\xff\0", b"", None],
        "fixed": pa.array([b"abc", None, b"xyz"], pa.binary(3)),
        "when": pa.array([-1001, None, 1_600_000_000_000_000_000], pa.timestamp("ns")),
        "zoned": pa.array([0, 1_600_000_000_123, None], pa.timestamp("ms", "Europe/Berlin")),
        "day": [dt.date(1, 1, 1), dt.date(2020, 2, 29), None],
        "time": pa.array([dt.time(1, 2, 3, 4), dt.time(), None], pa.time64("us")),
        "short": pa.array([dt.time(1, 2, 3), dt.time(), None], pa.time32("ms")),
        "span": pa.array([5, -6, None], pa.duration("ms")),
        "money": pa.array([decimal.Decimal("-1.10"), decimal.Decimal("0.00"), None], pa.decimal128(20, 2)),
        "list": [[1, 2], [], None],
        "flags": [[True, False], [], None],
        "halves": pa.array([[np.float16(0.5)], None, []], pa.list_(pa.float16())),
        "cube": pa.array([[[1.0, 2.0], [3.0, 4.0]], None, [[5, 6], [7, 8]]], pa.list_(pa.list_(pa.float32(), 2), 2)),
        "ragged": [[[1], [2, 3]], [], None],
        "words": [["a", None], [], None],
        "struct": [{"a": 1, "b": ["x"]}, {"a": None, "b": None}, None],
        "map": pa.array([[("k", 1), ("l", None)], [], None], pa.map_(pa.string(), pa.int64())),
        "file": pa.array([{"bytes": b"img", "path": "a.jpg"}, {"bytes": b"", "path": None}, None],
                         pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        "nothing": pa.nulls(3),
    }
)  # fmt: skip


def of(path: Path | str, **options: Any) -> list[Sample]:
    return list(open_source(path, **options))  # type: ignore[arg-type]


def same(a: Any, b: Any) -> bool:
    """Equal tables, where NaN equals NaN and -0.0 isn't 0.0."""
    return bool(a.schema.types == b.schema.types) and repr(a.to_pydict()) == repr(b.to_pydict())


# ---- what becomes of types
def test_each_type_by_its_rule(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "t.parquet")
    importer = open_source(tmp_path / "t.parquet")
    assert (importer.kind, importer.total) == ("parquet", 3)
    (key, first), (_, second), (_, third) = list(importer)  # type: ignore[misc]
    assert key == "00000000"
    assert third.keys() == {"i8", "f32", "f16", "f64", "flag", "fixed", "when", "halves", "cube"}, "null is no field"
    assert (first["u64"], first["i8"]) == (b"18446744073709551615", b"1")
    assert (
        np.float32(json_from(first["f32"])) == np.float32(0.1)
        and second["f32"] == b"NaN"
        and third["f32"] == b"-Infinity"
    )
    assert (first["text"], second["text"], second["raw"]) == ("é\0".encode(), b"", b"")
    assert (first["when"], first["zoned"]) == (b"1969-12-31 23:59:59.999998999", b"1970-01-01 00:00:00.000")
    assert (first["day"], first["money"], first["span"]) == (b"0001-01-01", b"-1.10", b"5")
    assert npy_from(first["cube"]).tolist() == [[1, 2], [3, 4]] and npy_from(first["cube"]).dtype == np.float32
    assert npy_from(second["list"]).shape == (0,) and npy_from(second["list"]).dtype == np.int64
    assert (first["struct"], first["map"]) == (b'{"a":1,"b":["x"]}', b'[["k",1],["l",null]]')
    assert (first["file"], first["file.path"], second["file"]) == (b"img", b"a.jpg", b"") and "file.path" not in second
    columns = importer.columns
    assert columns["zoned"] == Column("text", "timestamp[ms, tz=Europe/Berlin]")
    assert columns_from_meta({"columns": json.loads(json.dumps(columns_meta(columns)))}) == columns


@pytest.mark.parametrize("field", list(TABLE.schema), ids=lambda field: str(field.name))
def test_types_are_words_and_back(field: Any) -> None:
    assert type_of(json.loads(json.dumps(describe(field.type)))) == field.type


def test_all_of_a_table_comes_back_as_parquet(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "t.parquet")
    importer = open_source(tmp_path / "t.parquet")
    samples = list(importer)
    done = write(Request(samples, importer.columns, "t"), tmp_path / "out")  # type: ignore[arg-type]
    back = pq.read_table(tmp_path / "out" / "t-00000.parquet")
    assert back["__key__"].to_pylist() == [f"0000000{n}" for n in range(3)]
    for name in TABLE.schema.names:
        assert same(TABLE.select([name]), back.select([name])), name
    assert done.samples == 3 and of(tmp_path / "out") == samples


numbers = {"int8": st.integers(-128, 127), "int64": st.integers(-(2**63), 2**63 - 1), "bool": st.booleans(),
           "double": st.floats(), "float": st.floats(width=32), "string": st.text(max_size=4),
           "binary": st.binary(max_size=4)}  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from([*numbers, "list", "fixed", "struct", "dictionary"]))
    inner = draw(st.sampled_from(["int8", "double", "bool"]))
    type_, values = {
        "list": (pa.list_(pa.type_for_alias(inner)), st.lists(numbers[inner], max_size=3)),
        "fixed": (pa.list_(pa.type_for_alias(inner), 2), st.lists(numbers[inner], min_size=2, max_size=2)),
        "struct": (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
                   st.fixed_dictionaries({"a": numbers["int64"], "b": st.lists(numbers["string"], max_size=2)})),
        "dictionary": (pa.dictionary(pa.int32(), pa.string()), numbers["string"]),
    }.get(kind, (pa.type_for_alias(kind if kind in numbers else "string"), numbers.get(kind)))  # fmt: skip
    return pa.table({"x": pa.array(draw(st.lists(st.none() | values, max_size=6)), type_)})  # type: ignore[operator]


@settings(max_examples=80, deadline=None)
@given(tables(), st.integers(1, 4))
def test_any_column_comes_back(tmp_path_factory: pytest.TempPathFactory, table: Any, group: int) -> None:
    folder = tmp_path_factory.mktemp("t")
    pq.write_table(table, folder / "t.parquet", row_group_size=group)
    with pa.OSFile(str(folder / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=group)
    importer = open_source(folder / "t.parquet")
    samples = list(importer)
    assert of(folder / "t.arrow") == samples and len(samples) == table.num_rows
    write(Request(samples, importer.columns, "t", 1), folder / "out")  # type: ignore[arg-type]
    back = pq.read_table(folder / "out")["x"].to_pylist()
    assert repr(back) == repr(table["x"].to_pylist())


# ---- options and errors
def test_row_groups_files_keys_and_columns(tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        table = pa.table({"id": [f"{name}{n}" for n in range(7)], "n": range(7)})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=3)
    assert [key for key, _ in of(tmp_path)] == [f"{f}/0000000{n}" for f in ("a", "b/c") for n in range(7)]
    assert of(tmp_path, key="id", columns=("n",))[6] == ("a6", {"n": b"6"})
    assert of(f"{tmp_path}/a.parquet", key="n", columns=("id",))[3] == ("3", {"id": b"a3"})
    with pytest.raises(ConfigError, match=r"a.parquet: there is no column 'nope' — there are 'id', 'n'"):
        of(tmp_path, columns=("nope",))
    with pytest.raises(ConfigError, match="no column 'nope' for --key"):
        of(tmp_path, key="nope")


def test_what_can_not_be_represented_is_named(tmp_path: Path) -> None:
    def parquet(**columns: Any) -> Path:
        pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=2)
        return tmp_path / "t.parquet"

    with pytest.raises(SampleError, match=r"t.parquet, row 4: column 'x': .* a null inside"):
        of(parquet(x=[[1], [2], None, [], [1, None]]))
    with pytest.raises(
        SampleError, match=r"t.parquet, row 1: column 'x': its bytes aren't in the table, only the path 'b'"
    ):
        struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        of(parquet(x=pa.array([{"bytes": b"", "path": None}, {"bytes": None, "path": "b"}], struct)))
    with pytest.raises(
        ConfigError, match=r"column 'x' is of the type list<.*binary>>, which has no place in JSON — .*--columns"
    ):
        of(parquet(x=[[[b"1"]]]))
    with pytest.raises(SampleError, match=r"row 3: column 'x': item 1 of its list is null"):
        of(parquet(x=[[b"1"], None, [], [b"2", None]]))
    with pytest.raises(
        SampleError, match=r"row 1: the key 'k' must be an integer, or a text .*, got None — choose another"
    ):
        of(parquet(k=["a", None]), key="k")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(SampleError, match=r"t.parquet can't be read"):
        of(tmp_path / "t.parquet")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "t.parquet")
    pq.write_table(pa.table({"x": ["1"]}), tmp_path / "u.parquet")
    with pytest.raises(ConfigError, match=r"u.parquet: column 'x' is of the type string, in a file before of int64"):
        of(tmp_path)
    pq.write_table(pa.table({"x": [b"1"]}), tmp_path / "t.parquet")
    pq.write_table(pa.table({"x": [[b"1"]]}), tmp_path / "u.parquet")
    with pytest.raises(
        ConfigError, match=r"u.parquet: column 'x' is of the type list<.*binary>, in a file before of bi"
    ):
        of(tmp_path)


def test_lists_of_binary_values_are_fields_of_their_own(tmp_path: Path) -> None:
    lists: list[list[bytes] | None] = [[b"a", b""], [], None, [b"b"]]
    pq.write_table(pa.table({"x": lists, "y": range(4)}), tmp_path / "t.parquet", row_group_size=3)
    importer = open_source(tmp_path / "t.parquet")
    assert [fields for _, fields in importer] == [  # type: ignore[union-attr]
        {"x.0": b"a", "x.1": b"", "y": b"0"}, {"y": b"1"}, {"y": b"2"}, {"y": b"3", "x.0": b"b"}
    ]  # fmt: skip
    assert importer.columns == {
        "y": Column("json", "int64"), "x.0": Column("bytes", "binary"), "x.1": Column("bytes", "binary")
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"no column 'x\.0'"):
        of(tmp_path / "t.parquet", columns=("x.0",))


def test_bytes_that_are_not_what_their_column_says_are_named_on_the_way_out(tmp_path: Path) -> None:
    for codec, type_, value in (("json", "int64", b"x"), ("json", "int8", b"300"), ("text", "date32[day]", b"no day"),
                                ("text", "string", b"\xff"), ("npy", {"list": "int64"}, b"x")):  # fmt: skip
        rows = [("fine", {}), ("bad", {"x": value})]
        with pytest.raises(SampleError, match=r"sample 'bad': field 'x' is no .*--codec x=bytes"):
            write(Request(rows, {"x": Column(codec, type_)}, "t"), tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []


def test_exported_lines_are_what_arrow_reads(tmp_path: Path) -> None:
    from pyarrow import json as arrow_json

    from dload.importers.to_jsonl import write as write_lines

    columns = {"id": Column("json", "int64"), "text": Column("text", "string"), "nest": Column("json", "any"),
               "list": Column("npy", "array"), "raw": Column("bytes", "binary")}  # fmt: skip
    rows = [
        ("é/1", {"id": b"1", "text": "é\u2028\n".encode(), "nest": b'{"a":[1,null]}', "list": npy_bytes([1.5, 2.0])}),
        ("2", {"id": b"-9007199254740993", "raw": b"\x00\xff"}),
    ]
    write_lines(Request(rows, columns, "t"), tmp_path)
    assert arrow_json.read_json(tmp_path / "t.jsonl").to_pylist() == [
        {"__key__": "é/1", "id": 1, "text": "é\u2028\n", "nest": {"a": [1, None]}, "list": [1.5, 2.0], "raw": None},
        {"__key__": "2", "id": -9007199254740993, "text": None, "nest": None, "list": None,
         "raw": {"dload.base64": "AP8="}},
    ]  # fmt: skip


def test_a_data_set_of_unknown_types_is_bytes(tmp_path: Path) -> None:
    rows = [("é/1", {"jpg": b"\xff"}), ("2", {"json": b"{"})]
    columns = {"jpg": Column("bytes", "binary"), "json": Column("bytes", "binary")}
    write(Request(rows, columns, "t"), tmp_path)
    assert pq.read_table(tmp_path).to_pylist() == [
        {"__key__": "é/1", "jpg": b"\xff", "json": None}, {"__key__": "2", "jpg": None, "json": b"{"}
    ]  # fmt: skip


def test_arrow_streams_and_empty_tables(tmp_path: Path) -> None:
    with pa.OSFile(str(tmp_path / "s.arrow"), "wb") as sink, pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=2)
    pq.write_table(TABLE, tmp_path / "t.parquet")
    assert of(tmp_path / "s.arrow") == of(tmp_path / "t.parquet")
    pq.write_table(TABLE.slice(0, 0), tmp_path / "e.parquet")
    assert of(tmp_path / "e.parquet") == []


def test_a_batch_of_many_rows_is_read_in_pieces(tmp_path: Path) -> None:
    count = 9000
    table = pa.table(
        {
            "list": [[n] * (n % 3) for n in range(count)],
            "pair": pa.array([None if n % 5 == 0 else [n, -n] for n in range(count)], pa.list_(pa.int32(), 2)),
            "file": pa.array([{"bytes": b"%d" % n, "path": f"d/{n}"} for n in range(count)], type_of("file")),
            "text": [f"é{n}" for n in range(count)],
        }
    )
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    for n, (key, fields) in enumerate(of(tmp_path / "t.arrow")):
        assert key == f"{n:08d}" and npy_from(fields["list"]).tolist() == [n] * (n % 3)
        assert ("pair" not in fields) if n % 5 == 0 else npy_from(fields["pair"]).tolist() == [n, -n]
        assert (fields["file"], fields["file.path"], fields["text"]) == (b"%d" % n, b"%d" % n, f"é{n}".encode())


def test_parquet_in_a_bucket(s3_server: S3Server, s3_place: tuple[str, str], tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "t.parquet")
    bucket, prefix = s3_place
    S3Store(bucket, prefix, endpoint_url=s3_server.endpoint_url).put(
        "d/t.parquet", (tmp_path / "t.parquet").read_bytes()
    )
    for name, source in (("d/*.parquet", tmp_path), ("d", tmp_path), ("d/t.parquet", tmp_path / "t.parquet")):
        assert of(f"s3://{bucket}/{prefix}/{name}", endpoint_url=s3_server.endpoint_url) == of(source)


# ---- Hugging Face
def png(value: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (3, 2), (value, 0, 0)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> datasets.Dataset:
    folder = tmp_path_factory.mktemp("files")
    (folder / "a.png").write_bytes(png(1))
    (folder / "a.wav").write_bytes(b"RIFF not really")
    raw = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    features = datasets.Features(
        {
            "image": datasets.Image(), "sound": raw, "label": datasets.ClassLabel(names=["cat", "dog"]),
            "array": datasets.Array2D((2, 3), "float32"), "free": datasets.Array2D((None, 2), "int16"),
            "text": datasets.Value("string"), "list": datasets.Sequence(datasets.Value("int32")),
            "inner": {"x": datasets.Value("int64")},
        }
    )  # fmt: skip
    rows = {
        "image": [str(folder / "a.png"), {"bytes": png(2), "path": "b.png"}, None],
        "sound": [{"bytes": None, "path": str(folder / "a.wav")}, None, None], "label": [1, 0, None],
        "array": [np.full((2, 3), n, "f4") for n in range(3)],
        "free": [np.ones((n, 2), "i2") for n in range(3)], "text": ["é", "", None],
        "list": [[1, 2], [], [3]], "inner": [{"x": 1}, {"x": 2}, {"x": None}],
    }  # fmt: skip
    return datasets.Dataset.from_dict(rows, features=features).cast_column("sound", datasets.Audio())


@pytest.fixture(autouse=True)
def quiet() -> None:
    datasets.disable_progress_bars()


def check_rows(samples: list[Sample], prefix: str = "") -> None:
    assert [key for key, _ in samples] == [f"{prefix}0000000{n}" for n in range(3)]
    first, second, third = (fields for _, fields in samples)
    assert (first["image"], second["image"]) == (png(1), png(2)) and "image" not in third, "the original bytes"
    assert (first["image.path"], second["image.path"]) == (b"a.png", b"b.png")
    assert (first["sound"], first["sound.path"]) == (b"RIFF not really", b"a.wav") and "sound" not in second
    assert (first["label"], second["label"], first["text"], first["inner"]) == (b"1", b"0", "é".encode(), b'{"x":1}')
    for number, fields in enumerate((first, second, third)):
        assert npy_from(fields["array"]).tolist() == np.full((2, 3), number).tolist()
        assert npy_from(fields["array"]).dtype == np.float32
        assert npy_from(fields["free"]).shape == (number, 2) and npy_from(fields["free"]).dtype == np.int16
    assert npy_from(second["list"]).shape == (0,) and npy_from(first["list"]).dtype == np.int32


def test_what_save_to_disk_wrote(hub: datasets.Dataset, tmp_path: Path) -> None:
    hub.save_to_disk(tmp_path / "one")
    importer = open_source(tmp_path / "one")
    assert (importer.kind, importer.total) == ("hf", 3)
    check_rows(list(importer))  # type: ignore[arg-type]
    assert importer.columns["label"] == Column("json", {"class_label": ["cat", "dog"]})
    assert of(tmp_path / "one") == list(importer)
    assert of(tmp_path / "one", columns=("text",))[1] == ("00000001", {"text": b""})


def test_splits_and_selections(hub: datasets.Dataset, tmp_path: Path) -> None:
    both = datasets.DatasetDict({"train": hub, "test": hub.select([2, 0])})
    both.save_to_disk(tmp_path / "both")
    samples = of(tmp_path / "both")
    check_rows(samples[:3], "train/")
    assert [key for key, _ in samples[3:]] == ["test/00000000", "test/00000001"]
    assert samples[4][1] == samples[0][1], "the order of the selection"
    assert of(tmp_path / "both", split="test", columns=("text", "list")) == [
        (key, {name: fields[name] for name in ("text", "list") if name in fields}) for key, fields in samples[3:]
    ]
    with pytest.raises(ConfigError, match="there is no split 'val' — its splits: 'train', 'test'"):
        of(tmp_path / "both", split="val")
    with pytest.raises(ConfigError, match="--config is for a data set by name"):
        of(tmp_path / "both", config="default")
    with pytest.raises(ConfigError, match="--revision is for a data set by name"):
        of(tmp_path / "both", revision="main")


def test_a_data_set_by_name_from_the_cache(
    hub: datasets.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What load_dataset finds is read the same; a name that neither hub nor cache knows is an error that says so."""
    (tmp_path / "data").mkdir()
    hub.select_columns(["text", "list"]).to_parquet(tmp_path / "data" / "train.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert of("hf/data", columns=("text",)) == [
        ("train/00000000", {"text": "é".encode()}), ("train/00000001", {"text": b""}), ("train/00000002", {})
    ]  # fmt: skip
    assert [key for key, _ in of("hf/data", split="train[1:]")] == ["train[1:]/00000000", "train[1:]/00000001"]
    with pytest.raises(UnavailableError, match=r"hf/nobody/nothing is neither a folder here nor in the cache"):
        of("hf/nobody/nothing")
    with pytest.raises(NotFoundError, match=r"can't load 'data' from the hub or its cache: .*val"):
        of("hf/data", split="val")
    asked: list[Any] = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *given, **more: asked.append((given, more)) or {"train": hub})
    assert len(of("hf/some/name", config="small", revision="v1.0")) == 3
    assert asked == [(("some/name", "small"), {"split": None, "revision": "v1.0"})]
    with pytest.raises(ConfigError, match="hf/ names no data set"):
        of("hf/")
    hub.save_to_disk("saved")
    assert of("hf/saved") == of("saved"), "as load() takes it"


def test_files_that_a_data_set_only_names_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "pics" / "train" / label).mkdir(parents=True)
        (tmp_path / "pics" / "train" / label / "a.png").write_bytes(png(len(label)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    importer = open_source("hf/pics")
    assert list(importer) == [
        (f"train/0000000{n}", {"image": png(3), "image.path": b"a.png", "label": b"%d" % n}) for n in range(2)
    ]
    assert importer.columns["label"] == Column("json", {"class_label": ["cat", "dog"]})
    (tmp_path / "pics" / "train" / "dog" / "a.png").unlink()
    with pytest.raises(NotFoundError, match=r"hf/pics train, row 1: the file .*a.png is gone"):
        list(importer)


def test_what_lies_behind_a_null_is_nothing(tmp_path: Path) -> None:
    """Arrow leaves open what a struct that is null has inside."""
    parts = [pa.array([b"a", b"ghost", b"c"]), pa.array(["x/a.png", "ghost.png", None])]
    files = pa.StructArray.from_arrays(parts, ["bytes", "path"], mask=pa.array([False, True, False]))
    with (
        pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, pa.schema([("f", files.type)])) as out,
    ):
        out.write_batch(pa.record_batch([files], ["f"]))
    assert [fields for _, fields in of(tmp_path / "t.arrow")] == [
        {"f": b"a", "f.path": b"a.png"}, {}, {"f": b"c"}
    ]  # fmt: skip


def test_files_beside_nulls_are_read(hub: datasets.Dataset) -> None:
    """Of a table that only names its files, one row of which has none."""
    from dload.importers.huggingface import _embedded

    table = hub.select_columns(["image"]).with_format("arrow")[:].combine_chunks().to_batches()[0]
    image = table.column(0)
    assert image.null_count == 1 and image.to_pylist()[0]["bytes"] is None
    parts = [pa.array([None, png(2), b"ghost"], pa.binary()), pa.array([image[0].as_py()["path"], "b.png", None])]
    ghost = pa.StructArray.from_arrays(parts, ["bytes", "path"], mask=pa.array([False, False, True]))
    for column in (image, ghost):
        batch = _embedded(pa.record_batch([column], ["image"]), "shown", 0)
        assert [one and one["bytes"] for one in batch.column(0).to_pylist()] == [png(1), png(2), None]


def test_lists_of_images_are_fields_of_their_own(tmp_path: Path) -> None:
    """As data sets of conversations about several images have them."""
    (tmp_path / "a.png").write_bytes(png(1))
    rows = datasets.Dataset.from_dict(
        {"images": [[str(tmp_path / "a.png"), {"bytes": png(2), "path": None}], [], [str(tmp_path / "a.png")]]},
        features=datasets.Features({"images": datasets.Sequence(datasets.Image())}),
    )
    expected = [
        {"images.0": png(1), "images.0.path": b"a.png", "images.1": png(2)}, {},
        {"images.0": png(1), "images.0.path": b"a.png"},
    ]  # fmt: skip
    rows.save_to_disk(tmp_path / "saved")
    assert [fields for _, fields in of(tmp_path / "saved")] == expected
    assert open_source(tmp_path / "saved").total == 3
    from dload.importers.huggingface import HuggingFace

    importer = HuggingFace.__new__(HuggingFace)  # over what isn't saved: only names of files are in the table
    importer.url, importer._parts = "hf/rows", [("", rows)]
    from dload.importers.huggingface import _FeatureRows

    importer._rows = _FeatureRows((), None, dict(rows.features))
    assert [fields for _, fields in importer] == expected
    assert importer.columns["images.0"] == Column("bytes", "file")
    (tmp_path / "a.png").unlink()
    with pytest.raises(NotFoundError, match=r"hf/rows, row 0: the file .*a.png is gone"):
        list(importer)


def test_a_file_that_is_gone_is_named(hub: datasets.Dataset, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"image": [str(tmp_path / "gone.png")]})
    rows = rows.cast_column("image", datasets.Image())
    table = tmp_path / "t.parquet"
    pq.write_table(pa.table({"image": rows.data.table["image"].combine_chunks()}), table)
    with pytest.raises(
        SampleError, match=r"row 0: column 'image': its bytes aren't in the table, only the path '.*gone.png'"
    ):
        of(table)
