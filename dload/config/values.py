"""What the text of a setting means. Each function raises a ConfigError that names where it came from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from dload.cache.budget import allowed
from dload.cache.inventory import scan
from dload.config.sources import Value, home
from dload.errors import ConfigError
from dload.sizes import parse_size

_RATES = 'write bytes a second as "50MB", or "unlimited"'
_STORES = "write s3://bucket/prefix, file:///path, or a path"
_CREDENTIALS = "put credentials where the AWS tools look: ~/.aws/credentials or AWS_ACCESS_KEY_ID"


def folder(value: Value, env: Mapping[str, str]) -> Path:
    """An absolute path: `~` is the home folder, and a relative path starts where it was written. It need not be there,
    but what is there must be a folder."""
    text = value.text
    if text == "~" or text.startswith("~/"):
        text = str(home(env)) + text[1:]
    return _no_file(os.path.normpath(value.base / Path(text).expanduser()), value.origin)


def _no_file(path: str, origin: str) -> Path:
    there = os.path.exists(path)  # noqa: PTH110 (unlike Path's it is silent of a folder that may not be searched)
    if there and not os.path.isdir(path):  # noqa: PTH112
        remedy = "name a folder; it need not be there yet"
        raise ConfigError(f"{origin}: {path} is a file, expected a folder", remedy=remedy)
    return Path(path)


def store(value: Value, env: Mapping[str, str]) -> str:
    """`s3://bucket/prefix` as it is; a folder, or a file:// URL, as an absolute path."""
    scheme, mark, rest = value.text.partition("://")
    if not mark and scheme.startswith(("s3:", "file:")):  # a slash too few
        raise ConfigError(f"{value.origin}: {value.text} is no store", remedy=_STORES)
    if not mark:
        return str(folder(value, env))
    if scheme == "file" and rest.startswith("/"):
        return str(_no_file(unquote(rest), value.origin))
    authority = rest.partition("/")[0]
    if scheme != "s3":
        shown = f"{scheme}://{authority.rpartition('@')[2]}"
        raise ConfigError(f"{value.origin}: {shown} is no store", remedy=_STORES)
    if "@" in authority:
        raise ConfigError(f"{value.origin}: a store's URL holds no credentials", remedy=_CREDENTIALS)
    if not authority:
        raise ConfigError(f"{value.origin}: {value.text} names no bucket", remedy=_STORES)
    return value.text


def endpoint(value: Value) -> str:
    """The URL without user and password: requests are signed, so these have no use and must not be shown."""
    try:
        parts = urlsplit(value.text)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        fine = False
    host = value.text.rpartition("@")[2]
    if not fine:
        raise ConfigError(f"{value.origin}: {host!r} is no URL of a service", remedy='write "https://host[:port]"')
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def endpoint_for_file(value: Value) -> str:
    """The URL, refused where there is a user or password in it: files never hold these."""
    if endpoint(value) != urlunsplit(urlsplit(value.text)):
        raise ConfigError(f"{value.origin}: the URL has a user or a password in it", remedy=_CREDENTIALS)
    return value.text


def jobs(value: Value) -> int:
    """A number from 1."""
    text = value.text.strip()
    if not (text.isascii() and text.isdigit() and int(text[:9]) > 0):
        raise ConfigError(f"{value.origin}: {text!r:.50} is no number of downloads", remedy="write 1 or more")
    return int(text[:9])


def rate(value: Value) -> int | None:
    """Bytes a second, None for unlimited."""
    try:
        found = parse_size(value.text)
    except ConfigError as error:
        raise ConfigError(f"{value.origin}: {error.message}", remedy=_RATES) from None
    if found == 0:
        raise ConfigError(f"{value.origin}: a rate of 0 lets nothing come", remedy=_RATES)
    return found


def budget(value: Value, cache_dir: Path) -> int | None:
    """Bytes, None for unlimited. "auto" looks at the disk and at what the cache holds."""
    if value.text.strip().lower() == "auto":
        return allowed("auto", cache_dir, sum(entry.stored for entry in scan(cache_dir)))
    try:
        return parse_size(value.text)
    except ConfigError as error:
        ways = 'write a size as "60GB", "auto" or "unlimited"'
        raise ConfigError(f"{value.origin}: {error.message}", remedy=ways) from None
