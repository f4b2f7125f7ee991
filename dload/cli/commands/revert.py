"""dload revert"""

from __future__ import annotations

from dataclasses import asdict

import click

from dload.cli.output import short
from dload.cli.session import TARGET, Session, Target, fail, verb


@verb("revert")
@click.argument("target", type=TARGET, metavar="NAME")
@click.argument("version", required=False)
@click.option("-m", "--message", metavar="TEXT", help="Why, for the log.")
def command(session: Session, target: Target, version: str | None, message: str | None) -> None:
    """Make an old version the latest again. History stays; this is a new entry in it."""
    name, wanted = target.with_version(version)
    if wanted is None:
        fail(f"which version? See: dload log {name}")
    record = session.repo.revert(name, wanted, message=message)
    if session.out.as_json:
        session.out.facts(asdict(record), lambda: "")
    session.out.say(f"latest of {name} is {short(record.version)} again")
    if record.parent:
        session.out.next(f"dload diff {name} {short(record.parent)} latest")
