"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dload.errors import ConfigError
from dload.sizes import format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("50GB", 50 * 10**9), ("1.5TiB", 3 << 39), ("800M", 800 * 10**6), ("unlimited", None), ("UNLIMITED", None),
        ("10", 10), ("10 b", 10), ("1kib", 1024), ("1K", 1000), ("1 GB", 10**9), ("  2 MiB ", 2 << 20),
    ],
)  # fmt: skip
def test_parse_size(text: str, size: int | None) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "abc", "1e3", "auto", "1 XB", "GB", "1.GB", "²GB", "1 G B"])
def test_parse_size_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "unlimited"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (10**9, "953.7 MiB"), (2**30, "1.0 GiB"),
        (3 << 39, "1.5 TiB"), (10**15, "909.5 TiB"), (-1, "-1 B"),
    ],
)  # fmt: skip
def test_format_size(size: int | None, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 1 << 60))
def test_what_is_formatted_reads_back_within_its_precision(size: int) -> None:
    back = parse_size(format_size(size))
    assert back is not None
    assert abs(back - size) <= max(1, size * 0.06)


@pytest.mark.parametrize(
    ("text", "seconds"), [("7d", 604800), ("12h", 43200), ("15m", 900), ("90s", 90), ("0", 0), ("1.5h", 5400)]
)
def test_parse_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "7 days", "-1d", "1y"])
def test_parse_duration_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid duration"):
        parse_duration(text)
