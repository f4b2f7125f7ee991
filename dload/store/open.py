"""From a store's URL to the store."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dload.errors import ConfigError
from dload.store.base import Store
from dload.store.local import FolderStore

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FORMS = "a store is s3://bucket/prefix, file:///path, or the path of a folder"


def open_store(
    url: str,
    *,
    endpoint_url: str | None = None,
    profile: str | None = None,
    jobs: int = 16,
    state_dir: Path | None = None,
) -> Store:
    """The store at `url`: `s3://bucket/prefix`, `file:///path` or a bare path. Touches neither network nor disk.

    The rest is for S3: `endpoint_url` (None: AWS, or what its own settings say), `profile` of the AWS
    settings, `jobs` requests at a time, and `state_dir`, the folder that remembers what was found out about a
    server. Raises ConfigError if it is none of these.
    """
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else None
    if scheme is None:
        if not url.strip():
            raise ConfigError("the store is empty", remedy=_FORMS)
        return FolderStore(Path(url))
    if scheme == "file":
        return FolderStore(_file_path(url))
    if scheme == "s3":
        from dload.store.retrying import Backoff, Retrying
        from dload.store.s3 import S3Store

        bucket, prefix = _bucket_and_prefix(url)
        backoff = Backoff()
        store = S3Store(
            bucket, prefix,
            endpoint_url=endpoint_url, profile=profile, jobs=jobs, state_dir=state_dir, backoff=backoff,
        )  # fmt: skip
        return Retrying(store, backoff)
    raise ConfigError(f"unknown kind of store {scheme}://", remedy=_FORMS)


def _file_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise ConfigError(
            f"{url!r} is not the URL of a folder", remedy="write three slashes and the path: file:///path"
        )
    return Path(unquote(url.partition("://")[2].removeprefix(parts.netloc)))


def _bucket_and_prefix(url: str) -> tuple[str, str]:
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if "@" in bucket:
        raise ConfigError(
            "the store's URL holds a user or a password",
            remedy="credentials come from the AWS settings: run aws configure",
        )
    if not bucket:
        raise ConfigError(f"{url!r} names no bucket", remedy=_FORMS)
    return bucket, prefix.strip("/")
