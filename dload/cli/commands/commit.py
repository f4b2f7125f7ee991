"""dload commit"""

from __future__ import annotations

import click

from dload.cli.session import TARGET, Session, Target, plain_name, verb
from dload.cli.writing import RULE, Source, write, write_options


@verb("commit", epilog=RULE)
@click.argument("target", type=TARGET, metavar="NAME")
@write_options
def command(session: Session, target: Target, source: Source) -> None:
    """Make the files of a folder the latest version of data set NAME: the whole of it.

    Sends only what the store lacks, and reads only files that changed since the last commit. What is cut off leaves
    nothing visible; the same command goes on.
    """
    from dload.repo.commit import commit

    write(session, commit, plain_name(target, "commit"), source)
