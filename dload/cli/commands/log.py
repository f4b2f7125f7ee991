"""dload log"""

from __future__ import annotations

from dataclasses import asdict

import click

from dload.cli.output import short, table, when
from dload.cli.session import TARGET, Session, Target, plain_name, verb
from dload.sizes import format_size


@verb("log")
@click.argument("target", type=TARGET, metavar="NAME")
@click.option("-n", "--number", type=click.IntRange(min=1), metavar="N", help="Only the newest N.")
def command(session: Session, target: Target, number: int | None) -> None:
    """Show what became the latest version when, and by whom; newest first."""
    name = plain_name(target, "log")
    repo = session.repo
    records = repo.log(name)[:number]
    removed = {removal.version for removal in repo.removed(name)}
    tags: dict[str, list[str]] = {}
    for tag, version in repo.tags(name).items():
        tags.setdefault(version, []).append(tag)

    def text() -> str:
        rows = [
            (
                str(one.seq), short(one.version), one.op, when(one.time), one.author or "?", f"{one.num_samples:,}",
                format_size(one.total_bytes), _notes(tags.get(one.version, []), one.version in removed, one.message),
            )
            for one in records
        ]  # fmt: skip
        headers = ("NO", "VERSION", "WHAT", "WHEN (UTC)", "BY", "SAMPLES", "SIZE", "MESSAGE")
        return table(headers, rows, right=("NO", "SAMPLES", "SIZE"))

    facts = [{**asdict(one), "tags": tags.get(one.version, []), "removed": one.version in removed} for one in records]
    session.out.facts(facts, text)


def _notes(tags: list[str], removed: bool, message: str | None) -> str:
    return " ".join([*(f"[{tag}]" for tag in tags), *(["(removed)"] if removed else []), message or ""]).strip()
