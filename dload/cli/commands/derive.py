"""dload derive"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dload.cli.facts import manifest_facts, summary
from dload.cli.session import TARGET, Session, Target, fail, plain_name, verb
from dload.cli.writing import Source, commit_options
from dload.errors import ConfigError, DloadError

if TYPE_CHECKING:
    from dload.api import Pipeline


_EXAMPLE = """\b
Where features.py has

\b
  def spectra(repo):
      return repo.dataset("recordings").samples().map(spectrum)

\b
the command is: dload derive features:spectra spectra"""


@verb("derive", epilog=_EXAMPLE)
@click.argument("function", metavar="MODULE:FUNCTION")
@click.argument("target", type=TARGET, metavar="NAME")
@click.option("--tag", metavar="TEXT", help="Mixed into the fingerprint: another tag runs it again.")
@click.option("--view", is_flag=True, help="Store the numbers of the samples that stay, no bytes: for filters.")
@click.option("--engine", metavar="NAME", help="What computes it in place of this machine: ray.")
@click.option("--recipe", type=click.Path(path_type=Path), metavar="FILE", help="A script whose text is stored.")
@click.option("--meta", multiple=True, metavar="K=V", help="A fact to store with it; may be given more than once.")
@click.option("--shard-size", metavar="SIZE", help="About how large shards are (default: as before, or 128MiB).")
@click.option("-m", "--message", metavar="TEXT", help="What this version is, for the log.")
@click.option("--workers", type=click.IntRange(1, 256), default=min(4, os.cpu_count() or 1), show_default=True,
              metavar="N", help="How many processes compute, and threads pack and send.")  # fmt: skip
def command(
    session: Session, function: str, target: Target, tag: str | None, view: bool, engine: str | None, **given: Any
) -> None:
    """Run a pipeline once, and make its output the latest version of data set NAME.

    FUNCTION is called with the repository and gives the pipeline, of samples. MODULE is found in this folder, too. Who
    has run the same pipeline on the same versions before, on whatever machine, has done it for all. What is cut off
    goes on with the same command.
    """
    name = plain_name(target, "derive")
    settings = Source(
        roots=(), include=(), exclude=(), dry_run=False, allow_changed=False, force=False, expect=None,
        unsafe_single_writer=False, **given,
    )  # fmt: skip
    options = commit_options(settings)
    pipe = _pipeline(session, function)
    with session.out.live(f"derive {name}") as tell, _told(function):
        made = session.repo.derive(
            name, pipe, tag=tag, view=view, engine=engine, meta=options.meta, recipe=options.recipe,
            message=options.message, target_shard_size=options.target, workers=options.workers, progress=tell,
        )  # fmt: skip
    if session.out.as_json:
        session.out.facts(manifest_facts(made.manifest), lambda: "")
    session.out.say(f"{summary(made.manifest)}: the output of {function}")
    session.out.next(f"dload info {name}@{made.version[:12]}")


def _pipeline(session: Session, function: str) -> Pipeline:
    module, mark, attribute = function.partition(":")
    if not (module and mark and attribute):
        fail(f"{function!r} is not MODULE:FUNCTION, as in recipes.tokens:pipeline")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        remedy = "run it where the module lies"
        if module.endswith(".py"):
            remedy = f"name the module, not the file: {module.removesuffix('.py')}:{attribute}"
        raise ConfigError(f"there is no module {error.name!r} for {function}", remedy=remedy) from error
    make = getattr(found, attribute, None)
    if not callable(make):
        remedy = "write one that takes the repository and gives a pipeline, as dload derive --help shows"
        raise ConfigError(f"module {module} has no function {attribute!r}", remedy=remedy)
    with _told(function):
        pipe: Pipeline = make(session.repo)
    return pipe


@contextmanager
def _told(function: str) -> Iterator[None]:
    """Errors of the user's own functions, as such."""
    try:
        yield
    except (DloadError, OSError):
        raise
    except Exception as error:
        traceback.print_exception(error)
        remedy = "mend it; what was packed stays, and the same command goes on"
        raise DloadError(f"{function} failed: {error}", remedy=remedy) from error
