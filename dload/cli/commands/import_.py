"""dload import"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dload.cli.output import Bar, clean, pairs
from dload.cli.session import TARGET, Session, Target, plain_name, verb
from dload.cli.writing import Source, commit_options, refuse_own_folders, show_outcome
from dload.sizes import format_size

if TYPE_CHECKING:
    from dload.importers import Importer
    from dload.repo.group import Item

KINDS = """\b
SOURCE is a folder, a file, a pattern (shard-{000..009}.tar, *.parquet; quote
it), or one of these in a bucket: s3://bucket/prefix. Its kind, one of
  folder      files; x.jpg + x.json are one sample x (see: dload commit --help)
  jsonl csv   one sample a line or row; its members or cells are the fields
  webdataset  tar shards; members up to the first dot are one sample
  parquet arrow   one sample a row, its columns are the fields
  hf          hf/NAME from the hub or its cache, or what save_to_disk wrote
  mds litdata tfds   folders that these tools wrote
is told from what lies there; --format says it. Rows without a key of their own
(--key, or a column __key__) get FILE/NUMBER.
"""
_SHOWN = 3
_NO_KEY = "choose a column in which no value is there twice, or no --key: rows are then numbered"
_SHARD_COUNTING = "where each shard counts from 0, put its name before each key: --shard-keys"


@verb("import", epilog=KINDS)
@click.argument("source", metavar="SOURCE")
@click.argument("target", type=TARGET, metavar="NAME")
@click.option("--format", "kind", metavar="KIND", help="What kind of data SOURCE is.")
@click.option("--columns", metavar="A,B", help="Only these columns or members.")
@click.option("--key", metavar="COLUMN", help="The column that is the key of a sample.")
@click.option("--delimiter", metavar="CHARACTER", help="What stands between cells (csv).")
@click.option("--split", metavar="NAME", help="Only this split (hf, tfds).")
@click.option("--config", metavar="NAME", help="The configuration of the data set (hf).")
@click.option("--revision", metavar="NAME", help="The commit, tag or branch of the data set (hf, by name).")
@click.option("--builder", metavar="NAME[/CONFIG][:VERSION]", help="What the folder must hold (tfds).")
@click.option("--shard-keys", is_flag=True, help="Put the shard's name before each key (webdataset).")
@click.option("--whole-lines", is_flag=True, help="Keep each line as one field json, byte for byte (jsonl).")
@click.option("--label-from-folder", is_flag=True, help="Add a field label: the folder a file lies in (folder).")
@click.option("--metadata", metavar="FILE", help="CSV or JSONL in it with a column file_name (folder).")
@click.option("--include", multiple=True, metavar="PATTERN", help="Only the files that match (folder).")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Not the files or members that match.")
@click.option("--recipe", type=click.Path(path_type=Path), metavar="FILE", help="The script that made the data.")
@click.option("--meta", multiple=True, metavar="K=V", help="A fact to store with it; may be given more than once.")
@click.option("--shard-size", metavar="SIZE", help="About how large shards are (default: as before, or 128MiB).")
@click.option("-m", "--message", metavar="TEXT", help="What this version is, for the log.")
@click.option("--workers", type=click.IntRange(1, 256), default=min(4, os.cpu_count() or 1), show_default=True,
              metavar="N", help="How many shards are packed and sent side by side.")  # fmt: skip
@click.option("--expect", metavar="VERSION", help="Fail (13) unless this is the latest version.")
@click.option("--unsafe-single-writer", is_flag=True, help="Write to a store without conditional writes.")
@click.option("--dry-run", is_flag=True, help="Only show what SOURCE is and its first samples; writes nothing.")
def command(session: Session, source: str, target: Target, kind: str | None, dry_run: bool, **given: Any) -> None:
    """Make foreign data the latest version of data set NAME: the whole of it.

    Streams: memory stays at the shards under way. Keys and bytes are the same each time, so importing again sends
    only what is new. What can't be stored without loss is an error that names the row.
    """
    from dload.importers import open_source
    from dload.importers.labelled import LabelledFolder

    name = plain_name(target, "import")
    settings = {key: given.pop(key) for key in ("recipe", "meta", "shard_size", "message", "workers", "expect",
                                                "unsafe_single_writer")}  # fmt: skip
    columns = given.pop("columns")
    given["columns"] = tuple(one.strip() for one in columns.split(",") if one.strip()) if columns else ()
    options = Source(
        roots=(), include=(), exclude=(), dry_run=dry_run, allow_changed=False, force=False, **settings
    )  # fmt: skip
    commit = commit_options(options)
    importer = open_source(source, kind, endpoint_url=session.config.endpoint_url, **given)
    if isinstance(importer, LabelledFolder):
        refuse_own_folders(session, [importer.root], importer)
    if dry_run:
        _show(session, source, importer)
        return
    if not session.out.as_json:
        session.out.say(f"{source} is read as {importer.kind}")
    _import(session, name, importer, commit, given["key"])


def _import(session: Session, name: str, importer: Importer, options: Any, key: str | None) -> None:
    from dload.errors import DuplicateKeyError
    from dload.importers.kinds import with_columns
    from dload.repo.commit import commit

    meta = dict(options.meta or {})

    def samples(bar: Bar) -> Iterator[Item]:
        for sample in with_columns(importer, meta):
            yield sample
            bar.advance(1)

    try:
        with session.out.bar(f"import {name}", importer.total, lambda number: f"{number:,} samples") as bar:
            told = replace(options, meta=meta, tell=session.out.say)
            outcome = session.repo.write(commit, name, samples(bar), told)
    except DuplicateKeyError as error:
        if "member" in error.details:
            raise
        remedy = _SHARD_COUNTING if importer.kind == "webdataset" else _NO_KEY if key else error.remedy
        raise DuplicateKeyError(error.message, remedy=remedy, **error.details) from error
    show_outcome(session, outcome)


def _show(session: Session, source: str, importer: Importer) -> None:
    from dload.repo.group import LazySample

    first = []
    for item in islice(importer, _SHOWN):
        key, sizes = (
            (item.key, dict(item.sizes)) if isinstance(item, LazySample)
            else (item[0], {name: len(value) for name, value in item[1].items()})
        )  # fmt: skip
        first.append((key, sizes))
    columns = {name: {"codec": column.codec, "type": column.type} for name, column in importer.columns.items()}
    facts = {
        "source": source, "kind": importer.kind, "num_samples": importer.total, "columns": columns,
        "first": [{"key": key, "fields": sizes} for key, sizes in first],
    }  # fmt: skip
    rows = [
        ("kind", importer.kind),
        ("samples", "not known before all are read" if importer.total is None else f"{importer.total:,}"),
        *((f"column {clean(name)}", f"{one['codec']} ({one['type']})") for name, one in columns.items()),
        *(("sample", f"{clean(key)}  " + ", ".join(f"{clean(n)} {format_size(s)}" for n, s in sizes.items()))
          for key, sizes in first),
    ]  # fmt: skip
    session.out.facts(facts, lambda: pairs(rows))
    session.out.say("nothing was written: this was a dry run")
