"""One rank's rows of a pipeline, one by one: a loader's steps without the steps."""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint
from types import TracebackType
from typing import Any

from dload.api.loader import Loader
from dload.api.pipeline import Pipeline
from dload.run.ranks import rank_and_world


class ShareIterator(Iterator[Any]):
    """The rows that a loader hands out, one by one. Its states are the loader's, so they go on on any number of ranks;
    with more than one row a step there is one only between two steps."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._steps = iter(loader)
        self._rows: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        while True:
            for row in self._rows:
                return row
            self._rows = iter(next(self._steps))

    def get_state(self) -> dict[str, Any]:
        """Where it stands, for `pipe.iter(state=...)` on any number of ranks, or a loader. Raises RuntimeError inside a
        step."""
        if left := length_hint(self._rows):
            raise RuntimeError(f"a state is taken between two steps: take the {left} rows left of this one first")
        return self._loader.state_dict()

    def close(self) -> None:
        """End it, with its pins, threads and files. Closing twice is fine."""
        self._loader.close()
        self._rows = iter(())

    def __enter__(self) -> ShareIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def share(
    pipe: Pipeline,
    rank: int | None,
    world_size: int | None,
    global_batch: int | None,
    *,
    state: dict[str, Any] | None,
    epoch: int,
    seed: int | None,
) -> ShareIterator:
    """A rank's rows of an epoch, or of what a state leaves of it. See `Pipeline.iter`."""
    rank, world = rank_and_world(rank, world_size)
    if global_batch is None:
        global_batch = world if state is None else state["plan"]["B"]
    ends = "endless" if pipe.node.endless else "drop"
    loader = Loader(pipe, global_batch, rank=rank, world_size=world, ends=ends, seed=seed, threads=0)
    if state is not None:
        loader.load_state_dict(state)
    loader.set_epoch(epoch)  # of a state, the rest of its epoch, be it nothing
    return ShareIterator(loader)
