"""What is in a cache directory. The files are the index: there is no data base beside them that could drift."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["shard", "partial", "failure", "manifest", "keys", "other"]

_FOLDERS: dict[str, Kind] = {"shards": "shard", "partial": "partial", "manifests": "manifest", "keys": "keys"}


class Entry(NamedTuple):
    """One file. `size` is what it counts for in bytes: for a partial the space that its name reserves.
    `stored` is its length. `mtime` is the moment of the next expected use, in seconds since 1970."""

    kind: Kind
    where: str  # a Path costs more than all else about a file, and there may be many
    size: int
    stored: int
    mtime: float

    @property
    def path(self) -> Path:
        return Path(self.where)

    @property
    def name(self) -> str:
        return self.where.rpartition("/")[2]


@lru_cache(1 << 12)  # a sixth of what it takes to read one sample
def shard_path(root: Path, digest: str) -> Path:
    return root / "shards" / digest[:2] / digest


def partial_path(root: Path, name: str, size: int) -> Path:
    return root / "partial" / f"{name}.{size}"


def scan(root: Path) -> list[Entry]:
    """Every file below `root`, each inode once. A root that doesn't exist is empty. Reads the directories."""
    entries: list[Entry] = []
    seen: set[tuple[int, int]] = set()
    for folder, item in _files(str(root)):
        try:
            status = item.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if status.st_nlink > 1:
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
        kind: Kind = "failure" if folder == "partial" and item.name.endswith(".err") else folder
        size = max(status.st_size, _reserved(item.name)) if kind == "partial" else status.st_size
        entries.append(Entry(kind, item.path, size, status.st_size, status.st_mtime))
    return entries


def _files(root: str) -> Iterator[tuple[Kind, os.DirEntry[str]]]:
    folders: list[tuple[str, Kind, int]] = [(root, "other", 0)]
    while folders:
        folder, kind, depth = folders.pop()
        try:
            items = os.scandir(folder)
        except (FileNotFoundError, PermissionError):
            continue
        with items:
            for item in items:
                if item.is_dir(follow_symlinks=False):
                    inner = _FOLDERS.get(item.name, "other") if depth == 0 else kind
                    folders.append((item.path, inner, depth + 1))
                else:
                    yield kind, item


def _reserved(name: str) -> int:
    digits = name.rpartition(".")[2]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0
