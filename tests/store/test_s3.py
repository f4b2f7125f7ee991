"""The S3 store on a real server: large files, conditions, processes, what goes over the wire."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dload.errors import (
    ConfigError,
    NotFoundError,
    PreconditionFailedError,
    RemoteError,
    UnavailableError,
    UnsafeStoreError,
)
from dload.store.base import Store
from dload.store.open import open_store
from dload.store.retrying import Backoff, Retrying
from dload.store.s3 import S3Store
from dload.store.s3_upload import part_length
from dload.testing.canned_s3 import CannedS3
from dload.testing.fault_proxy import Cut, FaultProxy, LostReply, Reset, Short, Stall, Status
from dload.testing.s3_server import S3Server

_QUICK = Backoff(patience=20, first=0.01, longest=0.05)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: FaultProxy, s3_place: tuple[str, str]) -> Retrying:
    """A store behind the proxy, with short pauses."""
    return Retrying(S3Store(*s3_place, endpoint_url=proxy.url, backoff=_QUICK), _QUICK)


@pytest.fixture
def hasty(proxy: FaultProxy, s3_place: tuple[str, str]) -> Retrying:
    """The same, with a short time-out."""
    return Retrying(S3Store(*s3_place, endpoint_url=proxy.url, timeout=0.5, backoff=_QUICK), _QUICK)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials for servers that don't look at them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def _large(tmp_path: Path) -> Path:
    """A file that is sent in parts, the last one a short one."""
    path = tmp_path / "large"
    path.write_bytes(secrets.token_bytes(1 << 20) * 41 + b"end")
    return path


def _same(store: Store, key: str, path: Path) -> bool:
    return b"".join(store.stream(key)) == path.read_bytes()


# ---- large files
def test_a_large_file_goes_in_parts(through: Retrying, proxy: FaultProxy, tmp_path: Path) -> None:
    path = _large(tmp_path)
    etag = through.put_file("large", path)
    assert proxy.count("PUT") == 6
    head = through.head("large")
    assert head is not None and (head.size, head.etag) == (path.stat().st_size, etag)
    assert _same(through, "large", path)
    assert through.get_range("large", 41 << 20, 3) == b"end"


def test_one_part_that_fails_is_sent_again(through: Retrying, proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.add(Status(503), method="PUT", key="partNumber=2", times=2)
    proxy.add(LostReply(), method="PUT", key="partNumber=3", times=1)
    path = _large(tmp_path)
    through.put_file("large", path)
    assert proxy.count("PUT") == 6 + 3
    assert _same(through, "large", path)


def test_a_large_file_that_fails_leaves_nothing(through: Retrying, proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.add(Status(403, "AccessDenied"), method="PUT", key="partNumber=4")
    with pytest.raises(RemoteError, match="s3:PutObject"):
        through.put_file("large", _large(tmp_path))
    assert through.head("large") is None
    assert proxy.count("DELETE") == 1
    assert through.abort_unfinished(through.clock() + 60) == 0


def test_a_lost_reply_to_the_last_request_is_found_out(through: Retrying, proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.add(LostReply(), method="POST", key="uploadId=", times=1)
    path = _large(tmp_path)
    etag = through.put_file("large", path)
    head = through.head("large")
    assert head is not None and head.etag == etag
    assert _same(through, "large", path)
    assert proxy.count("PUT") == 6  # nothing was sent twice


def test_a_server_that_leaves_the_etag_out_is_asked_for_it(through: Retrying, tmp_path: Path) -> None:
    inner = through.inner
    assert isinstance(inner, S3Store)
    inner._client.meta.events.register(
        "after-call.s3.CompleteMultipartUpload", lambda parsed, **_: parsed.update(ETag="")
    )
    etag = through.put_file("large", _large(tmp_path))
    head = through.head("large")
    assert etag and head is not None and head.etag == etag


_PUT_LARGE = """
import sys
from pathlib import Path
from dload.store.s3 import S3Store
from dload.store.s3_upload import part_length
S3Store(sys.argv[1], sys.argv[2], endpoint_url=sys.argv[3]).put_file("large", Path(sys.argv[4]))
"""


def test_case_c02_a_killed_upload_leaves_no_object(
    through: Retrying, proxy: FaultProxy, s3_place: tuple[str, str], tmp_path: Path
) -> None:
    proxy.add(Status(503), method="PUT", key="partNumber=4")  # so that it never gets done
    path = _large(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", _PUT_LARGE, *s3_place, proxy.url, str(path)])
    while proxy.count("PUT") < 6:
        assert process.poll() is None
    process.kill()
    process.wait()
    assert through.head("large") is None
    assert list(through.list("")) == []
    assert through.abort_unfinished(through.clock() - 3600) == 0  # it may still be at work
    assert through.abort_unfinished(through.clock() + 60) == 1
    proxy.clear()
    through.put_file("large", path)
    assert _same(through, "large", path)


@pytest.mark.parametrize("size", [(12 << 20) + 1, 17 << 20, 128 << 20, 256 << 20, 3 << 30, 600 << 30, 5 << 40])
def test_parts_are_few_and_within_what_servers_allow(size: int) -> None:
    length = part_length(size)
    assert 5 << 20 <= length <= 5 << 30
    assert -(-size // length) <= 10_000
    assert length <= 64 << 20 or size > 500 << 30


# ---- faults on the way
def test_case_c30_a_fifth_of_calls_answer_slow_down(through: Retrying, proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.add(Status(503, "SlowDown"), rate=0.2)
    (tmp_path / "file").write_bytes(b"file" * 1000)
    for n in range(20):
        through.put(f"d/{n}", b"%d" % n)
        through.put_file(f"f/{n}", tmp_path / "file")
    assert {found.key for found in through.list("d/")} == {f"d/{n}" for n in range(20)}
    assert sorted(through.list_folders("")) == ["d", "f"]
    for n in range(20):
        assert through.get(f"d/{n}").data == b"%d" % n
        assert _same(through, f"f/{n}", tmp_path / "file")
    through.delete_many(f"d/{n}" for n in range(20))
    assert list(through.list("d/")) == []
    refused = proxy.count() - 20 * 4 - 4
    assert refused > 5


@pytest.mark.parametrize("status", [429, 409, 500, 503])
def test_case_c30_what_is_unclear_is_no_lost_race(through: Retrying, proxy: FaultProxy, status: int) -> None:
    """Some servers answer 409 or 500 to a conditional write that met another one."""
    assert through.conditional()
    etag = through.put_if("ref", b"1", etag=None)
    proxy.add(Status(status, "Whatever"), method="PUT", key="/ref", times=2)
    with pytest.raises(UnavailableError):
        through.inner.put_if("ref", b"2", etag=etag)
    etag = through.put_if("ref", b"2", etag=etag)
    assert through.get("ref").data == b"2"
    with pytest.raises(PreconditionFailedError):
        through.put_if("ref", b"3", etag="0" * 32)


def test_case_c03_the_reply_to_a_conditional_write_is_lost(through: Retrying, proxy: FaultProxy) -> None:
    assert through.conditional()
    proxy.add(LostReply(), method="PUT", key="/ref", times=1)
    etag = through.put_if("ref", b"1", etag=None)
    assert through.get("ref").etag == etag
    assert proxy.count("PUT", "/ref") == 2


@pytest.mark.parametrize(
    "fault",
    [Cut(0), Cut(0.5), Cut(3_000_000), Reset(0), Reset(1), Reset(0.5), Stall(2, at=0), Stall(2, at=0.7)],
    ids=repr,
)
def test_case_c31_a_broken_body_is_continued(
    through: Retrying, hasty: Retrying, proxy: FaultProxy, fault: Cut | Reset | Stall
) -> None:
    data = secrets.token_bytes(4 << 20)
    through.put("d/x", data)
    proxy.add(fault, method="GET", times=2)
    assert b"".join(hasty.stream("d/x")) == data
    assert proxy.count("GET") == (2 if fault == Cut(3_000_000) else 3)  # the rest is less than that
    for read in (lambda: hasty.get("d/x").data, lambda: hasty.get_range("d/x", 0, 4 << 20)):
        proxy.clear()
        proxy.add(fault, method="GET", times=1)
        assert read() == data


def test_case_c31_a_broken_body_never_ends_in_silence(through: Retrying, hasty: Retrying, proxy: FaultProxy) -> None:
    through.put("d/x", secrets.token_bytes(4 << 20))
    for fault in (Cut(0), Cut(0.5), Reset(0.5), Stall(2)):
        proxy.add(fault, method="GET", times=1)
        with pytest.raises(UnavailableError):
            list(hasty.inner.stream("d/x"))


def test_case_c31_a_200_with_too_few_bytes(through: Retrying, proxy: FaultProxy) -> None:
    """A reply that is short and says that this is all shows only where its length is known: in ranges."""
    data = secrets.token_bytes(4 << 20)
    through.put("d/x", data)
    proxy.add(Short(0.5), method="GET", times=1)
    assert through.get_range("d/x", 0, len(data)) == data
    proxy.add(Short(0.5), method="GET", times=1)
    assert b"".join(through.stream("d/x", 100)) == data[100:]


def test_a_listing_of_many_pages_survives_faults(through: Retrying, proxy: FaultProxy) -> None:
    for n in range(7):
        through.put(f"d/{n}", b"x")
    proxy.add(Status(503), method="GET", rate=0.5)
    inner = through.inner
    assert isinstance(inner, S3Store)
    pages = list(inner._pages("d/", MaxKeys=2))
    assert len(pages) == 4
    assert sum(page["KeyCount"] for page in pages) == 7


# ---- conditions
@pytest.mark.parametrize(("server_wants", "form"), [("quoted", "quoted"), ("bare", "bare")])
def test_the_form_of_etags_is_probed_and_remembered(keys: None, tmp_path: Path, server_wants: str, form: str) -> None:
    with CannedS3(conditions=server_wants) as server:
        store = S3Store("bucket", endpoint_url=server.url, state_dir=tmp_path)
        etag = store.put_if("ref", b"1", etag=None)
        etag = store.put_if("ref", b"2", etag=etag)
        with pytest.raises(PreconditionFailedError):
            store.put_if("ref", b"3", etag="0" * 32)
        assert server.objects == {"/bucket/ref": b"2"}  # the probe cleans up
        known = json.loads((tmp_path / "conditions.json").read_text())
        assert known == {f"{server.url} bucket": form}

        server.headers_seen.clear()
        another = S3Store("bucket", endpoint_url=server.url, state_dir=tmp_path)
        another.put_if("ref", b"3", etag=etag)
        assert len(server.headers_seen) == 1
        assert another.conditional(refresh=True)
        assert len(server.headers_seen) > 4


@pytest.mark.parametrize("conditions", ["ignored", "unknown"])
def test_a_store_without_conditions_takes_no_conditional_writes(keys: None, tmp_path: Path, conditions: str) -> None:
    with CannedS3(conditions=conditions) as server:
        store = S3Store("bucket", endpoint_url=server.url, state_dir=tmp_path)
        assert not store.conditional()
        with pytest.raises(UnsafeStoreError, match="overwrite each other"):
            store.put_if("ref", b"1", etag=None)
        store.put("ref", b"1")
        assert server.objects == {"/bucket/ref": b"1"}
        server.conditions = "quoted"  # the server was mended; what was remembered is nothing
        assert not store.conditional()
        assert store.conditional(refresh=True)
        assert S3Store("bucket", endpoint_url=server.url, state_dir=tmp_path).conditional()
        server.conditions = "ignored"
        assert not store.conditional(refresh=True)
        assert not S3Store("bucket", endpoint_url=server.url, state_dir=tmp_path).conditional()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b'{"x": 1}', b"[" * 100_000, None])
def test_a_damaged_memory_of_probes_is_no_harm(keys: None, tmp_path: Path, damage: bytes | None) -> None:
    file = tmp_path / "state" / "conditions.json"
    if damage is None:
        file.mkdir(parents=True)  # can't be read nor written
    else:
        file.parent.mkdir()
        file.write_bytes(damage)
    with CannedS3() as server:
        store = S3Store("bucket", endpoint_url=server.url, state_dir=tmp_path / "state")
        assert store.put_if("ref", b"1", etag=None)
        if damage is not None:
            assert json.loads(file.read_text())[f"{server.url} bucket"] == "quoted"
    assert [path.name for path in file.parent.iterdir()] == ["conditions.json"]


def test_a_missing_object_matches_nothing(keys: None) -> None:
    """AWS answers 404 to If-Match where there is no object."""
    with CannedS3() as server:
        store = S3Store("bucket", endpoint_url=server.url)
        assert store.conditional()
        server.canned = (404, {}, "<Error><Code>NoSuchKey</Code></Error>")
        with pytest.raises(PreconditionFailedError):
            store.put_if("ref", b"x", etag="0" * 32)
        server.canned = (404, {}, "<Error><Code>NoSuchBucket</Code></Error>")
        with pytest.raises(NotFoundError, match="no bucket"):
            store.put_if("ref", b"x", etag="0" * 32)


# ---- over the wire
def test_case_c34_no_checksum_trailers_go_out(keys: None) -> None:
    with CannedS3() as server:
        store = S3Store("bucket", endpoint_url=server.url)
        store.put("a", b"x")
        assert store.get("a").data == b"x"
        for method, headers in server.headers_seen:
            assert not any("trailer" in name or name.startswith("x-amz-checksum") for name in headers), method
            assert "chunked" not in headers.get("transfer-encoding", "") + headers.get("content-encoding", "")
        sent = server.headers_seen[0][1]
        assert sent["x-amz-content-sha256"] == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def test_case_c34_deletes_carry_the_old_checksum(keys: None) -> None:
    with CannedS3(canned=(200, {}, "<DeleteResult/>")) as server:
        S3Store("bucket", endpoint_url=server.url).delete_many(["a", "b"])
        assert [method for method, _ in server.headers_seen] == ["POST"]
        assert len(server.headers_seen[0][1]["content-md5"]) == 24


def test_case_c34_a_body_damaged_on_its_way_is_refused(s3_server: S3Server, s3_bucket: str) -> None:
    """The server checks the signature's sha256; so a wrong one must be sent again, not kept."""
    mismatch = (400, {}, "<Error><Code>XAmzContentSHA256Mismatch</Code></Error>")
    with CannedS3(canned=mismatch) as server, pytest.raises(UnavailableError):
        S3Store("bucket", endpoint_url=server.url).put("a", b"x")


