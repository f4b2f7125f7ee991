"""JSONL and CSV, folders with labels and tables beside them; patterns, compression, and which kind a source is."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.codecs import json_from
from dload.errors import ConfigError, DloadError, NotFoundError, SampleError
from dload.importers import KINDS, open_source
from dload.importers import source as source_module
from dload.importers.columns import Column
from dload.importers.glob import expand
from dload.importers.source import open_files
from dload.importers.target import Request
from dload.importers.to_jsonl import write
from dload.pack import Sample
from dload.repo.group import LazySample


def tree(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def of(path: Path | str, kind: str | None = None, **options: Any) -> list[Sample]:
    return [
        (item.key, dict(item.load())) if isinstance(item, LazySample) else (item[0], dict(item[1]))
        for item in open_source(path, kind, **options)
    ]


# ---- JSONL
def test_lines_become_samples(tmp_path: Path) -> None:
    lines = (
        '\ufeff{"t": "é", "n": 1.50, "l": [1, null], "no": null}\r\n\n{"t": "", "b": true, "n": 12345678901234567890}\n'
    )
    path = tree(tmp_path, {"a.jsonl": lines}) / "a.jsonl"
    importer = open_source(path)
    assert importer.kind == "jsonl"
    expected = [
        ("00000000", {"t": "é".encode(), "n": b"1.5", "l": b"[1,null]"}),
        ("00000002", {"t": b"", "b": b"true", "n": b"12345678901234567890"}),
    ]
    assert list(importer) == expected == list(importer)
    assert importer.columns["t"] == Column("text", "string") and importer.columns["n"] == Column("json", "any")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert of(tmp_path / "a.jsonl.gz") == expected
    assert of(path, columns=("n",)) == [(key, {"n": fields["n"]}) for key, fields in expected]


def test_keys_of_lines_and_of_files(tmp_path: Path) -> None:
    tree(tmp_path, {"x/b.jsonl": '{"id": 7, "v": "1"}\n', "x/c/a.ndjson": '{"id": 8, "v": "2"}', "README.md": "hi"})
    assert [key for key, _ in of(tmp_path)] == ["x/b/00000000", "x/c/a/00000000"]
    assert of(tmp_path, key="id") == [("7", {"id": b"7", "v": b"1"}), ("8", {"id": b"8", "v": b"2"})]
    own = tree(tmp_path / "own", {"a.jsonl": '\n{"__key__": "z/1", "v": 1}\n{"__key__": "z/2", "v": 2}\n'})
    assert of(own / "a.jsonl", key="v") == [
        ("1", {"__key__": b"z/1", "v": b"1"}),
        ("2", {"__key__": b"z/2", "v": b"2"}),
    ]
    assert of(own / "a.jsonl") == [("z/1", {"v": b"1"}), ("z/2", {"v": b"2"})]


def test_whole_lines_are_kept_byte_for_byte(tmp_path: Path) -> None:
    path = tree(tmp_path, {"a.jsonl": '{ "a" : 1.0e0, "k": "x" }\n{"a": "text", "k": "y"}\n'}) / "a.jsonl"
    assert of(path, whole_lines=True, key="k") == [
        ("x", {"json": b'{ "a" : 1.0e0, "k": "x" }'}), ("y", {"json": b'{"a": "text", "k": "y"}'})
    ]  # fmt: skip


BAD_LINES = [
    ('{"a": 1}\n{"a": "1"}', r"line 2: 'a' is '1', though before it was json — .*--whole-lines"),
    ('{"a": 1}\nnot json', r"line 2: Expecting value"),
    ("[1]", r"line 1: it is no JSON object — .* of an array, jq"),
    ('{"a": 1, "a": 2}', r"line 1: the key 'a' is there twice in one object"),
    ('{"a": {"b": 1, "b": 2}}', r"line 1: the key 'b' is there twice in one object"),
    ('{"a": 1e400}', r"line 1: the number 1e400 is too large"),
    ('{"a": ' + "9" * 5000 + "}", r"line 1: Exceeds the limit \(4300 digits\)"),
    ('{"a": 1}\n{"a": ' + "[" * 100_000, r"line 2: nested too deeply"),
    ('{"": 1}', r"line 1: a member has no name, and a field needs one"),
    ('{"a": "\\ud800"}', r"line 1: .*surrogates not allowed"),
    ('{"a": {"dload.base64": "?"}}', r"line 1: 'a' has a 'dload.base64' that is none"),
    ('{"__key__": "a"}\n{"b": 1}', r"line 2: the key '__key__' must be an integer, or a text of 1 to 1,024 b.*None"),
    ('{"__key__": ""}', r"line 1: the key '__key__' must be .* got ''"),
    (b'{"a": "\xff"}', r"line 1: not UTF-8 \(byte 7\)"),
    ('{"a": 1}'.encode("utf-16"), r"line 1: not UTF-8 \(byte 0\)"),
]


@pytest.mark.parametrize(("lines", "message"), BAD_LINES)
def test_a_line_that_can_not_be_represented_is_named(lines: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=message) as caught:
        of(tree(tmp_path, {"a.jsonl": lines}) / "a.jsonl")
    assert "a.jsonl" in str(caught.value)


def test_a_column_that_no_line_has_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="no line has 'nope'"):
        of(tree(tmp_path, {"a.jsonl": '{"a": 1}'}) / "a.jsonl", columns=("a", "nope"))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
).filter(lambda value: not (isinstance(value, dict) and "dload.base64" in value))


@settings(max_examples=60, deadline=None)
@given(row=st.dictionaries(st.text(min_size=1, max_size=5).filter(lambda name: name != "__key__"), values, max_size=4))
def test_any_line_keeps_its_values(row: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    path.write_text(json.dumps(row))
    importer = open_source(path)
    ((_, fields),) = list(importer)
    read = {name: json_from(value) if importer.columns[name].codec == "json" else value.decode()
            for name, value in fields.items()}  # fmt: skip
    assert read == {name: value for name, value in row.items() if value is not None}


# ---- JSONL, the way back
def test_exported_lines_come_back(tmp_path: Path) -> None:
    import numpy as np

    from dload.codecs import npy_bytes

    columns = {"t": Column("text", "string"), "j": Column("json", "any"), "b": Column("bytes", "binary"),
               "n": Column("npy", "array")}  # fmt: skip
    rows: list[Sample] = [
        (
            "é/1",
            {"t": "\u2028 é\n".encode(), "j": b'{"a":[1,null]}', "b": b"\0\xff", "n": npy_bytes(np.ones((2, 1), "f4"))},
        ),
        ("2", {"b": b""}),
    ]
    write(Request(rows, columns, "any"), tmp_path / "out")
    lines = (tmp_path / "out" / "any.jsonl").read_text().split("\n")
    assert json.loads(lines[0]) == {
        "__key__": "é/1", "t": "\u2028 é\n", "j": {"a": [1, None]}, "b": {"dload.base64": "AP8="}, "n": [[1.0], [1.0]]
    }  # fmt: skip
    assert of(tmp_path / "out") == [(rows[0][0], rows[0][1] | {"n": b"[[1.0],[1.0]]"}), rows[1]]


@pytest.mark.parametrize(
    ("codec", "value", "message"),
    [("text", b"\xff", "sample 'k': field 'x' is not text"), ("json", b"{", "sample 'k': field 'x' is not json"),
     ("npy", b"x", "sample 'k': field 'x' is not npy")],
)  # fmt: skip
def test_bytes_that_are_not_what_their_column_says_are_named(
    codec: str, value: bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SampleError, match=message):
        write(Request([("k", {"x": value})], {"x": Column(codec, "any")}, "any"), tmp_path / "out")


# ---- CSV
cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(cells, cells), max_size=5), dialect=st.sampled_from(["csv", "tsv"]))
def test_any_csv_that_python_writes(
    rows: list[tuple[str, str]], dialect: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter="\t" if dialect == "tsv" else ",")
    writer.writerows([("a", "b é"), *rows])
    path = tmp_path_factory.mktemp("csv") / f"x.{dialect}"
    path.write_bytes(out.getvalue().encode())
    assert of(path) == [
        (f"{number:08d}", {"a": one.encode(), "b é": two.encode()}) for number, (one, two) in enumerate(rows)
    ]


def test_csv_options_and_a_cell_of_ten_megabytes(tmp_path: Path) -> None:
    long = "x" * 10_000_000
    path = tree(tmp_path, {"a.csv": f'\ufeffid,text,__key__\r\n1,"{long}",k\r\n'}) / "a.csv"
    assert of(path) == [("k", {"id": b"1", "text": long.encode()})]
    assert of(path, key="id", columns=("text",)) == [("1", {"text": long.encode()})]
    with pytest.raises(ConfigError, match=r"no column 'nope' — there are 'id', 'text', '__key__'"):
        of(path, columns=("nope",))
    with pytest.raises(ConfigError, match=r"no column 'nope' for --key"):
        of(path, key="nope")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n1,2,3\n", r"line 3: 3 cells, though the first row names 2 columns"),
        ('a\n"x"y\n', r"behind line 1: .*expected"),
        ('a\n"x', r"behind line \d: unexpected end of data"),
        (b"a\n\xff\n", r"can't decode"),
        ("a,a\n1,2\n", "there are two columns 'a'"),
        (",a\n0,2\n", r"column 1 of 2 has no name, and a field needs one — .*--columns"),
        ("__key__,a\nx,1\n,2\n", r"line 3: the key '__key__' must be .* got ''"),
        ("a;b\n1;2\n", r"names one column alone, 'a;b' — cut it with --delimiter ';'"),
        ("a\tb\n1\t2\n", r"cut it with --delimiter '\\t'"),
    ],
)
def test_a_row_that_can_not_be_represented_is_named(text: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(DloadError, match=message) as caught:
        of(tree(tmp_path, {"a.csv": text}) / "a.csv")
    assert "a.csv" in str(caught.value)


def test_what_stands_between_cells(tmp_path: Path) -> None:
    tree(tmp_path, {"a.csv": "a;b\n1;2\n", "b.tsv": "a\tb\n1\t2\n", "c.csv": ",a\n0,2\n"})
    assert of(tmp_path / "a.csv", delimiter=";") == of(tmp_path / "b.tsv") == [("00000000", {"a": b"1", "b": b"2"})]
    assert of(tmp_path / "a.csv", delimiter=",") == [("00000000", {"a;b": b"1;2"})]
    assert of(tmp_path / "c.csv", columns=("a",)) == [("00000000", {"a": b"2"})], "pandas wrote it"
    with pytest.raises(ConfigError, match="--delimiter ';;' is not one character"):
        of(tmp_path / "a.csv", delimiter=";;")


def test_an_empty_csv_and_an_empty_jsonl_have_no_samples(tmp_path: Path) -> None:
    tree(tmp_path, {"a.csv": "a,b\n", "b.csv": "", "c.jsonl": ""})
    assert of(tmp_path / "a.csv") == of(tmp_path / "b.csv") == of(tmp_path / "c.jsonl") == []


# ---- folders
IMAGES: dict[str, str | bytes] = {
    "cat/1.jpg": b"c1",
    "cat/2.jpg": b"c2",
    "deep/dog/1.jpg": b"d1",
    "deep/dog/1.txt": b"t",
}


def test_labels_are_the_names_of_folders(tmp_path: Path) -> None:
    root = tree(tmp_path / "data", IMAGES)
    assert of(root, label_from_folder=True) == [
        ("cat/1", {"jpg": b"c1", "label": b"cat"}), ("cat/2", {"jpg": b"c2", "label": b"cat"}),
        ("deep/dog/1", {"jpg": b"d1", "txt": b"t", "label": b"dog"}),
    ]  # fmt: skip
    tree(root, {"top.jpg": b""})
    assert open_source(root, label_from_folder=True).columns == {"label": Column("text", "string")}
    with pytest.raises(SampleError, match=r"sample 'top' lies in no folder below .*--exclude"):
        of(root, label_from_folder=True)
    assert len(of(root, label_from_folder=True, exclude=["top.jpg"])) == 3
    tree(root, {"cat/1.label": b"?"})
    with pytest.raises(SampleError, match=r"sample 'cat/1' has a file and a value for the field 'label'"):
        of(root, label_from_folder=True, exclude=["top.jpg"])


def test_a_label_changes_the_stamp_that_says_a_file_is_unchanged(tmp_path: Path) -> None:
    import time

    root = tree(tmp_path, {"cat/1.jpg": b"x"})
    while (plain := next(iter(open_source(root, "folder")))).stamp is None:  # type: ignore[union-attr]
        time.sleep(0.2)
    labelled = next(iter(open_source(root, "folder", label_from_folder=True)))
    assert isinstance(labelled, LazySample) and labelled.stamp not in (None, plain.stamp)  # type: ignore[union-attr]
    assert labelled.stamp == next(iter(open_source(root, "folder", label_from_folder=True))).stamp  # type: ignore[union-attr]
    assert dict(labelled.sizes) == {name: len(value) for name, value in labelled.load().items()}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metadata.csv", "file_name,caption,n\ncat/1.jpg,\"a, cat\",1\ndeep/dog/1.txt,é,2\n"),
        ("metadata.jsonl", '{"file_name": "cat/1.jpg", "caption": "a, cat", "n": 1}\n'
                           '{"file_name": "deep/dog/1.txt", "caption": "é", "n": 2}\n'),
        ("more/table.csv", "file_name,caption,n\ncat/1.jpg,\"a, cat\",1\ndeep/dog/1.txt,é,2\n"),
    ],
)  # fmt: skip
def test_a_table_beside_the_files(name: str, text: str, tmp_path: Path) -> None:
    root = tree(tmp_path / "data", {**IMAGES, name: text})
    options = {} if name.startswith("metadata") else {"metadata": name}
    importer = open_source(root, **options)
    assert importer.kind == "folder" and importer.total == 3
    assert of(root, **options) == [
        ("cat/1", {"jpg": b"c1", "caption": b"a, cat", "n": b"1"}), ("cat/2", {"jpg": b"c2"}),
        ("deep/dog/1", {"jpg": b"d1", "txt": b"t", "caption": "é".encode(), "n": b"2"}),
    ]  # fmt: skip
    assert importer.columns["caption"] == Column("text", "string")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file_name,a\nno.jpg,1\n", r"metadata.csv: a row names a file that isn't there, as 'no'"),
        ("name,a\ncat/1.jpg,1\n", r"no column 'file_name'"),
        ("file_name,jpg\ncat/1.jpg,1\n", r"sample 'cat/1' has a file and a value for the field 'jpg'"),
        ("file_name,a\ncat/1.jpg,1\ncat/1.jpg,2\n", r"two rows give sample 'cat/1' a field 'a'"),
    ],
)
def test_a_table_that_does_not_fit_is_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DloadError, match=message):
        of(tree(tmp_path / "data", {**IMAGES, "metadata.csv": text}))


# ---- sources
def test_braces() -> None:
    assert expand("a-{08..11}.x") == ["a-08.x", "a-09.x", "a-10.x", "a-11.x"]
    assert expand("{a,b{1..2}}/{x,}") == ["a/x", "a/", "b1/x", "b1/", "b2/x", "b2/"]
    assert expand("{3..1}") == ["3", "2", "1"] and expand("{x}") == ["x"] and expand("plain") == ["plain"]
    with pytest.raises(ConfigError, match="a brace that isn't closed"):
        expand("a{b")
    for bomb in ("{1..99999999}", "{0..999}" * 3):
        with pytest.raises(ConfigError, match="more than 1,000,000 files"):
            expand(bomb)


def test_patterns_choose_files_in_order_and_miss_none_in_silence(tmp_path: Path) -> None:
    tree(tmp_path, {"a/1.csv": "", "a/2.csv": "", "a/b/3.csv": "", "c.csv": ""})
    assert open_files(f"{tmp_path}/a/{{2,1}}.csv").names == ("2.csv", "1.csv")
    assert open_files(f"{tmp_path}/a/*.csv").names == ("1.csv", "2.csv")
    assert open_files(f"{tmp_path}/*/*.csv").names == ("a/1.csv", "a/2.csv")
    assert open_files(f"{tmp_path}/**/*.csv").names == ("a/1.csv", "a/2.csv", "a/b/3.csv", "c.csv")
    assert open_files(f"{tmp_path}/**/b/*.csv").names == ("a/b/3.csv",)
    assert open_files(f"{tmp_path}/a/**").names == ("1.csv", "2.csv", "b/3.csv")
    assert open_files(tmp_path).names == ("a/1.csv", "a/2.csv", "a/b/3.csv", "c.csv")
    with pytest.raises(NotFoundError, match=r"there is no 9.csv"):
        open_files(f"{tmp_path}/a/{{1,9}}.csv")
    with pytest.raises(NotFoundError, match=r"nothing matches \*.tar"):
        open_files(f"{tmp_path}/*.tar")
    with pytest.raises(NotFoundError, match=r"there is no file or folder '.*nope'"):
        open_files(tmp_path / "nope")
    with pytest.raises(ConfigError, match="unknown kind of place gs://"):
        open_files("gs://bucket/x")


def test_what_a_source_is(tmp_path: Path) -> None:
    tree(tmp_path, {"j/a.jsonl": "", "j/b.jsonl.gz": gzip.compress(b""), "j/README.md": "", "m/a.jsonl": "",
                    "m/b.csv": "a", "mystery.xyz": "?",
                    "n/train/index.json": '{"shards": [], "version": 2}', "n/train/x": ""})  # fmt: skip
    assert open_source(tmp_path / "j").kind == "jsonl"
    assert open_source(tmp_path / "m").kind == "folder"
    with pytest.raises(ConfigError, match=r"no mds data set itself, but its folder train is one.*--format folder"):
        open_source(tmp_path / "n")
    with pytest.raises(ConfigError, match=r"can't tell what kind of data this is: mystery.xyz") as caught:
        open_source(tmp_path / "mystery.xyz")
    assert "WebDataset shards" in str(caught.value) and "--format KIND" in str(caught.value)
    with pytest.raises(ConfigError, match=f"no kind of source 'zip' — the kinds are {', '.join(KINDS)}"):
        open_source(tmp_path, "zip")
    with pytest.raises(ConfigError, match=r"no file ends in .tar or .tar.gz"):
        open_source(tmp_path / "j", "webdataset")
    with pytest.raises(ConfigError, match=r"of several kinds, csv, jsonl: a.jsonl, b.csv — import one kind at a time"):
        open_source(f"{tmp_path}/m/*")
    with pytest.raises(ConfigError, match=r"--include 'mystery.xyz'"):
        open_source(tmp_path / "mystery.xyz")
    with pytest.raises(ConfigError, match="the source has no name"):
        open_source("")
    tree(tmp_path, {"lines.txt": '{"a": 1}', "x.json": "[]"})
    with pytest.raises(ConfigError, match=r"x.json — if each line is an object: --format jsonl"):
        open_source(tmp_path / "x.json")
    assert of(tmp_path / "lines.txt", "jsonl") == [("00000000", {"a": b"1"})]
    with pytest.raises(ConfigError, match="--shard-keys makes no sense for a source of the kind jsonl"):
        open_source(tmp_path / "j", shard_keys=True)


def test_a_key_hangs_on_how_the_source_is_named_not_on_how_many_files_there_are(tmp_path: Path) -> None:
    """A pattern that one file fits today and two tomorrow gives the first the same keys."""
    tree(tmp_path, {"a.jsonl": "{}"})
    assert [key for key, _ in of(tmp_path / "a.jsonl")] == ["00000000"]
    assert [key for key, _ in of(f"{tmp_path}/*.jsonl")] == [key for key, _ in of(tmp_path)] == ["a/00000000"]
    tree(tmp_path, {"b.jsonl": "{}"})
    assert [key for key, _ in of(f"{tmp_path}/*.jsonl")] == ["a/00000000", "b/00000000"]


@pytest.mark.parametrize(
    ("files", "kind", "message"),
    [
        ({}, "mds", "there is no index.json — name the folder that it is in"),
        ({}, "litdata", "there is no index.json"),
        ({}, "tfds", "there is no dataset_info.json"),
        ({}, "hf", "is no data set that save_to_disk wrote"),
        ({}, "jsonl", "no file ends in .jsonl .*: it is empty"),
        ({"x.txt": ""}, "csv", "no file ends in .csv .*: there are x.txt"),
        ({"index.json": "{", "shard.00000.mds": ""}, None, "index.json is damaged"),
        ({"index.json": "[]", "chunk-0-0.bin": ""}, None, "index.json is damaged: no JSON object"),
        ({"index.json": '{"a": 1, "a": 2}', "chunk-0-0.bin": ""}, None, "the key 'a' is there twice"),
        ({"index.json": "[" * 100_000, "chunk-0-0.bin": ""}, None, "index.json is damaged: nested too deeply"),
    ],
)
def test_a_folder_that_is_not_what_was_meant_says_so(
    files: dict[str, str], kind: str | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(DloadError, match=message) as caught:
        open_source(tree(tmp_path / "d", files), kind)
    assert str(tmp_path / "d") in str(caught.value) and caught.value.remedy


def test_a_folder_with_an_index_of_its_own_is_a_folder(tmp_path: Path) -> None:
    root = tree(tmp_path, {"index.json": "no JSON", "a.txt": "x"})
    assert of(root) == [("a", {"txt": b"x"}), ("index", {"json": b"no JSON"})]


def test_a_compressed_line_that_grows_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "ALWAYS_ALLOWED", 1 << 20)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b" " * (1 << 24)))
    with pytest.raises(SampleError, match="grows to more than 200 times its size"):
        of(tmp_path / "a.jsonl.gz")
