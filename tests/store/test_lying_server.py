"""A server, or something in between, that answers as if all were well with something else than it was asked for: tried
again where that may help, an error that says so where it doesn't, and never bytes that pass for right ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dload.errors import DloadError, IntegrityError, RemoteError, UnavailableError
from dload.store.base import Store
from dload.store.retrying import Backoff, Retrying
from dload.store.s3 import S3Store
from dload.testing.fault_proxy import Fault, FaultProxy, Flip, Longer, Page, Shifted, Short, Swapped
from dload.testing.s3_server import S3Server

BODY = bytes(range(256)) * 40
FLIPPED = BODY[:5120] + bytes([BODY[5120] ^ 1]) + BODY[5121:]
XML = Page('<?xml version="1.0"?><Error><Code>InternalError</Code><Message>oops</Message></Error>', "application/xml")
HTML = Page()
NOTHING = Page("", "text/plain")

OPERATIONS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("a/body").data,
    "get_range": lambda store: store.get_range("a/body", 100, 50),
    "stream": lambda store: b"".join(store.stream("a/body")),
    "stream from": lambda store: b"".join(store.stream("a/body", 100)),
    "head": lambda store: (found := store.head("a/body")) and found.size,
    "list": lambda store: sorted(info.key for info in store.list("a/")),
    "list_folders": lambda store: sorted(store.list_folders("a/")),
    "put": lambda store: len(store.put("b", b"new")),
    "put_if": lambda store: len(store.put_if("c", b"new", etag=None)),
}


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def store(s3_place: tuple[str, str], proxy: FaultProxy) -> Store:
    """With an object, one beside it, and conditions probed."""
    store = S3Store(*s3_place, endpoint_url=proxy.url, backoff=Backoff(patience=0))
    store.put("a/body", BODY)
    store.put("a/x/other", b"other" * 100)
    assert store.conditional()
    return store


def patient(store: Store) -> Retrying:
    return Retrying(store, Backoff(first=0.001))


@pytest.mark.parametrize("page", [HTML, XML, NOTHING], ids=["html", "xml", "nothing"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_page_in_place_of_an_answer_is_none(store: Store, proxy: FaultProxy, operation: str, page: Page) -> None:
    run = OPERATIONS[operation]
    proxy.add(page)
    with pytest.raises(UnavailableError, match=r"s3://.* at http://.*: the (reply makes no sense|store is overloaded)"):
        run(store)
    proxy.clear()
    proxy.add(page, times=1)
    got = run(patient(store))
    proxy.clear()
    if not operation.startswith("put"):
        assert got == run(store)
    else:
        assert store.get("b" if operation == "put" else "c").data == b"new"


@pytest.mark.parametrize("fault", [Short(0.5), Short(0), Flip(0.5), Longer()], ids=repr)
def test_bytes_that_are_not_the_objects_are_fetched_again(store: Store, proxy: FaultProxy, fault: Fault) -> None:
    proxy.add(fault, method="GET", times=1)
    assert patient(store).get("a/body").data == BODY
    assert proxy.count("GET", "/a/body") == 2
    proxy.clear()
    proxy.add(fault, method="GET", times=2)
    if isinstance(fault, Flip):
        assert store.get("a/body").data == FLIPPED, "twice the same is what a server has that encrypts"
    else:  # a length that is the object's own would be needed for that
        with pytest.raises(UnavailableError, match="have another MD5"):
            store.get("a/body")
        proxy.clear()
        assert store.get("a/body").data == BODY


def test_a_server_whose_etags_are_no_checksums_is_asked_twice_only_once(store: Store, proxy: FaultProxy) -> None:
    proxy.add(Flip(0.5), method="GET")
    for _ in range(3):
        assert store.get("a/body").data == FLIPPED
    assert proxy.count("GET", "/a/body") == 4


def test_the_bytes_of_another_range(store: Store, proxy: FaultProxy) -> None:
    proxy.add(Shifted(), method="GET")
    for run in (OPERATIONS["get_range"], OPERATIONS["stream from"]):
        with pytest.raises(RemoteError, match="asked for the bytes from 100, the store gave bytes 101-") as caught:
            run(store)
        assert "a/body" in str(caught.value)


def test_ranges_that_come_short_or_long(store: Store, proxy: FaultProxy) -> None:
    for fault in (Short(0.5), Longer()):
        proxy.clear()
        proxy.add(fault, method="GET", times=1)
        assert patient(store).get_range("a/body", 100, 50) == BODY[100:150]
        proxy.add(fault, method="GET")
        with pytest.raises(UnavailableError, match=r"50 bytes were announced, \d\d came"):
            store.get_range("a/body", 100, 50)
    with pytest.raises(IntegrityError, match=f"too short: {len(BODY) + 7:,} bytes expected, {len(BODY):,} found"):
        store.get_range("a/body", len(BODY), 7)


def test_the_reply_to_another_request_is_no_crash(store: Store, proxy: FaultProxy) -> None:
    """Its bytes may be whole and its checksum right: who asked for them knows them by their own names."""
    for operation, run in OPERATIONS.items():
        proxy.add(Swapped(), rate=0.5)
        for _ in range(4):
            try:
                run(patient(store))
            except DloadError as error:
                assert "s3://" in str(error), operation
        proxy.clear()
