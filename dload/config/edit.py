"""Settings files, written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import tomli_w

from dload.config import values
from dload.config.schema import SETTINGS
from dload.config.sources import Value, read_file
from dload.errors import ConfigError
from dload.files.atomic import write_atomic


def write_config_file(
    path: Path, *, endpoint_url: str | None = None, bucket: str | None = None, prefix: str | None = None,
    cache_dir: str | None = None, cache_budget: str | None = None, store: str | None = None,
    cache_jobs: str | None = None, cache_rate: str | None = None,
) -> None:  # fmt: skip
    """Write settings into the file `path`, which is made where it is missing. Touches no network.

    `endpoint_url`, `bucket`, `prefix`, `store`, `cache_dir`, `cache_budget`, `cache_jobs` and `cache_rate` are as
    `Config` has them, as text. What isn't given stays as it stands there, comments excepted. A store takes the place of
    a bucket and the other way round. Raises ConfigError for values that make no sense and for both a store and a
    bucket; the file is then as it was.
    """
    given = {
        "endpoint_url": endpoint_url, "bucket": bucket, "prefix": prefix,
        "cache_dir": cache_dir, "cache_budget": cache_budget, "cache_jobs": cache_jobs, "cache_rate": cache_rate,
        "store": store,
    }  # fmt: skip
    changes = {name: text for name, text in given.items() if text is not None}
    _check(changes)
    tables = read_file(path) if path.exists() else {}
    replaced = ("bucket", "prefix") if "store" in changes else ("store",) if "bucket" in changes else ()
    for name in replaced:
        tables.get(SETTINGS[name].section, {}).pop(SETTINGS[name].key, None)
    for name, text in changes.items():
        tables.setdefault(SETTINGS[name].section, {})[SETTINGS[name].key] = text
    write_atomic(path, tomli_w.dumps({section: table for section, table in tables.items() if table}).encode())


def _check(changes: Mapping[str, str]) -> None:
    if "store" in changes and ("bucket" in changes or "prefix" in changes):
        raise ConfigError("both a store and a bucket were given", remedy="give one: --store s3://bucket/prefix")
    written = {name: Value(text, SETTINGS[name].flag, Path.cwd()) for name, text in changes.items()}
    if "cache_budget" in written:
        values.budget(written["cache_budget"], Path.cwd())
    if "cache_jobs" in written:
        values.jobs(written["cache_jobs"])
    if "cache_rate" in written:
        values.rate(written["cache_rate"])
    if "store" in written:
        values.store(written["store"], os.environ)
    if "endpoint_url" in written:
        values.endpoint_for_file(written["endpoint_url"])
