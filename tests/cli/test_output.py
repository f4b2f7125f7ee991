"""Words: tables, times, and the progress bar by a clock that the test turns."""

from __future__ import annotations

import io
import threading

import pytest

from dload.cli.output import Bar, clean, count, duration, pairs, table
from dload.sizes import format_size


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def bar(stream: io.StringIO | None, clock: Clock, total: int | None = 100 << 20) -> Bar:
    return Bar("birds", total, format_size, stream=stream, clock=clock)


def test_case_c91_elsewhere_than_on_a_terminal_there_is_a_line_every_30_seconds() -> None:
    said, clock = io.StringIO(), Clock()
    with bar(said, clock) as progress:
        for _ in range(1000):
            clock.now += 0.1
            progress.advance(100 << 10)
    lines = said.getvalue().splitlines()
    assert len(lines) == 3 and "\r" not in said.getvalue()
    assert lines[0] == "birds   29%  29.3 MiB of 100.0 MiB  1000.0 KiB/s  72 s left"


def test_a_short_task_says_nothing_elsewhere_than_on_a_terminal() -> None:
    said, clock = io.StringIO(), Clock()
    with bar(said, clock) as progress:
        clock.now += 29
        progress.advance(100 << 20)
    assert said.getvalue() == ""


def test_a_terminal_sees_one_line_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    screen, clock = Screen(), Clock()
    with bar(screen, clock) as progress:
        for _ in range(100):
            clock.now += 1 / 16
            progress.advance(1 << 19)
    drawn = screen.getvalue().split("\r\x1b[K")
    assert len(drawn) == 52 and drawn[-1] == "" and "\n" not in screen.getvalue()
    assert drawn[20] == "birds  [###---------------]   20%  20.0 MiB of 100.0 MiB  8.0 MiB/s  10 s left"
    assert all(len(line) < 80 for line in drawn)


def test_the_rate_follows_what_happened_lately() -> None:
    clock = Clock()
    progress = bar(Screen(), clock)
    for _ in range(100):
        clock.now += 1
        progress.advance(1 << 20)
    assert "1.0 MiB/s" in progress.line(80)
    for _ in range(20):
        clock.now += 1
        progress.advance(0)
    assert "/s" not in progress.line(80)


def test_a_bar_without_a_total_and_without_a_stream() -> None:
    clock = Clock()
    with bar(None, clock, None) as progress:
        clock.now += 60
        progress.advance(5)
        assert progress.line(80) == "birds  5 B"


def test_a_bar_counts_from_many_threads() -> None:
    with bar(Screen(), Clock()) as progress:
        threads = [threading.Thread(target=lambda: [progress.advance(1) for _ in range(1000)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert progress.done == 8000


def test_tables_and_pairs() -> None:
    assert table(("A", "BB"), [("x", "1"), ("longer", "22")], right=("BB",)) == "A       BB\nx        1\nlonger  22"
    assert pairs([("a", "1"), ("bcd", "2\n")]) == "a:    1\nbcd:  2\\x0a"
    assert clean("\x1b[31mé\x7f\x9b") == "\\x1b[31mé\\x7f\\x9b"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (99.4, "99 s"), (100, "2 min"), (5999, "100 min"), (12000, "3 h 20 min"), (187200, "2 d 4 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text.replace("100 min", "1 h 40 min")


def test_counts() -> None:
    assert (count(1, "sample"), count(1234, "sample"), count(2, "entry")) == ("1 sample", "1,234 samples", "2 entries")