def test_a_store_that_ignores_ranges_is_found_out(keys: None) -> None:
    with CannedS3(objects={"/bucket/a": b"0123456789"}) as server:
        store = S3Store("bucket", endpoint_url=server.url)
        with pytest.raises(RemoteError, match="asked for the bytes from 3, the store gave the whole"):
            store.get_range("a", 3, 4)
        with pytest.raises(RemoteError, match="asked for the bytes from 3, the store gave the whole"):
            list(store.stream("a", 3))


def test_many_keys_are_deleted_by_thousands(through: Retrying, proxy: FaultProxy) -> None:
    through.put("n/5", b"x")
    through.put("n/2104", b"x")
    proxy.forget()
    through.delete_many(f"n/{n}" for n in range(2105))
    assert proxy.count() == 3
    assert list(through.list("")) == []


# ---- names
@pytest.mark.parametrize("prefix", ["p", "p/", "/p", "/p/"])
def test_case_c21_one_prefix_spelt_in_four_ways(s3_server: S3Server, s3_bucket: str, prefix: str) -> None:
    S3Store(s3_bucket, "p", endpoint_url=s3_server.endpoint_url).put("a", b"x")
    S3Store(s3_bucket, "pp", endpoint_url=s3_server.endpoint_url).put("b", b"x")
    for store in (
        S3Store(s3_bucket, prefix, endpoint_url=s3_server.endpoint_url),
        open_store(f"s3://{s3_bucket}/{prefix}", endpoint_url=s3_server.endpoint_url),
    ):
        assert store.url == f"s3://{s3_bucket}/p"
        assert [found.key for found in store.list("")] == ["a"]


