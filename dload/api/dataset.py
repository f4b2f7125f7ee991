"""One version of a data set, to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, overload

from dload.api.join import join
from dload.api.pipeline import Pipeline
from dload.api.split import By, split
from dload.manifest import Manifest
from dload.pack import Sample
from dload.pipeline.sources import Samples
from dload.run import KeyIndex, Lookup, key_index
from dload.sizes import format_size

if TYPE_CHECKING:
    from dload.api.repository import Repository


class Dataset:
    """A handle to one version, made by `Repository.dataset`: the `repo` to read it from, and its `manifest`. It
    pickles, and costs nothing until it is read.

    `len(ds)` samples; `ds[i]` (negative too) gives one, `ds[a:b]` a list of them, `ds["key"]` the fields of the one
    with that key: from the cache where their shard is there, else by ranged reads of just these samples, checked by
    their checksums. `ds["key"]` builds an index of all keys at the first need. Raise IndexError and UnknownKeyError.
    The network is used for what isn't cached.
    """

    def __init__(self, repo: Repository, manifest: Manifest) -> None:
        self.repo = repo
        self.manifest = manifest
        self._lookup: Lookup | None = None

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.manifest.name

    @property
    def version(self) -> str:
        """The full version id."""
        return self.manifest.version

    def __len__(self) -> int:
        return self.manifest.num_samples

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples())

    @overload
    def __getitem__(self, which: int) -> Sample: ...
    @overload
    def __getitem__(self, which: slice) -> list[Sample]: ...
    @overload
    def __getitem__(self, which: str) -> dict[str, bytes]: ...
    def __getitem__(self, which: int | slice | str) -> Sample | list[Sample] | dict[str, bytes]:
        """The sample with this number, those of a slice, or the fields of the one with this key."""
        if self._lookup is None:
            self._lookup = Lookup(self.repo.store, self.repo.cache, self.manifest)
        if isinstance(which, str):
            return self._lookup.by_key(which)
        if isinstance(which, slice):
            return self._lookup.rows(which)
        return self._lookup.by_ordinal(which)

    def samples(self, prefetch: int | None = None, fields: Sequence[str] | None = None) -> Pipeline:
        """All samples as a pipeline in storage order, `(key, {field: bytes})`. Touches nothing until it is iterated.

        `prefetch`: how many shards, the current one included, are pinned in the cache at once where the budget allows
        (None: two gigabytes ahead, at least three shards and at most 33); they are fetched ahead on threads. `fields`:
        only these (a sample has those of them that it has).
        """
        return Pipeline(Samples(self.manifest, self.repo, fields, prefetch))

    def fetch(self, *, workers: int = 8, progress: Callable[[str], object] | None = None) -> None:
        """Bring every shard into the cache, `workers` at a time; `progress` is called with lines of text. Raises
        CacheFullError before any byte moves where they can't all fit."""
        self.repo.fetch(self.manifest, workers=workers, progress=progress)

    def key_index(self) -> KeyIndex:
        """Where the sample with each key is: from the cache, else made of the shards' indexes."""
        return key_index(self.repo.store, self.repo.cache, self.manifest)

    # ---- of some samples, and of two data sets
    def split(
        self, shares: Mapping[str, float], *, seed: int = 0, by: By = "key", stratify: By | None = None
    ) -> dict[str, Dataset]:
        """Disjoint parts by chance, as views: {"train": 0.9, "val": 0.1}. What shares below 1 leave over is in none.

        Where a sample goes hangs on `seed` and its key alone, so it stays there whatever comes to the data set or
        leaves it. `by`: the name of a field, or a function of the sample: all with the same value go together.
        `stratify`, likewise: of each value's samples each part has its share to within a row or two, which by the key
        is so on average only; a sample stays where it is while others are put behind it.

        The views are as good as versions, but they are in memory: `repo.view(name, part)` stores one. By the key it
        reads the shards' indexes, once; else all samples. Raises ConfigError.
        """
        parts = split(self, shares, seed, by, stratify)
        return {name: Dataset(self.repo, manifest) for name, manifest in parts.items()}

    def join(self, *others: Dataset, missing: str = "error") -> Pipeline:
        """Each sample with the fields of the samples of `others` that have the same key, in this one's order: a
        pipeline with places. What the others have besides is left out.

        `missing`: where one of them has no such key, "error" raises UnknownKeyError, "drop" leaves the sample out,
        "keep" gives it without that one's fields. Fields that two have are a ConfigError. Reads the key indexes of all.
        Where another has another order, its shards must stay resident for longer: `check()` of the pipeline says how
        many.
        """
        return join(self, others, missing)

    def __getstate__(self) -> dict[str, object]:
        return {"repo": self.repo, "manifest": self.manifest, "_lookup": None}

    def __repr__(self) -> str:
        m = self.manifest
        what = f"{m.num_samples} samples, {len(m.shards)} shards, {format_size(m.total_bytes)}"
        return f"Dataset({m.name}@{m.version[:12]}, {what})"
