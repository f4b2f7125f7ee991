"""dload gc"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from dload.cli.output import count, duration, table
from dload.cli.session import Session, verb
from dload.sizes import format_size, parse_duration

if TYPE_CHECKING:
    from dload.repo.gc import GcReport, Item


@verb("gc")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted and what stays, and why.")
@click.option("--grace", metavar="TIME", default="7d", show_default=True, help="Keep what is younger than this.")
@click.option("--yes", is_flag=True, help="Don't ask.")
def command(session: Session, dry_run: bool, grace: str, yes: bool) -> None:
    """Delete the bytes that no version needs any more: removed versions, and what cut-off commits have left.

    This can't be taken back. Without a terminal, --yes is needed.
    """
    seconds = parse_duration(grace)
    repo = session.repo
    if dry_run:
        report = repo.gc(dry_run=True, grace=seconds)
        items = [*report.manifests, *report.shards, *report.kept]
        going = len(items) - len(report.kept)
        rows = [_row(item, "goes" if number < going else "stays") for number, item in enumerate(items)]
        headers = ("WHAT", "SIZE", "KEY", "WHY")
        if rows or session.out.as_json:
            session.out.facts(_facts(report), lambda: table(headers, rows, right=("SIZE",)))
        session.out.say(_summary(report, "would delete"))
        return
    if not yes:
        plan = repo.gc(dry_run=True, grace=seconds)
        if plan.shards or plan.manifests:
            session.confirm(f"{_summary(plan, 'This deletes')}. Go on?", yes)
    with session.out.live("gc") as tell:
        report = repo.gc(grace=seconds, progress=tell)
    if session.out.as_json:
        session.out.facts(_facts(report), lambda: "")
    session.out.say(_summary(report, "deleted"))
    if report.kept:
        young = [item.ready_in for item in report.kept if item.ready_in > 0]
        soonest = f", the first can go in {duration(min(young))}" if young else ""
        session.out.say(f"{count(len(report.kept), 'object')} stayed for now{soonest}: dload gc --dry-run")


def _summary(report: GcReport, verb_: str) -> str:
    freed = format_size(report.freed_bytes)
    return f"{verb_} {count(len(report.shards), 'shard')} ({freed}) and {count(len(report.manifests), 'manifest')}"


def _row(item: Item, what: str) -> tuple[str, str, str, str]:
    ready = f"; can go in {duration(item.ready_in)}" if item.ready_in > 0 else ""
    return what, format_size(item.size), item.key, item.reason + ready


def _facts(report: GcReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "deleted_shards": report.deleted_shards,
        "freed_bytes": report.freed_bytes,
        "manifests": [asdict(item) for item in report.manifests],
        "shards": [asdict(item) for item in report.shards],
        "kept": [asdict(item) for item in report.kept],
    }
