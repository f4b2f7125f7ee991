"""The rows of a view: one way to write them, checked when they are read, and small."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.errors import PackFormatError
from dload.manifest import Manifest, Packing, ShardInfo, ShardList, ShardRows, chosen, decode, encode, new_manifest

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=5)

# Written by hand from the format's description: of two shards, 9 and 3 samples, rows 0 and 8, and all.
GOLDEN_3 = (
    '{"fields":{},"format":3,"meta":{},"name":"abc",'
    '"packing":{"boundaries":"content","codecs":{},"target":134217728},"recipe":null,'
    f'"shards":{{"digest":["{"ab" * 32}","{"0c" * 32}"],"index_size":[120,7],'
    '"num_samples":[9,3],"rows":["AQE=",""],"size":[3000,1254]}}'
).encode()
SHARDS = ShardList.of([ShardInfo("ab" * 32, 3000, 9, 120), ShardInfo("0c" * 32, 1254, 3, 7)])


def shards(sizes: list[int]) -> ShardList:
    return ShardList.of(ShardInfo(f"{number:064x}", 100, size, 1) for number, size in enumerate(sizes))


def held(listed: ShardList, rows: ShardRows) -> list[tuple[str, int]]:
    return [(digest, row) for number, digest in enumerate(listed.digests) for row in rows.of(number)]


def test_golden() -> None:
    listed, rows = chosen(SHARDS, None, b"\1\0\0\0\0\0\0\0\1" + b"\1\1\1")
    manifest, data = new_manifest("abc", listed, {}, Packing(), rows=rows)
    assert data == GOLDEN_3
    assert manifest == decode(data, version=hashlib.sha256(data).hexdigest(), where="here")
    assert (manifest.format, manifest.num_samples, manifest.total_bytes) == (3, 5, 4254)
    assert [manifest.locate(ordinal) for ordinal in range(5)] == [(0, 0), (0, 8), (1, 0), (1, 1), (1, 2)]
    for ordinal in (-1, 5):
        with pytest.raises(IndexError, match=f"sample {ordinal} of 5"):
            manifest.locate(ordinal)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.data())
def test_any_choice_of_any_choice(sizes: list[int], data: st.DataObject) -> None:
    """Against lists: a view of a view holds the rows that one would pick by hand."""
    listed, rows = shards(sizes), None
    expected = [(digest, row) for digest, size in zip(listed.digests, sizes, strict=True) for row in range(size)]
    for _ in range(3):
        flags = bytes(data.draw(st.lists(st.integers(0, 1), min_size=len(expected), max_size=len(expected))))
        listed, rows = chosen(listed, rows, flags)
        expected = [place for place, flag in zip(expected, flags, strict=True) if flag]
        assert held(listed, rows) == expected
        assert all(rows.counts)
        manifest, stored = new_manifest("x", listed, {}, Packing(), rows=rows)
        assert [(listed.digests[n], row) for n, row in map(manifest.locate, range(len(expected)))] == expected
        assert encode(decode(stored, version=manifest.version, where="here")) == stored
        assert pickle.loads(pickle.dumps(manifest)) == manifest


def refused(**changes: Any) -> str:
    document = json.loads(GOLDEN_3)
    document["shards"] = {**document["shards"], **changes}
    data = json.dumps({**document, "format": changes.pop("form", 3)}).encode()
    with pytest.raises(PackFormatError) as error:
        decode(data, version=hashlib.sha256(data).hexdigest(), where="here")
    return str(error.value)


def text(*numbers: int) -> str:
    return base64.b64encode(bytes(numbers)).decode()


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([""], "1 values of rows for 2 shards"),
        ("AQE=", "shards.rows is not a list"),
        ([1, ""], "is a int, not a string"),
        (["AQ*=", ""], "is not base64"),
        (["AQF=", ""], "is not base64 as it is written"),  # other bits in what is cut off
        ([text(1), ""], "rows of 1 bytes for a shard of 9"),
        ([text(1, 1, 0), ""], "rows of 3 bytes"),
        ([text(0, 0), ""], "hasn't, none, or all"),
        ([text(255, 1), ""], "all of them spelled out"),
        ([text(1, 2), ""], "hasn't"),
    ],
)
def test_anything_but_the_one_way_to_write_them_is_refused(rows: object, why: str) -> None:
    assert why in refused(rows=rows)


def test_a_reader_of_format_2_refuses_a_view() -> None:
    """What is in the format for it: the number, and the keys that it doesn't know."""
    document = json.loads(GOLDEN_3)
    data = json.dumps({**document, "format": 2}).encode()
    with pytest.raises(PackFormatError, match=r"has \['rows'\] too many"):
        decode(data, version=hashlib.sha256(data).hexdigest(), where="here")
    with pytest.raises(ValueError, match="not written"):
        encode(Manifest("x", "", SHARDS, format=3))


def test_a_million_rows_are_small() -> None:
    rng = random.Random(0)
    listed, rows = chosen(shards([1250] * 1600), None, bytes(rng.choices((0, 1), k=2_000_000)))
    whole = len(new_manifest("x", listed, {}, Packing())[1])
    manifest, data = new_manifest("x", listed, {}, Packing(), rows=rows)
    assert 990_000 < manifest.num_samples < 1_010_000
    assert len(data) - whole < 400_000
