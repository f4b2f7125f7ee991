"""Functions of a list of elements, that give one result for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dload.errors import ConfigError
from dload.pipeline.promises import Lazy, Pool, Promise


class _Error(NamedTuple):
    error: Exception


class Results:
    """What a function of a list gave for each element: a value, or the error of this element alone."""

    def __init__(self, found: Sequence[Any]) -> None:
        self._found = found
        self.size = len(found)
        self.failed = [at for at, value in enumerate(found) if isinstance(value, _Error)]

    def of(self, at: int) -> Any:
        """The result for an element. Raises its error."""
        value = self._found[at]
        if isinstance(value, _Error):
            raise value.error
        return value


def called(fn: Callable[[list[Any]], Any], items: list[Any]) -> Results:
    """`fn(items)`; where that fails, `fn([item])` of each. Raises ConfigError where the number of results isn't that of
    elements."""
    try:
        found = _listed(fn, items)
    except Exception as error:
        if len(items) == 1:
            return Results([_Error(error)])
        return Results([_alone(fn, item) for item in items])
    return Results(_as_many(fn, found, items))


def _alone(fn: Callable[[list[Any]], Any], item: Any) -> Any:
    try:
        found = _listed(fn, [item])
    except Exception as error:
        return _Error(error)
    return _as_many(fn, found, [item])[0]


def _listed(fn: Callable[[list[Any]], Any], items: list[Any]) -> list[Any]:
    try:
        return list(fn(items))
    except StopIteration as error:
        raise RuntimeError(f"{fn!r} raised StopIteration") from error


def _as_many(fn: Callable[[list[Any]], Any], found: list[Any], items: list[Any]) -> list[Any]:
    if len(found) != len(items):
        raise ConfigError(
            f"map_batches expected one result for each of {len(items)} elements of {fn!r}, got {len(found)}",
            remedy="leave elements out by filter(), or make several of one by flat_map()",
        )
    return found


class BatchRow(Promise):
    """The result for one element of a list."""

    __slots__ = ("_at", "_results")

    def __init__(self, results: Promise, at: int) -> None:
        self._results, self._at = results, at

    def result(self, timeout: float | None = None) -> Any:
        return self._results.result().of(self._at)

    def failures(self) -> tuple[int, int]:
        results: Results = self._results.result()
        return len(results.failed) if self._at == results.failed[0] else 0, results.size


def begun(fn: Callable[[list[Any]], Any], items: list[Any], pool: Pool | None) -> list[BatchRow]:
    """The results for these elements, by threads of the pool, or once the first of them is asked for."""
    results = Lazy(called, fn, items) if pool is None else pool.submit(called, fn, items)
    return [BatchRow(results, at) for at in range(len(items))]
