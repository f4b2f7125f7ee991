"""dload export"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dload.cli.output import Bar, count, short
from dload.cli.session import Session, Target, target_argument, verb, version_option
from dload.errors import ConfigError
from dload.sizes import format_size, parse_size

if TYPE_CHECKING:
    from dload.importers.columns import Column
    from dload.importers.target import Exported, Request
    from dload.manifest import Manifest
    from dload.pack import Sample

FORMATS = ("files", "webdataset", "parquet", "mds", "jsonl")
_CODECS = {"bytes": "binary", "text": "string", "json": "any", "npy": "array"}
# What the names of fields say where nothing else does, as webdataset takes them.
_TEXTS = ("txt", "text", "transcript")


@verb("export")
@target_argument
@version_option
@click.option("--to", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Where to write it.")
@click.option("--format", "form", required=True, type=click.Choice(FORMATS), help="As what.")
@click.option("--fields", metavar="A,B", help="Only these fields.")
@click.option("--codec", "codecs", multiple=True, metavar="FIELD=CODEC",
              help="What a field holds: bytes, text, json or npy; may be given more than once.")  # fmt: skip
@click.option("--shard-size", metavar="SIZE", help="About how large files are.")
@click.option(
    "--force", is_flag=True, help="Write though there is something in DIR, replacing files of the same names."
)
def command(
    session: Session, target: Target, version: str | None, to: Path, form: str, fields: str | None,
    codecs: tuple[str, ...], shard_size: str | None, force: bool,
) -> None:  # fmt: skip
    """Write a version for other tools: tar shards, Parquet, MosaicML MDS, JSON lines, or files.

    What came from a table gets its types back, which `dload import` keeps with the version. Where they aren't known,
    fields are bytes, but txt and text are text; --codec says otherwise. Files appear in DIR when all are there; with
    --format files they come one by one, and what was cut off goes on by the same command.
    """
    from dload.importers.target import Request, refuse_full

    size = parse_size(shard_size) if shard_size else None
    refuse_full(to, replace=force)
    manifest = session.repo.manifest(*target.with_version(version))
    if manifest.format == 1:  # it doesn't say what fields there are
        from dload.repo.commit import described

        manifest = replace(manifest, fields=described(session.repo.store, manifest.shards)[1])
    columns = _columns(manifest, fields, codecs, with_empty=form == "parquet")
    there = [name for name in columns if name in manifest.fields]
    samples = session.repo.dataset(manifest.name, manifest.version).samples(fields=there)
    with session.out.bar(f"{manifest.name} to {to}", manifest.num_samples, lambda done: f"{done:,} samples") as bar:
        request = Request(_counted(samples, bar), columns, manifest.name.replace("/", "-"), size)
        done = _write(form, request, to, force)
    facts = {
        "name": manifest.name, "version": manifest.version, "to": str(to), "format": form, "num_samples": done.samples,
        "num_files": done.files, "written_bytes": done.bytes,
        "columns": {name: {"codec": column.codec, "type": column.type} for name, column in columns.items()},
    }  # fmt: skip
    if session.out.as_json:
        session.out.facts(facts, lambda: "")
    what = f"{count(done.samples, 'sample')} in {count(done.files, 'file')}, {format_size(done.bytes)}"
    session.out.say(f"{manifest.name}@{short(manifest.version)} is in {to} as {form}: {what}")
    session.out.next(f"dload import {to} NAME --dry-run")


def _write(form: str, request: Request, to: Path, force: bool) -> Exported:
    from dload.importers.kinds import load_module
    from dload.importers.target import write_as_files

    write = write_as_files if form == "files" else load_module(f"to_{form}", form).write
    done: Exported = write(request, to, replace=force)
    return done


def _columns(
    manifest: Manifest, fields: str | None, codecs: tuple[str, ...], *, with_empty: bool
) -> dict[str, Column]:  # fmt: skip
    """How each field to export is stored: as --codec says, as the version's meta has it, or as its name says.

    `with_empty`: also the columns that had nothing but nulls.
    """
    from dload.importers.columns import Column, columns_from_meta

    known = columns_from_meta(manifest.meta)
    for text in codecs:
        field, mark, codec = text.rpartition("=")
        if not mark or codec not in _CODECS:
            raise ConfigError(f"--codec {text!r} is not FIELD=CODEC", remedy=f"the codecs are {', '.join(_CODECS)}")
        if field not in manifest.fields:
            raise ConfigError(f"--codec {text!r}: {manifest.name} has no field {field!r}")
        known[field] = Column(codec, _CODECS[codec])
    everything = [*known, *sorted(manifest.fields.keys() - known.keys())]  # in the order that the import met them
    there = [name for name in everything if with_empty or name in manifest.fields]
    wanted = [one.strip() for one in fields.split(",")] if fields else there
    if missing := [name for name in wanted if name not in manifest.fields and name not in known]:
        raise ConfigError(
            f"{manifest.name} has no field {', '.join(missing)}", remedy=f"its fields: {', '.join(everything)}"
        )  # fmt: skip
    guess = {name: Column("text", "string") if name in _TEXTS else Column("bytes", "binary") for name in wanted}
    return {name: known.get(name, guess[name]) for name in wanted}


def _counted(samples: Iterable[Sample], bar: Bar) -> Iterator[Sample]:
    for sample in samples:
        yield sample
        bar.advance(1)
