"""Why a download failed, for those who were waiting for it: they get its error at once instead of trying in turn.

Beside the partial file lies `<partial>.err` with the error's kind and text. It is there before the partial's lock is
given up; whoever tries next removes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from dload.errors import DloadError

_MOST = 1 << 16  # bytes


def leave(partial: Path, error: DloadError, room: Callable[[int], bool] = lambda _: True) -> None:
    """Tell those who wait for `partial`, whose lock is held, that there won't be anything. Where that can't be
    written, or there is no `room` for so many bytes, they try for themselves.
    """
    told = {"kind": error.kind, "message": error.message, "remedy": error.remedy, "details": error.details}
    with suppress(OSError, TypeError, ValueError):
        text = json.dumps(told).encode()
        if len(text) <= _MOST and room(len(text)):
            _path(partial).write_bytes(text)


def forget(partial: Path) -> None:
    with suppress(OSError):
        _path(partial).unlink()


def left(partial: Path) -> DloadError | None:
    """The error of the last attempt, if it failed for good."""
    try:
        with _path(partial).open("rb") as file:
            told = json.loads(file.read(_MOST))
        kinds = {kind.kind: kind for kind in reversed([*_kinds(DloadError)])}  # of one kind, the most general
        made = kinds[told["kind"]](told["message"], remedy=told["remedy"], **told["details"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return made


def _path(partial: Path) -> Path:
    return partial.with_name(partial.name + ".err")


def _kinds(kind: type[DloadError]) -> Iterator[type[DloadError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _kinds(inner)
