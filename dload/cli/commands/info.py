"""dload info"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dload.cli.facts import manifest_facts
from dload.cli.output import count, pairs, short, table, when
from dload.cli.session import Session, Target, target_argument, verb, version_option
from dload.manifest import Manifest
from dload.sizes import format_size

if TYPE_CHECKING:
    from dload.repo.derived import Lineage

_VERSIONS_SHOWN = 10


@verb("info")
@target_argument
@version_option
def command(session: Session, target: Target, version: str | None) -> None:
    """Show what a version holds, and the versions there are.

    Without a version: the one that dload.lock pins, else the latest.
    """
    name, wanted = target.with_version(version)
    repo = session.repo
    manifest = repo.manifest(name, wanted)
    versions = repo.versions(name)
    names: dict[str, list[str]] = {}
    for tag, tagged in repo.tags(name).items():
        names.setdefault(tagged, []).append(tag)
    if (pinned := repo.pins().get(name)) is not None:
        names.setdefault(pinned, []).append("pinned")
    names.setdefault(repo.resolve(name, "latest"), []).insert(0, "latest")
    lineage = repo.lineage(name, manifest.version)
    facts = manifest_facts(manifest) | {
        "names": names.get(manifest.version, []),
        "versions": [
            {"version": one.version, "created": one.created, "num_samples": one.num_samples,
             "total_bytes": one.total_bytes, "names": names.get(one.version, [])}
            for one in versions
        ],
        "derived_from": [{"name": one, "version": version} for one, version in lineage.derived_from],
        "derived_by": [{"name": one, "version": version} for one, version in lineage.derived_by],
    }  # fmt: skip
    session.out.facts(facts, lambda: _text(manifest, versions, names, lineage))


def _text(manifest: Manifest, versions: list[Manifest], names: dict[str, list[str]], lineage: Lineage) -> str:
    packing = manifest.packing
    shards = f"{count(len(manifest.shards), 'shard')} of about {format_size(packing.target)} ({packing.boundaries})"
    rows = [
        ("name", manifest.name),
        ("version", manifest.version),
        ("also called", ", ".join(names.get(manifest.version, [])) or "-"),
        ("created", f"{when(manifest.created)} UTC"),
        ("samples", f"{manifest.num_samples:,}{_of_shards(manifest)}"),
        ("size", f"{format_size(manifest.total_bytes)} in {shards}"),
        *((f"field {name}", f"{count(one.count, 'value')}, {format_size(one.bytes)}" + _codec(manifest, name))
          for name, one in manifest.fields.items()),
        *((f"meta {key}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
          for key, value in manifest.meta.items() if key != "derived_from"),
        *(("derived from", f"{name}@{short(version)}") for name, version in lineage.derived_from),
        *(("derived by", f"{name}@{short(version)}") for name, version in lineage.derived_by),
        ("recipe", f"dload recipe {manifest.name}@{short(manifest.version)}" if manifest.recipe else "none"),
    ]  # fmt: skip
    history = [
        (short(one.version), when(one.created), f"{one.num_samples:,}", format_size(one.total_bytes),
         ", ".join(names.get(one.version, [])))
        for one in versions[:_VERSIONS_SHOWN]
    ]  # fmt: skip
    headers = ("VERSION", "CREATED (UTC)", "SAMPLES", "SIZE", "ALSO CALLED")
    more = len(versions) - _VERSIONS_SHOWN
    rest = f"\nand {more:,} more: dload log {manifest.name}" if more > 0 else ""
    return f"{pairs(rows)}\n\n{table(headers, history, right=('SAMPLES', 'SIZE'))}{rest}"


def _of_shards(manifest: Manifest) -> str:
    return "" if manifest.rows is None else f" (a view: of the {sum(manifest.shards.counts):,} in its shards)"


def _codec(manifest: Manifest, field: str) -> str:
    codec = manifest.packing.codecs.get(field)
    return f" ({codec})" if codec else ""
