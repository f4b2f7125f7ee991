"""What S3 says no with, in one line each: operation, object, endpoint, whose credentials, what to do."""

from __future__ import annotations

import io
import logging
import pickle
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from dload.errors import (
    AccessError,
    ConfigError,
    DloadError,
    NotFoundError,
    RemoteError,
    UnavailableError,
)
from dload.store.open import open_store
from dload.store.retrying import Backoff, Retrying
from dload.store.s3 import S3Store
from dload.testing.canned_s3 import CannedS3
from dload.testing.s3_server import S3Server

_AT_ONCE = Backoff(patience=0)


def _error(call: Callable[[], object]) -> DloadError:
    with pytest.raises(DloadError) as caught:
        call()
    return caught.value


def _use_keys(monkeypatch: pytest.MonkeyPatch, key: str, secret: str, token: str | None = None) -> None:
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)


def _unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _xml(code: str, more: str = "") -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>text</Message>{more}</Error>'


def _refusals(server: S3Server, bucket: str) -> dict[str, DloadError]:
    """Each of the seven ways not to get through, by what a user would do to get there."""
    url = server.endpoint_url
    key, secret = server.keys
    errors = {}
    with pytest.MonkeyPatch.context() as patch, CannedS3(canned=(400, {}, _xml("ExpiredToken"))) as canned:
        _use_keys(patch, key, secret, token="TOKEN-SECRET")
        errors["expired"] = _error(lambda: S3Store(bucket, endpoint_url=canned.url).get("a"))
    with pytest.MonkeyPatch.context() as patch:
        _use_keys(patch, "stranger-key", secret)
        errors["unknown key"] = _error(lambda: S3Store(bucket, endpoint_url=url).get("a"))
    with pytest.MonkeyPatch.context() as patch:
        _use_keys(patch, key, "WRONG-SECRET")
        errors["wrong secret"] = _error(lambda: S3Store(bucket, endpoint_url=url).get("a"))
    errors["no bucket"] = _error(lambda: S3Store("no-such-bucket", endpoint_url=url).get("a"))
    moved = _xml("PermanentRedirect", "<Endpoint>b.s3.eu-west-1.amazonaws.com</Endpoint><Bucket>b</Bucket>")
    with CannedS3(canned=(301, {"x-amz-bucket-region": "eu-west-1"}, moved)) as canned:
        errors["wrong region"] = _error(lambda: S3Store(bucket, endpoint_url=canned.url).get("a"))
    dead = f"http://127.0.0.1:{_unused_port()}"
    errors["dead endpoint"] = _error(lambda: Retrying(S3Store(bucket, endpoint_url=dead), _AT_ONCE).get("a"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AWS_PROFILE")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
        errors["no credentials"] = _error(lambda: S3Store(bucket, endpoint_url=url).get("a"))
    return errors


def test_case_c32_seven_refusals_have_seven_messages(s3_server: S3Server, s3_bucket: str) -> None:
    errors = _refusals(s3_server, s3_bucket)
    expected = {
        "expired": (AccessError, "credentials have expired", "get new ones"),
        "unknown key": (AccessError, "doesn't know this access key", "AWS_ACCESS_KEY_ID"),
        "wrong secret": (AccessError, "secret key is wrong", "AWS_SECRET_ACCESS_KEY"),
        "no bucket": (NotFoundError, "there is no bucket no-such-bucket", "make it"),
        "wrong region": (RemoteError, "in region eu-west-1", "AWS_REGION=eu-west-1"),
        "dead endpoint": (UnavailableError, "Connection refused", "check the endpoint"),
        "no credentials": (AccessError, "no credentials were found", "aws configure"),
    }
    assert errors.keys() == expected.keys()
    for name, (cls, what, remedy) in expected.items():
        text = str(errors[name])
        assert isinstance(errors[name], cls), name
        assert what in errors[name].message, name
        assert remedy in (errors[name].remedy or ""), name
        assert "\n" not in text, name
        assert text.startswith("can't read s3://"), name
        assert "http://127.0.0.1:" in text, name
    assert len({str(error) for error in errors.values()}) == 7


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_case_c32_writing_is_told_the_same(s3_server: S3Server, s3_bucket: str, write: bool) -> None:
    store = S3Store("no-such-bucket", endpoint_url=s3_server.endpoint_url)
    error = _error(lambda: store.put("a", b"x") if write else list(store.list("")))
    assert "no bucket" in str(error) or "forbidden" in str(error)


def test_a_missing_profile_is_named(s3_server: S3Server, s3_bucket: str) -> None:
    error = _error(lambda: S3Store(s3_bucket, profile="nobody", endpoint_url=s3_server.endpoint_url).get("a"))
    assert isinstance(error, AccessError)
    assert "nobody" in str(error)
    assert "aws configure" in str(error)


def test_a_public_bucket_needs_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    with CannedS3(objects={"/public/a": b"for all"}) as canned:
        assert S3Store("public", endpoint_url=canned.url).get("a").data == b"for all"
        assert "authorization" not in canned.headers_seen[-1][1]
        _use_keys(monkeypatch, "key", "secret")
        assert S3Store("public", endpoint_url=canned.url).get("a").data == b"for all"
        assert "authorization" in canned.headers_seen[-1][1]
        assert S3Store("public", endpoint_url=canned.url, anonymous=True).get("a").data == b"for all"
        assert "authorization" not in canned.headers_seen[-1][1]


# ---- permissions
@pytest.mark.seaweedfs
def test_case_c33_reading_needs_no_permission_to_list(s3_server: S3Server, s3_bucket: str) -> None:
    S3Store(s3_bucket, endpoint_url=s3_server.endpoint_url).put("d/x", b"0123456789")
    store = S3Store(s3_bucket, endpoint_url=s3_server.endpoint_url, profile="getter")
    assert store.get("d/x").data == b"0123456789"
    assert store.get_range("d/x", 2, 3) == b"234"
    assert b"".join(store.stream("d/x", 5)) == b"56789"
    head = store.head("d/x")
    assert head is not None and head.size == 10
    assert store.clock() > 0
    error = _error(lambda: list(store.list("d/")))
    assert isinstance(error, AccessError)
    assert "s3:ListBucket" in str(error) and "profile getter" in str(error)


def test_case_c33_a_403_may_mean_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What AWS answers for a missing object to those who may not list."""
    _use_keys(monkeypatch, "key", "secret")
    with CannedS3(canned=(403, {}, _xml("AccessDenied"))) as canned:
        store = S3Store("bucket", endpoint_url=canned.url)
        for read in (lambda: store.get("a"), lambda: store.head("a"), lambda: store.get_range("a", 0, 1)):
            error = _error(read)
            assert isinstance(error, AccessError)
            assert "absent or forbidden" in str(error) and "s3:GetObject" in str(error)
        assert store.clock() > 0


@pytest.mark.seaweedfs
def test_case_c10_a_read_only_key_is_told_at_once(s3_server: S3Server, s3_bucket: str) -> None:
    store = open_store(f"s3://{s3_bucket}/p", endpoint_url=s3_server.endpoint_url, profile="reader")
    for write in (
        lambda: store.put("a", b"x"),
        lambda: store.put_if("a", b"x", etag=None),
        lambda: store.conditional(refresh=True),
    ):
        error = _error(write)
        assert isinstance(error, AccessError)
        assert "s3:PutObject" in str(error)


@pytest.mark.seaweedfs
def test_case_c24_a_denied_delete_names_the_permission(s3_server: S3Server, s3_bucket: str) -> None:
    store = S3Store(s3_bucket, "p", endpoint_url=s3_server.endpoint_url, profile="keeper")
    store.put("d/x", b"x")
    store.put("d/y", b"y")
    assert store.conditional()  # though the probe's object stays
    one, many = _error(lambda: store.delete("d/x")), _error(lambda: store.delete_many(["d/x", "d/y"]))
    assert isinstance(one, AccessError) and isinstance(many, AccessError)
    assert "s3:DeleteObject" in str(one) and "s3:DeleteObject" in str(many)
    assert "2 objects were not deleted" in str(many)
    assert {found.key for found in store.list("")} == {"d/x", "d/y"}


# ---- two at a time
def test_case_c35_two_stores_in_one_process(tmp_path: Path, s3_server: S3Server, s3_bucket: str) -> None:
    key, secret = s3_server.keys
    other = S3Server(tmp_path / "other")
    other.start()
    try:
        other.make_bucket(s3_bucket)
        with pytest.MonkeyPatch.context() as patch:
            both = tmp_path / "credentials"
            both.write_text(
                f"[here]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
                "[there]\naws_access_key_id = reader-key\naws_secret_access_key = reader-secret\n"
            )
            patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(both))
            patch.delenv("AWS_PROFILE")
            here = open_store(f"s3://{s3_bucket}/p", endpoint_url=s3_server.endpoint_url, profile="here")
            there = open_store(f"s3://{s3_bucket}/p", endpoint_url=other.endpoint_url, profile="there")
            here.put("a", b"here")
            assert there.head("a") is None
            assert isinstance(_error(lambda: there.put("a", b"there")), AccessError)
            assert here.get("a").data == b"here"
    finally:
        other.stop()


# ---- secrets
def test_case_c36_no_secret_in_any_output(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    _use_keys(monkeypatch, "some-key", "KEY-SECRET", token="TOKEN-SECRET")
    dead = f"http://user:URL-SECRET@127.0.0.1:{_unused_port()}"
    with caplog.at_level(logging.DEBUG, logger="dload"), CannedS3(canned=(403, {}, _xml("AccessDenied"))) as canned:
        refusing = canned.url.replace("http://", "http://user:URL-SECRET@")
        text = io.StringIO()
        for endpoint in (dead, refusing):
            backoff = Backoff(patience=0.3, first=0.1)
            inner = S3Store("bucket", "p", endpoint_url=endpoint, backoff=backoff)
            store = Retrying(inner, backoff)
            for call in (lambda: store.get("a"), lambda: store.put("a", b"x"), lambda: list(store.list(""))):  # noqa: B023
                error = _error(call)
                traceback.print_exception(error, file=text)
                text.write(repr(error) + str(error) + repr(error.details))
            text.write(repr(store) + store.url + repr(inner.__dict__) + repr(pickle.dumps(store)))
        monkeypatch.setenv("AWS_ENDPOINT_URL", dead)
        traceback.print_exception(_error(lambda: S3Store("bucket").get("a")), file=text)
    output = text.getvalue() + caplog.text
    assert "Connection refused" in output and "403" in output
    for secret in ("URL-SECRET", "KEY-SECRET", "TOKEN-SECRET", "user:"):
        assert secret not in output


def test_case_c36_bad_urls_are_refused_without_their_secrets() -> None:
    for call in (
        lambda: S3Store("bucket", endpoint_url="user:URL-SECRET@host"),
        lambda: S3Store("bucket", endpoint_url="ftp://user:URL-SECRET@host"),
        lambda: open_store("s3://key:URL-SECRET@bucket/prefix"),
    ):
        error = _error(call)
        assert isinstance(error, ConfigError)
        assert "SECRET" not in str(error)
