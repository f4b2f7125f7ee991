"""dload tag"""

from __future__ import annotations

import click

from dload.cli.output import short, table
from dload.cli.session import Session, Target, target_argument, verb, version_option


@verb("tag")
@target_argument
@click.argument("tag", required=False)
@version_option
def command(session: Session, target: Target, tag: str | None, version: str | None) -> None:
    """Give a version a name that never moves, as v1.0 or paper. Without TAG: list the names there are.

    Without a version: the one that dload.lock pins, else the latest. A tagged version can't be removed.
    """
    name, wanted = target.with_version(version)
    if tag is None:
        tags = session.repo.tags(name)
        if tags or session.out.as_json:
            session.out.facts(tags, lambda: table(("TAG", "VERSION"), [(t, short(v)) for t, v in tags.items()]))
        else:
            session.out.say(f"{name} has no tags")
            session.out.next(f"dload tag {name} TAG")
        return
    resolved = session.repo.tag(name, tag, wanted)
    if session.out.as_json:
        session.out.facts({"name": name, "tag": tag, "version": resolved}, lambda: "")
    session.out.say(f"tagged {name}@{short(resolved)} as {tag}")
    session.out.next(f"dload pull {name}@{tag}")
