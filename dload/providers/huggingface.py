"""Splits that Hugging Face `datasets` holds: on the hub, in its cache, in local files, or saved to disk."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from dload.errors import ConfigError, NotFoundError, UnavailableError
from dload.pipeline.provided import OpenStream, Origin
from dload.providers.options import HFOptions
from dload.providers.table import Table


def open_split(name: str, split: str, options: HFOptions, streaming: bool) -> Table | HFStream:
    """The split as a table, or as a stream."""
    origin: Origin = {
        "provider": "hf", "name": name, "config": options.config, "revision": options.revision, "split": split,
    }  # fmt: skip
    if streaming:
        return HFStream(origin, options)
    return Table(origin, _opened(origin, options, streaming=False))


class HFStream:
    """A `datasets.IterableDataset`. Opened when it is first needed, in each process anew."""

    def __init__(self, origin: Origin, options: HFOptions) -> None:
        self.origin, self._options = origin, options

    @cached_property
    def _pickled(self) -> bytes | None:
        """The data set, once opened; None where `prepare` made it of what doesn't pickle."""
        try:
            return pickle.dumps(_opened(self.origin, self._options, streaming=True))
        except (pickle.PicklingError, AttributeError, TypeError):
            return None

    def _fresh(self) -> Any:
        """The data set, another object each time: it has the position of its iterator inside."""
        if self._pickled is None:
            return _opened(self.origin, self._options, streaming=True)
        return pickle.loads(self._pickled)

    @property
    def records(self) -> int | None:
        """How many there are, where the data set's own description says so and nothing was done to it."""
        found = (self._fresh().info.splits or {}).get(self.origin["split"])
        return found.num_examples or None if found is not None and self._options.prepare is None else None

    def open(self, epoch: int, part: int, parts: int) -> OpenStream | None:
        dataset = self._fresh()
        if parts > 1:
            if getattr(dataset, "num_shards", 1) % parts:
                return None  # `datasets` would leave out rows, as we do ourselves
            from datasets.distributed import split_dataset_by_node

            dataset = split_dataset_by_node(dataset, part, parts)
        if _is_buffered(dataset._ex_iterable):
            dataset.set_epoch(epoch)  # of one in order it would permute the files
        return _Pass(dataset)

    def __getstate__(self) -> dict[str, Any]:
        return {"origin": self.origin, "_options": self._options}


class _Pass:
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._items: Iterator[Any] = iter(dataset)
        self._begun = False

    def __next__(self) -> Any:
        if self._begun:
            return next(self._items)
        self._begun = True
        with _as_one_process():
            return next(self._items)

    def get_state(self) -> Any:
        if not hasattr(self._dataset, "state_dict"):
            raise TypeError("this version of `datasets` can't say where a stream stands")
        if _is_buffered(self._dataset._ex_iterable):
            raise TypeError("it is shuffled by `datasets`, whose position leaves out what its buffer holds")
        return self._dataset.state_dict()

    def set_state(self, state: Any) -> None:
        self._dataset.load_state_dict(state)

    def close(self) -> None:
        self._items = iter(())


@contextmanager
def _as_one_process() -> Iterator[None]:
    """In a worker of torch's DataLoader `datasets` leaves rows to other workers by itself, as it finds out when it
    begins to iterate; but lanes share them already."""
    data: Any = sys.modules.get("torch.utils.data")
    if data is None or data.get_worker_info() is None:
        yield
        return
    known = data.get_worker_info
    data.get_worker_info = lambda: None
    try:
        yield
    finally:
        data.get_worker_info = known


def _is_buffered(node: Any) -> bool:
    """Whether there is a shuffle buffer in a stream's chain of steps, for which `datasets` has no public question."""
    if type(node).__name__ == "BufferShuffledExamplesIterable":
        return True
    below = [getattr(node, "ex_iterable", None), *(getattr(node, "ex_iterables", None) or [])]
    return any(_is_buffered(step) for step in below if step is not None)


def _opened(origin: Origin, options: HFOptions, streaming: bool) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            f"hf/{origin['name']} needs the package datasets", remedy="pip install 'dload-ml[hf]'"
        ) from error
    try:
        dataset = _named(datasets, origin, options, streaming)
    except FileNotFoundError as error:
        raise NotFoundError(f"hf/{origin['name']}: {error}") from error
    except ConnectionError as error:
        raise UnavailableError(
            f"hf/{origin['name']}: {error}",
            remedy="it is neither a folder here nor in the cache of `datasets`, and the hub can't be reached: check "
            "the name and the network",
        ) from error
    except ValueError as error:
        raise ConfigError(f"hf/{origin['name']}, split {origin['split']}: {error}") from error
    if options.prepare is not None:
        dataset = options.prepare(dataset)
    wanted = datasets.IterableDataset if streaming else datasets.Dataset
    if not isinstance(dataset, wanted):
        raise ConfigError(
            f"hf/{origin['name']}: expected a datasets.{wanted.__name__}, got {type(dataset).__name__}",
            remedy="let prepare return the data set that it was given, changed",
        )
    return dataset


def _named(datasets: Any, origin: Origin, options: HFOptions, streaming: bool) -> Any:
    name, split = origin["name"] or "", origin["split"]
    saved = Path(name)
    if (saved / "dataset_dict.json").is_file() or (saved / "state.json").is_file():
        found = datasets.load_from_disk(name)
        if isinstance(found, datasets.DatasetDict):
            if split not in found:
                raise ValueError(f"it has the splits {', '.join(sorted(found))}")
            found = found[split]
        elif split not in (None, str(found.split or "train")):
            raise ValueError(f"it was saved as the split {found.split or 'train'} alone")
        return found.to_iterable_dataset() if streaming else found
    return datasets.load_dataset(
        name, options.config, revision=options.revision, data_dir=options.data_dir, data_files=options.data_files,
        split=split, streaming=streaming,
    )  # fmt: skip
