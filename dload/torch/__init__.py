"""Pipelines for PyTorch. Needs the extra `torch`.

`StreamLoader` is a loader with worker processes: steps of a global batch, the same on any number of ranks and workers,
that resume exactly. `collate` is how it makes a batch of rows. `as_iterable_dataset` gives a pipeline to a
`torch.utils.data.DataLoader` of one's own.
"""

try:
    import torch as _torch  # noqa: F401 (before the modules that need it)
except ModuleNotFoundError as error:
    error.add_note("dload.torch needs PyTorch: pip install 'dload-ml[torch]'")
    raise

from dload.torch.collate import collate
from dload.torch.iterable import DloadIterableDataset, as_iterable_dataset
from dload.torch.stream_loader import StreamLoader

__all__ = ["DloadIterableDataset", "StreamLoader", "as_iterable_dataset", "collate"]
