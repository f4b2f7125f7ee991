"""dload recipe"""

from __future__ import annotations

from dload.cli.output import short
from dload.cli.session import Session, Target, target_argument, verb, version_option
from dload.errors import NotFoundError


@verb("recipe")
@target_argument
@version_option
def command(session: Session, target: Target, version: str | None) -> None:
    """Print the recipe that was stored with a version, as it was."""
    manifest = session.repo.manifest(*target.with_version(version))
    if manifest.recipe is None:
        raise NotFoundError(
            f"{manifest.name}@{short(manifest.version)} has no recipe",
            remedy=f"give one when you commit: dload commit {manifest.name} --from DIR --recipe FILE",
        )
    if session.out.as_json:
        facts = {"name": manifest.name, "version": manifest.version, "recipe": manifest.recipe}
        session.out.facts(facts, lambda: "")
    else:
        session.out.raw(manifest.recipe.encode())
