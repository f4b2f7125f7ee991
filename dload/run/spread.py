"""The elements of a pipeline in the index tier, computed by several processes and given in order.

Places are dealt out in stretches; what is at a place is a pure function of it, so the result is that of one process.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any

from dload.errors import DloadError
from dload.pipeline.node import HOLE, Node, Run, paths_of
from dload.pipeline.promises import settled
from dload.repo.parallel import ordered
from dload.run.window import ShardWindow

_BYTES = 4 << 20  # of samples that a stretch is made of, about
_MOST = 1024  # elements of a stretch
_LEAST = 8  # stretches for each process
_EPOCH = (0,)


def spread(top: Node, seed: int, ahead: int, workers: int, start: int = 0) -> Iterator[tuple[int, Any]]:
    """(the place behind it, element) of epoch 0 from the place `start` on, HOLEs left out.

    `ahead`: how many shards each process fetches ahead. The pipeline is pickled, and its functions are found by name in
    processes that start anew (spawn): a program of its own needs `if __name__ == "__main__"`. Raises what an element
    raises; DloadError where a process was killed.
    """
    assert top.indexed and top.length is not None
    length = top.length
    size = max(1, min(_MOST, int(_BYTES / max(1.0, top.mean_bytes)), (length - start) // (_LEAST * workers)))
    stretches = ((first, min(first + size, length)) for first in range(start, length, size))
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), _begin, (pickle.dumps((top, seed, ahead)),)
    )
    try:
        for found in ordered(lambda stretch: pool.submit(_compute, *stretch).result(), stretches, workers):
            yield from found
    except BrokenProcessPool as error:
        raise DloadError(
            "a process that computes elements was killed, or couldn't start",
            remedy='a script of its own needs `if __name__ == "__main__":` above what runs; '
            "where the system killed it for want of memory, fewer workers need less",
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Reader:
    """What a process has while it lives."""

    top: Node
    run: Run
    window: ShardWindow


def _begin(pickled: bytes) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when it is over
    threading.Thread(target=_end_with_parent, daemon=True).start()
    top, seed, ahead = pickle.loads(pickled)
    _Reader.top, _Reader.window = top, ShardWindow(ahead)
    _Reader.run = Run(seed, _Reader.window, paths=paths_of(top))


def _end_with_parent() -> None:
    """A parent that is killed can't say that it is over."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _compute(start: int, stop: int) -> list[tuple[int, Any]]:
    top, run, window = _Reader.top, _Reader.run, _Reader.window
    feed = window.follow(top.demand(run, _EPOCH, start, stop))
    try:
        items = settled(top.fetch(run, _EPOCH, range(start, stop)))
    finally:
        feed.close()
    return [(place, item) for place, item in enumerate(items, start + 1) if item is not HOLE]
