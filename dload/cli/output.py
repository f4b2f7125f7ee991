"""What the command line says: data on stdout, messages and progress on stderr; text for people, JSON for programs."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any, TextIO

from dload.sizes import format_size

_DIM, _BOLD, _RED, _YELLOW, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
_CLEAR_LINE = "\r\x1b[K"
# Names, messages and keys come from others: none of them may steer the terminal.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


class Output:
    """One command's words. `quiet` keeps errors and data only; `verbosity` counts -v."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, verbosity: int = 0) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.verbosity = verbosity
        self._bar: Bar | None = None

    # ---- data
    def data(self, text: str) -> None:
        """Lines of text on stdout."""
        sys.stdout.write(text + "\n")

    def raw(self, data: bytes) -> None:
        """Bytes on stdout, as they are."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def facts(self, facts: Any, text: Callable[[], str]) -> None:
        """The facts as JSON where that was asked for, else the text."""
        if self.as_json:
            import json

            self.data(json.dumps(facts, indent=2, ensure_ascii=False))
        else:
            self.data(text())

    # ---- messages
    def say(self, line: str) -> None:
        """What happened."""
        if not self.quiet:
            self._message(clean(line))

    def next(self, command: str) -> None:
        """The command that is likely to be wanted next."""
        if not self.quiet:
            self._message(_styled(f"next: {clean(command)}", _DIM))

    def detail(self, line: str) -> None:
        """What only -v shows."""
        if self.verbosity and not self.quiet:
            self._message(_styled(clean(line), _DIM))

    def warn(self, line: str) -> None:
        """What may be wrong, though it goes on; also when quiet."""
        self._message(_styled("warning: ", _YELLOW) + clean(line))

    def error(self, message: str, remedy: str | None, facts: dict[str, Any]) -> None:
        """What went wrong and what to do: two lines (more where the message has lines), or one of JSON."""
        if self.as_json:
            import json

            self._message(json.dumps({"error": facts}, ensure_ascii=False, default=str))
            return
        self._message(_styled("error: ", _RED) + "\n".join(map(clean, message.split("\n"))))
        if remedy:
            self._message(f"  {clean(remedy)}")

    def _message(self, line: str) -> None:
        if self._bar is not None:
            self._bar.clear()
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    # ---- progress
    def live(self, label: str) -> Live:
        """For what reports its progress in lines of text, to be used in a `with`: call it with each line."""
        return Live(self, label)

    def bar(self, label: str, total: int | None, unit: Callable[[int], str] = format_size) -> Bar:
        """A progress bar, to be used in a `with`. `total` None: not known."""
        self._bar = Bar(label, total, unit, stream=None if self.quiet else sys.stderr)
        return self._bar


class Live:
    """The newest line of many: rewritten in place on a terminal, one every 30 s elsewhere, all of them with -v."""

    def __init__(self, out: Output, label: str) -> None:
        self._out = out
        self._bar = out.bar(label, None, lambda _: self._line)
        self._line = ""

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def __call__(self, line: str) -> None:
        self._line = clean(line)
        if self._out.verbosity:
            self._out.detail(line)
        else:
            self._bar.advance(0)


class Bar:
    """Progress on stderr: a bar with rate and time left on a terminal, a line every 30 s elsewhere."""

    REDRAW_SECONDS = 0.1
    LINE_SECONDS = 30.0
    _WINDOW_SECONDS = 15.0

    def __init__(
        self, label: str, total: int | None, unit: Callable[[int], str], *,
        stream: TextIO | None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.label = label
        self.total = total
        self.done = 0
        self.unit = unit
        self._stream = stream
        self._live = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._clock = clock
        self._lock = Lock()
        self._drawn_at = clock()
        self._past = deque([(self._drawn_at, 0)])
        self._visible = False

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        self._stream = None

    def advance(self, amount: int) -> None:
        """`amount` more is done. From any thread."""
        with self._lock:
            self.done += amount
            now = self._clock()
            wait = self.REDRAW_SECONDS if self._live else self.LINE_SECONDS
            if self._stream is None or now - self._drawn_at < wait:
                return
            self._drawn_at = now
            self._past.append((now, self.done))
            while len(self._past) > 2 and now - self._past[0][0] > self._WINDOW_SECONDS:
                self._past.popleft()
            self._draw(self._stream)

    def clear(self) -> None:
        """Take the bar off the screen, for a message; the next advance draws it again."""
        if self._visible and self._stream is not None:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()
            self._visible = False

    def _draw(self, stream: TextIO) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns
            stream.write(_CLEAR_LINE + self.line(width)[: width - 1])
            self._visible = True
        else:
            stream.write(self.line(0) + "\n")
        stream.flush()

    def line(self, width: int) -> str:
        """The progress in words, with a drawn bar where the width allows it."""
        (start, before), (now, done) = self._past[0], self._past[-1]
        rate = (done - before) / (now - start) if now > start else 0.0
        parts = [self.unit(self.done) if self.total is None else f"{self.unit(self.done)} of {self.unit(self.total)}"]
        if rate > 0:
            parts.append(f"{self.unit(round(rate))}/s")
        if self.total and rate > 0:
            parts.append(f"{duration(max(0, self.total - self.done) / rate)} left")
        words = "  ".join(parts)
        if not self.total:
            return f"{self.label}  {words}"
        share = min(1.0, self.done / self.total)
        room = min(30, width - len(self.label) - len(words) - 14)
        drawn = f"[{'#' * int(share * room):-<{room}}]  " if room >= 8 else ""
        return f"{self.label}  {drawn}{share:4.0%}  {words}"


# ---- how things are written
def table(headers: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> str:
    """Columns side by side, those named in `right` flush right. The last column is as wide as it is."""
    cells = [list(headers), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    flush_right = [header in set(right) for header in headers]
    lines = []
    for row in cells:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, flush_right, strict=True))
        lines.append("  ".join(padded).rstrip())
    lines[0] = _styled(lines[0], _BOLD, sys.stdout)
    return "\n".join(lines)


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values, one pair a line."""
    known = [(name, clean(value)) for name, value in rows]
    width = max(len(name) for name, _ in known) + 1
    return "\n".join(f"{name + ':':<{width}}  {value}" for name, value in known)


def clean(text: str) -> str:
    """Text without control characters."""
    return text.translate(_CONTROLS)


def short(version: str) -> str:
    """An id as people see it."""
    return version[:12]


def when(time_: str | None) -> str:
    """An ISO time as people see it, in UTC."""
    return time_[:16].replace("T", " ") if time_ else "?"


def count(number: int, thing: str) -> str:
    """ "1 sample", "1,000 samples"."""
    plural = {"entry": "entries"}.get(thing, thing + "s")
    return f"{number:,} {thing if number == 1 else plural}"


def duration(seconds: float) -> str:
    """For people: "42 s", "5 min", "3 h 20 min", "2 d 4 h"."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def _styled(text: str, style: str, stream: TextIO | None = None) -> str:
    stream = stream or sys.stderr
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else f"{style}{text}{_PLAIN}"
