"""The names of files <-> keys and fields of samples, one to one; and patterns that choose files.

`x.wav` and `x.json` are sample `x` with the fields `wav` and `json`: the split is at the last dot of the
file's own name. A file with no dot, or only a leading one, or that ends in a dot, has the field `data`; so
that the way back is unambiguous, a real suffix `data` is the field `.data`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from dload.errors import ConfigError, SampleError

WHOLE = "data"
_MARKED_WHOLE = ".data"


def split_path(path: str) -> tuple[str, str]:
    """(key, field) of the file at `path`, which is relative to the folder that is committed."""
    folder, slash, name = path.rpartition("/")
    dot = name.rfind(".")
    if dot <= 0 or dot == len(name) - 1:
        return path, WHOLE
    suffix = name[dot + 1 :]
    return folder + slash + name[:dot], _MARKED_WHOLE if suffix == WHOLE else suffix


def join_path(key: str, field: str) -> str:
    """The path of the file that holds a field: the inverse of `split_path`.

    Raises SampleError for what is no path below a folder: untrusted data must not reach beyond it.
    """
    path = key if field == WHOLE else key + _MARKED_WHOLE if field == _MARKED_WHOLE else f"{key}.{field}"
    if "/" in field or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise SampleError(
            f"sample {key!r}, field {field!r} can't be a file below a folder", key=key, field=field,
            remedy="read it in Python: dload.Repository.open().dataset(name)[key]",
        )  # fmt: skip
    return path


class Patterns:
    """Shell patterns for files. `*`, `?` and `[abc]` stay within one name, `**` is any number of folders.

    A pattern without a slash is for the names of files and folders at any depth, one with a slash for whole
    paths. What matches a folder matches all that is in it.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._split = {pattern: _parts(pattern) for pattern in patterns}
        self.unused = list(self._split)  # those that have matched nothing so far

    def __bool__(self) -> bool:
        return bool(self._split)

    def match(self, path: str) -> bool:
        """Whether any of the patterns is for this path."""
        names = path.split("/")
        new = [pattern for pattern in self.unused if _matches(names, self._split[pattern])]
        self.unused = [pattern for pattern in self.unused if pattern not in new] if new else self.unused
        return bool(new) or any(_matches(names, parts) for parts in self._split.values())


def _parts(pattern: str) -> Sequence[str]:
    parts = pattern.strip("/").split("/")
    if parts == [""]:
        raise ConfigError(f"{pattern!r} is no pattern", remedy="write it as '*.jpg', 'a/*.png' or 'drafts'")
    return parts if "/" in pattern.rstrip("/") else ["**", *parts]


def _matches(names: Sequence[str], parts: Sequence[str]) -> bool:
    if not parts:
        return True
    if parts[0] == "**":
        return any(_matches(names[skipped:], parts[1:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], parts[0]) and _matches(names[1:], parts[1:])
