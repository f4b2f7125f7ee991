"""The command `dload`: verbs loaded when they are called, errors as messages and exit codes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from dload.cli.output import Output

INTERRUPTED = 130
_LAST_SECONDS = 1.5  # what is under way may take this long to end after Ctrl-C
_leaving = threading.Lock()  # taken by whoever says the last line


def main() -> NoReturn:
    """Run the command line of this process and end it."""
    signal.signal(signal.SIGINT, _on_interrupt)
    code = run(sys.argv[1:])
    if code == INTERRUPTED:
        leave_interrupted()  # without waiting for threads that may be in the middle of a request
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run a command line; returns its exit code. Errors are on stderr by then, with what to do about them."""
    try:
        _prepare_streams()
        code = _run(arguments or ["--help"])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has enough, as in `dload ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _prepare_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack letters that names have
    if not sys.warnoptions:
        import warnings

        warnings.simplefilter("ignore")  # of libraries, to programmers


def _run(arguments: list[str]) -> int:
    from click.exceptions import Abort, Exit

    from dload.cli.output import Output
    from dload.cli.root import root

    if instruction := os.environ.get("_DLOAD_COMPLETE"):  # what the script of `dload completion` sets
        from click.shell_completion import shell_complete

        return shell_complete(root, {}, "dload", "_DLOAD_COMPLETE", instruction)
    # Until a verb has read its options: what can be told from the words alone.
    out = Output(as_json="--json" in arguments)
    try:
        with root.make_context("dload", list(arguments)) as ctx:
            ctx.meta["dload.output"] = out
            try:
                result = root.invoke(ctx)
            finally:
                out = ctx.meta["dload.output"]
        return result if isinstance(result, int) else 0
    except Exit as end:
        return end.exit_code
    except Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        raise
    except Exception as error:
        return _failed(out, error)


def _failed(out: Output, error: Exception) -> int:
    """Say what went wrong; returns the exit code."""
    import click

    from dload.errors import DloadError

    remedy: str | None = None
    details: dict[str, object] = {}
    if isinstance(error, DloadError):
        kind, message, remedy, code, details = error.kind, error.message, error.remedy, error.exit_code, error.details
    elif isinstance(error, click.ClickException):
        ctx = getattr(error, "ctx", None)
        kind, message, code = "usage", " ".join(error.format_message().split()), 2
        remedy = f"see: {ctx.command_path if ctx else 'dload'} --help"
    elif isinstance(error, OSError):  # a file that isn't there, or may not be used
        where = f"{error.filename}: " if error.filename is not None else ""
        kind, message, code = "system", f"{where}{error.strerror or error}", 1
        if isinstance(error, PermissionError):
            code, remedy = 12, "check the owner and mode of it and of its folder with: ls -ld"
        elif isinstance(error, FileNotFoundError):
            remedy = "check the path: a relative one starts from this folder"
        elif isinstance(error, FileExistsError | NotADirectoryError):
            remedy = "name another path: a file is where a folder should be"
    else:
        kind, message, remedy, code = "bug", f"a bug in dload: {error!r}", "please report it with these lines", 1
    if kind == "bug" or (out.verbosity > 1 and kind != "usage"):
        import traceback

        traceback.print_exception(error)
    out.error(message, remedy, {"kind": kind, "message": message, "remedy": remedy, "exit_code": code, **details})
    return code


# ---- Ctrl-C
def _on_interrupt(_signal: int, _frame: FrameType | None) -> None:
    """End what is under way by KeyboardInterrupt; if that takes too long, or on a second Ctrl-C, end at once."""
    signal.signal(signal.SIGINT, lambda *_: leave_interrupted())
    watchdog = threading.Timer(_LAST_SECONDS, leave_interrupted)
    watchdog.daemon = True
    watchdog.start()
    raise KeyboardInterrupt


def leave_interrupted() -> NoReturn:
    """End the process now, with one line. Whatever was under way is safe to be cut off anywhere."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    try:
        if _leaving.acquire(blocking=False):
            os.write(2, f"{clear}interrupted: nothing is half done, the same command goes on from here\n".encode())
    finally:
        os._exit(INTERRUPTED)
