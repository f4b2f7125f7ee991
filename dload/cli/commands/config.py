"""dload config"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dload.cli.output import table
from dload.cli.session import Session, verb
from dload.config.schema import SETTINGS
from dload.errors import ConfigError

if TYPE_CHECKING:
    from dload.config import Config


@verb("config")
@click.argument("what", nargs=-1, metavar="[show]")
def command(session: Session, what: tuple[str, ...]) -> None:
    """Show each setting and where it came from. To change one: dload init."""
    if what not in ((), ("show",)):
        asked = " ".join(what)
        raise ConfigError(f"config can only show settings, got {asked!r}", remedy="to change one: dload init --help")
    config = session.config
    facts = {
        name: {"value": None if value is None else str(value), "from": config.origins[name]}
        for name, value in effective(session).items()
    }
    rows = [(name, fact["value"] or "-", fact["from"] or "", SETTINGS[name].variable) for name, fact in facts.items()]
    session.out.facts(facts, lambda: table(("SETTING", "VALUE", "FROM", "ENVIRONMENT VARIABLE"), rows))


def by_default(config: Config) -> bool:
    """Whether nothing says where the data sets are."""
    return config.origins["store"] == "default" and not config.bucket


def effective(session: Session) -> dict[str, object]:
    """Each setting as it was written or follows; the budget as it was written."""
    config = session.config
    return {name: getattr(config, name) for name in SETTINGS if name != "cache_budget"} | {
        "cache_budget": config.cache_budget_raw
    }
