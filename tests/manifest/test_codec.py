"""Manifests as bytes: canonical, golden in both formats, and hard to fool."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError, DloadError, IntegrityError, PackFormatError
from dload.manifest import FieldStats, Manifest, Packing, ShardInfo, ShardList, decode, encode, new_manifest

# Written by hand from the format's description; its id by sha256sum.
GOLDEN_2 = (
    '{"fields":{"json":{"bytes":20,"count":2},"wav":{"bytes":4000,"count":3}},"format":2,'
    '"meta":{"lizenz":"frei für alle ☃","n":[1,2.5,null,true]},"name":"abc",'
    '"packing":{"boundaries":"content","codecs":{"wav":"zstd"},"target":134217728},"recipe":"print(1)\\n",'
    f'"shards":{{"digest":["{"ab" * 32}","{"0c" * 32}"],"index_size":[120,null],'
    '"num_samples":[2,1],"size":[3000,1254]}}'
).encode()
GOLDEN_2_ID = "2b0fa37db0279bbc342ee076029ab0f56060c244edf59737a541e3af2bd0f479"

# What dload-ml 0.3.1's Manifest.to_json gave, with the ids that it gave.
GOLDEN_1 = """{
  "created": "2025-01-02T03:04:05.678901+00:00",
  "format": 1,
  "meta": {
    "a": [
      1.5,
      null,
      true,
      "\\u00e9\\u2603\\ud83d\\ude00",
      1e+22,
      1e-07
    ],
    "b": 1
  },
  "name": "m\\u00fcll",
  "recipe": "# t\\u00e4st\\nprint(\\"hi\\")\\n",
  "shards": [
    {
      "digest": "0000000000000000000000000000000000000000000000000000000000000000",
      "num_samples": 1,
      "size": 1
    },
    {
      "digest": "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
      "num_samples": 130000,
      "size": 1099511627776
    }
  ],
  "version": "944e852581aec3604d89ec613553a5abae9789fe1d85cf6178e7c6056b0b2cdc"
}"""
GOLDEN_1_ID = "944e852581aec3604d89ec613553a5abae9789fe1d85cf6178e7c6056b0b2cdc"
# name, created, shards, meta -> id by dload-ml 0.3.1 (recipe null)
OTHERS_1 = [
    ("abc", "2025-01-02T03:04:05+00:00", [{"digest": "ab" * 32, "size": 254, "num_samples": 11}], {},
     "ede11dc0b7e7fd585ade4eee72566c04a074ddb6e2a2f96ed90b73d4e135a899"),
    ("empty", "2024-12-31T23:59:59Z", [], {},
     "e128ac25262741a30b0f789ce3bf425dd1cdf2c13ff21819c19a0076ec098cf0"),
    ("x", "c", [], {"a": float("nan"), "b": float("inf")},
     "6ce9e98bd0f6c97d2bc6127176c8ffe45e38cc5a87451d9f913defda0e5b1978"),
    ("x", "c", [], {"a": "\ud800"}, "71a4c7c4a28927789369ba7d8fe19b68ebf39945561e3ea35053837a95266345"),
]  # fmt: skip

EMPTY_1 = {"name": "x", "created": "c", "shards": [], "meta": {}, "recipe": None, "format": 1}

SHARDS = ShardList.of([ShardInfo("ab" * 32, 3000, 2, 120), ShardInfo("0c" * 32, 1254, 1, None)])
FIELDS = {"wav": FieldStats(3, 4000), "json": FieldStats(2, 20)}


def valid(**changes: Any) -> dict[str, Any]:
    """The document of a small valid manifest with some keys changed."""
    return {**json.loads(GOLDEN_2), **changes}


def read(document: Any) -> Any:
    """Decode any document under the id that its bytes have."""
    return read_bytes(json.dumps(document).encode())


def read_bytes(data: bytes) -> Any:
    return decode(data, version=hashlib.sha256(data).hexdigest(), where="s3://bucket/m.json")


def test_the_golden_manifest_of_format_2_is_what_is_written() -> None:
    meta = {"n": (1, 2.5, None, True), "lizenz": "frei für alle ☃"}
    packing = Packing(codecs={"wav": "zstd"})
    manifest, data = new_manifest("abc", SHARDS, FIELDS, packing, meta, "print(1)\n")
    assert data == GOLDEN_2
    assert manifest.version == GOLDEN_2_ID
    assert manifest.meta == {"n": [1, 2.5, None, True], "lizenz": "frei für alle ☃"}  # lists, as when read


def test_the_golden_manifest_of_format_2_is_read() -> None:
    manifest = decode(GOLDEN_2, version=GOLDEN_2_ID, where="here")
    assert (manifest.name, manifest.format, manifest.version) == ("abc", 2, GOLDEN_2_ID)
    assert list(manifest.shards) == list(SHARDS)
    assert manifest.fields == FIELDS
    assert manifest.packing == Packing(134217728, "content", {"wav": "zstd"})
    assert (manifest.recipe, manifest.created) == ("print(1)\n", None)
    assert encode(manifest) == GOLDEN_2


def test_the_golden_manifest_of_format_1_is_read() -> None:
    manifest = decode(GOLDEN_1.encode(), version=GOLDEN_1_ID, where="here")
    assert (manifest.name, manifest.format, manifest.version) == ("müll", 1, GOLDEN_1_ID)
    assert manifest.created == "2025-01-02T03:04:05.678901+00:00"
    assert manifest.meta == {"a": [1.5, None, True, "é☃😀", 1e22, 1e-7], "b": 1}
    assert manifest.recipe == '# täst\nprint("hi")\n'
    assert list(manifest.shards) == [ShardInfo("00" * 32, 1, 1), ShardInfo("ff" * 32, 2**40, 130000)]
    assert manifest.fields == {}
    with pytest.raises(ValueError, match="not written"):
        encode(manifest)


@pytest.mark.parametrize(("name", "created", "shards", "meta", "version"), OTHERS_1)
@pytest.mark.parametrize("indent", [None, 2])
def test_format_1_has_the_ids_that_dload_ml_gave(
    name: str, created: str, shards: list[Any], meta: dict[str, Any], version: str, indent: int | None
) -> None:
    document = {**EMPTY_1, "name": name, "created": created, "shards": shards, "meta": meta, "version": "any"}
    manifest = decode(json.dumps(document, indent=indent).encode(), version=version, where="here")
    assert manifest.name == name
    assert len(manifest.shards) == len(shards)


def test_bytes_that_the_id_does_not_name_are_an_integrity_error() -> None:
    other_1 = GOLDEN_1.replace("130000", "130001").encode()
    for data in (GOLDEN_2.replace(b"2.5", b"2.6"), GOLDEN_2[:-10], b"", other_1):
        version = GOLDEN_1_ID if b"created" in data else GOLDEN_2_ID
        with pytest.raises(IntegrityError, match="damaged") as caught:
            decode(data, version=version, where="s3://bucket/m.json")
        assert caught.value.details["key"] == "s3://bucket/m.json"
        assert caught.value.details["expected"] == version
        assert caught.value.details["got"] != version
        assert caught.value.details["got"] in str(caught.value)


def test_a_newer_format_is_refused_with_what_to_do() -> None:
    with pytest.raises(PackFormatError, match=r"/m\.json has format 4; this dload reads 1 to 3") as caught:
        read(valid(format=4, novelty={}))
    assert "upgrade dload" in str(caught.value)
    with pytest.raises(PackFormatError, match="format 4"):  # also where its id follows a rule of its own
        decode(b'{"format":4}', version="ab" * 32, where="here")


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "expected a JSON object, got list"),
        ("{}", "no format number"),
        ('{"format":true}', "no format number"),
        ('{"format":0}', "no format number"),
        ('{"format":2}', "lacks"),
        ('{"format":2,"format":2}', "'format' is there twice"),
        ('{"format":2,"meta":' + deep(100_000) + "}", "nested too deeply"),
        ('{"format":2,"meta":1e999}', "too large"),
        ('{"format":2,"meta":' + "9" * 5000 + "}", "digits"),
        ('{"format":' + "9" * 4000 + "}", "has format 9"),
        ("\ufeff{}", "BOM"),
    ],
)
def test_what_is_no_manifest_is_refused(data: str, reason: str) -> None:
    with pytest.raises(PackFormatError, match=reason) as caught:
        read_bytes(data.encode())
    assert "s3://bucket/m.json" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_text_that_is_not_utf_8_is_refused() -> None:
    for data in (b"\xff\xfe{\x00}\x00", '{"name":"é"}'.encode("latin-1"), '{"format":2}'.encode("utf-16")):
        with pytest.raises(PackFormatError, match="not UTF-8"):
            read_bytes(data)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"extra": 1}, "extra"),
        ({"name": "a/b"}, "its name"),
        ({"name": 7}, "its name"),
        ({"recipe": 7}, "recipe is a int"),
        ({"recipe": "\ud800"}, "recipe is not valid Unicode"),
        ({"meta": []}, "meta is not an object"),
        ({"meta": {"a": [1, {"b": float("nan")}]}}, r"meta\.a\[1\]\.b is nan"),
        ({"meta": {"a": float("-inf")}}, r"meta\.a is -inf"),
        ({"meta": {"a": "\ud800"}}, r"meta\.a is not valid Unicode"),
        ({"meta": {"\ud800": 1}}, "meta has the key"),
        ({"meta": {"a": json.loads(deep(150))}}, "deeper than 100 levels"),
        ({"shards": []}, "shards is not an object"),
        ({"shards": {"digest": []}}, "lacks"),
        ({"fields": {"": {"count": 1, "bytes": 1}}}, "name of a field"),
        ({"fields": {"é" * 51: {"count": 1, "bytes": 1}}}, "name of a field"),
        ({"fields": {"\ud800": {"count": 1, "bytes": 1}}}, "name of a field"),
        ({"fields": {"a": {"count": 1}}}, "fields.a lacks"),
        ({"fields": {"a": {"count": -1, "bytes": 1}}}, "fields.a.count is not"),
        ({"fields": {"a": {"count": 1, "bytes": 2**63}}}, "fields.a.bytes is not"),
        ({"fields": {"a": {"count": True, "bytes": 1}}}, "fields.a.count is not"),
        ({"packing": {"target": 1, "boundaries": "content"}}, "packing lacks"),
        ({"packing": {"target": 0, "boundaries": "content", "codecs": {}}}, "packing.target"),
        ({"packing": {"target": 1, "boundaries": ["content"], "codecs": {}}}, "packing.boundaries"),
        ({"packing": {"target": 1, "boundaries": "size", "codecs": {"a": 1}}}, "packing.codecs"),
        ({"packing": {"target": 1, "boundaries": "size", "codecs": {"a": "\ud800"}}}, "packing.codecs"),
    ],
)
def test_a_manifest_of_which_a_part_is_wrong_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PackFormatError, match=reason):
        read(valid(**changes))


GOOD_COLUMNS = {
    "digest": ["ab" * 32, "cd" * 32], "size": [100, 50], "num_samples": [1, 0], "index_size": [9, None],
}  # fmt: skip


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("digest", ["ab" * 32], "2 values of size for 1 digests"),
        ("digest", ["ab" * 32, "CD" * 32], "not a sha256"),
        ("digest", ["ab" * 32, " " + "cd" * 31 + " "], "not a sha256"),
        ("digest", ["ab" * 31, "cd" * 33], "not a sha256"),
        ("digest", ["ab" * 32, None], "NoneType"),
        ("digest", ["ab" * 32, "é" * 64], "not a sha256"),
        ("digest", "ab", "not a list"),
        ("size", [100], "1 values of size for 2 digests"),
        ("size", [100, -1], "negative"),
        ("size", [100, 2**64], "larger"),
        ("size", [2**62, 2**62], "add up to"),
        ("size", [100, 1.0], "not all integers"),
        ("size", [100, True], "not all integers"),
        ("size", [100, "1"], "not all integers"),
        ("num_samples", [2**63, 1], "add up to"),
        ("num_samples", [1, None], "not all integers"),
        ("index_size", [101, 1], "an index of 101 bytes"),
        ("index_size", [2**64 - 1, 1], "an index of"),
        ("index_size", [1], "1 values of index_size"),
    ],
)
def test_columns_that_cannot_be_are_refused(column: str, values: Any, reason: str) -> None:
    assert len(read(valid(shards=GOOD_COLUMNS)).shards) == 2
    with pytest.raises(PackFormatError, match=reason):
        read(valid(shards={**GOOD_COLUMNS, column: values}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"recipe": 1}, "recipe"),
        ({"name": None}, "name"),
        ({"shards": {}}, "not a list of objects"),
        ({"shards": [[]]}, "not a list of objects"),
        ({"shards": [{"digest": "ab" * 32, "size": 1}]}, "digest, size and num_samples"),
        ({"shards": [{"digest": "ab" * 32, "size": "1", "num_samples": 1}]}, "not all integers"),
        ({"shards": [{"digest": [[[]]], "size": 1, "num_samples": 1}]}, "list"),
        ({"meta": None}, "meta is not an object"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_format_1_is_checked_as_well(changes: dict[str, Any], reason: str) -> None:
    text = json.dumps({**EMPTY_1, **changes}, sort_keys=True, separators=(",", ":"))
    with pytest.raises(PackFormatError, match=reason):
        read_bytes(text.encode())


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ({"a": {"b": [0, float("nan")]}}, r"meta\.a\.b\[1\] is nan"),
        ({"a": {1: 2}}, r"meta\.a has the key 1, which is not a string"),
        ({"a": b"bytes"}, r"meta\.a is of type bytes"),
        ({"a": {1, 2}}, r"meta\.a is of type set"),
        ({"a": "\udfff"}, r"meta\.a is not valid Unicode"),
        ({"a": 10**5000}, "digits"),
        ([1], "meta is a list"),
    ],
)
def test_meta_that_json_cannot_hold_is_refused_by_its_place(meta: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        new_manifest("abc", SHARDS, FIELDS, Packing(), meta)


def test_meta_that_holds_itself_is_refused() -> None:
    meta: dict[str, Any] = {}
    meta["a"] = [meta, meta]
    with pytest.raises(ConfigError, match="deeper than 100 levels"):
        new_manifest("abc", SHARDS, FIELDS, Packing(), meta)


@pytest.mark.parametrize("name", ["", "a b", ".a", "-a", "a/b", "é", "a" * 101, "a\n"])
def test_bad_names_are_refused_with_the_rule(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 100 letters"):
        new_manifest(name, SHARDS, FIELDS, Packing())


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
metas = st.dictionaries(texts, values, max_size=4)
rows = st.builds(
    ShardInfo,
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.integers(2**20, 2**40),
    st.integers(0, 2**40),
    st.none() | st.integers(0, 2**20),
)
codecs = st.dictionaries(texts, texts, max_size=3)
packings = st.builds(Packing, st.integers(1, 2**40), st.sampled_from(["content", "size"]), codecs)
counts = st.integers(0, 2**40)
stats = st.dictionaries(texts.filter(bool), st.builds(FieldStats, counts, counts), max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, max_size=5), stats, packings, metas, st.none() | texts)
def test_round_trip_in_canonical_bytes(
    shards: list[ShardInfo],
    fields: dict[str, FieldStats],
    packing: Packing,
    meta: dict[str, Any],
    recipe: str | None,
) -> None:
    manifest, data = new_manifest("abc", shards, fields, packing, meta, recipe)
    assert manifest.version == hashlib.sha256(data).hexdigest()
    again = decode(data, version=manifest.version, where="here")
    assert again == manifest
    assert (list(again.shards), again.fields) == (shards, fields)
    assert (again.packing, again.recipe) == (packing, recipe)
    assert again.meta == meta
    assert encode(again) == data
    # What the standard library writes with keys sorted, without white space, non-ASCII as it is.
    plain = json.dumps(json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert data == plain.encode()


@settings(max_examples=30, deadline=None)
@given(metas)
def test_the_order_in_which_meta_was_made_does_not_matter(meta: dict[str, Any]) -> None:
    backwards = dict(reversed(meta.items()))
    assert new_manifest("a", [], {}, Packing(), meta)[1] == new_manifest("a", [], {}, Packing(), backwards)[1]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_give_a_manifest_or_one_of_our_errors(data: bytes) -> None:
    with pytest.raises(DloadError):
        read_bytes(data)
    with pytest.raises(DloadError):
        decode(data, version=GOLDEN_2_ID, where="here")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_manifests_give_a_manifest_or_one_of_our_errors(data: st.DataObject) -> None:
    original = data.draw(st.sampled_from([GOLDEN_2, GOLDEN_1.encode()]))
    at = data.draw(st.integers(0, len(original)))
    until = data.draw(st.integers(at, min(len(original), at + 20)))
    middle = data.draw(st.binary(max_size=6) | st.sampled_from([b"{}", b"[", b"1e9", b"null"]))
    mutated = original[:at] + middle + original[until:]
    with contextlib.suppress(DloadError):
        read_bytes(mutated)
    if mutated != original:
        try:
            version = GOLDEN_2_ID if original == GOLDEN_2 else GOLDEN_1_ID
            manifest = decode(mutated, version=version, where="here")
        except DloadError:
            return
        # Format 1 has its id by content: another spelling or `version` in it, and it is the same manifest.
        assert manifest.format == 1
        assert manifest == decode(original, version=GOLDEN_1_ID, where="here")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_manifests_with_a_part_replaced_give_a_manifest_or_one_of_our_errors(data: st.DataObject) -> None:
    document = json.loads(data.draw(st.sampled_from([GOLDEN_2.decode(), GOLDEN_1])))
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(values | st.just(json.loads(deep(200))))
    document.pop("version", None)
    try:
        manifest = read_bytes(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    except DloadError:
        return
    assert manifest.format in (1, 2)
    if manifest.format == 2:
        encode(manifest)


def test_format_1_nested_to_the_limit_of_the_stack_gives_a_manifest_or_one_of_our_errors() -> None:
    outcomes = set()
    for levels in range(1, 1100, 9):
        document = '{"created":"c","format":1,"meta":{"a":A},"name":"x","recipe":null,"shards":[]}'
        try:
            outcomes.add(type(read_bytes(document.replace("A", deep(levels)).encode())))
        except DloadError as error:
            outcomes.add(type(error))
    assert outcomes >= {Manifest}
