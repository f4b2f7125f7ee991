"""dload rm"""

from __future__ import annotations

from dataclasses import asdict

import click

from dload.cli.output import count, short, table
from dload.cli.session import Session, Target, fail, target_argument, verb, version_option
from dload.sizes import parse_duration


@verb("rm")
@target_argument
@version_option
@click.option("--keep-last", type=click.IntRange(min=1), metavar="N", help="Remove all versions but the newest N.")
@click.option("--keep-within", metavar="TIME", help="Remove all versions but those younger than this, as 30d.")
@click.option("--keep-tag", is_flag=True, help="Remove all versions but tagged ones and the latest.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--yes", is_flag=True, help="Don't ask.")
def command(
    session: Session, target: Target, version: str | None, keep_last: int | None, keep_within: str | None,
    keep_tag: bool, dry_run: bool, yes: bool,
) -> None:  # fmt: skip
    """Remove one version, the versions that no rule keeps, or without either the whole data set.

    Removing hides; `dload undo` takes it back until `dload gc` has deleted the bytes, seven days later. Of several
    rules, what any of them keeps stays; the latest version and tagged ones always stay. Without a terminal, --yes is
    needed.
    """
    name, wanted = target.with_version(version)
    if keep_last is not None or keep_within is not None or keep_tag:
        if wanted:
            fail("give a version or a rule, not both")
        _retain(session, name, keep_last, parse_duration(keep_within) if keep_within else None, dry_run, yes)
        return
    resolved = session.repo.resolve(name, wanted) if wanted else None
    if resolved is None:
        what = f"data set {name} with its {count(len(session.repo.versions(name)), 'version')}"
    else:
        what = f"{name}@{short(resolved)}"
    if not dry_run:
        session.confirm(f"Remove {what} from {session.repo.url}?", yes)
        session.repo.delete_dataset(name, resolved)
    if session.out.as_json:
        session.out.facts({"name": name, "version": resolved, "dry_run": dry_run}, lambda: "")
    if dry_run:
        session.out.say(f"would remove {what}")
        return
    back = f"{name}@{short(resolved)}" if resolved else name
    session.out.say(f"removed {what}; take it back with: dload undo {back}")
    session.out.next("dload gc --dry-run")


def _retain(
    session: Session, name: str, keep_last: int | None, keep_within: float | None, dry_run: bool, yes: bool
) -> None:
    plan = session.repo.retain(name, keep_last=keep_last, keep_within=keep_within, dry_run=True)
    going = [one for one in plan if not one.kept]
    rows = [(short(one.version), "stays" if one.kept else "goes", one.reason) for one in plan]
    session.out.facts([asdict(one) for one in plan], lambda: table(("VERSION", "WHAT", "WHY"), rows))
    if not going:
        session.out.say(f"nothing to remove from {name}")
    elif dry_run:
        session.out.say(f"would remove {count(len(going), 'version')} of {len(plan):,}")
    else:
        session.confirm(f"Remove {count(len(going), 'version')} of {name}?", yes)
        session.repo.retain(name, keep_last=keep_last, keep_within=keep_within)
        removed = f"removed {count(len(going), 'version')} of {name}"
        session.out.say(f"{removed}; take one back with: dload undo {name}@{short(going[0].version)}")
        session.out.next("dload gc --dry-run")
