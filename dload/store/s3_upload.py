"""Large files to S3: in parts, side by side, each tried again on its own; whole in the end or not there at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from dload.errors import NotFoundError, RemoteError, UnavailableError
from dload.store.base import ObjectInfo
from dload.store.file_slice import FileSlice
from dload.store.retrying import Backoff
from dload.store.s3_replies import bare

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, CreateMultipartUploadOutputTypeDef

_SMALL_PART = 8 << 20  # bytes
_LARGE_PART = 64 << 20
_PARTS = 16  # in between: enough to fill a line that gives each connection a share
_MAX_PARTS = 10_000


@dataclass(frozen=True, slots=True)
class Begun:
    """An upload that was begun and not ended: its key below the prefix, the server's name for it."""

    key: str
    upload: str


def uploads(client: S3Client, bucket: str, prefix: str, before: float) -> Iterator[Begun]:
    """Those that were begun before that time of the server's clock."""
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
        for found in page.get("Uploads", ()):
            if found["Initiated"].timestamp() < before:
                yield Begun(found["Key"].removeprefix(prefix), found["UploadId"])


@dataclass(frozen=True)
class Upload:
    """One file on its way to one key. `errors(operation)` translates exceptions, `head` looks at the object, `date`
    reads a reply's time."""

    client: S3Client
    bucket: str
    key: str
    backoff: Backoff
    workers: ThreadPoolExecutor
    errors: Callable[[str], AbstractContextManager[None]]
    head: Callable[[], ObjectInfo | None]
    date: Callable[[Any], float]

    def send(self, descriptor: int, size: int) -> str:
        """Send `size` bytes of the open file. Returns the ETag."""
        begun = self.backoff.call(self._begin)
        upload = begun["UploadId"]
        try:
            parts = self._send_parts(upload, descriptor, size)
            return self._finish(upload, parts, size, since=self.date(begun))
        except BaseException:
            with suppress(RemoteError):
                self.abort(upload)
            raise

    def abort(self, upload: str) -> None:
        """Drop what has come of an upload; one that is gone already is fine."""
        with suppress(NotFoundError), self.errors("abort an upload of"):
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=self.key, UploadId=upload)

    def _begin(self) -> CreateMultipartUploadOutputTypeDef:
        with self.errors("write"):
            return self.client.create_multipart_upload(Bucket=self.bucket, Key=self.key)

    def _send_parts(self, upload: str, descriptor: int, size: int) -> Sequence[CompletedPartTypeDef]:
        length = part_length(size)

        def send(number: int) -> CompletedPartTypeDef:
            start = (number - 1) * length
            part = FileSlice(descriptor, start, min(length, size - start))
            with self.errors("write"):
                reply = self.client.upload_part(
                    Bucket=self.bucket, Key=self.key, UploadId=upload, PartNumber=number, Body=cast(BinaryIO, part)
                )
            return {"ETag": reply["ETag"], "PartNumber": number}

        numbers = range(1, math.ceil(size / length) + 1)
        sent = [self.workers.submit(self.backoff.call, partial(send, number)) for number in numbers]
        try:
            return [each.result() for each in sent]
        except BaseException as error:
            for each in sent:
                each.cancel()
            if isinstance(error, Exception):  # a part that comes after the abort may stay; Ctrl-C doesn't wait
                wait(sent)
            raise

    def _finish(self, upload: str, parts: Sequence[CompletedPartTypeDef], size: int, since: float) -> str:
        def finish() -> str:
            with self.errors("write"):
                reply = self.client.complete_multipart_upload(
                    Bucket=self.bucket, Key=self.key, UploadId=upload, MultipartUpload={"Parts": parts}
                )
            return bare(reply.get("ETag", ""))

        try:
            etag = self.backoff.call(finish)
        except NotFoundError as error:
            if error.details.get("code") != "NoSuchUpload":
                raise
            found = self.backoff.call(self.head)
            if found and found.size == size and found.modified >= since:  # a try did it, and its reply was lost
                return found.etag
            raise UnavailableError(error.message, remedy=error.remedy, **error.details) from error
        if not etag and (found := self.backoff.call(self.head)):  # some servers leave it out
            return found.etag
        return etag


def part_length(size: int) -> int:
    """How long the parts of a file of that size are; only the last may be shorter."""
    even = math.ceil(size / min(_PARTS, math.ceil(size / _SMALL_PART)))
    return max(min(even, _LARGE_PART), math.ceil(size / _MAX_PARTS))
