"""Pipelines as data sets of torch's own DataLoader."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data

from dload.api.pipeline import NOTHING, Pipeline, a_pipeline, cache_limits, run_seed
from dload.errors import ConfigError, InfeasiblePipelineError
from dload.files.shared import SharedBytes
from dload.pipeline.dealing import Deal
from dload.pipeline.lanes import Grid
from dload.pipeline.node import HOLE, Cursor, Rows, Run, paths_of
from dload.pipeline.state import check_state, make_state
from dload.plan import check
from dload.run.ranks import rank_and_world
from dload.run.window import ShardWindow

_EPOCHS = struct.Struct("<qqq")  # version of `set_epoch`, seed of the workers that began last, the epoch they began + 1
_NOBODY = -1


def as_iterable_dataset(
    pipe: Pipeline, rank: int | None = None, world_size: int | None = None, global_batch: int | None = None
) -> DloadIterableDataset:
    """`pipe` as a `torch.utils.data.IterableDataset`, for `DataLoader(ds, batch_size=None, num_workers=N)`.

    Ranks and workers share the work: together they give every row once, and shards are fetched once a machine. Each
    iteration is the next epoch, in worker processes of any kind, persistent or not; `ds.set_epoch(e)` chooses one. Make
    it once: another one begins with epoch 0. Rank and world are found when this is called (see
    `dload.run.ranks.rank_and_world`). On one rank an epoch is covered exactly; on several, all ranks give equally many
    rows, and the fewer than `world_size` (`global_batch`) rows left over are dropped. `global_batch`: the rows of a
    step over all ranks; this rank's rows of each step come in order.

    With `batch_size=None` a pipeline that has places (no filter and the like) comes in the same order for any number of
    workers. With `batch_size=b` each worker makes batches of its own rows, so batches depend on their number: batch in
    the pipeline instead. To resume in the middle of an epoch use `StreamLoader`; or torchdata's StatefulDataLoader, on
    the same number of ranks and workers. Saved behind the last row, its loop ends at once and the next epoch follows;
    saved when the loop had ended, it begins with that.

    Raises ConfigError where ranks and pipeline don't go together; iterating raises InfeasiblePipelineError where it
    doesn't fit.
    """
    return DloadIterableDataset(pipe, rank, world_size, global_batch)


class DloadIterableDataset(torch.utils.data.IterableDataset[Any]):
    """See `as_iterable_dataset`. Its length is that of this rank's rows, where it is known."""

    def __init__(self, pipe: Pipeline, rank: int | None, world_size: int | None, global_batch: int | None) -> None:
        self.pipe = a_pipeline(pipe)
        self.rank, self.world_size = rank_and_world(rank, world_size)
        self.global_batch = self.world_size if global_batch is None else global_batch
        self._seed = run_seed(pipe, alone=self.world_size == 1)
        self._shared = SharedBytes(_EPOCHS.size)  # what worker processes and the parent agree on
        self._shared.write(_EPOCHS.pack(0, _NOBODY, 0))
        self._known: tuple[int, int] | None = None  # version and epoch of this process's last iteration
        self._deal(1)  # raises what doesn't go together, here and not in a worker

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration gives, in persistent workers, too. Call it between iterations."""
        with self._shared.alone():
            version, _, _ = _EPOCHS.unpack(self._shared.read(_EPOCHS.size))
            self._shared.write(_EPOCHS.pack(version + 1, _NOBODY, epoch))

    def _deal(self, workers: int) -> Deal:
        node, batch, world = self.pipe.node, self.global_batch, self.world_size
        if node.indexed:
            grid = Grid(batch, batch if batch == world else 1)
            if (batch // world) % workers and batch != world:
                raise ConfigError(
                    f"{workers} workers can't share this rank's {batch // world} rows of a step evenly",
                    remedy="choose num_workers that divides them, or leave out global_batch",
                )
            ends = (
                "drop" if node.length is not None and world > 1 else "agree" if node.length is not None else "endless"
            )
        else:
            grid = Grid(batch, world, workers)
            ends = "endless" if node.endless else "ragged" if world == 1 else "drop"  # which says the ways out
        deal = Deal(node, grid, ends)
        deal.rows(self.rank, world)
        return deal

    def __len__(self) -> int:
        node = self.pipe.node
        if not node.indexed or node.length is None:
            raise TypeError("how many rows this pipeline gives isn't known")
        if self.world_size == 1:
            return node.length
        return node.length // self.global_batch * (self.global_batch // self.world_size)

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        epoch = self._next_epoch(None if info is None else info.seed - info.id)
        report = check(self.pipe.node, self._run(NOTHING), cache_limits())
        if not report.ok:
            raise InfeasiblePipelineError(report.message)
        return _Rows(self, report.prefetch, epoch, worker, workers)

    def _run(self, rows: Rows) -> Run:
        return Run(self._seed, rows, paths=paths_of(self.pipe.node))

    def _cursor(self, run: Run, epoch: int, worker: int, workers: int) -> Cursor:
        """A worker's share: item k of the rank belongs to worker k mod workers."""
        deal = self._deal(workers)
        ((column, offsets),) = deal.columns(deal.rows(self.rank, self.world_size))
        if not self.pipe.node.indexed:
            return deal.lane_cursor(run, epoch, deal.lane(column, worker, epoch))
        if len(offsets) == 1:
            return deal.lane_cursor(run, epoch, column, offsets, first=worker, stride=workers)
        return deal.lane_cursor(run, epoch, column, offsets[worker::workers])

    def _goes_on_in(self, epoch: int) -> None:
        """An iteration that has begun is of another epoch, as a state says."""
        with self._shared.alone():
            version, last, _ = _EPOCHS.unpack(self._shared.read(_EPOCHS.size))
            self._known = version, epoch
            self._shared.write(_EPOCHS.pack(version, last, epoch + 1))

    def _next_epoch(self, base: int | None) -> int:
        """The number of the iteration that begins. `base`: the seed that the workers of one iterator have in common.

        New worker processes know nothing of those before them, so the bytes that all share hold which iterator's
        workers began last, and with which epoch. Persistent ones count for themselves.
        """
        with self._shared.alone():
            version, last, following = _EPOCHS.unpack(self._shared.read(_EPOCHS.size))
            if self._known is not None and self._known[0] == version:
                epoch = self._known[1] + 1
            else:
                epoch = following if base is None or base != last else following - 1
            self._known = version, epoch
            self._shared.write(_EPOCHS.pack(version, _NOBODY if base is None else base, max(following, epoch + 1)))
        return epoch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None}

    def __repr__(self) -> str:
        return f"DloadIterableDataset({self.pipe!r}, rank {self.rank} of {self.world_size})"


