"""What the tasks of this room have in common: how many, what becomes of their errors, and their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from dload.errors import DloadError

T = TypeVar("T")


def cpus() -> int:
    """How many processors the cluster has now, 1 at least. Asks the cluster, and begins one where there is none."""
    if not ray.is_initialized():
        ray.init()
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def result(ref: Any) -> Any:
    """What a task gave. Raises what it raised, as itself; DloadError where the cluster has lost it for good."""
    try:
        return ray.get(ref)
    except RayTaskError as error:
        cause: BaseException = error
        while isinstance(cause, RayTaskError) and isinstance(cause.cause, BaseException):
            cause = cause.cause
        if cause is error:
            raise
        raise cause from error
    except RayError as error:
        text = str(error).strip().partition("\n")[0]
        raise DloadError(
            f"the cluster gave up a task: {type(error).__name__}: {text}",
            remedy="run it again: what is in the store is not sent again; where workers are killed for want of memory, "
            "let fewer run side by side on a node",
        ) from error


def in_turn(
    begun: Generator[T, None, None], task: Callable[[T], Any], ahead: Callable[[], int]
) -> Generator[T, None, None]:
    """What `begun` begins when it is asked for more, in its order, `ahead()` of them under way. When it is closed, or
    `begun` fails, the tasks of those that weren't taken are cancelled."""
    under_way: deque[T] = deque()
    try:
        for one in begun:
            under_way.append(one)
            while len(under_way) > ahead():
                yield under_way.popleft()
        while under_way:
            yield under_way.popleft()
    finally:
        begun.close()
        for one in under_way:
            ray.cancel(task(one))
