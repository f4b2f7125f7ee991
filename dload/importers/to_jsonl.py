"""Samples as JSON lines."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dload.codecs import npy_from
from dload.importers.columns import KEY, Column
from dload.importers.jsonl import BASE64
from dload.importers.target import Exported, Request, Target, fitting, unfit
from dload.manifest import canonical


def write(request: Request, folder: Path, *, replace: bool = False) -> Exported:
    """Write NAME.jsonl: an object a sample, its key under `__key__`, a field's value under the field's name.

    Text is a string; JSON the value; an array nested lists, without its dtype; anything else an object with the one
    member `dload.base64`, which importing takes back. SampleError names a sample whose bytes aren't what its column
    says.
    """
    with Target(folder, rf"{re.escape(request.name)}\.jsonl", replace=replace) as target:
        with target.file(f"{request.name}.jsonl") as stream:
            for key, fields in request.samples:
                with fitting(key):
                    line = json.dumps(_row(key, fields, request.columns), ensure_ascii=False, separators=(",", ":"))
                stream.write(line.encode() + b"\n")
                target.done.samples += 1
        return target.done


def _row(key: str, fields: Mapping[str, bytes], columns: Mapping[str, Column]) -> dict[str, Any]:
    if KEY in fields:
        raise unfit(key, f"it has a field {KEY!r}, where the key goes", "export it with --fields, without that one")
    return {KEY: key} | {name: _value(columns[name].codec, name, value) for name, value in fields.items()}


def _value(codec: str, name: str, value: bytes) -> Any:
    try:
        if codec == "text":
            return value.decode()
        if codec == "json":
            return canonical.loads(value)
        if codec == "npy":
            return _listed(npy_from(value))
    except ValueError as error:
        raise ValueError(f"field {name!r} is not {codec}: {error}") from None
    return {BASE64: base64.b64encode(value).decode()}


def _listed(array: Any) -> Any:
    if array.dtype.kind not in "biuf":
        raise ValueError(f"an array of {array.dtype} has no place in JSON")
    return array.tolist()
