"""Canonical JSON: one value, one sequence of bytes. And reading JSON that may have been written by anybody.

UTF-8, keys sorted by code point (the order of their UTF-8 bytes), no white space, non-ASCII as it is, numbers
as Python's `repr` writes them, no NaN or infinity, no lone surrogates.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

_DEPTH = 100  # levels that a value may nest, so that it can be read however deep the reader's own stack is


def dumps(value: Any) -> bytes:
    """The canonical bytes of a value in which `problem` finds nothing.

    Raises ValueError for an integer of more digits than Python turns into text.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def loads(data: bytes) -> Any:
    """The value of JSON bytes.

    Raises ValueError, saying why, where they aren't JSON, nest too deeply, or name a key twice in one object.

    NaN and infinities that are spelled out pass, as in format 1; `problem` finds them.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start})") from error
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=float, parse_float=_float)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        times = Counter(name for name, _ in pairs)
        raise ValueError(f"the key {times.most_common(1)[0][0]!r:.100} is there twice in one object")
    return result


def _float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text:.100} is too large")
    return number


def problem(value: Any, path: str) -> str | None:
    """What keeps `value` from being canonical JSON, and where in it (`meta.a[3]`); None if nothing does."""
    pending = [(path, value, 1)]
    while pending:
        place, item, depth = pending.pop()
        if depth > _DEPTH:
            return f"{place} is nested deeper than {_DEPTH} levels"
        if isinstance(item, dict):
            for name in item:
                if not isinstance(name, str):
                    return f"{place} has the key {name!r:.100}, which is not a string"
                if not _is_unicode(name):
                    return f"{place} has the key {name!r:.100}, which is not valid Unicode"
        wrong = _problem_of_one(item)
        if wrong is not None:
            return f"{place} {wrong}"
        pending.extend((name, below, depth + 1) for name, below in _children(place, item))
    return None


def _children(place: str, item: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(item, dict):
        return ((f"{place:.200}.{name:.100}", below) for name, below in item.items())
    if isinstance(item, (list, tuple)):
        return ((f"{place:.200}[{number}]", below) for number, below in enumerate(item))
    return ()


def _problem_of_one(item: Any) -> str | None:
    if item is None or isinstance(item, (int, dict, list, tuple)):
        return None
    if isinstance(item, float):
        return None if item - item == 0 else f"is {float(item)}, which JSON has no number for"
    if isinstance(item, str):
        return None if _is_unicode(item) else "is not valid Unicode (a lone surrogate)"
    return f"is of type {type(item).__name__}, which JSON has no form for"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
