"""dload append"""

from __future__ import annotations

import click

from dload.cli.session import TARGET, Session, Target, plain_name, verb
from dload.cli.writing import RULE, Source, write, write_options


@verb("append", epilog=RULE)
@click.argument("target", type=TARGET, metavar="NAME")
@write_options
def command(session: Session, target: Target, source: Source) -> None:
    """Put the files of a folder behind the latest version of data set NAME.

    None of their keys may be there already. Meta and recipe stay as they are unless given.
    """
    from dload.repo.commit import append

    write(session, append, plain_name(target, "append"), source)
