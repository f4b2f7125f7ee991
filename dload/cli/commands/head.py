"""dload head"""

from __future__ import annotations

import click

from dload.cli.output import short, table
from dload.cli.session import Session, Target, target_argument, verb, version_option
from dload.sizes import format_size

_PREVIEW_CHARACTERS = 60


@verb("head")
@target_argument
@version_option
@click.option("-n", "--number", type=click.IntRange(min=1), metavar="N", default=5, show_default=True, help="How many.")
def command(session: Session, target: Target, version: str | None, number: int) -> None:
    """Show the first samples: their keys, and each field's size and beginning. Reads only these."""
    dataset = session.repo.dataset(*target.with_version(version))
    samples = dataset[:number]
    facts = [
        {"key": key, "fields": {name: {"bytes": len(value), "text": _text(value)} for name, value in fields.items()}}
        for key, fields in samples
    ]
    rows = [
        (key if row == 0 else "", name, format_size(len(value)), _preview(value))
        for key, fields in samples
        for row, (name, value) in enumerate(fields.items())
    ]
    session.out.facts(facts, lambda: table(("KEY", "FIELD", "SIZE", "BEGINS"), rows, right=("SIZE",)))
    session.out.say(f"{len(samples):,} of {len(dataset):,} samples of {dataset.name}@{short(dataset.version)}")
    if samples:
        key, fields = samples[0]
        field, value = next(iter(fields.items()), ("", b""))
        into = "" if _text(value) is not None else f" > FILE.{field}"
        session.out.next(f"dload cat {dataset.name} {key!r} {field}{into}")


def _text(value: bytes) -> str | None:
    """The beginning of a text; None for what is none."""
    try:
        # What is cut in the middle of a letter is still a text.
        text = value[: 4 * _PREVIEW_CHARACTERS].decode(errors="strict" if len(value) <= 240 else "ignore")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text[:_PREVIEW_CHARACTERS]


def _preview(value: bytes) -> str:
    text = _text(value)
    if text is None or (text and sum(c.isprintable() or c.isspace() for c in text) < 0.9 * len(text)):
        return value[:16].hex(" ")
    return " ".join(text.split())
