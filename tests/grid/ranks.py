"""Ranks of a distributed run: real processes that meet in torch.distributed."""

from __future__ import annotations

import json
import multiprocessing
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_FORK = multiprocessing.get_context("fork")
_PATIENCE = 30.0  # seconds: a collective that not all ranks reach is an error then, and the test fails


class Ranks:
    """The processes of one run: each calls `work(*arguments)` with torch.distributed up."""

    def __init__(self, meeting: Path, world: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._pipes, self.processes = [], []
        for rank in range(world):
            ours, theirs = _FORK.Pipe(duplex=False)
            process = _FORK.Process(target=_rank, args=(theirs, meeting, rank, world, work, arguments))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def results(self) -> list[Any]:
        """What `work` returned in each rank. Fails where a rank failed, was killed or doesn't end."""
        found = []
        until = time.monotonic() + 2 * _PATIENCE
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(max(0.0, until - time.monotonic())), f"rank {rank} hangs"
            ok, result = pipe.recv()
            assert ok, f"rank {rank} failed:\n{result}"
            found.append(result)
        for process in self.processes:
            process.join(10)
        return found

    def kill(self) -> None:
        """kill -9 of all that are still there."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(10)


def _rank(pipe: Any, meeting: Path, rank: int, world: int, work: Callable[..., Any], arguments: Any) -> None:
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=_PATIENCE)
        )
        result = True, work(*arguments)
        dist.barrier()  # nobody goes while others still talk
        dist.destroy_process_group()
    except BaseException:
        result = False, traceback.format_exc()
    pipe.send(result)


def whole_lines(path: Path) -> list[Any]:
    """The values of a file of JSON lines, of which a killed process may have left the last unfinished."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def put_together(parts: list[list[list[Any]]]) -> list[list[Any]]:
    """The global batch of each step, from the ranks' parts."""
    return [[row for part in step for row in part] for step in zip(*parts, strict=True)]
