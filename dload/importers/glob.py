"""What a pattern of files stands for: of braces (`shard-{000..009}.tar`, `{train,val}.csv`) and of the shell
(`*.parquet`, `**/*.parquet`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from dload.errors import ConfigError, NotFoundError

MAX_NAMES = 1_000_000  # of one brace pattern

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


def split_pattern(text: str) -> tuple[str, str]:
    """The part of a path before the first part with a pattern, and the rest ("" where there is none)."""
    scheme, mark, path = text.rpartition("://")
    parts = path.split("/")
    plain = next((number for number, part in enumerate(parts) if re.search(r"[*?\[{]", part)), len(parts))
    base = "/".join(parts[:plain]) or ("/" if path.startswith("/") and plain else "")
    return scheme + mark + base, "/".join(parts[plain:])


def matching(
    pattern: str, listed: Callable[[], Iterable[str]], exists: Callable[[str], bool], shown: str
) -> tuple[str, ...]:
    """The names that a pattern stands for, in its order: braces name files that must be there, as `exists` says; the
    shell's patterns choose among those that are `listed`. Raises NotFoundError, where `shown` names the source."""
    chosen: dict[str, None] = {}
    everything: list[str] | None = None
    for name in expand(pattern):
        if not re.search(r"[*?\[]", name):
            if not exists(name):
                raise NotFoundError(f"{shown}: there is no {name}", remedy="see what is there, and correct the pattern")
            chosen[name] = None
            continue
        everything = sorted(listed()) if everything is None else everything
        matched = [one for one in everything if _fits(one, name)]
        if not matched:
            raise NotFoundError(f"{shown}: nothing matches {name}", remedy="correct the pattern, or quote it")
        chosen.update(dict.fromkeys(matched))
    return tuple(chosen)


def _fits(name: str, pattern: str) -> bool:
    """Whether a path fits, part by part: `*` stays within one, `**` is any number of folders."""
    return _parts_fit(name.split("/"), pattern.split("/"))


def _parts_fit(parts: list[str], wanted: list[str]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(_parts_fit(parts[skipped:], wanted[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wanted[0]) and _parts_fit(parts[1:], wanted[1:])


def expand(pattern: str) -> list[str]:
    """What a pattern of braces stands for, as in the shell: `{a,b}`, `{000..012}` (as many digits as are written).

    Raises ConfigError for more than a million names and for a brace that isn't closed.
    """
    start = pattern.find("{")
    if start < 0:
        return [pattern]
    depth = 0
    for end in range(start, len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[end], 0)
        if depth == 0:
            break
    else:
        raise ConfigError(f"{pattern!r} has a brace that isn't closed", remedy="write it as shard-{000..009}.tar")
    heads = [choice for part in _choices(pattern[start + 1 : end]) for choice in _range(part)]
    tails = expand(pattern[end + 1 :])
    if len(heads) * len(tails) > MAX_NAMES:
        raise ConfigError(f"{pattern!r} stands for more than {MAX_NAMES:,} files", remedy="use * instead")
    return [pattern[:start] + head + tail for head in heads for tail in tails]


def _choices(inside: str) -> list[str]:
    """What stands between the commas that are in no inner brace."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(inside[start:at])
            start = at + 1
    return [*parts, inside[start:]]


def _range(part: str) -> list[str]:
    match = _RANGE.fullmatch(part)
    if not match:
        return expand(part)
    first, last = int(match[1]), int(match[2])
    if abs(last - first) >= MAX_NAMES:
        raise ConfigError(f"{{{part}}} stands for more than {MAX_NAMES:,} files", remedy="use * instead")
    width = max(len(match[1]), len(match[2])) if "0" in (match[1][:1], match[2][:1]) else 0
    step = 1 if last >= first else -1
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]
