"""A bucket as dload-ml 0.3 left it, byte for byte, made without dload: struct, msgpack, json and hashlib by hand.

<prefix>/shards/<aa>/<sha256>                      payload | index (msgpack) | u64 LE its length | DLOADPK1
<prefix>/datasets/<name>/manifests/<version>.json  indented JSON with a redundant `version`
<prefix>/datasets/<name>/refs/latest               the version id, no end of line
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgpack

Put = Callable[[str, bytes], object]
Sample = tuple[str, dict[str, bytes]]


@dataclass(frozen=True)
class OldVersion:
    """What was written of one version."""

    version: str
    created: str
    samples: list[Sample]
    shards: list[str]  # digests
    meta: dict[str, Any]
    recipe: str | None


@dataclass(frozen=True)
class OldBucket:
    """Two versions of `speech`: the newer one, which is latest, has the older one's shard and one more."""

    name: str
    older: OldVersion
    newer: OldVersion


def write_bucket(put: Put) -> OldBucket:
    """Write the whole bucket through `put(key, data)`."""
    samples = [(f"k{i}", {"wav": bytes([i]) * (50 + i), "json": b'{"i":%d}' % i}) for i in range(5)]
    older = write_version(put, "speech", [samples[:3]], "2026-01-29T13:18:11Z", meta={"a": 1}, recipe='x = "é"\n')
    newer = write_version(put, "speech", [samples[:3], samples[3:]], "2026-02-03T04:05:06Z")
    put("datasets/speech/refs/latest", newer.version.encode())
    return OldBucket("speech", older, newer)


def write_version(
    put: Put,
    name: str,
    shards: Iterable[list[Sample]],
    created: str,
    *,
    meta: dict[str, Any] | None = None,
    recipe: str | None = None,
) -> OldVersion:
    """Write shards with these samples and their manifest; the ref is left alone."""
    meta = meta or {}
    samples: list[Sample] = []
    rows = []
    for of_shard in shards:
        data = shard_bytes(of_shard)
        digest = hashlib.sha256(data).hexdigest()
        put(f"shards/{digest[:2]}/{digest}", data)
        rows.append({"digest": digest, "size": len(data), "num_samples": len(of_shard)})
        samples += of_shard
    document = {"name": name, "created": created, "shards": rows, "meta": meta, "recipe": recipe, "format": 1}
    version = manifest_id(document)
    text = json.dumps({**document, "version": version}, indent=2, sort_keys=True)
    put(f"datasets/{name}/manifests/{version}.json", text.encode())
    return OldVersion(version, created, samples, [row["digest"] for row in rows], meta, recipe)


def manifest_id(document: dict[str, Any]) -> str:
    """sha256 of the compact, key-sorted, ASCII-escaped JSON without `version`."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def shard_bytes(samples: list[Sample]) -> bytes:
    """One shard of format 1."""
    payload = bytearray()
    spans = []
    for _, fields in samples:
        span = {}
        for field, value in fields.items():
            span[field] = [len(payload), len(value)]
            payload += value
        spans.append(span)
    index = msgpack.packb({"keys": [key for key, _ in samples], "samples": spans})
    return bytes(payload) + index + struct.pack("<Q", len(index)) + b"DLOADPK1"
