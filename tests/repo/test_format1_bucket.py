"""The maker of old buckets against what dload-ml 0.3.1 really wrote: literals from a run of it."""

from __future__ import annotations

import hashlib
import json

from tests.repo.format1_bucket import manifest_id, shard_bytes, write_bucket

# Committed by dload-ml 0.3.1 with target_shard_size=120: five samples, the first three of them before.
OLDER = (
    b'{\n  "created": "2026-11-29T13:18:11Z",\n  "format": 1,\n  "meta": {\n    "a": 1\n  },\n  "name": "abc",\n'
    b'  "recipe": "x = \\"\\u00e9\\"\\n",\n  "shards": [\n    {\n'
    b'      "digest": "d4609eeabf0ad92070111e0f594a0cdb0d7c3b69efc40d8d3b1eec2607017146",\n'
    b'      "num_samples": 3,\n      "size": 264\n    }\n  ],\n'
    b'  "version": "884a4fbe1e0cfa938f06754657c2b3fc3dfda004532887ce17da5b9ed1d09911"\n}'
)
OLDER_ID = "884a4fbe1e0cfa938f06754657c2b3fc3dfda004532887ce17da5b9ed1d09911"
NEWER_ID = "4bb5819b6d1192950d5b9f1c810b19a241cdcebcb37201ff9eb33895f85d47a9"
SHARDS = [
    ("d4609eeabf0ad92070111e0f594a0cdb0d7c3b69efc40d8d3b1eec2607017146", 264),
    ("b6bec1f85fe2dca091918099dd0310205decb926f6669e42c64ddc40f8bf1310", 191),
]


def test_shards_manifests_and_refs_are_those_of_dload_ml() -> None:
    objects: dict[str, bytes] = {}
    bucket = write_bucket(objects.__setitem__)
    for digest, size in SHARDS:
        data = objects[f"shards/{digest[:2]}/{digest}"]
        assert (len(data), hashlib.sha256(data).hexdigest()) == (size, digest)
    assert bucket.newer.shards == [digest for digest, _ in SHARDS]
    assert objects["datasets/speech/refs/latest"] == bucket.newer.version.encode()
    older = objects[f"datasets/speech/manifests/{bucket.older.version}.json"].decode()
    for written, real in (("speech", "abc"), ("2026-01-29T13:18:11Z", "2026-11-29T13:18:11Z")):
        older = older.replace(written, real)
    assert older.replace(bucket.older.version, OLDER_ID).encode() == OLDER
    assert len(objects) == 5


def test_ids_are_those_of_dload_ml() -> None:
    document = json.loads(OLDER)
    assert document.pop("version") == OLDER_ID == manifest_id(document)
    rows = [
        {"digest": digest, "size": size, "num_samples": count}
        for (digest, size), count in zip(SHARDS, (3, 2), strict=True)
    ]
    newer = {**document, "shards": rows, "meta": {}, "recipe": None}
    assert manifest_id(newer) == NEWER_ID


def test_the_shard_of_one_sample() -> None:
    data = shard_bytes([("k0", {"wav": bytes(50), "json": b'{"i":0}'})])
    assert data == (
        bytes(50) + b'{"i":0}'
        b"\x82\xa4keys\x91\xa2k0\xa7samples\x91\x82\xa3wav\x92\x002\xa4json\x922\x07"
        b"#\x00\x00\x00\x00\x00\x00\x00DLOADPK1"
    )  # fmt: skip
