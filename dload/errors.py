"""Every exception that dload raises on purpose, grouped by what the caller does next.

Each class has a stable `kind` (a word for programs: JSON output, logs, dashboards) and the exit code that the command
line ends with. Messages say what happened, what was expected and what was found; `remedy` says what to do about it.
All of them survive pickling, so that an error of a worker process arrives whole.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DloadError(Exception):
    """Base of all. `message` says what happened; `remedy` is a sentence or a command; `details` holds facts for
    programs (JSON values)."""

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, remedy: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} — {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.remedy, self.details)


def _rebuild(cls: type[DloadError], message: str, remedy: str | None, details: dict[str, Any]) -> DloadError:
    return cls(message, remedy=remedy, **details)


# ---- the caller changes what it passed or how dload is set up
class ConfigError(DloadError):
    """A setting, a name or an argument is missing or makes no sense."""

    kind = "config"
    exit_code = 2


class SampleError(DloadError, ValueError):
    """A sample that can't be stored, or used: a bad key, a bad field, too large, or changed while it was read."""

    kind = "sample"


class DuplicateKeyError(SampleError):
    """Two samples of one commit (or of an append and its parent) have the same key."""

    kind = "duplicate-key"


# ---- the store said no, or said nothing
class RemoteError(DloadError):
    """The store failed in a way that trying again won't mend."""

    kind = "remote"


class UnavailableError(RemoteError):
    """The store can't be reached or is overloaded: the same request may succeed later."""

    kind = "unavailable"


class NotFoundError(RemoteError):
    """A bucket, data set, version, ref, sample or object does not exist."""

    kind = "not-found"
    exit_code = 10


class UnknownKeyError(NotFoundError, KeyError):
    """A version has no sample with that key."""

    kind = "unknown-key"


class RemovedError(NotFoundError):
    """The version was removed and can still be brought back."""

    kind = "removed"


class AccessError(RemoteError):
    """Credentials are missing, wrong or expired, or don't allow the operation."""

    kind = "access"
    exit_code = 12


class ConflictError(RemoteError):
    """Someone else changed the same thing first."""

    kind = "conflict"
    exit_code = 13


class PreconditionFailedError(ConflictError):
    """A conditional write lost: the object is not (any more) what the condition asked for."""

    kind = "precondition-failed"


class UnsafeStoreError(RemoteError):
    """The store doesn't honour conditional writes, so two writers could overwrite each other."""

    kind = "unsafe-store"


# ---- bytes are not what they should be
class IntegrityError(DloadError):
    """Content does not match its digest, its checksum or its size."""

    kind = "integrity"
    exit_code = 14


class PackFormatError(DloadError):
    """A shard or manifest is damaged, is not one, or is of a format that this version doesn't read."""

    kind = "format"
    exit_code = 14


class TooManyFailuresError(DloadError):
    """A function failed for so many elements in a row that it isn't the data any more."""

    kind = "too-many-failures"


# ---- it doesn't fit here
class CacheFullError(DloadError):
    """The cache budget can't hold what must be resident at the same time."""

    kind = "cache-full"
    exit_code = 15


class DiskFullError(DloadError):
    """The disk is full."""

    kind = "disk-full"
    exit_code = 15


class InfeasiblePipelineError(DloadError):
    """The pipeline's resident set exceeds the cache budget; raised before any storage is touched."""

    kind = "infeasible"
    exit_code = 15


# ---- somebody else is at it
class LockTimeoutError(DloadError):
    """Another process holds what this one waited for, for longer than it waits."""

    kind = "lock-timeout"
    exit_code = 11
