"""S3 and what speaks its protocol: the only file that knows boto3.

Credentials come from the standard AWS chain alone; where it has none, requests go unsigned, which is enough
to read a public bucket. The client's own retries are off: `Backoff` does them, here for the parts of a large
file and the pages of a listing, and in `Retrying` for everything else. Bodies are signed by their sha256, which
servers check; the checksum trailers that newer clients send and some servers refuse are left out.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import boto3
import botocore
import botocore.exceptions as boto_errors
from botocore.config import Config
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError  # what botocore lets pass when the body of a reply breaks off

from dload.errors import (
    IntegrityError,
    NotFoundError,
    PreconditionFailedError,
    RemoteError,
    UnavailableError,
    UnsafeStoreError,
)
from dload.store.base import Body, ObjectInfo, check_key, check_prefix
from dload.store.conditions import EtagForm, condition, probe, recall, remember
from dload.store.file_slice import FileSlice
from dload.store.retrying import Backoff
from dload.store.s3_errors import Refusal, Request, cause, no_credentials, refusal_in, refused
from dload.store.s3_names import check_bucket, check_endpoint, check_store_prefix, is_aws, without_userinfo
from dload.store.s3_replies import bare, content_range, is_md5, reply_time
from dload.store.s3_upload import Upload, uploads

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import (
        ErrorTypeDef,
        GetObjectOutputTypeDef,
        ListObjectsV2OutputTypeDef,
    )

_CHUNK = 1 << 20  # of a stream
_IN_PARTS = 12 << 20  # files larger than this are sent in parts
_BATCH = 1000  # keys of one DeleteObjects
_OWN = "tmp/"  # keys of the store's own, as in a folder
_PAST_THE_END = 416

_NO_CREDENTIALS = (
    boto_errors.NoCredentialsError, boto_errors.PartialCredentialsError, boto_errors.CredentialRetrievalError,
    boto_errors.ProfileNotFound, boto_errors.ConfigParseError, boto_errors.TokenRetrievalError, boto_errors.SSOError,
)  # fmt: skip
_NO_CONNECTION = (
    boto_errors.EndpointConnectionError, boto_errors.ConnectTimeoutError, boto_errors.ProxyConnectionError,
)  # fmt: skip
_BROKEN = (
    boto_errors.HTTPClientError, boto_errors.IncompleteReadError, boto_errors.ResponseStreamingError,
    boto_errors.SSLError, HTTPError,
)  # fmt: skip


@dataclass(frozen=True)
class _Connection:
    """What one process has: never pickled, never used after a fork."""

    client: S3Client
    workers: ThreadPoolExecutor
    endpoint: str
    who: str  # whose credentials, in words
    signed: bool


class S3Store:
    """The bucket, or what is in it below `prefix`.

    `endpoint_url` None means AWS, or what the AWS settings say. `jobs` is how many connections are kept and
    how many parts are sent at a time. `timeout` in seconds: a connection that is silent for longer is given
    up."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        profile: str | None = None,
        anonymous: bool = False,
        jobs: int = 16,
        timeout: float = 30.0,
        state_dir: Path | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._bucket = check_bucket(bucket)
        self._prefix = check_store_prefix(prefix)
        self._endpoint_url = check_endpoint(endpoint_url)
        self._profile = profile
        self._anonymous = anonymous
        self._jobs = jobs
        self._timeout = timeout
        self._state_dir = state_dir
        self._backoff = backoff or Backoff()
        self._form: EtagForm | None = None
        self._answered = False
        self._has_md5 = True  # until one is seen: whether the ETag of a small object is its MD5
        self._begin_process()

    def _begin_process(self) -> None:
        self._connection: _Connection | None = None
        self._lock = threading.Lock()
        _stores.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_connection", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_process()

    def __repr__(self) -> str:
        return f"S3Store({self.url!r}, endpoint_url={self._endpoint_url!r})"

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def staging(self) -> Path | None:
        return None

    # ---- reading
    def get(self, key: str) -> Body:
        body = self._get(key)
        if self._has_md5 and not is_md5(body):
            again = self._get(key)
            if is_md5(again):
                return again
            self._has_md5 = again.data != body.data or len(again.data) != self._size(key)  # cut off alike, both times
            if self._has_md5:
                what = f"its ETag is {again.etag}, the bytes that came have another MD5, and other ones each time"
                raise self._request("read", key).failed(UnavailableError, what, "check the network, or try again later")
            return again
        return body

    def _get(self, key: str) -> Body:
        with self._errors("read", key), self._open(key, None) as reply:
            return Body(reply["Body"].read(), bare(reply["ETag"]), reply["LastModified"].timestamp())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        last = start + length - 1
        try:
            with self._errors("read", key), self._open(key, f"bytes={start}-{last}") as reply:
                size = self._size_by_range(reply, key, start)
                if size > last:
                    return self._whole(reply["Body"].read(), key, length)
        except RemoteError as error:
            if error.details.get("status") != _PAST_THE_END:
                raise
            size = self._size(key)
        raise self._too_short(key, start + length, size)

    def stream(self, key: str, start: int = 0) -> Generator[bytes, None, None]:
        try:
            with self._errors("read", key), self._open(key, f"bytes={start}-" if start else None) as reply:
                size = self._size_by_range(reply, key, start) if start else reply["ContentLength"]
                while chunk := reply["Body"].read(_CHUNK):
                    start += len(chunk)
                    yield chunk
            if start != size:
                what = f"the body ended at byte {start:,} of {size:,}"
                raise self._request("read", key).failed(UnavailableError, what)
        except RemoteError as error:
            if error.details.get("status") != _PAST_THE_END:
                raise
            size = self._size(key)
            if start != size:
                raise self._too_short(key, start, size) from error

    def head(self, key: str) -> ObjectInfo | None:
        try:
            with self._errors("look at", key):
                reply = self._client.head_object(Bucket=self._bucket, Key=self._full(key))
                return ObjectInfo(key, reply["ContentLength"], bare(reply["ETag"]), reply["LastModified"].timestamp())
        except NotFoundError:
            return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for found in self._found(check_prefix(prefix)):
            if not found.key.startswith(_OWN):
                yield found

    def list_folders(self, prefix: str) -> Iterator[str]:
        full = self._prefix + check_prefix(prefix)
        for page in self._pages(prefix, Delimiter="/"):
            for found in page.get("CommonPrefixes", ()):
                name = found["Prefix"].removeprefix(full).rstrip("/")
                if prefix or name + "/" != _OWN:
                    yield name

    def clock(self) -> float:
        """The Date of the reply to a small request, whatever else it says. Ticks in seconds."""
        with self._errors("look at", "tmp/clock"):
            try:
                reply: Any = self._client.head_object(Bucket=self._bucket, Key=f"{self._prefix}{_OWN}clock")
            except boto_errors.ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] not in (403, 404):
                    raise
                reply = error.response
        return self._date(reply)

    # ---- writing
    def put(self, key: str, data: bytes) -> str:
        return self._put_object(check_key(key), data)

    def put_file(self, key: str, path: Path, *, move: bool = False) -> str:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _IN_PARTS:
                return self._upload(self._full(key)).send(file.fileno(), size)
            return self._put_object(check_key(key), FileSlice(file.fileno(), 0, size))

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        check_key(key)
        if not self.conditional():
            raise self._request("write", key).failed(
                UnsafeStoreError, "the store ignores conditional writes, so two writers could overwrite each other",
                "use a store that honours If-Match and If-None-Match, or let only one process ever write",
            )  # fmt: skip
        try:
            return self._put_object(key, data, condition(self._form or "none", etag))
        except NotFoundError as error:  # what AWS says when there is nothing to match
            if etag is None or error.details.get("code") == "NoSuchBucket":
                raise
            raise PreconditionFailedError(error.message, **error.details) from error

    def conditional(self, *, refresh: bool = False) -> bool:
        store = f"{self._connect().endpoint} {self._bucket}"
        if self._form is None and not refresh:
            self._form = recall(self._state_dir, store)
        if self._form is None or refresh:
            self._form = self._probe()
            remember(self._state_dir, store, self._form)
        return self._form != "none"

    def delete(self, key: str) -> None:
        full = self._full(key)
        try:
            with self._errors("delete", key):
                self._client.delete_object(Bucket=self._bucket, Key=full)
        except NotFoundError as error:
            if error.details.get("code") == "NoSuchBucket":
                raise

    def delete_many(self, keys: Iterable[str]) -> None:
        failed = 0
        worst: RemoteError | None = None
        rest = iter(keys)
        while batch := tuple(itertools.islice(rest, _BATCH)):
            for error in self._backoff.call(partial(self._delete_batch, batch)):
                failed += 1
                if worst is None or isinstance(worst, UnavailableError):
                    worst = error
        if worst is not None:
            what = f"{failed:,} objects were not deleted; the first: {worst.message}"
            raise type(worst)(what, remedy=worst.remedy, **worst.details, failed=failed)

    def abort_unfinished(
        self, before: float, *, mine: Callable[[str], bool] = lambda _: True, dry_run: bool = False
    ) -> int:
        with self._errors("list the uploads of", ""):
            old = [begun for begun in uploads(self._client, self._bucket, self._prefix, before) if mine(begun.key)]
        own = [found.key for found in self._found(_OWN) if found.modified < before]
        if not dry_run:
            for begun in old:
                self._upload(self._full(begun.key)).abort(begun.upload)
            self.delete_many(own)
        return len(old) + len(own)

    # ---- requests
    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _put_object(self, key: str, body: bytes | FileSlice, wanted: dict[str, str] | None = None) -> str:
        with self._errors("write", key):
            more: Any = wanted or {}
            full = self._prefix + key
            reply = self._client.put_object(Bucket=self._bucket, Key=full, Body=cast(bytes, body), **more)
            return bare(reply["ETag"])

    def _upload(self, full: str) -> Upload:
        key = full.removeprefix(self._prefix)
        connection = self._connect()
        return Upload(
            connection.client, self._bucket, full, self._backoff, connection.workers,
            errors=lambda operation: self._errors(operation, key), head=lambda: self.head(key), date=self._date,
        )  # fmt: skip

    @contextmanager
    def _open(self, key: str, wanted: str | None) -> Iterator[GetObjectOutputTypeDef]:
        """The reply to a GET, whole or of a range, whose body is closed in the end."""
        ranged: Any = {"Range": wanted} if wanted else {}
        reply = self._client.get_object(Bucket=self._bucket, Key=self._full(key), **ranged)
        with closing(reply["Body"]):
            _ = reply["ETag"]  # else it is the page of something in between
            yield reply

    def _size_by_range(self, reply: GetObjectOutputTypeDef, key: str, start: int) -> int:
        """The size of the whole object, by a reply that must begin where it was asked to."""
        found = content_range(reply)
        if found is None or found.first != start:
            what = f"asked for the bytes from {start}, the store gave {reply.get('ContentRange', 'the whole')}"
            raise self._request("read", key).failed(RemoteError, what)
        return found.size

    def _whole(self, data: bytes, key: str, length: int) -> bytes:
        if len(data) != length:
            what = f"{length:,} bytes were announced, {len(data):,} came"
            raise self._request("read", key).failed(UnavailableError, what)
        return data

    def _size(self, key: str) -> int:
        found = self.head(key)
        return found.size if found else 0

    def _too_short(self, key: str, wanted: int, size: int) -> IntegrityError:
        what = f"s3://{self._bucket}/{self._prefix}{key} is too short: {wanted:,} bytes expected, {size:,} found"
        return IntegrityError(what, key=key, expected=wanted, got=size)

    def _pages(self, prefix: str, **more: Any) -> Iterator[ListObjectsV2OutputTypeDef]:
        token: dict[str, str] = {}
        while True:
            page = self._backoff.call(partial(self._page, prefix, **more, **token))
            yield page
            if not page["IsTruncated"]:
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _page(self, prefix: str, **more: Any) -> ListObjectsV2OutputTypeDef:
        with self._errors("list", prefix):
            page = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix + prefix, **more)
            _ = page["IsTruncated"]  # else it is the reply of something that isn't S3
            return page

    def _found(self, prefix: str) -> Iterator[ObjectInfo]:
        for page in self._pages(prefix):
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(self._prefix)
                if not key.endswith("/"):  # some tools make objects to stand for folders
                    # In whole seconds, as HEAD says it and the clock ticks. Some servers list fractions, too, by which
                    # an object would be newer than the clock.
                    modified = found["LastModified"].replace(microsecond=0).timestamp()
                    yield ObjectInfo(key, found["Size"], bare(found["ETag"]), modified)

    def _delete_batch(self, keys: Sequence[str]) -> Sequence[RemoteError]:
        """Delete up to a thousand; the errors of those that stay."""
        with self._errors("delete", keys[0]):
            reply = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": self._full(key)} for key in keys], "Quiet": True}
            )
        errors = (found for found in reply.get("Errors", ()) if found.get("Code") != "NoSuchKey")
        return [self._not_deleted(found) for found in errors]

    def _not_deleted(self, found: ErrorTypeDef) -> RemoteError:
        code = found.get("Code", "unknown")
        request = self._request("delete", found.get("Key", "").removeprefix(self._prefix))
        return refused(request, Refusal(403 if code == "AccessDenied" else 200, code, found.get("Message", "")))

    def _probe(self) -> EtagForm:
        key = f"{_OWN}probe-{secrets.token_hex(16)}"
        try:
            return probe(lambda wanted: self._put_object(key, b"probe", wanted))
        finally:
            with suppress(RemoteError), self._errors("delete", key):
                self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def _date(self, reply: Any) -> float:
        found = reply_time(reply)
        if found is None:
            what = "the store's replies don't say what time it is (Date)"
            raise self._request("look at", "").failed(RemoteError, what)
        return found

    # ---- the client
    @property
    def _client(self) -> S3Client:
        return self._connect().client

    def _connect(self) -> _Connection:
        if self._connection is None:
            with self._lock:
                if self._connection is None:
                    try:
                        self._connection = self._build()
                    except boto_errors.BotoCoreError as error:
                        raise self._failed(self._request("open", ""), error) from error
        return self._connection

    def _build(self) -> _Connection:
        session = boto3.Session(profile_name=self._profile)
        credentials = None if self._anonymous else session.get_credentials()
        client = self._make_client(session, self._endpoint_url, signed=credentials is not None)
        endpoint = without_userinfo(client.meta.endpoint_url)
        if self._endpoint_url is None and not is_aws(endpoint):  # AWS_ENDPOINT_URL or a profile's
            client = self._make_client(session, endpoint, signed=credentials is not None)
        client.meta.events.register("before-call.s3.DeleteObjects", _add_md5)
        if credentials is None:
            who = "without credentials"
        elif credentials.method == "env":
            who = "credentials from the environment"
        else:
            who = f"profile {session.profile_name}"
        workers = ThreadPoolExecutor(self._jobs, thread_name_prefix="dload-s3")
        return _Connection(client, workers, endpoint, who, credentials is not None)

    def _make_client(self, session: boto3.Session, endpoint_url: str | None, *, signed: bool) -> S3Client:
        addressing: Any = "path" if endpoint_url and not is_aws(endpoint_url) else "auto"
        config = Config(
            signature_version=None if signed else botocore.UNSIGNED,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=4 * self._jobs,  # parts and pieces come on top of what the caller does
            connect_timeout=min(10.0, self._timeout),
            read_timeout=self._timeout,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": addressing, "payload_signing_enabled": True},
            tcp_keepalive=True,
            user_agent_extra="dload",
        )
        return session.client("s3", endpoint_url=endpoint_url, config=config)

    # ---- errors
    def _request(self, operation: str, key: str) -> Request:
        connection = self._connection
        return Request(
            operation, self._bucket, self._prefix + key,
            endpoint=connection.endpoint if connection else self._endpoint_url or "AWS",
            who=connection.who if connection else f"profile {self._profile or 'default'}",
            signed=connection.signed if connection else True,
        )  # fmt: skip

    @contextmanager
    def _errors(self, operation: str, key: str) -> Iterator[None]:
        """Turn what the client raises into what a store raises."""
        try:
            yield
        except boto_errors.ClientError as error:
            self._answered = True
            raise refused(self._request(operation, key), refusal_in(error.response)) from error
        except (boto_errors.BotoCoreError, HTTPError) as error:
            raise self._failed(self._request(operation, key), error) from error
        except (ResponseParserError, KeyError) as error:  # no XML where that is due, no ETag, no end of a list
            what = "the reply makes no sense; something between here and the store may have answered in its place"
            raise self._request(operation, key).failed(UnavailableError, what, "check the endpoint") from error
        self._answered = True

    def _failed(self, request: Request, error: boto_errors.BotoCoreError | HTTPError) -> RemoteError:
        """The exception for a request that got no reply, or no whole one."""
        if isinstance(error, _NO_CREDENTIALS):
            return no_credentials(request, f"the credentials can't be used: {cause(error)}")
        if isinstance(error, boto_errors.SSLError) and "certificate" in str(error).lower():
            remedy = "check the endpoint; for a certificate of your own, set AWS_CA_BUNDLE"
            return request.failed(RemoteError, f"its certificate isn't trusted: {cause(error)}", remedy)
        if isinstance(error, _NO_CONNECTION):
            what = f"the endpoint can't be reached: {cause(error)}"
            remedy = "check the endpoint's URL and the network"
            return request.failed(UnavailableError, what, remedy, answered=self._answered)
        if isinstance(error, _BROKEN):
            what = f"the connection broke off or stalled ({type(error).__name__})"
            return request.failed(UnavailableError, what, "check the network, or try again later")
        return request.failed(RemoteError, cause(error))


# The stores of this process, for the child that a fork makes: a client's connections can't be shared.
_stores: weakref.WeakSet[S3Store] = weakref.WeakSet()


def _forget_connections() -> None:
    for store in list(_stores):
        store._begin_process()


os.register_at_fork(after_in_child=_forget_connections)


def _add_md5(params: dict[str, Any], **_: Any) -> None:
    """Some servers insist on the checksum that newer clients have given up."""
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()
