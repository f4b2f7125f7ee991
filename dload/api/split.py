"""Splits: parts of a version by chance that hangs on what the samples are, disjoint, and stable as it grows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import accumulate
from math import isfinite
from typing import TYPE_CHECKING, Any

from dload.api.views import derived_from, view_of
from dload.errors import ConfigError
from dload.manifest import Manifest
from dload.randomness import hash64
from dload.repo.history import History

if TYPE_CHECKING:
    from dload.api.dataset import Dataset

_POINTS = 1 << 63
_GOLDEN = 0x9E3779B97F4A7C15 >> 1 | 1  # 2**63 / the golden ratio, odd
_NOWHERE = 255

By = str | Callable[[Any], Any]


def split(dataset: Dataset, shares: Mapping[str, float], seed: int, by: By, stratify: By | None) -> dict[str, Manifest]:
    """See `Dataset.split`: the manifest of the view of each part."""
    names, edges = list(shares), _edges(shares)
    if stratify is None:
        points = _by_key(dataset, seed) if by == "key" else _by_value(_values(dataset, by), seed)
    elif by == "key":
        points = _within_strata(_values(dataset, stratify), seed)
    else:
        raise ConfigError("by and stratify exclude one another", remedy="give one of them")
    sides = bytearray(dataset.manifest.num_samples)
    for ordinal, point in enumerate(points):
        side = bisect_right(edges, point)
        sides[ordinal] = side if side < len(names) else _NOWHERE
    origin = derived_from(History(dataset.repo.store), [dataset.manifest])
    parts = {}
    for number, name in enumerate(names):
        flags = sides.translate(bytes(each == number for each in range(256)))
        parts[name] = view_of(dataset.manifest, flags, {"derived_from": origin, "split": {"part": name, "seed": seed}})
    return parts


def _edges(shares: Mapping[str, float]) -> list[int]:
    """Where each part ends, of 2**63 points."""
    if not 0 < len(shares) < _NOWHERE:
        raise ConfigError(f"a split has 1 to {_NOWHERE - 1} parts, got {len(shares)}")
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not isfinite(share) or share < 0:
            raise ConfigError(f"the share of {name!r} must be a number from 0 to 1, got {share!r}")
    # As people write them: 0.7 + 0.2 + 0.1 is 1, which their floats aren't.
    ends = list(accumulate(Fraction(repr(share)) for share in shares.values()))
    if ends[-1] > 1:
        raise ConfigError(f"the shares of a split add up to {float(ends[-1]):g}, more than 1")
    return [int(end * _POINTS) for end in ends]


def _by_key(dataset: Dataset, seed: int) -> Iterator[int]:
    for _, hashes in dataset.key_index().hashes_by_shard():
        for hashed in hashes:
            yield hash64("split", seed, hashed) % _POINTS


def _by_value(values: Iterable[Any], seed: int) -> Iterator[int]:
    for value in values:
        yield hash64("split", seed, value) % _POINTS


def _within_strata(values: Iterable[Any], seed: int) -> Iterator[int]:
    """The points of a golden-ratio sequence in each stratum, whose shares are exact to within a row or two."""
    seen: dict[Any, int] = {}
    for value in values:
        point = seen.get(value)
        if point is None:
            point = hash64("stratum", seed, value) % _POINTS
        yield point
        seen[value] = (point + _GOLDEN) % _POINTS


def _values(dataset: Dataset, by: By) -> Iterator[Any]:
    """What the samples are told apart by, in their order. Reads them."""
    if callable(by):
        value_of, fields = by, None
    else:
        value_of, fields = _Field(by), [by]
    with dataset.samples(fields=fields).map(value_of).iter(epoch=0) as values:
        for value in values:
            if not isinstance(value, str | bytes | int | tuple | None):
                raise ConfigError(
                    f"a split is by texts, bytes, whole numbers or tuples of them, got {value!r:.100}",
                    remedy="let the function return one of these",
                )
            yield value


class _Field:
    """A sample's value of one field."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, sample: tuple[str, Mapping[str, bytes]]) -> bytes:
        key, fields = sample
        if self.name not in fields:
            raise ConfigError(
                f"sample {key!r} has no field {self.name!r}", remedy="pass a function of the sample as by= or stratify="
            )
        return fields[self.name]
