"""The protocol of object storage: all that dload asks of a bucket or a folder.

Keys are relative to the store's own prefix, use `/`, and never begin with one. A store has no state of its
own: it can be used from many threads, pickled (clients, locks and credentials stay behind), and used after a
fork. Every method raises, besides what it names: AccessError (credentials, permission), UnavailableError (the
same call may succeed later), RemoteError (anything else), with the operation, the store and the key in the
message.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dload.errors import ConfigError

MAX_KEY = 1024  # bytes, as S3 has it


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of an object. `modified`: seconds since 1970 by the store's clock. `etag`: opaque."""

    key: str
    size: int
    etag: str
    modified: float


@dataclass(frozen=True, slots=True)
class Body:
    """A small object, whole, with what a conditional write on top of it needs."""

    data: bytes
    etag: str
    modified: float


def check_key(key: str) -> str:
    """The key itself, if every store can have it: parts that aren't empty and don't begin with a dot, joined
    by `/`, up to MAX_KEY bytes of UTF-8, outside `tmp/`, which is the store's own. Else ConfigError."""
    if not key or key.endswith("/"):
        raise _bad_key(key)
    if key == "tmp" or key.startswith("tmp/"):
        raise ConfigError(f"the key {key!r} is below tmp/, where a store keeps what is unfinished")
    return check_prefix(key)


def check_prefix(prefix: str) -> str:
    """The prefix itself, if a key can begin with it. Else ConfigError."""
    folders = prefix.split("/")
    if any(part.startswith(".") for part in folders) or "" in folders[:-1] or "\0" in prefix:
        raise _bad_key(prefix)
    try:
        if len(prefix.encode()) > MAX_KEY:
            raise _bad_key(prefix)
    except UnicodeEncodeError:
        raise _bad_key(prefix) from None
    return prefix


def _bad_key(key: str) -> ConfigError:
    return ConfigError(
        f"{key[:100]!r} is no key: a key is parts joined by /, none empty or beginning with a dot, "
        f"at most {MAX_KEY:,} bytes of UTF-8 in all", key=key[:100],
    )  # fmt: skip


class Store(Protocol):
    """Object storage: `key` (a path without a leading slash, `keys` several of them) -> `data`, bytes.

    A store in a bucket is asked over the network by every method but `url` and `staging`. Besides what is named,
    methods raise AccessError, UnavailableError and RemoteError.
    """

    @property
    def url(self) -> str:
        """Where it is, for people and messages: `s3://bucket/prefix`, `file:///path`. Never holds a secret."""
        ...

    @property
    def staging(self) -> Path | None:
        """A folder on the store's own disk: a file written there can be moved in by `put_file(move=True)`
        instead of being copied. None where bytes travel."""
        ...

    def get(self, key: str) -> Body:
        """The whole object. Raises NotFoundError."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Exactly `length` (at least 1) bytes from `start`. Raises NotFoundError; IntegrityError where the
        object is too short for that."""
        ...

    def stream(self, key: str, start: int = 0) -> Generator[bytes, None, None]:
        """The bytes from `start` to the end, in chunks, as they come. Raises NotFoundError; UnavailableError
        where the body breaks off or is shorter than it was announced: it never ends early in silence. Close
        it to stop it."""
        ...

    def put(self, key: str, data: bytes) -> str:
        """Write an object whole, replacing what was there. Returns its ETag."""
        ...

    def put_file(self, key: str, path: Path, *, move: bool = False) -> str:
        """Write the bytes of the file `path` as an object, whole or not at all. Returns its ETag.

        With `move`, a file below `staging` is renamed into place; elsewhere the file stays where it is either
        way."""
        ...

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        """Write only if the object's ETag is `etag` (None: only if there is no object). Returns the new ETag.

        Raises PreconditionFailedError; UnsafeStoreError where the store is known to ignore conditions. After
        an UnavailableError the write may have happened."""
        ...

    def conditional(self, *, refresh: bool = False) -> bool:
        """Whether conditional writes are honoured. Found by a probe (writes and deletes a small object) at
        the first need, then remembered; `refresh` probes again."""
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """What is known of an object without its bytes, or None where there is none."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key begins with `prefix`, in no particular order, page by page."""
        ...

    def list_folders(self, prefix: str) -> Iterator[str]:
        """The names that follow `prefix` (which ends in `/`) up to the next `/`, each once, without it. Some servers
        go on naming a folder for a moment after its last object was deleted."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object; one that is gone already is fine."""
        ...

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects, by as few requests as the store allows; those gone already are fine. Raises after
        having tried all, naming how many weren't deleted and why."""
        ...

    def abort_unfinished(
        self, before: float, *, mine: Callable[[str], bool] = lambda _: True, dry_run: bool = False
    ) -> int:
        """Drop what writes that were cut off have left (multipart uploads, temporary files) if begun before
        that time of the store's clock. Returns how many; with `dry_run` that is all.

        `mine`: of keys below the store's prefix, whose uploads may be dropped; others may share the bucket."""
        ...

    def clock(self) -> float:
        """The store's time now, in seconds since 1970. At most one small request."""
        ...
