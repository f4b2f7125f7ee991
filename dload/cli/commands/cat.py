"""dload cat"""

from __future__ import annotations

import sys
from base64 import b64encode

import click

from dload.cli.output import short
from dload.cli.session import Session, Target, target_argument, verb, version_option
from dload.errors import ConfigError, NotFoundError


@verb("cat")
@target_argument
@click.argument("key")
@click.argument("field", required=False)
@version_option
def command(session: Session, target: Target, key: str, field: str | None, version: str | None) -> None:
    """Print a field of the sample KEY, byte for byte. FIELD may be left out where there is only one.

    Reads only this sample. With --json: all fields, or FIELD, in base64. What is no text is not printed on a terminal:
    put > FILE behind the command.
    """
    dataset = session.repo.dataset(*target.with_version(version))
    what = f"{dataset.name}@{short(dataset.version)}"
    try:
        fields = dataset[key]
    except KeyError:
        raise NotFoundError(f"{what} has no sample {key!r}", remedy=f"see some: dload head {dataset.name}") from None
    names = ", ".join(fields)
    if field is not None and field not in fields:
        raise NotFoundError(f"sample {key!r} of {what} has no field {field!r}", remedy=f"it has {names}")
    if session.out.as_json:
        chosen = fields if field is None else {field: fields[field]}
        encoded = {name: b64encode(value).decode() for name, value in chosen.items()}
        session.out.facts({"key": key, "fields": encoded}, lambda: "")
        return
    if field is None and len(fields) != 1:
        example = f"dload cat {dataset.name} {key!r} {next(iter(fields), '')}"
        raise ConfigError(f"sample {key!r} has the fields {names}", remedy=f"name one: {example}")
    value = next(iter(fields.values())) if field is None else fields[field]
    if b"\0" in value and sys.stdout.isatty():
        raise ConfigError(
            f"the field {field or names} of sample {key!r} is no text, and this is a terminal",
            remedy="write it into a file, with > FILE behind the command, or pass it on, with | PROGRAM",
        )
    session.out.raw(value)
