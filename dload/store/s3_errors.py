"""What an S3 server's refusal means, in words: one line with the operation, the object, the endpoint, the profile, and
what to do about it. Knows the codes of the protocol and no client library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dload.errors import AccessError, NotFoundError, PreconditionFailedError, RemoteError, UnavailableError

_NEW_LOGIN = "get new ones (aws sso login, or a fresh AWS_SESSION_TOKEN) and run it again"
_CREDENTIALS: dict[str, tuple[str, str]] = {
    "InvalidAccessKeyId": ("the store doesn't know this access key", "check AWS_ACCESS_KEY_ID or AWS_PROFILE"),
    "SignatureDoesNotMatch": ("the secret key is wrong", "check AWS_SECRET_ACCESS_KEY or the secret of the profile"),
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"),
        ("the credentials have expired", _NEW_LOGIN),
    ),
    "InvalidToken": ("the session token is not valid", _NEW_LOGIN),
    "RequestTimeTooSkewed": ("this machine's clock differs from the store's", "set the clock and run it again"),
}
_WRONG_REGION = {
    "PermanentRedirect", "TemporaryRedirect", "Redirect", "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
}  # fmt: skip
_WRONG_REGION_STATUS = {301, 307, 308}
# Refusals that the same request may get over: overload, and somebody else's write right now.
_TRANSIENT = {
    "SlowDown", "InternalError", "ServiceUnavailable", "ServerBusy", "Throttling", "ThrottlingException",
    "RequestThrottled", "TooManyRequests", "RequestTimeout", "RequestTimeoutException", "OperationAborted",
    "ConditionalRequestConflict",
}  # fmt: skip
_DAMAGED = {"BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"}
_TRANSIENT_STATUS = {408, 409, 425, 429, 500, 502, 503, 504}
_READING = ("read", "look at")
_PERMISSIONS = {
    **dict.fromkeys(_READING, "s3:GetObject"), "write": "s3:PutObject", "list": "s3:ListBucket",
    "delete": "s3:DeleteObject", "list the uploads of": "s3:ListBucketMultipartUploads",
    "abort an upload of": "s3:AbortMultipartUpload",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked. `operation` is a verb; `who`: whose credentials, in words; `signed`: with any."""

    operation: str
    bucket: str
    key: str
    endpoint: str
    who: str
    signed: bool

    def failed(self, cls: type[RemoteError], what: str, remedy: str | None = None, **details: Any) -> RemoteError:
        """The exception that says it all."""
        facts = {"bucket": self.bucket, "key": self.key, "endpoint": self.endpoint, "who": self.who}
        text = f"can't {self.operation} s3://{self.bucket}/{self.key} at {self.endpoint} ({self.who}): {what}"
        return cls(text, remedy=remedy, **facts, **details)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reply: HTTP status, the code in its body (or the status again), its text, the right region if it says."""

    status: int
    code: str
    text: str = ""
    region: str | None = None


def refusal_in(reply: Mapping[str, Any]) -> Refusal:
    """What a server's reply refuses, as the client has parsed it."""
    status = reply["ResponseMetadata"]["HTTPStatusCode"]
    found = reply.get("Error", {})
    region = found.get("Region") or reply["ResponseMetadata"].get("HTTPHeaders", {}).get("x-amz-bucket-region")
    return Refusal(status, found.get("Code") or str(status), found.get("Message") or "", region)


def cause(error: Exception) -> str:
    """The innermost reason in one line: client libraries wrap it several times over."""
    inner: Any = getattr(error, "kwargs", {}).get("error", error)
    text = str(getattr(inner, "reason", None) or inner)
    return " ".join(text.split()).rpartition("a new connection: ")[2][:200]


def refused(request: Request, refusal: Refusal) -> RemoteError:
    """The exception for a server's refusal."""
    status, code = refusal.status, refusal.code
    seen = code if code == str(status) else f"{status} {code}"
    details: dict[str, Any] = {"status": status, "code": code}
    if code in _CREDENTIALS:
        what, remedy = _CREDENTIALS[code]
        return request.failed(AccessError, f"{what} ({seen})", remedy, **details)
    if code in _WRONG_REGION or status in _WRONG_REGION_STATUS:
        where = f"in region {refusal.region}" if refusal.region else "in another region, or at another endpoint"
        remedy = f"set AWS_REGION={refusal.region}" if refusal.region else "set AWS_REGION to the region of the bucket"
        remedy += ", or correct the endpoint"
        return request.failed(RemoteError, f"the bucket is {where} ({seen})", remedy, **details)
    if status in (401, 403):
        return _forbidden(request, seen, details)
    cls, what, cure = _plain(request, refusal, seen)
    return request.failed(cls, what, cure, **details)


def _plain(request: Request, refusal: Refusal, seen: str) -> tuple[type[RemoteError], str, str | None]:
    """Class, text and remedy of what has nothing to do with who asks."""
    status, code = refusal.status, refusal.code
    if code == "NoSuchBucket":
        remedy = "make it, or correct its name or the endpoint"
        return NotFoundError, f"there is no bucket {request.bucket} ({seen})", remedy
    if status == 404:
        what = "the upload was finished or aborted meanwhile" if code == "NoSuchUpload" else "there is no such object"
        return NotFoundError, f"{what} ({seen})", None
    if status == 412:
        return PreconditionFailedError, f"someone else changed it first ({seen})", None
    if code in _DAMAGED:
        return UnavailableError, f"the bytes were damaged or cut on their way ({seen})", "try again"
    if code in _TRANSIENT or status in _TRANSIENT_STATUS:
        return UnavailableError, f"the store is overloaded or failed for the moment ({seen})", "try again later"
    text = " ".join(refusal.text.split())[:200]
    return RemoteError, f"the store refused ({seen}){': ' + text if text else ''}", None


def _forbidden(request: Request, seen: str, details: dict[str, Any]) -> RemoteError:
    if not request.signed:
        return no_credentials(request, f"no credentials were found, and the store asks for some ({seen})", **details)
    permission = _PERMISSIONS[request.operation]
    what = f"forbidden ({seen})"
    if request.operation in _READING:
        what = f"absent or forbidden ({seen}): to those who may not list it, a store doesn't say which"
    remedy = f"check the name, and that these credentials have the permission {permission}"
    return request.failed(AccessError, what, remedy, permission=permission, **details)


def no_credentials(request: Request, what: str, **details: Any) -> RemoteError:
    """The exception for credentials that aren't there or can't be used."""
    remedy = "run aws configure, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    return request.failed(AccessError, what, remedy, **details)
