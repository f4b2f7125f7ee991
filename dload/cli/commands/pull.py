"""dload pull"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dload.cli.facts import summary
from dload.cli.output import Bar, count, short
from dload.cli.session import Session, Target, target_argument, verb, version_option
from dload.sizes import format_size

if TYPE_CHECKING:
    from dload.manifest import Manifest
    from dload.pack import Sample

_IN_PART = 3
_SHOWN = 10


@verb("pull")
@target_argument
@version_option
@click.option("--to", type=click.Path(path_type=Path), metavar="DIR", help="Write the files that were committed.")
@click.option("--force", is_flag=True, help="With --to: replace files that have other contents.")
@click.option("--workers", type=click.IntRange(1, 256), default=8, show_default=True,
              metavar="N", help="Downloads side by side.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be downloaded.")
def command(
    session: Session, target: Target, version: str | None, to: Path | None, force: bool, workers: int, dry_run: bool
) -> int:
    """Bring every shard of a version into the cache, or with --to the files back into a folder.

    Without a version: the one that dload.lock pins, else the latest. With --to, files that are there already with the
    same contents are not touched; those with other contents are left as they are (exit code 3) unless --force is given.
    """
    repo = session.repo
    manifest = repo.manifest(*target.with_version(version))
    missing = [shard for shard in manifest.shards if not repo.cache.contains(shard.digest)]
    facts: dict[str, Any] = {
        "name": manifest.name, "version": manifest.version, "num_shards": len(manifest.shards),
        "missing_shards": len(missing), "missing_bytes": sum(shard.size for shard in missing),
    }  # fmt: skip
    if dry_run:
        session.out.facts(facts, lambda: _plan_text(manifest, len(missing), facts["missing_bytes"]))
        return 0
    if to is not None:
        return _restore(session, manifest, to, force)
    _fetch(session, manifest, workers)
    if session.out.as_json:
        session.out.facts(facts, lambda: "")
    downloaded = f"{count(len(missing), 'shard')} downloaded, {format_size(facts['missing_bytes'])}"
    session.out.say(f"{summary(manifest)} is in the cache ({downloaded if missing else 'it was there already'})")
    session.out.next(f"dload head {manifest.name}")
    return 0


def _fetch(session: Session, manifest: Manifest, workers: int) -> None:
    from dload.run import ShardFetched, fetch_shards

    total = sum({shard.digest: shard.size for shard in manifest.shards}.values())
    with session.out.bar(f"pull {manifest.name}", total) as bar:

        def report(done: ShardFetched) -> None:
            bar.advance(done.shard.size)
            what = "downloaded" if done.downloaded else "there already"
            session.out.detail(f"shard {done.number} of {done.total}: {what}, {short(done.shard.digest)}")

        fetch_shards(session.repo.store, session.repo.cache, manifest, workers, report)


def _plan_text(manifest: Manifest, missing: int, size: int) -> str:
    return f"{summary(manifest)}: {count(missing, 'shard')} to download, {format_size(size)}"


def _restore(session: Session, manifest: Manifest, to: Path, force: bool) -> int:
    from dload.importers.restore import write_files

    samples = session.repo.dataset(manifest.name, manifest.version).samples()
    total = sum(stats.bytes for stats in manifest.fields.values()) or None
    with session.out.bar(f"{manifest.name} to {to}", total) as bar:
        done = write_files(_counted(samples, bar), to, replace=force)
    facts = {
        "name": manifest.name, "version": manifest.version, "to": str(to), "written": done.written,
        "unchanged": done.same, "written_bytes": done.written_bytes, "differing": done.differing,
    }  # fmt: skip
    if session.out.as_json:
        session.out.facts(facts, lambda: "")
    written = f"{count(done.written, 'file')} written, {format_size(done.written_bytes)}"
    session.out.say(f"{manifest.name}@{short(manifest.version)} is in {to}: {written}, {done.same:,} there already")
    if not done.differing:
        return 0
    shown = ", ".join(done.differing[:_SHOWN]) + (", ..." if len(done.differing) > _SHOWN else "")
    session.out.warn(f"{count(len(done.differing), 'file')} with other contents left as they are: {shown}")
    session.out.next(f"dload pull {manifest.name}@{short(manifest.version)} --to {to} --force")
    return _IN_PART


def _counted(samples: Iterable[Sample], bar: Bar) -> Iterator[Sample]:
    for key, fields in samples:
        yield key, fields
        bar.advance(sum(map(len, fields.values())))
