"""What is printed of versions and records, as JSON values and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dload.cli.output import count, short
from dload.sizes import format_size

if TYPE_CHECKING:
    from dload.manifest import Manifest


def manifest_facts(manifest: Manifest) -> dict[str, Any]:
    """A version for programs, without its list of shards."""
    return {
        "name": manifest.name,
        "version": manifest.version,
        "created": manifest.created,
        "num_samples": manifest.num_samples,
        "num_shards": len(manifest.shards),
        "total_bytes": manifest.total_bytes,
        "fields": {name: {"count": one.count, "bytes": one.bytes} for name, one in manifest.fields.items()},
        "packing": {
            "target": manifest.packing.target,
            "boundaries": manifest.packing.boundaries,
            "codecs": dict(manifest.packing.codecs),
        },
        "meta": dict(manifest.meta),
        "has_recipe": manifest.recipe is not None,
        "format": manifest.format,
        "view": manifest.rows is not None,
    }


def summary(manifest: Manifest) -> str:
    """ "birds@366a1cc5a95a: 11 samples, 1 shard, 254 B" """
    sizes = f"{count(manifest.num_samples, 'sample')}, {count(len(manifest.shards), 'shard')}"
    return f"{manifest.name}@{short(manifest.version)}: {sizes}, {format_size(manifest.total_bytes)}"
