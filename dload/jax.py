"""Pipelines for JAX: this process's share of each global batch, as NumPy arrays. Needs NumPy (the extra `jax`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dload import codecs
from dload.api import loader
from dload.api.pipeline import Pipeline
from dload.errors import ConfigError

if TYPE_CHECKING:
    import numpy

_NPY = b"\x93NUMPY"  # what a .npy file begins with
_REMEDY = "bring them to one shape in the pipeline (map), or give collate=, a function of the list of rows"


@dataclass(frozen=True, slots=True)
class DataPartition:
    """Which part of each global batch is this process's: process `index` of `count`, of which each `replicas` in a row
    get the same rows, since they hold parts of one copy of the model."""

    index: int
    count: int
    replicas: int = 1


def stacked(rows: list[Any]) -> Any:
    """Rows of one structure as one, with arrays in place of the values: the default `collate`.

    Dicts, tuples and lists are kept, so that samples become `([key, ...], {field: array})`. Numbers and arrays are
    stacked; of bytes, those of .npy files are stacked as the arrays they hold, any others of one length as rows of
    uint8; texts become lists. Arrays are copies, in this machine's byte order. Raises ConfigError, naming the place,
    where values don't go together.
    """
    if not rows:
        raise ConfigError("a batch has no rows: all of them are holes", remedy="leave rows out by filter() alone")
    return _stacked(rows, "a row")


def _stacked(values: list[Any], place: str) -> Any:
    first = values[0]
    if isinstance(first, str | bytes):
        _expect_one([type(value).__name__ for value in values], f"the type of {place}")
    if isinstance(first, str):
        return list(values)
    if isinstance(first, dict):
        _expect_one([sorted(map(repr, value)) if isinstance(value, dict) else value for value in values], place)
        return {name: _stacked([value[name] for value in values], f"{place}[{name!r}]") for name in first}
    if isinstance(first, tuple | list):
        _expect_one([len(value) if isinstance(value, tuple | list) else value for value in values], place)
        parts = [_stacked(list(part), f"{place}[{at}]") for at, part in enumerate(zip(*values, strict=True))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return _array(values, place)


def _array(values: list[Any], place: str) -> numpy.ndarray[Any, Any]:
    import numpy as np

    if isinstance(values[0], bytes):
        values = _decoded(values, place)
    arrays = [np.asarray(value) for value in values]
    for value, array in zip(values, arrays, strict=True):
        if array.dtype == object:
            raise ConfigError(f"{place} is {value!r}, which is no array of numbers", remedy=_REMEDY)
    _expect_one([array.shape for array in arrays], f"the shape of {place}")
    return np.stack(arrays)


def _decoded(values: list[bytes], place: str) -> list[numpy.ndarray[Any, Any]]:
    """Views of the arrays of .npy files, else of the bytes themselves."""
    import numpy as np

    first = values[0]
    if not first.startswith(_NPY):
        return [np.ndarray(len(value), np.uint8, value) for value in values]
    like = codecs.npy_from(first)
    header = len(first) - like.nbytes
    _expect_one([(len(value), value[:header]) for value in values], f"the .npy header of {place}")
    order: Any = "F" if like.flags.fnc else "C"
    return [np.ndarray(like.shape, like.dtype, value, header, order=order) for value in values]


def _expect_one(found: list[Any], what: str) -> None:
    """That all are equal."""
    other = next((value for value in found if value != found[0]), None)
    if other is not None:
        raise ConfigError(f"{what} differs within a batch: {found[0]!r} and {other!r}", remedy=_REMEDY)


class Loader(loader.Loader):
    """A `dload.Loader` of `pipe` whose items are NumPy arrays of this process's share of the global batch (see
    `stacked`), as `jax.make_array_from_process_local_data(sharding, item, (global_batch, ...))` takes them.

    `partition`: None takes `jax.process_index()` and `jax.process_count()`. The shares are in the order of processes,
    so the global array is the global batch row for row where the mesh has its devices in that order, too.
    `collate=None` gives lists of rows. `options`, and everything else, are as in `dload.Loader`: `homes` should be the
    number of machines, so that each keeps a part of the data of its own. Rows left out in their places (holes) make a
    batch shorter, which JAX would compile for anew: prefer filter() with `ends="agree"` or `steps=`.
    """

    def __init__(
        self,
        pipe: Pipeline,
        global_batch: int,
        partition: DataPartition | None = None,
        *,
        collate: Callable[[list[Any]], Any] | None = stacked,
        **options: Any,
    ) -> None:
        if partition is None:
            import jax

            partition = DataPartition(jax.process_index(), jax.process_count())
        super().__init__(
            pipe, global_batch, rank=partition.index, world_size=partition.count, replicas=partition.replicas,
            collate=collate, **options,
        )  # fmt: skip
