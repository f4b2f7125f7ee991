"""Joining data sets by key."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import combinations, compress, groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from dload.api.pipeline import Pipeline
from dload.api.views import view_of
from dload.errors import ConfigError, IntegrityError, UnknownKeyError
from dload.pack import Sample
from dload.pipeline.aligned import Aligned
from dload.pipeline.combine import Zip
from dload.pipeline.sources import Samples
from dload.run import KeyIndex

if TYPE_CHECKING:
    from dload.api.dataset import Dataset

_MISSING = ("error", "drop", "keep")


def join(left: Dataset, others: Sequence[Dataset], missing: str) -> Pipeline:
    """See `Dataset.join`."""
    if missing not in _MISSING:
        raise ConfigError(f"unknown missing={missing!r}", remedy=f"it is one of {', '.join(_MISSING)}")
    if not others:
        raise ConfigError("a join needs another data set", remedy="name one: ds.join(other)")
    for one, other in combinations([left, *others], 2):
        if clash := sorted(one.manifest.fields.keys() & other.manifest.fields.keys()):
            raise _clash(clash, f"{one.name} and {other.name}")
    matches = [_matches(left, other) for other in others]
    manifest = left.manifest
    if missing == "error":
        for other, rows in zip(others, matches, strict=True):
            _check_all_there(left, other, rows)
    elif missing == "drop":
        whole = bytes(min(rows) >= 0 for rows in zip(*matches, strict=True))
        if not all(whole):
            manifest = view_of(manifest, whole)
            matches = [array("q", compress(rows, whole)) for rows in matches]
    theirs = (
        Aligned(Samples(other.manifest, other.repo), rows) for other, rows in zip(others, matches, strict=True)
    )  # fmt: skip
    return Pipeline(Zip(Samples(manifest, left.repo), *theirs, fn=joined))


def _check_all_there(left: Dataset, other: Dataset, rows: array[int]) -> None:
    without = rows.count(-1)
    if without:
        key = left[rows.index(-1)][0]
        raise UnknownKeyError(
            f"{without} of {len(rows)} samples of {left.name} have no partner in {other.name}, the first is {key!r}",
            remedy='leave these out with missing="drop", or keep them as they are with missing="keep"', key=key,
        )  # fmt: skip


def joined(left: Sample, *others: Sample | None) -> Sample:
    """One sample of those with the same key."""
    key, fields = left
    for right in others:
        if right is None:
            continue
        other, more = right
        if key != other:
            raise IntegrityError(
                f"two keys have the same 64-bit hash: {key!r} and {other!r}", remedy="rename one of them"
            )
        clash = fields.keys() & more.keys()
        if clash:
            raise _clash(sorted(clash), f"the two samples {key!r}")
        fields = {**fields, **more}
    return key, fields


def _clash(names: list[str], where: str) -> ConfigError:
    return ConfigError(
        f"{where} both have the field{'s' if names[1:] else ''} {', '.join(names)}",
        remedy="leave them out of one of them: derive a data set with select_fields, or rename them in a map",
    )


def _matches(left: Dataset, right: Dataset) -> array[int]:
    """For each sample of `left` the number of that of `right` with the same key, or -1: both indexes are sorted by the
    keys' hashes, so it is one pass over the two."""
    found = array("q", [-1]) * len(left)
    ours, theirs = _groups(left.key_index()), _groups(right.key_index())
    a, b = next(ours, None), next(theirs, None)
    while a is not None and b is not None:
        if a[0] < b[0]:
            a = next(ours, None)
        elif a[0] > b[0]:
            b = next(theirs, None)
        else:
            for ordinal, partner in _pairs(left, right, a[1], b[1]):
                found[ordinal] = partner
            a, b = next(ours, None), next(theirs, None)
    return found


def _groups(index: KeyIndex) -> Iterator[tuple[int, list[int]]]:
    """Each hash, ascending, with the numbers of the samples whose key has it: nearly always one."""
    for hashed, pairs in groupby(zip(*index.columns(), strict=True), key=itemgetter(0)):
        yield hashed, [ordinal for _, ordinal in pairs]


def _pairs(left: Dataset, right: Dataset, ours: list[int], theirs: list[int]) -> list[tuple[int, int]]:
    """Which of them have the same key. One of each is taken to: whoever reads them looks."""
    if len(ours) == len(theirs) == 1:
        return [(ours[0], theirs[0])]
    keys = {right[number][0]: number for number in theirs}
    return [(number, keys[key]) for number in ours if (key := left[number][0]) in keys]
