"""How many bytes the cache may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dload.files.atomic import free_space

Budget = int | Literal["auto"] | None
"""Bytes; "auto": half of what the disk could give; None: no limit."""


def allowed(budget: Budget, root: Path, stored: int) -> int | None:
    """The budget in bytes now, None for no limit. `stored`: the bytes that the cache has on the disk already.

    "auto" is half of (free disk + stored): it follows the disk as others fill it. Asks the file system.
    """
    return (free_space(root) + stored) // 2 if budget == "auto" else budget
