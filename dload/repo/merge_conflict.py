"""A merge conflict that was left in dload.lock: found before parsing, and told with what to delete."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from dload.errors import ConfigError
from dload.manifest import is_version

_MARKER = re.compile(r"(<<<<<<<|\|\|\|\|\|\|\||=======|>>>>>>>)(?: (.*))?\s*")
_IN_ORDER = re.compile(r"(?:<\|?=>)+")  # one or more conflicts: ours, perhaps their common base, theirs
_PIN = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^\s="']+))\s*=\s*["']([^"']*)["']""")
_SHOWN = 5  # data sets told of


@dataclass
class _Side:
    """One side of all conflicts: its label, the lines (number by what they speak of), and the versions it pins."""

    label: str
    lines: dict[str, int] = field(default_factory=dict)
    pins: dict[str, str] = field(default_factory=dict)

    def take(self, number: int, line: str) -> None:
        pin = _PIN.match(line)
        if pin is not None:
            name = next(name for name in pin.groups() if name is not None)
            self.pins[name] = pin[4]
            self.lines[name] = number
        elif line.strip():
            self.lines[line.strip()] = number

    def says(self, name: str) -> str:
        version = self.pins.get(name)
        if version is None:
            return f"not pinned in {self.label}"
        return f"{version[:12] if is_version(version) else repr(version[:100])} in {self.label}"


def refuse_conflict(path: Path, text: str) -> None:
    """Raises ConfigError where the text has conflict markers: file and line, both versions, the lines to delete."""
    order = ""
    useless: list[int] = []  # markers, and the lines of the common base
    ours, theirs = _Side("ours"), _Side("theirs")
    for number, line in enumerate(text.split("\n"), 1):
        marker = _MARKER.fullmatch(line)
        if marker is not None:
            order += line[0]
            useless.append(number)
            if line[0] in "<>" and marker[2]:
                (ours if line[0] == "<" else theirs).label = _printable(marker[2].strip())
        elif order.endswith("<"):
            ours.take(number, line)
        elif order.endswith("="):
            theirs.take(number, line)
        elif order.endswith("|"):
            useless.append(number)
    if not order:
        return
    raise ConfigError(
        f"{path} line {useless[0]}: a merge conflict{_difference(ours, theirs)}",
        remedy=_fix(order, useless, ours, theirs, path.name),
        path=str(path), line=useless[0], ours=ours.pins, theirs=theirs.pins,
    )  # fmt: skip


def _difference(ours: _Side, theirs: _Side) -> str:
    names = sorted(name for name in ours.pins | theirs.pins if ours.pins.get(name) != theirs.pins.get(name))
    told = [f"{_printable(name)} is {ours.says(name)}, {theirs.says(name)}" for name in names[:_SHOWN]]
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return "".join(f"; {part}" for part in told + more)


def _fix(order: str, useless: list[int], ours: _Side, theirs: _Side, name: str) -> str:
    if not _IN_ORDER.fullmatch(order):
        return f"choose by hand which lines to keep, and delete the conflict markers in {_lines(useless)}"
    twice = ours.lines.keys() & theirs.lines.keys()
    keep_ours = useless + [theirs.lines[what] for what in twice]
    keep_theirs = useless + [ours.lines[what] for what in twice]
    then = f"then: git add {name}"
    if all(ours.pins.get(what) == theirs.pins.get(what) for what in twice):
        return f"delete {_lines(keep_ours)} to keep what both have, {then}"
    return (
        f"delete {_lines(keep_ours)} to keep those of {ours.label}, "
        f"or {_lines(keep_theirs)} to keep those of {theirs.label}, {then}"
    )


def _lines(numbers: list[int]) -> str:
    """ "line 3", "lines 3, 5-7"."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    told = ", ".join("-".join(map(str, span)) for span in spans)
    return f"line {told}" if len(numbers) == 1 else f"lines {told}"


def _printable(text: str) -> str:
    return text[:100] if text.isprintable() else repr(text[:100])
