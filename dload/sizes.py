"""Sizes and durations as people write them: "60GB" <-> bytes, "7d" -> seconds."""

from __future__ import annotations

import re

from dload.errors import ConfigError

_UNITS = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "m": 1000**2, "mb": 1000**2, "g": 1000**3, "gb": 1000**3, "t": 1000**4, "tb": 1000**4,
    "p": 1000**5, "pb": 1000**5,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "pib": 1 << 50,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str) -> int | None:
    """Bytes of a `text` such as "50GB", "1.5TiB", "800M" or "1024"; None for "unlimited".

    KB, MB, GB, TB, PB are powers of 1,000, KiB, MiB, GiB, TiB, PiB of 1,024; letter case doesn't matter.
    Raises ConfigError for anything else.
    """
    if text.strip().lower() == "unlimited":
        return None
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ConfigError(
            f"invalid size {text!r}", remedy='write a number and a unit, as "60GB", "1.5TiB", or "unlimited"'
        )
    number = match[1]
    return int(number) * unit if number.isdigit() else round(float(number) * unit)


def format_size(n: int | None) -> str:
    """`n` bytes for people: "1.5 GiB" (binary units, one decimal), "unlimited" for None."""
    if n is None:
        return "unlimited"
    if abs(n) < 1024:
        return f"{n} B"
    value = float(n)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if abs(value) < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhdw]?)\s*", re.IGNORECASE)


def parse_duration(text: str) -> float:
    """Seconds of "90s", "15m", "12h", "7d", "2w"; a bare number is seconds. Raises ConfigError for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"invalid duration {text!r}", remedy='write a number and a unit, as "90s", "15m", "12h", "7d" or "2w"'
        )
    return float(match[1]) * _SECONDS[match[2].lower() or "s"]
