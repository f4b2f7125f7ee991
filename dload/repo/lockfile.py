"""dload.lock: which version of each data set a project uses. One line a data set, sorted, so merges stay small.

    # Pinned dataset versions, managed by `dload pin`.
    [datasets]
    speech = "4bb5819b6d1192950d5b9f1c810b19a241cdcebcb37201ff9eb33895f85d47a9"

Whatever else the file holds is kept, but for comments. It is untrusted input: reading it gives pins that were
checked, or a ConfigError that names the file and the line.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w

from dload.errors import ConfigError
from dload.files.atomic import write_atomic
from dload.files.locks import LocksUnsupportedError, locked
from dload.manifest import NAME_RULE, is_version
from dload.repo.keys import check_known_name, is_known_name
from dload.repo.merge_conflict import refuse_conflict

LOCK_NAME = "dload.lock"

_COMMENT = "# Pinned dataset versions, managed by `dload pin`.\n"
_MAX_BYTES = 4 << 20  # 40,000 data sets
_MAX_LINE = 10_000  # what the TOML parser does with a line can take time by the square of its length


def find_lock(start: Path) -> Path | None:
    """The nearest dload.lock in `start` or a folder above it; None where there is none."""
    start = start.absolute()
    for folder in (start, *start.parents):
        if os.path.isfile(folder / LOCK_NAME):  # noqa: PTH113 - Path.is_file raises where a folder is closed
            return folder / LOCK_NAME
    return None


def read_pins(path: Path) -> dict[str, str]:
    """Data set name -> full version id, sorted by name; a file that isn't there pins nothing.

    Raises ConfigError with file and line for a merge conflict, for what isn't TOML, for bad names and ids.
    """
    return _pins(path, *_parsed(path))


def write_pin(path: Path, name: str, version: str | None) -> None:
    """Pin a data set to a version, or with None take its pin away. The file is made where it is missing.

    Others may do the same at the same time and nothing is lost (on a disk without file locks, the last one wins).
    Raises ConfigError for a bad name or id, for a file that `read_pins` refuses, and where it can't be written.
    """
    check_known_name(name)
    if version is not None and not is_version(version):
        raise ConfigError(f"can't pin {name} to {version!r:.100}", remedy="pin a full version id: 64 hex digits")
    path = path.resolve()  # a link stays one
    if version is None and not path.exists():
        return
    with _exclusive(path):
        text, document = _parsed(path)
        pins = _pins(path, text, document)
        if version is None:
            pins.pop(name, None)
        else:
            pins[name] = version
        _write(path, {**document, "datasets": dict(sorted(pins.items()))})


def _write(path: Path, document: Mapping[str, Any]) -> None:
    try:
        text = _COMMENT + tomli_w.dumps(document)
    except (ValueError, RecursionError) as error:  # of other tables; pins are plain
        raise ConfigError(f"{path} can't be written again: {error}", remedy="simplify its other tables") from error
    with _os_errors(path, "written"):
        write_atomic(path, text.encode())


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with ExitStack() as stack:
        with _os_errors(path, "written"), suppress(LocksUnsupportedError):
            stack.enter_context(locked(path, timeout=60))
        yield


@contextmanager
def _os_errors(path: Path, done: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path} can't be {done}: {error.strerror or error}", remedy="check the path and its permissions"
        ) from error


def _parsed(path: Path) -> tuple[str, dict[str, Any]]:
    """The file's text, and what it says."""
    with _os_errors(path, "read"):
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return "", {}
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{path} has more than {_MAX_BYTES} bytes", remedy=_remedy(path))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _bad_line(path, data.count(b"\n", 0, error.start) + 1, "not UTF-8", _remedy(path)) from error
    refuse_conflict(path, text)
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > _MAX_LINE:
            raise _bad_line(path, number, f"longer than {_MAX_LINE} characters", _remedy(path))
    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", remedy=_remedy(path), path=str(path)) from error


def _pins(path: Path, text: str, document: Mapping[str, Any]) -> dict[str, str]:
    table = document.get("datasets", {})
    if not isinstance(table, dict):
        raise ConfigError(f"datasets in {path} is not a table", remedy="begin it with a line [datasets]")
    pins: dict[str, str] = {}
    for name, value in _flat(table):
        if not is_known_name(name):
            what = f"{name[:120]!r} can't be the name of a data set"
            raise _bad_line(path, _line_of(text, name, value), what, f"delete it; names are {NAME_RULE}")
        if not isinstance(value, str) or not is_version(value):
            shown = repr(value[:100]) if isinstance(value, str) else f"a {type(value).__name__}"
            what = f"{name} is pinned to {shown}, expected a version id of 64 hex digits"
            raise _bad_line(path, _line_of(text, name, value), what, f"delete it, then: dload pin {name}")
        if name in pins:
            what = f"{name} is pinned a second time"
            raise _bad_line(path, _line_of(text, name, value), what, "delete one of the two")
        pins[name] = value
    return dict(sorted(pins.items()))


def _flat(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values. A dotted name without quotes, which dload-ml 0.3 wrote, is nested tables in TOML."""
    pending = list(reversed(table.items()))
    while pending:
        name, value = pending.pop()
        if isinstance(value, dict) and value and len(name) < 100:
            pending.extend((f"{name}.{key}", inner) for key, inner in reversed(value.items()))
        else:
            yield name, value


def _line_of(text: str, name: str, value: Any) -> int | None:
    """Where that is said, if it is said in one line."""
    for number, line in enumerate(text.split("\n"), 1):
        with suppress(ValueError, RecursionError):
            said = list(_flat(tomllib.loads(line)))
            if any((name, value) == (key.removeprefix("datasets."), inner) for key, inner in said):
                return number
    return None


def _bad_line(path: Path, line: int | None, what: str, remedy: str) -> ConfigError:
    where = f"{path} line {line}" if line is not None else str(path)
    return ConfigError(f"{where}: {what}", remedy=remedy, path=str(path), line=line)


def _remedy(path: Path) -> str:
    return f"mend it, restore it (git checkout -- {path.name}), or delete it and pin again"
