"""dload config"""

from __future__ import annotations

import click

from dload.cli.output import table
from dload.cli.session import Session, verb
from dload.config.schema import SETTINGS


@verb("config")
@click.argument("what", type=click.Choice(["show"]), default="show")
def command(session: Session, what: str) -> None:  # noqa: ARG001 (there is one thing to show)
    """Show each setting and where it came from."""
    config = session.config
    facts = {
        name: {"value": None if value is None else str(value), "from": config.origins[name]}
        for name, value in effective(session).items()
    }
    rows = [(name, fact["value"] or "-", fact["from"] or "", SETTINGS[name].variable) for name, fact in facts.items()]
    session.out.facts(facts, lambda: table(("SETTING", "VALUE", "FROM", "ENVIRONMENT VARIABLE"), rows))


def effective(session: Session) -> dict[str, object]:
    """Each setting as it was written or follows; the budget as it was written."""
    config = session.config
    return {name: getattr(config, name) for name in SETTINGS if name != "cache_budget"} | {
        "cache_budget": config.cache_budget_raw
    }
