"""Requests side by side, results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def ordered(function: Callable[[A], B], items: Iterable[A], jobs: int) -> Iterator[B]:
    """`function` of each item, in the items' order, on `jobs` threads and at most twice as many items ahead.

    The first error comes out in its item's place; what has begun by then is finished, nothing more is begun.
    """
    with ThreadPoolExecutor(jobs, thread_name_prefix="dload") as pool:
        ahead: deque[Future[B]] = deque()
        try:
            for item in items:
                ahead.append(pool.submit(function, item))
                if len(ahead) >= 2 * jobs:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()
