"""What a long commit has packed so far, remembered on this machine, so that one that was killed goes on.

A file of lines: first what the work is, then one for each shard that is in the store, in order, with a mark that says
where the samples behind it begin, where that is known. A line that was cut off counts as not written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import astuple
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from dload.files.locks import locked
from dload.pack import PackedShard

Mark = Any  # a JSON value, and not null


class Progress:
    """The progress of one piece of work, which one process of this machine does at a time. A context manager.

    `work`: a JSON value; what was remembered of another is forgotten. `shards`: those up to the last mark, and `mark`,
    None where there is none. It only ever saves work: where the file can't be used, everything begins anew.
    """

    def __init__(self, path: Path, work: Any, waiting: Callable[[], None] | None = None) -> None:
        """`waiting` is called where another process is at it, before waiting for it."""
        self._path = path
        self._header = json.dumps(work, sort_keys=True)
        self._waiting = waiting
        self._held = ExitStack()
        self._file: TextIO | None = None
        self.shards: list[PackedShard] = []
        self.mark: Mark | None = None

    def __enter__(self) -> Progress:
        try:
            self._held.enter_context(locked(self._path.with_suffix(".lock"), waiting=self._waiting))
            self._file = self._held.enter_context(self._path.open("a+", encoding="utf-8", errors="replace"))
            self._read(self._file)
        except OSError:  # no flock, a folder that can't be written
            self._forgo()
        return self

    def _forgo(self) -> None:
        """Remember nothing (any more)."""
        self._file = None
        with suppress(OSError):
            self._held.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forgo()

    def _read(self, file: TextIO) -> None:
        file.seek(0)
        kept, shards = [], []
        for number, line in enumerate(file):
            try:
                if not number and line.rstrip("\n") == self._header:
                    kept.append(line)
                    continue
                if not kept or not line.endswith("\n"):
                    break
                digest, size, num_samples, index_size, fields, mark = json.loads(line)
                stats = {name: (count, total) for name, (count, total) in fields.items()}
            except (ValueError, TypeError, AttributeError):
                break
            shards.append(PackedShard(digest, size, num_samples, index_size, stats))
            kept.append(line)
            if mark is not None:
                self.shards, self.mark = shards[:], mark
        file.truncate(0)
        file.writelines(kept[: len(self.shards) + 1] or [self._header + "\n"])
        file.flush()

    def forget(self) -> None:
        """Begin anew."""
        self.shards, self.mark = [], None
        self._write(self._header, anew=True)

    def note(self, shard: PackedShard, mark: Mark | None) -> None:
        """The next shard is in the store."""
        self._write(json.dumps([*astuple(shard), mark]))

    def _write(self, line: str, anew: bool = False) -> None:
        if self._file is None:
            return
        try:
            if anew:
                self._file.truncate(0)
            self._file.write(line + "\n")
            self._file.flush()
        except OSError:  # the disk is full
            self._forgo()

    def done(self) -> None:
        """The work is done, and nothing of it need be remembered."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
