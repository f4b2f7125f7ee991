"""WebDataset: tar shards whose members with a common name are one sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dload.errors import DuplicateKeyError, SampleError
from dload.importers.columns import Column
from dload.importers.names import Patterns
from dload.importers.source import Files, of_suffix, plain_stream, title
from dload.importers.tar import Member, read_members
from dload.pack import Sample

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")


class WebDataset:
    """The samples of tar shards, in their order: `x/a.left.jpg` and `x/a.json` are sample `x/a` with the fields
    `left.jpg` and `json`.

    Grouped as the webdataset library does: the split is at the first dot of the member's own name, what follows is
    lowercased, members of a sample stand side by side, and names like `__this__` are left out. But what that passes
    over in silence is an error here (SampleError, naming shard and member): a sample that comes back after another
    (interleaved), a member that is there twice, a name without a dot. `exclude`: patterns of members to leave out.
    `shard_keys`: the shard's name goes before each key, for shards that each count from 0.
    """

    kind = "webdataset"
    total = None

    def __init__(self, files: Files, *, exclude: Sequence[str] = (), shard_keys: bool = False) -> None:
        self.files = files
        self.shards = of_suffix(files, SUFFIXES)
        self.columns: dict[str, Column] = {}
        self._exclude = Patterns(exclude)
        self._shard_keys = shard_keys

    def __iter__(self) -> Iterator[Sample]:
        for shard in self.shards:
            with plain_stream(self.files, shard) as stream:
                shown = title(self.files, shard)
                for key, fields in self._grouped(read_members(stream, shown), shown):
                    yield (f"{_stem(shard)}/{key}" if self._shard_keys else key), fields

    def _grouped(self, members: Iterator[Member], shown: str) -> Iterator[Sample]:
        seen: set[str] = set()
        key, fields = "", dict[str, bytes]()
        for name, data in members:
            if self._exclude.match(name) or _is_meta(name):
                continue
            of, field = _split(name, shown)
            if of != key:
                if fields:
                    yield key, fields
                if of in seen:
                    raise DuplicateKeyError(
                        f"{shown}: {name!r} belongs to sample {of!r}, which ended before other members",
                        remedy="members of a sample must stand side by side: make the archive with tar --sort=name",
                        member=name,
                    )
                seen.add(of)
                key, fields = of, {}
            if field in fields:
                raise DuplicateKeyError(
                    f"{shown}: sample {key!r} has {field!r} twice, the second time as {name!r}",
                    remedy="make the archive without the duplicate, or leave one out with --exclude", member=name,
                )  # fmt: skip
            fields[field] = data
        if fields:
            yield key, fields


def _split(name: str, shown: str) -> tuple[str, str]:
    folder, slash, own = name.rpartition("/")
    stem, _, suffix = own.partition(".")
    if not stem or not suffix:
        raise SampleError(
            f"{shown}: {name!r} has no name, dot and suffix, so it is no field of a sample",
            remedy=f"leave it out with --exclude {own!r}, or rename it", member=name,
        )  # fmt: skip
    return folder + slash + stem, suffix.lower()


def _is_meta(name: str) -> bool:
    """`__name__` alone or as the first folder: what tools of webdataset write beside the samples."""
    first = name.partition("/")[0]
    return first.startswith("__") and first.endswith("__") and len(first) > 4


def _stem(shard: str) -> str:
    folder, slash, own = shard.rpartition("/")
    return folder + slash + own.partition(".tar")[0].removesuffix(".tgz")
