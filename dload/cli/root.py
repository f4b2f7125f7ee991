"""`dload` itself: its help, its own options, and finding a verb."""

from __future__ import annotations

import difflib
import importlib
import keyword
from typing import Any

import click

from dload.cli.session import common_options
from dload.cli.verbs import SECTIONS, VERBS


class Root(click.Group):
    """Loads a verb's module only when it is called, so that help comes at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command: click.Command = importlib.import_module(f"dload.cli.commands.{module}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in VERBS or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        near = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise click.UsageError(f"there is no command {name!r}{hint}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, verbs in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(f"{name:<10}", text) for name, text in verbs.items()])


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"dload {version('dload-ml')}")
    except PackageNotFoundError:
        click.echo("dload (not installed)")
    ctx.exit()


def _group(**_: Any) -> None:
    """Versioned data sets in one bucket (or folder), streamed into training through a local cache.

    Try it without any setup: dload demo
    """


root = Root(
    "dload",
    callback=_group,
    help=_group.__doc__,
    params=[
        *common_options(hidden=False),
        click.Option(
            ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=_show_version,
            help="Print the version of dload.",
        ),
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
    epilog="NAME@VERSION works wherever a version does: a tag, the first digits of an id, or latest. "
    "Facts go to stdout, messages to stderr. Exit codes: 0 done, 1 error, 2 usage, 3 done in part, "
    "4 differences found, 10 not found, 11 lock timeout, 12 permission, 13 conflict, 14 integrity, "
    "15 does not fit, 130 interrupted.",
)  # fmt: skip
