"""dload undo"""

from __future__ import annotations

from dload.cli.output import short
from dload.cli.session import Session, Target, target_argument, verb, version_option


@verb("undo")
@target_argument
@version_option
def command(session: Session, target: Target, version: str | None) -> None:
    """Take back the removal of a data set or of a version, as long as gc hasn't deleted it."""
    name, wanted = target.with_version(version)
    restored = session.repo.undelete(name, wanted)
    if session.out.as_json:
        session.out.facts({"name": name, "version": restored}, lambda: "")
    session.out.say(f"{name}@{short(restored)} is back")
    session.out.next(f"dload log {name}")
