"""dload untag"""

from __future__ import annotations

import click

from dload.cli.session import TARGET, Session, Target, plain_name, verb


@verb("untag")
@click.argument("target", type=TARGET, metavar="NAME")
@click.argument("tag")
def command(session: Session, target: Target, tag: str) -> None:
    """Delete a tag. The version that it named stays."""
    name = plain_name(target, "untag")
    session.repo.untag(name, tag)
    session.out.say(f"{name} has no tag {tag} any more; its version stays")
