"""What is said of work under way: lines of text."""

from __future__ import annotations

from collections.abc import Callable

from dload.repo.packing import ShardDone
from dload.run import ShardFetched
from dload.sizes import format_size

Progress = Callable[[str], object]


def shard_line(progress: Progress | None) -> Callable[[ShardDone], object] | None:
    """A line for each shard that is in the store."""
    if progress is None:
        return None

    def line(done: ShardDone) -> None:
        shard = done.shard
        what = "uploaded" if done.sent else "there already:"
        progress(
            f"shard {done.number}: {format_size(shard.size)}, {shard.num_samples} samples — {what} {shard.digest[:12]}"
        )

    return line


def fetched_line(progress: Progress | None) -> Callable[[ShardFetched], object] | None:
    """A line for each shard that is in the cache."""
    if progress is None:
        return None

    def line(done: ShardFetched) -> None:
        what = "fetched" if done.downloaded else "there already:"
        progress(f"shard {done.number} of {done.total}: {format_size(done.shard.size)} {what} {done.shard.digest[:12]}")

    return line


def both(
    a: Callable[[ShardDone], object] | None, b: Callable[[ShardDone], object] | None
) -> Callable[[ShardDone], object] | None:
    """Tell both of each shard."""
    if a is None or b is None:
        return a or b
    return lambda done: (a(done), b(done))
