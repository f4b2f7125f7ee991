"""How a server takes conditional writes: found by a probe, remembered per endpoint and bucket in a file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal, cast

from dload.errors import PreconditionFailedError, RemoteError
from dload.files.atomic import write_atomic

# How ETags are sent in conditions: as HTTP has it, or as some servers want it; or: conditions are ignored.
EtagForm = Literal["quoted", "bare", "none"]

_FILE = "conditions.json"
_NOT_IMPLEMENTED = 501


def condition(form: EtagForm, etag: str | None) -> dict[str, str]:
    """The header, by the client's name for it, that lets a write pass only on this ETag (None: on no object)."""
    if etag is None:
        return {"IfNoneMatch": "*"}
    return {"IfMatch": f'"{etag}"' if form == "quoted" else etag}


def probe(put: Callable[[dict[str, str]], str]) -> EtagForm:
    """Find out, by a few writes of one object of no importance, which isn't there yet. `put` writes it under a
    condition and returns its ETag."""

    def accepted(wanted: dict[str, str]) -> bool:
        try:
            put(wanted)
        except PreconditionFailedError:
            return False
        return True

    try:
        etag = put(condition("quoted", None))
        if accepted(condition("quoted", None)) or accepted(condition("quoted", "0" * 32)):
            return "none"
        if accepted(condition("quoted", etag)):
            return "quoted"
        return "bare" if accepted(condition("bare", etag)) else "none"
    except RemoteError as error:
        if error.details.get("status") == _NOT_IMPLEMENTED:
            return "none"
        raise


def recall(folder: Path | None, store: str) -> EtagForm | None:
    """What was remembered of that store; None for nothing, also where the file is damaged or can't be read."""
    found = _load(folder).get(store) if folder else None
    return cast(EtagForm, found) if found in ("quoted", "bare") else None


def remember(folder: Path | None, store: str, form: EtagForm) -> None:
    """Remember it for other processes. That conditions are ignored is forgotten: the server may be mended. Where the
    folder can't be written, each process finds out for itself."""
    if folder is None:
        return
    known = _load(folder)
    before = dict(known)
    known.pop(store, None)
    if form != "none":
        known[store] = form
    if known != before:
        with contextlib.suppress(OSError):
            write_atomic(folder / _FILE, json.dumps(known, indent=1, sort_keys=True).encode())


def _load(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / _FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}
