"""dload doctor"""

from __future__ import annotations

import difflib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import click

from dload.cli.commands.config import effective
from dload.cli.output import clean, count, duration, pairs
from dload.cli.session import Session, verb
from dload.config.schema import SETTINGS
from dload.errors import AccessError, DloadError
from dload.sizes import format_size

_PACKAGES = ("dload-ml", "boto3", "click", "msgpack", "numpy", "zstandard", "torch")
_OURS = "DLOAD_"  # what our environment variables begin with
_CLOCK_SECONDS = 300.0  # S3 refuses requests from clocks further off than 15 minutes
_LOW_DISK = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `code`: what the command ends with because of it."""

    what: str
    state: Literal["ok", "warning", "problem"]
    found: str
    remedy: str | None = None
    code: int = 0


@verb("doctor")
@click.option("--deep", is_flag=True, help="List the whole store, for what is foreign or of no use.")
def command(session: Session, deep: bool) -> int:
    """Check that dload can work here: settings, store, credentials, permissions, clock, cache, disk, left-overs.

    Writes and deletes a small object in the store, to see what it allows. Shows no secrets. Exits with the code of the
    first problem.
    """
    settings = [
        (name, "-" if value in (None, "") else str(value), session.config.origins[name])
        for name, value in effective(session).items()
    ]
    versions = list(_versions())
    findings = _guarded(_environment, session)
    findings += _guarded(_store, session)
    if findings[-1].state == "ok":
        findings += [*_guarded(_clock, session), *_guarded(_writing, session)]
        findings += _guarded(partial(_left_overs, deep=deep), session, "left-overs")
    findings += [*_guarded(_cache, session), *_guarded(_lock_file, session)]
    facts = {
        "versions": dict(versions),
        "settings": {name: {"value": value, "from": origin} for name, value, origin in settings},
        "findings": [asdict(finding) for finding in findings],
    }

    def text() -> str:
        shown = pairs([*versions, *((name, f"{value}  ({origin})") for name, value, origin in settings)])
        return shown + "\n\n" + "\n".join(_line(finding) for finding in findings)

    session.out.facts(facts, text)
    problems = [finding for finding in findings if finding.state == "problem"]
    warnings = sum(finding.state == "warning" for finding in findings)
    well = f"all is well but for {count(warnings, 'warning')}" if warnings else "all is well"
    session.out.say(f"{count(len(problems), 'check')} of {len(findings)} failed" if problems else well)
    return problems[0].code if problems else 0


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "not installed"


def _line(finding: Finding) -> str:
    mark = {"ok": "ok      ", "warning": "warning ", "problem": "PROBLEM "}[finding.state]
    remedy = f"\n         {clean(finding.remedy)}" if finding.remedy else ""
    return f"{mark} {finding.what}: {clean(finding.found)}{remedy}"


def _guarded(check: Callable[[Session], Iterator[Finding]], session: Session, name: str | None = None) -> list[Finding]:
    """What a check finds; what it runs into is a problem, too."""
    what = name or check.__name__.strip("_").replace("_", " ")
    try:
        return list(check(session))
    except DloadError as error:
        return [Finding(what, "problem", error.message, error.remedy, error.exit_code)]
    except OSError as error:
        return [Finding(what, "problem", str(error), code=1)]


# ---- the checks
def _environment(_: Session) -> Iterator[Finding]:
    known = [setting.variable for setting in SETTINGS.values()]
    for name in sorted(os.environ):
        if name.startswith(_OURS) and name not in known:
            near = difflib.get_close_matches(name.removeprefix(_OURS), [one.removeprefix(_OURS) for one in known], n=1)
            remedy = f"did you mean {_OURS}{near[0]}?" if near else f"known are {', '.join(known)}"
            yield Finding("environment", "warning", f"{name} is not a setting, and does nothing", remedy)


def _store(session: Session) -> Iterator[Finding]:
    begun = time.monotonic()
    names = session.repo.list_datasets()
    took = time.monotonic() - begun
    yield Finding("store", "ok", f"{session.repo.url} answers: {count(len(names), 'data set')} in {took * 1000:.0f} ms")


def _clock(session: Session) -> Iterator[Finding]:
    before = time.time()
    there = session.repo.store.clock()
    off = there - (before + time.time()) / 2
    words = f"{duration(abs(off))} {'behind' if off > 0 else 'ahead of'} the store's"
    if abs(off) > _CLOCK_SECONDS:
        yield Finding("clock", "problem", f"this machine's is {words}", "set it, for example by NTP", code=1)
    else:
        yield Finding("clock", "ok", f"this machine's is {words}" if abs(off) >= 1 else "the same as the store's")


def _writing(session: Session) -> Iterator[Finding]:
    try:
        honoured = session.repo.store.conditional(refresh=True)
    except AccessError as error:
        yield Finding("writing", "warning", f"not allowed, so only reading works: {error.message}", error.remedy)
        return
    if honoured:
        yield Finding("writing", "ok", "writing and deleting are allowed, and conditional writes are honoured")
    else:
        found = "the store ignores conditional writes: two writers could overwrite each other"
        yield Finding("writing", "warning", found, "let one writer alone commit, with --unsafe-single-writer")


def _left_overs(session: Session, deep: bool) -> Iterator[Finding]:
    from dload.repo.leftovers import leftovers

    what = "left-overs"
    try:
        found = leftovers(session.repo.store, deep=deep)
    except AccessError as error:
        yield Finding(what, "warning", f"this key may not look for them: {error.message}", error.remedy)
        return
    left = []
    if found.gc == "cut off":
        left.append("a gc that was cut off")
    if found.dead_leases:
        left.append(f"{count(found.dead_leases, 'lease')} of writers that were killed or may not delete")
    if found.uploads:
        left.append(f"{count(found.uploads, 'write')} that never ended")
    at_work = [f"{count(found.writers, 'writer')} at work"] if found.writers else []
    at_work += ["a gc at work"] if found.gc == "at work" else []
    if left:
        yield Finding(what, "warning", ", ".join(left + at_work), "they go with the next: dload gc")
    else:
        yield Finding(what, "ok", ", ".join(["none", *at_work]))
    if found.garbage is not None and found.garbage[0]:
        number, size = found.garbage
        unused = f"{count(number, 'object')} of {format_size(size)} that no version needs"
        yield Finding("garbage", "ok", unused, "see: dload gc --dry-run")
    if found.foreign_count:
        more = found.foreign_count - len(found.foreign)
        named = ", ".join(found.foreign) + (f" and {more:,} more" if more else "")
        yield Finding("foreign", "warning", f"not dload's, and left alone: {named}", "a prefix of its own is tidier")


def _cache(session: Session) -> Iterator[Finding]:
    state = session.cache.status()
    found = f"{state.root} holds {format_size(state.used)} of {format_size(state.budget)}, on a disk with "
    found += f"{format_size(state.free_disk)} free"
    if not _can_write(state.root):
        yield Finding("cache", "warning", f"{state.root} can't be written: nothing is kept", "set DLOAD_CACHE_DIR")
    elif state.free_disk < _LOW_DISK:
        yield Finding("cache", "warning", found, "free some disk, or set DLOAD_CACHE_DIR to another one")
    else:
        yield Finding("cache", "ok", found)
    temporary = tempfile.gettempdir()
    free = shutil.disk_usage(temporary).free
    if free < _LOW_DISK:
        yield Finding("temporary files", "warning", f"{format_size(free)} free in {temporary}", "set TMPDIR")


def _can_write(root: Path) -> bool:
    folder = next(folder for folder in (root, *root.parents) if folder.exists())
    return os.access(folder, os.W_OK | os.X_OK)


def _lock_file(session: Session) -> Iterator[Finding]:
    pins, path = session.repo.pins(), session.repo.lock_path
    pinned = f"{path} pins {count(len(pins), 'data set')}"
    yield Finding("lock file", "ok", pinned if pins else "there is no dload.lock here")
