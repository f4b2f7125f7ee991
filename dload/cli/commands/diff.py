"""dload diff"""

from __future__ import annotations

import click

from dload.cli.output import clean, count, short
from dload.cli.session import TARGET, Session, Target, fail, verb

_DIFFERENT = 4
_SHOWN = 1000


@verb("diff")
@click.argument("target", type=TARGET, metavar="NAME")
@click.argument("old", metavar="A")
@click.argument("new", metavar="B", default="latest")
@click.option("--all", "show_all", is_flag=True, help=f"Print all keys, not only the first {_SHOWN:,}.")
def command(session: Session, target: Target, old: str, new: str, show_all: bool) -> int:
    """Show the samples that differ between versions A and B (default: the latest) of a data set.

    Prints "+ KEY" for what B has and A hasn't, "- KEY" for what only A has, "~ KEY" for what has other contents.
    Exits with 4 where anything differs. Reads only the indexes of the shards that differ.
    """
    if target.version:
        fail("write: dload diff NAME A B")
    name = target.name
    a, b = session.repo.resolve(name, old), session.repo.resolve(name, new)
    diff = session.repo.diff(name, a, b)
    facts = {
        "name": name, "from": a, "to": b, "added": diff.added, "removed": diff.removed, "changed": diff.changed
    }  # fmt: skip
    lines = [
        *(f"+ {clean(key)}" for key in diff.added),
        *(f"- {clean(key)}" for key in diff.removed),
        *(f"~ {clean(key)}" for key in diff.changed),
    ]
    shown = lines if show_all else lines[:_SHOWN]
    if session.out.as_json or shown:
        session.out.facts(facts, lambda: "\n".join(shown))
    counted = f"{len(diff.added):,} added, {len(diff.removed):,} removed, {len(diff.changed):,} changed"
    session.out.say(f"{name}: from {short(a)} to {short(b)}: {counted if lines else 'no sample differs'}")
    if len(shown) < len(lines) and not session.out.as_json:
        session.out.say(f"{count(len(lines) - len(shown), 'key')} not shown; all of them: --all")
    return _DIFFERENT if lines else 0
