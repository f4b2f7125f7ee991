"""What can be the name of a bucket, a prefix, an endpoint."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from dload.errors import ConfigError

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")


def check_bucket(name: str) -> str:
    """The name, if a bucket can have it. Else ConfigError."""
    if not _BUCKET.fullmatch(name):
        raise ConfigError(
            f"{name[:100]!r} can't be the name of a bucket",
            remedy="a bucket's name is 3 to 63 lowercase letters, digits, dots and hyphens",
        )
    return name


def check_store_prefix(prefix: str) -> str:
    """The prefix with one `/` at its end, or nothing. Raises ConfigError for empty parts and dots: servers disagree on
    what they mean, and a listing would give other keys than those that were written."""
    prefix = prefix.strip("/")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise ConfigError(f"the prefix {prefix!r} has an empty part, `.` or `..`", remedy="write it as a/b/c")
    return f"{prefix}/" if prefix else ""


def check_endpoint(url: str | None) -> str | None:
    """The URL without credentials: S3 has its own, and these would end up in messages. Raises ConfigError."""
    if not url:
        return None
    shown = without_userinfo(url)
    parts = urlsplit(shown)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the endpoint {shown!r} is not a URL", remedy="write it as https://host or http://host:port")
    return shown


def without_userinfo(url: str) -> str:
    """The URL without `user:password@`."""
    scheme, mark, rest = url.rpartition("://")
    return scheme + mark + rest.rpartition("@")[2]


def is_aws(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