class _Rows:
    """One worker's rows of an epoch.

    `state_dict` and `load_state_dict` are for torchdata's StatefulDataLoader, which looks for them in its workers: a
    state goes on in the same worker of as many.
    """

    def __init__(self, dataset: DloadIterableDataset, ahead: int, epoch: int, worker: int, workers: int) -> None:
        self._dataset, self._ahead, self._worker, self._workers = dataset, ahead, worker, workers
        place = {
            "B": dataset.global_batch,
            "rank": dataset.rank,
            "world_size": dataset.world_size,
            "seed": dataset._seed,
        }
        self._state = make_state(
            dataset.pipe.node, {**place, "worker": worker, "num_workers": workers}, epoch, 0, None
        )  # fmt: skip
        self._cursor: Cursor | None = None
        self._ended = False

    def _begun(self) -> Cursor:
        if self._cursor is None:
            dataset = self._dataset
            self._window = ShardWindow(self._ahead)
            self._run = dataset._run(self._window)
            self._cursor = dataset._cursor(self._run, self._state["epoch"], self._worker, self._workers)
            self._cursor.reset(self._state["lanes"])
        return self._cursor

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        self._ended = True  # after an error, too
        for row in self._begun():
            if row is not HOLE:
                self._ended = False
                return row
        self.close()
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        return self._state if self._cursor is None else {**self._state, "lanes": self._cursor.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError, naming both values, where the state is of another pipeline, rank, worker or seed."""
        state = check_state(state, self._dataset.pipe.node, self._dataset.pipe.explain)
        for key, value in self._state["plan"].items():
            if state["plan"].get(key) != value:
                raise ValueError(f"the state has {key}={state['plan'].get(key)!r}, and this is {key}={value!r}")
        self.close()
        self._state, self._cursor, self._ended = state, None, False
        self._dataset._goes_on_in(state["epoch"])

    def close(self) -> None:
        """Let go of threads, pins and files."""
        if self._cursor is not None:
            self._window.close()
            self._run.workers.close()
            self._cursor.close()

    def __del__(self) -> None:
        if hasattr(self, "_cursor"):
            self.close()
