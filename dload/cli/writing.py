"""What `commit`, `append` and `import` share: their options, and the folder they read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dload.cli.facts import manifest_facts, summary
from dload.cli.output import clean, count, pairs
from dload.cli.session import Session
from dload.errors import ConfigError, DloadError
from dload.sizes import format_size, parse_size

if TYPE_CHECKING:
    from dload.importers.folder import Folder
    from dload.manifest import Manifest
    from dload.repo.commit import CommitOptions, Outcome
    from dload.repo.group import LazySample
    from dload.repo.packing import ShardDone

RULE = """\b
Files x.wav and x.json are one sample x with the fields wav and json: a name is
split at its last dot. A file without one has the field data. Subfolders are
part of the key: train/x. Hidden files count, but .git and .DS_Store don't.
Links are followed, empty folders leave no trace. What can't be stored (names
that aren't UTF-8, dangling links, sockets) is refused by name at the start.
Patterns: *.jpg is for any depth, train/*.jpg for one folder, ** for any number
of folders; the name of a folder stands for all that is in it.
"""


@dataclass(frozen=True)
class Source:
    """The options of a write."""

    roots: tuple[Path, ...]
    recipe: Path | None
    meta: tuple[str, ...]
    shard_size: str | None
    message: str | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    workers: int
    dry_run: bool
    expect: str | None
    allow_changed: bool
    force: bool
    unsafe_single_writer: bool


_FOLDER = click.Path(path_type=Path)
_OPTIONS = [
    click.option("--from", "roots", type=_FOLDER, multiple=True, required=True, metavar="DIR",
                 help="The folder of files; may be given more than once."),
    click.option("--recipe", type=_FOLDER, metavar="FILE", help="The script that made the data; its text is stored."),
    click.option("--meta", multiple=True, metavar="K=V", help="A fact to store with it; may be given more than once."),
    click.option("--shard-size", metavar="SIZE", help="About how large shards are (default: as before, or 128MiB)."),
    click.option("-m", "--message", metavar="TEXT", help="What this version is, for the log."),
    click.option("--include", multiple=True, metavar="PATTERN",
                 help="Only the files that match; may be given more than once."),
    click.option("--exclude", multiple=True, metavar="PATTERN",
                 help="Not the files or folders that match; may be given more than once."),
    click.option("--workers", type=click.IntRange(1, 256), default=min(4, os.cpu_count() or 1), show_default=True,
                 metavar="N", help="How many shards are packed and sent side by side."),
    click.option("--dry-run", is_flag=True, help="Only show what would be stored; reads no file and writes nothing."),
    click.option("--expect", metavar="VERSION", help="Fail (13) unless this is the latest version."),
    click.option("--allow-changed", is_flag=True, help="Go on though a file changes while it is read."),
    click.option("--force", is_flag=True, help="Read all files, also those that seem unchanged since last time."),
    click.option("--unsafe-single-writer", is_flag=True,
                 help="Write to a store without conditional writes. Nobody else may write meanwhile."),
]  # fmt: skip


def write_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options of a write, as one `source`."""

    def with_source(session: Session, target: Any, **given: Any) -> Any:
        return function(session, target, Source(**given))

    with_source.__doc__ = function.__doc__
    for option in reversed(_OPTIONS):
        with_source = option(with_source)
    return with_source


Operation = Callable[..., "Outcome"]


def write(session: Session, operation: Operation, name: str, source: Source) -> None:
    """Look at the folder, then commit or append it with a progress bar."""
    from dload.importers.folder import Folder

    options = commit_options(source)
    session.out.detail(f"looking at the files in {', '.join(map(str, source.roots))}")
    folder = Folder(
        *source.roots, include=source.include, exclude=source.exclude,
        allow_changed=source.allow_changed, force=source.force,
    )  # fmt: skip
    refuse_own_folders(session, source.roots, folder)
    if source.dry_run:
        _show_plan(session, name, folder, options)
        return
    outcome = _run(session, operation, name, folder, options)
    show_outcome(session, outcome)


def refuse_own_folders(session: Session, roots: Sequence[Path], samples: Iterable[LazySample]) -> None:
    """The store or the cache among the files would make every version hold those before it."""
    for what, place in (("store", Path(session.config.store_url())), ("cache", session.config.cache_dir)):
        for root in roots:
            if not place.resolve().is_relative_to(root.resolve()) or not place.is_dir():
                continue
            inside = place.resolve().relative_to(root.resolve()).as_posix()
            if inside == "." or any(sample.key.startswith(f"{inside}/") for sample in samples):
                ways = f"leave it out with --exclude /{inside}, or keep the files in a folder of their own"
                raise ConfigError(f"the {what} {place} is in the folder {root} itself", remedy=ways)


def commit_options(source: Source) -> CommitOptions:
    """How to commit, as the options say."""
    from dload.repo.commit import CommitOptions

    target = parse_size(source.shard_size) if source.shard_size else None
    if source.shard_size and target is None:
        raise ConfigError("--shard-size must be a size", remedy="write it as 64MiB")
    return CommitOptions(
        meta=_meta(source.meta), recipe=_recipe(source.recipe), message=source.message, target=target,
        workers=source.workers, expect=source.expect, unsafe_single_writer=source.unsafe_single_writer,
    )  # fmt: skip


def _meta(given: tuple[str, ...]) -> dict[str, str] | None:
    parted = [(text, *text.partition("=")) for text in given]
    for text, key, mark, _ in parted:
        if not key or not mark:
            raise ConfigError(f"--meta {text!r} is not KEY=VALUE", remedy="write it as --meta license=CC0")
    return {key: value for _, key, _, value in parted} or None


def _recipe(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise ConfigError(f"the recipe {path} is not text in UTF-8", remedy="give the script itself") from None


def _run(session: Session, operation: Operation, name: str, folder: Folder, options: CommitOptions) -> Outcome:
    from dataclasses import replace

    with session.out.bar(name, folder.total_bytes) as bar:

        def report(done: ShardDone) -> None:
            bar.advance(sum(total for _, total in done.shard.fields.values()))
            what = "sent" if done.sent else "there already"
            session.out.detail(f"shard {done.number}: {format_size(done.shard.size)}, {what}, {done.shard.digest[:12]}")

        told = replace(options, report=report, tell=session.out.say)
        return session.repo.write(operation, name, folder, told)


def _show_plan(session: Session, name: str, folder: Folder, options: CommitOptions) -> None:
    from dload.errors import NotFoundError
    from dload.manifest import Packing
    from dload.repo.packing import groups

    try:
        packing = session.repo.manifest(name, "latest").packing
    except NotFoundError:
        packing = Packing()
    if options.target is not None:
        packing = Packing(options.target, packing.boundaries, packing.codecs)
    counts: dict[str, int] = {}
    totals: dict[str, int] = {}
    shards = 0
    for group in groups(folder, packing):
        shards += 1
        for item in group.lazy() or ():
            for field, size in item.sizes.items():
                counts[field] = counts.get(field, 0) + 1
                totals[field] = totals.get(field, 0) + size
    facts = {
        "name": name, "num_samples": len(folder), "num_files": folder.num_files, "total_bytes": folder.total_bytes,
        "num_shards": shards, "fields": {field: {"count": counts[field], "bytes": totals[field]} for field in counts},
    }  # fmt: skip
    rows = [
        ("samples", f"{len(folder):,}"),
        ("files", f"{folder.num_files:,}, {format_size(folder.total_bytes)}"),
        ("shards", f"{shards:,} of about {format_size(packing.target)}"),
        *((f"field {clean(field)}", f"{count(counts[field], 'value')}, {format_size(totals[field])}")
          for field in sorted(counts)),
    ]  # fmt: skip
    session.out.facts(facts, lambda: pairs(rows))
    session.out.say("nothing was written: this was a dry run")


def show_outcome(session: Session, outcome: Outcome) -> None:
    """Say what was committed, and the command that is likely to be wanted next."""
    manifest = outcome.manifest
    sent = {"shards_sent": outcome.shards_sent, "bytes_sent": outcome.bytes_sent}
    if session.out.as_json:
        facts = manifest_facts(manifest) | {"changed": outcome.record is not None} | sent
        session.out.facts(facts, lambda: "")
    if outcome.record is None:
        session.out.say(f"nothing to commit: {summary(manifest)} is the latest already")
        return
    what = f"{count(outcome.shards_sent, 'shard')} sent, {format_size(outcome.bytes_sent)}"
    session.out.say(f"committed {summary(manifest)} ({what})")
    parent = outcome.record.parent
    if parent:
        _say_what_is_gone(session, manifest, parent)
    session.out.next(f"dload diff {manifest.name} {parent[:12]} latest" if parent else f"dload pin {manifest.name}")


def _say_what_is_gone(session: Session, manifest: Manifest, parent: str) -> None:
    """A commit is the whole of a version, and who forgets --recipe and --meta leaves them behind."""
    with suppress(DloadError):  # the parent may be removed by now
        before = session.repo.dataset(manifest.name, parent).manifest
        sides = (("recipe", before.recipe, manifest.recipe), ("meta", before.meta, manifest.meta))
        gone = [what for what, had, has in sides if had and not has]
        if gone:
            options = " and ".join(f"--{what}" for what in gone)
            had = f"{manifest.name}@{parent[:12]} had {' and '.join(gone)}"
            session.out.say(f"note: {had}, this version has none: give {options} each time")
