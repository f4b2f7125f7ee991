"""Views: some samples of a version, over the shards that it has.

Here they are manifests in memory, whose id is as good as any: everything reads by them. Making one a version of its own
is `dload.repo.commit.commit_view`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dload.api.pipeline import Pipeline
from dload.errors import ConfigError
from dload.manifest import Manifest, chosen, new_manifest
from dload.pipeline.elementwise import Enumerate, FilterHoles, Prefetch, Tap
from dload.pipeline.group import Filter
from dload.pipeline.node import Node
from dload.pipeline.reorder import Skip, Take
from dload.pipeline.sources import Samples
from dload.repo import derived, keys
from dload.repo.commit import CommitOptions, commit_view
from dload.repo.history import History

if TYPE_CHECKING:
    from dload.api.dataset import Dataset

_CALLING = {Filter: "pred", FilterHoles: "pred", Tap: "fn"}
_AS_THEY_ARE = (Take, Skip, Prefetch)


def view_of(manifest: Manifest, flags: bytes | bytearray, meta: Mapping[str, Any] | None = None) -> Manifest:
    """The view of those samples of a version whose byte of `flags` is 1."""
    shards, rows = chosen(manifest.shards, manifest.rows, flags)
    return new_manifest(manifest.name, shards, {}, manifest.packing, dict(meta or {}), None, rows)[0]


def store_view(
    history: History, name: str, of: Dataset, where: Callable[[Any], Any] | None, options: CommitOptions
) -> Manifest:
    """See `Repository.view`."""
    manifest = of.manifest
    given = derived.own_meta(options.meta)
    if not is_stored(history, manifest):
        given = {**manifest.meta, **given}
    meta = {**given, "derived_from": derived_from(history, [manifest])}
    if where is not None:
        manifest = view_of(manifest, _flags(manifest, of.samples().enumerate().filter(_OfSample(where))))
    return commit_view(history, name, manifest, replace(options, meta=meta, op="derive")).manifest


def selection(pipe: Pipeline) -> Manifest:
    """The view of what a pipeline gives that only leaves out samples of one version. Runs it.

    Raises ConfigError, naming the node, for any other pipeline: a view has samples of one version as they are, each
    once, in their order.
    """
    source, top = _numbered(pipe.node)
    return view_of(source.manifest, _flags(source.manifest, Pipeline(top)))


def _flags(manifest: Manifest, numbered: Pipeline) -> bytearray:
    flags = bytearray(manifest.num_samples)
    with numbered.iter(epoch=0) as items:
        for number, _ in items:
            flags[number] = 1
    return flags


def _numbered(node: Node) -> tuple[Samples, Node]:
    """The source of a chain, and the chain over `(number, sample)` in place of samples."""
    if isinstance(node, Samples):
        return node, Enumerate(node)
    calling = _CALLING.get(type(node))
    if calling is None and type(node) not in _AS_THEY_ARE:
        raise ConfigError(
            f"a view is some samples of one data set, in their order, and {node.kind} makes something else",
            remedy="use filter, take and skip alone, or derive without view=True",
        )
    source, below = _numbered(node.parents[0])
    above = copy.copy(node)
    above.parents = (below,)
    if calling is not None:
        setattr(above, calling, _OfSample(getattr(node, calling)))
    return source, above


class _OfSample:
    """A function of a sample, called with `(number, sample)`."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn = fn

    def __call__(self, pair: tuple[int, Any]) -> Any:
        return self.fn(pair[1])


# ---- lineage
def derived_from(history: History, manifests: Iterable[Manifest]) -> dict[str, Any]:
    """The entry of meta for what is made of these. One request for each view."""
    pairs = []
    for manifest in manifests:
        if is_stored(history, manifest):
            pairs.append((manifest.name, manifest.version))
        else:
            pairs += derived.sources(manifest)
    return derived.derived_from(pairs)


def is_stored(history: History, manifest: Manifest) -> bool:
    """Whether it is a version of the store, and not a view in memory alone."""
    return manifest.rows is None or history.store.head(keys.manifest_key(manifest.name, manifest.version)) is not None
