"""dload unpin"""

from __future__ import annotations

import click

from dload.cli.session import TARGET, Session, Target, plain_name, verb


@verb("unpin")
@click.argument("target", type=TARGET, metavar="NAME")
def command(session: Session, target: Target) -> None:
    """Take a data set out of dload.lock: from then on this project uses its latest version."""
    name = plain_name(target, "unpin")
    session.repo.unpin(name)
    session.out.say(f"{name} is not pinned any more")