@pytest.mark.parametrize("prefix", ["with space", "100%", "a%2Fb", "ä/ö", "a+b"])
def test_case_c21_odd_prefixes(s3_server: S3Server, s3_bucket: str, prefix: str) -> None:
    store = open_store(f"s3://{s3_bucket}/{prefix}", endpoint_url=s3_server.endpoint_url)
    store.put("a/b", b"x")
    assert [found.key for found in store.list("")] == ["a/b"]
    assert list(store.list_folders("")) == ["a"]
    store.delete_many(["a/b"])
    assert list(store.list("")) == []


def test_what_cannot_be_a_store() -> None:
    for url in ("s3://", "s3:///p", "s3://b ucket/p", "s3://bucket/p//x", "s3://bucket/../x", "gs://bucket", ""):
        with pytest.raises(ConfigError):
            open_store(url)
    with pytest.raises(ConfigError, match="'b' can't be the name of a bucket — a bucket's name is 3 to 63 lowercase"):
        open_store("s3://b")
    with pytest.raises(ConfigError):
        open_store("file://host/path")
    with pytest.raises(ConfigError):
        open_store("s3://bucket", endpoint_url="localhost:9000")


def test_an_endpoint_of_the_aws_settings_is_used(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint_url)
    open_store(f"s3://{s3_bucket}/p").put("a", b"x")
    assert S3Store(s3_bucket, "p", endpoint_url=s3_server.endpoint_url).get("a").data == b"x"


# ---- processes
def _get(store: Store, key: str) -> bytes:
    return store.get(key).data


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_it_is_used_in_other_processes(s3_server: S3Server, s3_place: tuple[str, str], method: str) -> None:
    store = open_store("s3://{}/{}".format(*s3_place), endpoint_url=s3_server.endpoint_url)
    store.put("a", b"x")  # there is a client, with connections
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.starmap(_get, [(store, "a")] * 6) == [b"x"] * 6
    assert store.get("a").data == b"x"


def test_a_fork_while_other_threads_are_at_it(s3_server: S3Server, s3_place: tuple[str, str]) -> None:
    store = S3Store(*s3_place, endpoint_url=s3_server.endpoint_url)
    store.put("a", b"x")
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            pickle.loads(pickle.dumps(store)).get("a")  # makes clients, under their locks
            store.get("a")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if store.get("a").data == b"x" else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        for thread in threads:
            thread.join()
