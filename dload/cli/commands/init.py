"""dload init"""

from __future__ import annotations

import os
from pathlib import Path

import click

from dload.cli.commands.config import effective
from dload.cli.output import pairs
from dload.cli.session import Session, verb
from dload.config.edit import write_config_file
from dload.config.sources import PROJECT_FILE, user_file
from dload.errors import ConfigError


@verb("init", settings=True)
@click.option("--user", "where", flag_value="user", default="user", help="Write the user's own file (default).")
@click.option("--project", "where", flag_value="project", help="Write ./dload.toml, for all who work in this folder.")
def command(session: Session, where: str) -> None:
    """Write settings into a file: those that are given as options. What else is in it stays.

    Credentials are never stored: they come from where the AWS tools look.
    """
    given = {name: value for name, value in session.flags.items() if value is not None}
    if not given:
        raise ConfigError("no settings were given", remedy="for example: dload init --store s3://bucket/prefix")
    if where == "project":
        path = Path.cwd() / PROJECT_FILE
    else:
        path = user_file(os.environ)
        given = {name: _absolute(name, value) for name, value in given.items()}
    write_config_file(path, **given)

    session.flags.clear()  # what is in effect from now on, without the options of this one call
    values = effective(session)
    facts = {"file": str(path), "settings": {name: None if v is None else str(v) for name, v in values.items()}}
    rows = [(name, str(value) if value not in (None, "") else "-") for name, value in values.items()]
    session.out.facts(facts, lambda: pairs(rows))
    session.out.say(f"wrote {path}")
    session.out.next("dload doctor")


def _absolute(name: str, value: str) -> str:
    """A relative path was meant from here, not from the folder of the user's file."""
    is_path = name == "cache_dir" or (name == "store" and "://" not in value)
    return str(Path(value).expanduser().absolute()) if is_path and not value.startswith("~") else value
