"""dload pin"""

from __future__ import annotations

import click

from dload.cli.output import short
from dload.cli.session import TARGET, Session, Target, verb


@verb("pin")
@click.argument("target", type=TARGET, metavar="NAME[@VERSION]")
@click.argument("version", required=False)
def command(session: Session, target: Target, version: str | None) -> None:
    """Write into dload.lock which version of a data set this project uses: by default the latest.

    The file is the nearest dload.lock in this folder or one above it, else it is made here. Keep it under version
    control.
    """
    name, wanted = target.with_version(version)
    resolved = session.repo.pin(name, wanted)
    lock = session.repo.lock_path
    if session.out.as_json:
        session.out.facts({"name": name, "version": resolved, "lock": str(lock)}, lambda: "")
    session.out.say(f"pinned {name}@{short(resolved)} in {lock}")
    session.out.next(f"dload pull {name}")
