"""What is read from the headers of an S3 server's replies."""

from __future__ import annotations

import email.utils
import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from dload.store.base import Body

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class ContentRange(NamedTuple):
    """Which bytes came, the last one included, and how many the whole object has."""

    first: int
    last: int
    size: int


def content_range(reply: Mapping[str, Any]) -> ContentRange | None:
    """What part of the object a reply brings; None if it doesn't say."""
    match = _CONTENT_RANGE.fullmatch(reply.get("ContentRange", ""))
    return ContentRange(*map(int, match.groups())) if match else None


def reply_time(reply: Mapping[str, Any]) -> float | None:
    """The server's time when it replied, in seconds since 1970; None if it doesn't say."""
    try:
        return email.utils.parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()
    except (KeyError, ValueError):
        return None


def is_md5(body: Body) -> bool:
    """Whether an object's ETag is the MD5 of its bytes, as where a server neither got it in parts nor encrypts it; or
    can't be one."""
    return len(body.etag) != 32 or hashlib.md5(body.data, usedforsecurity=False).hexdigest() == body.etag


def bare(etag: str) -> str:
    """The ETag without the quotes that HTTP puts around it."""
    return etag.strip('"')
