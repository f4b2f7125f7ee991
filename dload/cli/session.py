"""What all verbs share: their common options, what these select, and the names they take."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

from dload.cli.output import Output
from dload.config.schema import SETTINGS
from dload.errors import ConfigError

if TYPE_CHECKING:
    from dload.api import Repository
    from dload.cache import ShardCache
    from dload.config import Config


class Session:
    """One run of one verb: where it reads and writes, and how it speaks. Opens nothing before it is asked for."""

    def __init__(self, out: Output, flags: dict[str, str | None]) -> None:
        self.out = out
        self.flags = flags

    @cached_property
    def config(self) -> Config:
        """The settings, flags first."""
        from dload.config import Config

        return Config.load(overrides=self.flags)

    @cached_property
    def cache(self) -> ShardCache:
        """The local cache alone, whatever is the matter with the store."""
        return self.config.shard_cache()

    @cached_property
    def repo(self) -> Repository:
        """The repository that the settings name."""
        from dload.api import Repository

        return Repository.open(self.config)

    def confirm(self, question: str, yes: bool) -> None:
        """Go on only if `yes` was given or someone at a terminal says so."""
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise ConfigError(f"{question} There is no terminal to ask at", remedy="if so, add --yes")
        if not click.confirm(question, err=True):
            raise ConfigError("nothing was changed")


# ---- options that every verb has
def common_options(*, hidden: bool) -> list[click.Option]:
    """The options of the whole command line. `hidden`: those for settings don't show in a verb's own help."""
    settings = [
        click.Option([setting.flag], help=setting.help, metavar=_METAVARS[name], hidden=hidden)
        for name, setting in SETTINGS.items()
    ]
    return [
        *settings,
        click.Option(["--json", "as_json"], is_flag=True, help="Print facts as JSON."),
        click.Option(["-q", "--quiet"], is_flag=True, help="No messages but errors."),
        click.Option(["-v", "--verbose"], count=True, help="More messages; -vv for debugging."),
    ]


_METAVARS = {
    "store": "URL", "bucket": "NAME", "prefix": "TEXT", "endpoint_url": "URL", "cache_dir": "DIR",
    "cache_budget": "SIZE", "cache_jobs": "N", "cache_rate": "SIZE",
}  # fmt: skip


class Verb(click.Command):
    """A command with the common options, which are worth the same before and after its name."""

    def __init__(self, *args: Any, settings: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += common_options(hidden=not settings)
        if not settings:
            note = "Where the store and the cache are: options of dload itself, as --store; see dload --help."
            self.epilog = f"{self.epilog}\n\n{note}" if self.epilog else note

    def invoke(self, ctx: click.Context) -> Any:
        ctx.obj = open_session(ctx)
        return super().invoke(ctx)


def verb(name: str, *, settings: bool = False, **attributes: Any) -> Callable[[Callable[..., Any]], Verb]:
    """Make a function a verb. It gets the session and its options; what it returns is the exit code (None: 0)."""
    attributes.setdefault("context_settings", {"help_option_names": ["-h", "--help"], "max_content_width": 100})

    def decorate(function: Callable[..., Any]) -> Verb:
        made: Verb = click.command(name, cls=Verb, settings=settings, **attributes)(click.pass_obj(function))
        return made

    return decorate


def open_session(ctx: click.Context) -> Session:
    """The session of this verb, its own common options before those of dload itself."""
    levels: list[dict[str, Any]] = []
    level: click.Context | None = ctx
    while level is not None:
        names = [*SETTINGS, "as_json", "quiet", "verbose"]
        own = level.params if level is not ctx else {name: ctx.params.pop(name) for name in names}
        levels.append({name: own.get(name) for name in names})
        level = level.parent
    merged = {name: next((one[name] for one in levels if one[name]), None) for name in levels[0]}
    verbosity = merged.pop("verbose") or 0
    out = Output(as_json=bool(merged.pop("as_json")), quiet=bool(merged.pop("quiet")), verbosity=verbosity)
    _show_logs(out)
    ctx.meta["dload.output"] = out  # shared with the root, which shows errors
    return Session(out, merged)


class _Logs(logging.Handler):
    """What the library logs, said on stderr without disturbing a progress bar."""

    def __init__(self, out: Output) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        say = self._out.warn if record.levelno >= logging.WARNING else self._out.detail
        say(record.getMessage())


def _show_logs(out: Output) -> None:
    levels = [logging.ERROR if out.quiet else logging.WARNING, logging.INFO, logging.DEBUG]
    logger = logging.getLogger("dload")
    logger.handlers = [_Logs(out)]
    logger.propagate = False
    logger.setLevel(levels[min(out.verbosity, 2)])


# ---- NAME@VERSION
class Target(NamedTuple):
    """A data set, and a version of it where one was named."""

    name: str
    version: str | None

    def with_version(self, option: str | None) -> Target:
        """With what --version says."""
        if option and self.version and option != self.version:
            fail(f"two versions: {self.name}@{self.version} and --version {option}")
        return Target(self.name, self.version or option)


class _TargetType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    name = "target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        if isinstance(value, Target):
            return value
        name, mark, version = str(value).partition("@")
        if not name or (mark and not version):
            self.fail(f"{value!r} is not NAME or NAME@VERSION", param, ctx)
        return Target(name, version or None)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names of data sets. Only a folder is listed for it: a key press must not wait for a network."""
        try:
            session = Session(Output(quiet=True), {name: ctx.params.get(name) for name in SETTINGS})
            names = set(session.repo.pins())
            if session.repo.store.staging is not None:
                names |= set(session.repo.list_datasets())
        except Exception:  # a broken setting must not break the shell's line
            return []
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


TARGET = _TargetType()

version_option = click.option("--version", metavar="PREFIX", help="The same as NAME@PREFIX.")
target_argument = click.argument("target", type=TARGET, metavar="NAME[@VERSION]")


def plain_name(target: Target, usage: str) -> str:
    """The name, where no version makes sense."""
    if target.version:
        fail(f"{usage} takes a name alone, not a version")
    return target.name


def fail(message: str) -> NoReturn:
    """End with a usage error."""
    raise click.UsageError(message, click.get_current_context(silent=True))
