"""Refs: the only objects that change, and they change by compare-and-swap alone.

A ref is two lines: a version id, and the record of the commit that put it there. Before a ref is replaced, the log is
made to hold the record that it had, so the log together with the ref is the whole history, whoever was cut off where.
"""

from __future__ import annotations

import getpass
import json
import secrets
import socket
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from dload.errors import (
    ConflictError,
    NotFoundError,
    PackFormatError,
    PreconditionFailedError,
    UnavailableError,
    UnsafeStoreError,
)
from dload.manifest import Manifest, is_version
from dload.repo import keys
from dload.store.base import Body, Store


@dataclass(frozen=True, slots=True)
class Record:
    """What one move of `refs/latest` did. `seq` orders history; `time` (UTC, ISO 8601) is for people.

    `op`: commit, append, derive, revert, remove or restore. `write_id` is random, so that a writer whose reply was lost
    can tell whether the write was his. `kind`: what the version is, "samples", "derived" (from others, as its meta
    says) or "view"; None in records that don't say.
    """

    seq: int
    version: str
    parent: str | None
    write_id: str
    time: str
    author: str | None
    message: str | None
    num_samples: int
    total_bytes: int
    num_shards: int
    op: str
    kind: str | None = None

    def encode(self) -> bytes:
        """One line of JSON without its end."""
        entries = {name: value for name, value in asdict(self).items() if name != "kind" or value is not None}
        return json.dumps(entries, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def decode(cls, line: bytes, where: str) -> Record:
        """Raises PackFormatError, naming `where`, for anything that isn't a record. Unknown entries are ignored."""
        try:
            raw = json.loads(line)
            record = cls(**{name: raw[name] for name in cls.__slots__ if name != "kind"}, kind=raw.get("kind"))
            sound = (
                all(isinstance(x, int) for x in (record.seq, record.num_samples, record.total_bytes, record.num_shards))
                and all(isinstance(x, str) for x in (record.write_id, record.time, record.op))
                and all(x is None or isinstance(x, str) for x in (record.author, record.message, record.kind))
                and is_version(record.version)
                and (record.parent is None or is_version(record.parent))
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise PackFormatError(f"{where} holds no record of a commit: {error!r}") from error
        if not sound:
            raise PackFormatError(f"{where} holds no record of a commit: an entry has a wrong type")
        return record


def new_record(manifest: Manifest, *, seq: int, parent: str | None, op: str, message: str | None) -> Record:
    """A record, of now and by this user, that makes `manifest` the latest version."""
    return Record(
        seq=seq,
        version=manifest.version,
        parent=parent,
        write_id=secrets.token_hex(16),
        time=utc_now(),
        author=author(),
        message=message,
        num_samples=manifest.num_samples,
        total_bytes=manifest.total_bytes,
        num_shards=len(manifest.shards),
        op=op,
        kind=kind_of(manifest),
    )


def record_again(old: Record, *, seq: int, parent: str | None, op: str, message: str | None) -> Record:
    """A record, of now and by this user, of the version that `old` names."""
    return replace(
        old, seq=seq, parent=parent, write_id=secrets.token_hex(16), time=utc_now(), author=author(), message=message,
        op=op,
    )  # fmt: skip


def kind_of(manifest: Manifest) -> str:
    """What a version is: "samples", "derived" or "view"."""
    if manifest.rows is not None:
        return "view"
    return "derived" if "derived_from" in manifest.meta else "samples"


def utc_now() -> str:
    """This machine's time for people to read; nothing is decided by it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def author() -> str:
    """user@host of this process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Ref:
    """A ref as it was read. `record` is None where dload-ml 0.2 or 0.3 wrote it: a version id alone."""

    version: str
    record: Record | None
    etag: str

    @property
    def seq(self) -> int:
        return self.record.seq if self.record else 0

    @property
    def removed(self) -> bool:
        """Whether the whole data set was removed by this move."""
        return self.record is not None and self.record.op == "remove"

    @classmethod
    def parse(cls, body: Body, where: str) -> Ref:
        lines = body.data.strip().split(b"\n")
        version = lines[0].strip().decode("ascii", "replace")
        if not is_version(version) or len(lines) > 2:
            raise PackFormatError(f"{where} is not a ref: expected a version id, got {body.data[:80]!r}")
        record = Record.decode(lines[1], where) if len(lines) == 2 else None
        if record is not None and record.version != version:
            raise PackFormatError(
                f"{where} contradicts itself: line 1 says {version[:12]}, its record {record.version[:12]}"
            )
        return cls(version, record, body.etag)


def ref_bytes(record: Record) -> bytes:
    """A ref's two lines."""
    return record.version.encode() + b"\n" + record.encode() + b"\n"


def read_latest(store: Store, name: str) -> Ref | None:
    """`refs/latest` of a data set, or None where there is none. One request."""
    key = keys.latest_key(name)
    try:
        return Ref.parse(store.get(key), key)
    except NotFoundError:
        return None


def read_record(store: Store, name: str, seq: int) -> Record | None:
    """The log's record number `seq`, or None."""
    key = keys.log_key(name, seq)
    try:
        return Record.decode(store.get(key).data, key)
    except NotFoundError:
        return None


def write_record(store: Store, name: str, record: Record) -> None:
    """Put a record into the log, unless it is there."""
    key = keys.log_key(name, record.seq)
    if store.head(key) is None:
        store.put(key, record.encode())


def move_latest(store: Store, name: str, old: Ref | None, record: Record, *, unsafe: bool = False) -> None:
    """Replace `old`, as it was read, by `record`; then write the log.

    `old`'s own record must be in the log already: see `History.preserve`. Raises OvertakenError where someone else
    replaced `old` first; UnsafeStoreError where the store ignores conditions and `unsafe` isn't given. A reply that was
    lost is told from a race by reading back.
    """
    if require_conditions(store, unsafe):
        _swap(store, name, old, record)
    else:
        store.put(keys.latest_key(name), ref_bytes(record))
    write_record(store, name, record)


def require_conditions(store: Store, unsafe: bool) -> bool:
    """Whether the store honours conditional writes. Raises UnsafeStoreError where it doesn't and `unsafe` isn't
    given."""
    honoured = store.conditional()
    if not honoured and not unsafe:
        raise UnsafeStoreError(
            f"{store.url} ignores conditional writes: two writers could overwrite each other",
            remedy="where nobody else writes, pass --unsafe-single-writer (unsafe_single_writer=True)",
        )
    return honoured


def _swap(store: Store, name: str, old: Ref | None, record: Record) -> None:
    key, data, etag = keys.latest_key(name), ref_bytes(record), old.etag if old else None
    for again in (True, False):
        try:
            store.put_if(key, data, etag=etag)
            return
        except (PreconditionFailedError, UnavailableError) as error:
            now = read_latest(store, name)
            if _is_ours(store, name, now, record):
                return
            if (now.etag if now else None) != etag:
                raise _overtaken(name, old, now) from error
            if isinstance(error, UnavailableError):
                raise
            # Refused although nobody moved it: the store may want ETags in another form than it did when it was probed.
            if not again or not store.conditional(refresh=True):
                raise UnsafeStoreError(
                    f"{store.url} refuses a conditional write of {key} though its ETag is still {etag}",
                    remedy="run: dload doctor",
                ) from error


def _is_ours(store: Store, name: str, now: Ref | None, record: Record) -> bool:
    """Whether a write of `record` took effect: the ref holds it, or whoever replaced it has logged it."""
    if now is not None and now.record is not None and now.record.write_id == record.write_id:
        return True
    logged = read_record(store, name, record.seq)
    return logged is not None and logged.write_id == record.write_id


class OvertakenError(ConflictError):
    """Someone else replaced the ref first; nothing was done."""


def _overtaken(name: str, old: Ref | None, now: Ref | None) -> OvertakenError:
    by = f" by {now.record.author} at {now.record.time}" if now and now.record else ""
    was, new = (ref.version[:12] if ref else "nothing" for ref in (old, now))
    return OvertakenError(
        f"latest of {name} was moved{by} meanwhile: expected {was}, got {new}",
        remedy=f"look at it with: dload log {name}",
        name=name,
    )
