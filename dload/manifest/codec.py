"""Manifests <-> their canonical bytes: format 2, and 3 for views, are written and read, format 1 (dload-ml 0.2 and 0.3)
is read.

Format 3 is format 2 and one more column of the shards, `rows`: which of their rows a view holds. It is a format of its
own so that whoever doesn't know of views refuses one, instead of reading whole shards.

A manifest is untrusted input: whatever the bytes, decoding gives a Manifest of which everything was checked,
or one of dload's own errors. No function here touches a disk or the network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dload.errors import ConfigError, IntegrityError, PackFormatError
from dload.manifest import canonical
from dload.manifest.model import NAME_RULE, FieldStats, Manifest, Packing, ShardInfo, ShardList, is_name
from dload.manifest.rows import ShardRows

MAX_MANIFEST_BYTES = 1 << 30  # 12 million shards, 1.5 PB; nothing larger is written or parsed

_COLUMNS = ("digest", "size", "num_samples", "index_size")
_KEYS_2 = {"format", "name", "shards", "fields", "packing", "meta", "recipe"}
_KEYS_1 = {"format", "name", "created", "shards", "meta", "recipe"}  # and `version`, which is redundant
_LIMIT = 2**63  # of counts and bytes


def new_manifest(
    name: str,
    shards: Sequence[ShardInfo],
    fields: Mapping[str, FieldStats],
    packing: Packing,
    meta: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    rows: ShardRows | None = None,
) -> tuple[Manifest, bytes]:
    """A new version of a data set, a view where there are `rows`, and the canonical bytes whose sha256 is its id.

    Raises ConfigError for a name, a meta or a recipe that can't be stored, naming the place in meta.
    """
    if not is_name(name):
        raise ConfigError(f"a data set can't be called {name!r:.120}", remedy=f"choose a name of {NAME_RULE}")
    meta = {} if meta is None else meta
    if not isinstance(meta, dict):
        raise ConfigError(f"meta is a {type(meta).__name__}, not a dict", remedy='as in {"license": "CC0"}')
    wrong = canonical.problem(meta, "meta") or canonical.problem(recipe, "recipe")
    if wrong is not None:
        raise ConfigError(wrong, remedy="use strings, finite numbers, True, False, None, lists and dicts")
    if recipe is not None and not isinstance(recipe, str):
        raise ConfigError(f"recipe is a {type(recipe).__name__}, not a string", remedy="pass a script's text")
    try:
        form = 2 if rows is None else 3
        data = encode(Manifest(name, "", ShardList.of(shards), fields, packing, meta, recipe, form, rows=rows))
    except ValueError as error:
        raise ConfigError(f"{name} can't be stored: {error}", remedy="huge integers go as strings") from error
    if len(data) > MAX_MANIFEST_BYTES:
        raise ConfigError(
            f"the manifest of {name} would have {len(data)} bytes, more than {MAX_MANIFEST_BYTES}",
            remedy="use a larger target_shard_size, or less meta",
        )
    version = hashlib.sha256(data).hexdigest()
    return decode(data, version=version, where=f"the new manifest of {name}"), data  # as readers will see it


def encode(manifest: Manifest) -> bytes:
    """The canonical bytes of a manifest of format 2 or 3. Raises ValueError for one of format 1: never written."""
    shards, packing, rows = manifest.shards, manifest.packing, manifest.rows
    if manifest.format != (2 if rows is None else 3):
        raise ValueError(f"manifests of format {manifest.format} are not written")
    return canonical.dumps(
        {
            "format": manifest.format,
            "name": manifest.name,
            "shards": {
                "digest": list(shards.digests),
                "size": list(shards.sizes),
                "num_samples": list(shards.counts),
                "index_size": shards.index_sizes,
                **({} if rows is None else {"rows": rows.texts}),
            },
            "fields": {name: {"count": of.count, "bytes": of.bytes} for name, of in manifest.fields.items()},
            "packing": {
                "target": packing.target,
                "boundaries": packing.boundaries,
                "codecs": dict(packing.codecs),
            },
            "meta": manifest.meta,
            "recipe": manifest.recipe,
        }
    )


def decode(data: bytes, *, version: str, where: str) -> Manifest:
    """The manifest in these bytes, which came from `where` (for messages) under the id `version`.

    Raises IntegrityError where they aren't the bytes that this id names, PackFormatError where they are but
    aren't a manifest that this dload reads. Any bytes whatever give one of these three.
    """
    got = hashlib.sha256(data).hexdigest()
    try:
        document = _document(data)
        form = _format(document, where)
    except ValueError as error:
        if got != version:
            raise _damaged(where, version, got) from error
        raise PackFormatError(f"{where} is not a manifest: {error}", remedy=_REMEDY, key=where) from error
    if form == 1:
        got = _id_of_format_1(document)
    if got != version:
        raise _damaged(where, version, got)
    try:
        return _manifest_1(document, version) if form == 1 else _manifest_2(document, version, form)
    except ValueError as error:
        raise PackFormatError(f"{where} is not a manifest: {error}", remedy=_REMEDY, key=where) from error


_REMEDY = "whatever wrote it is at fault: commit the data again, or use another version"


def _damaged(where: str, expected: str, got: str) -> IntegrityError:
    return IntegrityError(
        f"{where} is damaged: expected the manifest with the id {expected}, got {got}",
        remedy="restore it from a copy of the store, or use another version",
        key=where, expected=expected, got=got,
    )  # fmt: skip


def _document(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(f"{len(data)} bytes, more than {MAX_MANIFEST_BYTES}")
    document = canonical.loads(data)
    if not isinstance(document, dict):
        raise ValueError(f"expected a JSON object, got {type(document).__name__}")
    return document


def _format(document: dict[str, Any], where: str) -> int:
    """1, 2 or 3. Raises PackFormatError for a newer format, ValueError where there is none."""
    form = document.get("format")
    if type(form) is not int or form < 1:
        raise ValueError("it has no format number")
    if form > 3:
        raise PackFormatError(
            f"{where} has format {str(form)[:20]}; this dload reads 1 to 3",
            remedy="upgrade dload: pip install --upgrade dload-ml", key=where,
        )  # fmt: skip
    return form


def _id_of_format_1(document: dict[str, Any]) -> str:
    """sha256 of the compact, key-sorted, ASCII-escaped JSON without the redundant `version`."""
    hashed = {key: value for key, value in document.items() if key != "version"}
    try:
        text = json.dumps(hashed, sort_keys=True, separators=(",", ":"))
    except RecursionError:  # writing needs more of the stack than reading did
        return "no id (nested too deeply)"
    return hashlib.sha256(text.encode()).hexdigest()


def _manifest_2(document: dict[str, Any], version: str, form: int) -> Manifest:
    """Of format 2, and of 3, which says of the shards what rows it has."""
    _expect_keys(document, _KEYS_2, "it")
    name, recipe = document["name"], document["recipe"]
    if type(name) is not str or not is_name(name):
        raise ValueError(f"its name is not made of {NAME_RULE}")
    if not (recipe is None or type(recipe) is str):
        raise ValueError(f"recipe is a {type(recipe).__name__}, not a string")
    meta = _object(document["meta"], "meta")
    wrong = canonical.problem(meta, "meta") or canonical.problem(recipe, "recipe")
    if wrong is not None:
        raise ValueError(wrong)
    shards, rows = _shards_2(_object(document["shards"], "shards"), form)
    packing = _packing(_object(document["packing"], "packing"))
    stats = _object(document["fields"], "fields")
    fields = {field: _field_stats(field, value) for field, value in stats.items()}
    return Manifest(name, version, shards, fields, packing, meta, recipe, form, rows=rows)


def _shards_2(columns: dict[str, Any], form: int) -> tuple[ShardList, ShardRows | None]:
    expected = _COLUMNS if form == 2 else (*_COLUMNS, "rows")
    _expect_keys(columns, set(expected), "shards")
    for name in expected:
        if type(columns[name]) is not list:
            raise ValueError(f"shards.{name} is not a list")
    shards = ShardList.of_columns(*(columns[name] for name in _COLUMNS))
    return shards, None if form == 2 else ShardRows.from_texts(columns["rows"], shards)


def _field_stats(name: str, value: Any) -> FieldStats:
    wrong = canonical.problem(name, "the name of a field")
    if wrong is not None or not 1 <= len(name.encode()) <= 100:
        raise ValueError("the name of a field is not 1 to 100 bytes of UTF-8")
    numbers = _object(value, f"fields.{name}")
    _expect_keys(numbers, {"count", "bytes"}, f"fields.{name}")
    return FieldStats(*(_count(numbers[part], f"fields.{name}.{part}") for part in ("count", "bytes")))


def _packing(value: dict[str, Any]) -> Packing:
    _expect_keys(value, {"target", "boundaries", "codecs"}, "packing")
    boundaries = value["boundaries"]
    if boundaries not in ("content", "size"):
        raise ValueError('packing.boundaries is neither "content" nor "size"')
    codecs = _object(value["codecs"], "packing.codecs")
    if not all(type(codec) is str for codec in codecs.values()):
        raise ValueError("packing.codecs holds something other than strings")
    wrong = canonical.problem(codecs, "packing.codecs")
    if wrong is not None:
        raise ValueError(wrong)
    target = _count(value["target"], "packing.target")
    if target == 0:
        raise ValueError("packing.target is 0")
    return Packing(target, boundaries, codecs)


def _manifest_1(document: dict[str, Any], version: str) -> Manifest:
    _expect_keys({key: document[key] for key in document if key != "version"}, _KEYS_1, "it")
    name, created, recipe = document["name"], document["created"], document["recipe"]
    if type(name) is not str or type(created) is not str or not (recipe is None or type(recipe) is str):
        raise ValueError("name, created or recipe is not a string")
    rows = document["shards"]
    if type(rows) is not list or not set(map(type, rows)) <= {dict}:
        raise ValueError("shards is not a list of objects")
    if not all(row.keys() == {"digest", "size", "num_samples"} for row in rows):
        raise ValueError("a shard doesn't have just digest, size and num_samples")
    shards = ShardList.of_columns(
        [row["digest"] for row in rows], [row["size"] for row in rows],
        [row["num_samples"] for row in rows], [None] * len(rows),
    )  # fmt: skip
    meta = _object(document["meta"], "meta")
    return Manifest(name, version, shards, meta=meta, recipe=recipe, format=1, created=created)


def _expect_keys(value: dict[str, Any], expected: set[str], place: str) -> None:
    if value.keys() != expected:
        missing, unknown = sorted(expected - value.keys()), sorted(value.keys() - expected)
        raise ValueError(f"{place} lacks {missing} and has {unknown!r:.200} too many")


def _object(value: Any, place: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError(f"{place} is not an object")
    return value


def _count(value: Any, place: str) -> int:
    if type(value) is not int or not 0 <= value < _LIMIT:
        raise ValueError(f"{place} is not an integer from 0 to 2**63 - 1")
    return value
