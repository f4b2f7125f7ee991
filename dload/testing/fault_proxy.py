"""An HTTP proxy on the loopback that stands in front of a real S3 server and breaks things on purpose.

    with FaultProxy(server.endpoint_url) as proxy:
        proxy.add(Status(503, "SlowDown"), method="GET", rate=0.2)      # one in five
        proxy.add(LostReply(), method="PUT", key="/refs/latest$", times=1)  # the first one only
        ... S3Store(bucket, endpoint_url=proxy.url) ...
        assert proxy.count("GET", "/shards/") == 3

Signatures pass, since the request goes on as it came. Bodies of requests are held in memory.
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import struct
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_BLOCK = 1 << 16
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@dataclass(frozen=True)
class Status:
    """The server isn't asked; this is the reply, with the S3 error code in its body."""

    status: int
    code: str = "SlowDown"


@dataclass(frozen=True)
class Page:
    """The server isn't asked; this text comes as if all were well, as from a login page or a gateway in between."""

    text: str = "<!DOCTYPE html><html><body>Please log in</body></html>"
    kind: str = "text/html"


@dataclass(frozen=True)
class Shifted:
    """The reply says that its range begins a byte later than was asked for."""


@dataclass(frozen=True)
class Longer:
    """The reply's body has a byte more, and the reply says so."""


@dataclass(frozen=True)
class Swapped:
    """The reply is the last one that this method got for another path, headers and all; as it should be where there was
    none."""


@dataclass(frozen=True)
class Cut:
    """The connection closes after this much of the reply's body (a number of bytes, or a fraction of it)."""

    at: float = 0.5


@dataclass(frozen=True)
class Reset:
    """As Cut, by a reset; at byte 0 before anything of the reply has come."""

    at: float = 0.5


@dataclass(frozen=True)
class Stall:
    """As Cut, but the connection stays open and silent for that many seconds."""

    seconds: float
    at: float = 0.5


@dataclass(frozen=True)
class Short:
    """The reply's body is this much, and the reply says that this is all."""

    at: float = 0.5


@dataclass(frozen=True)
class Flip:
    """One bit of the reply's body, at this place, is the other way round."""

    at: float = 0.5


@dataclass(frozen=True)
class Slow:
    """The reply's body comes whole, and each 64 KiB of it take that many seconds."""

    seconds: float


@dataclass(frozen=True)
class LostReply:
    """The server does what it is asked; its reply never arrives."""


Fault = Status | Page | Shifted | Longer | Swapped | Cut | Reset | Stall | Short | Flip | Slow | LostReply


_Whole = tuple[int, dict[str, str], bytes]  # status, headers, body


@dataclass(frozen=True)
class Seen:
    """A request that came: method, path without the query (decoded: `/bucket/key`), query."""

    method: str
    path: str
    query: str


@dataclass
class _Rule:
    fault: Fault
    method: str | None
    key: re.Pattern[str]
    rate: float
    skip: int
    times: float

    def strikes(self, seen: Seen, chance: float) -> bool:
        if self.method not in (None, seen.method) or not self.key.search(f"{seen.path}?{seen.query}".rstrip("?")):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times < 1 or chance >= self.rate:
            return False
        self.times -= 1
        return True


class FaultProxy:
    """Listens from `with` until its end at `url`, which stays the same; `target` is the server's URL."""

    def __init__(self, target: str, *, seed: int = 0) -> None:
        parts = urllib.parse.urlsplit(target)
        self.target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.closing = threading.Event()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._seen: list[Seen] = []
        self._replies: dict[tuple[str, str], _Whole] = {}
        self._server = _Server(self)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def add(
        self,
        fault: Fault,
        *,
        method: str | None = None,
        key: str = "",
        rate: float = 1.0,
        skip: int = 0,
        times: int | None = None,
    ) -> None:
        """Let the fault strike requests of that method whose `/bucket/key?query` matches the regular expression `key`:
        a share `rate` of them, not the first `skip`, at most `times`. The rule added first goes first."""
        with self._lock:
            limit = float("inf") if times is None else times
            self._rules.append(_Rule(fault, method, re.compile(key), rate, skip, limit))

    def clear(self) -> None:
        """No more faults."""
        with self._lock:
            self._rules.clear()

    def forget(self) -> None:
        """Begin counting anew."""
        with self._lock:
            self._seen.clear()

    def count(self, method: str | None = None, key: str = "") -> int:
        """How many requests of that method matched (as for `add`)."""
        return sum(1 for seen in self.seen() if method in (None, seen.method) and re.search(key, seen.path))

    def seen(self) -> list[Seen]:
        """All requests so far, in the order in which they came."""
        with self._lock:
            return list(self._seen)

    def by_method_and_path(self) -> Counter[tuple[str, str]]:
        return Counter((seen.method, seen.path) for seen in self.seen())

    def choose(self, seen: Seen) -> Fault | None:
        """Count a request; what is to happen to it."""
        with self._lock:
            self._seen.append(seen)
            for rule in self._rules:
                if rule.strikes(seen, self._random.random()):
                    return rule.fault
        return None

    def swap(self, method: str, path: str, reply: _Whole) -> _Whole:
        """Note a reply, and give the last one that another path got."""
        with self._lock:
            others = [found for (how, where), found in self._replies.items() if how == method and where != path]
            self._replies[method, path] = reply
        return others[-1] if others else reply


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is what this is for."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._far: http.client.HTTPConnection | None = None

    def finish(self) -> None:
        if self._far is not None:
            self._far.close()
        with suppress(OSError, ValueError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Silence."""

    def _pass_on(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        fault = self.server.proxy.choose(Seen(self.command, urllib.parse.unquote(parts.path), parts.query))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if isinstance(fault, Status):
            text = f"<Error><Code>{fault.code}</Code><Message>by plan</Message></Error>"
            self._reply(fault.status, {"Content-Type": "application/xml"}, text.encode())
        elif isinstance(fault, Page):
            self._reply(200, {"Content-Type": fault.kind}, fault.text.encode())
        elif isinstance(fault, Shifted | Longer | Swapped):
            self._lie(self._ask(body), fault)
        elif fault == Reset(0):
            self._reset()
        else:
            reply = self._ask(body)
            if isinstance(fault, LostReply):
                reply.read()
                self._reset()
            else:
                self._answer(reply, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def _reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in {"Date": self.date_time_string(), "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _lie(self, reply: http.client.HTTPResponse, fault: Shifted | Longer | Swapped) -> None:
        """A whole reply, but not the right one."""
        status, body = reply.status, reply.read()
        headers = {name: value for name, value in reply.headers.items() if name.lower() not in _HOP}
        if isinstance(fault, Longer):
            body += b"?"
        elif isinstance(fault, Shifted):
            moved = re.sub(r"bytes (\d+)", lambda found: f"bytes {int(found[1]) + 1}", headers.get("Content-Range", ""))
            headers["Content-Range"] = moved
        else:
            path = urllib.parse.urlsplit(self.path).path
            status, headers, body = self.server.proxy.swap(self.command, path, (status, headers, body))
        self._reply(status, headers, body)

    def _ask(self, body: bytes) -> http.client.HTTPResponse:
        if self._far is None:
            self._far = http.client.HTTPConnection(*self.server.proxy.target, timeout=120)
        self._far.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("expect", "connection"):
                self._far.putheader(name, value)
        self._far.endheaders(body)
        return self._far.getresponse()

    def _answer(self, reply: http.client.HTTPResponse, fault: Fault | None) -> None:
        if reply.length is None:  # chunked; so that there is a length to be short of
            data = reply.read()
            size, blocks = len(data), iter((data,))
        else:
            size, blocks = reply.length, iter(lambda: reply.read(_BLOCK), b"")
        if self.command == "HEAD":
            size = int(reply.headers.get("Content-Length", 0))
        at = _place(fault, size)
        self.send_response_only(reply.status, reply.reason)
        for name, value in reply.headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(at if isinstance(fault, Short) else size))
        self.end_headers()
        if self.command == "HEAD":
            reply.read()  # nothing; else the connection wouldn't take the next request
            return
        if isinstance(fault, Flip):
            for block in _flipped(blocks, at):
                self.wfile.write(block)
            return
        rest = at
        for block in blocks:
            if isinstance(fault, Slow):
                self.server.proxy.closing.wait(fault.seconds)
            self.wfile.write(block[:rest])
            rest -= len(block[:rest])
            if rest == 0 and at < size:
                break
        self._end(reply, fault, whole=at == size)

    def _end(self, reply: http.client.HTTPResponse, fault: Fault | None, *, whole: bool) -> None:
        if whole:
            return
        reply.close()
        if self._far is not None:
            self._far.close()  # its reply wasn't read to the end
            self._far = None
        if isinstance(fault, Stall):
            self.server.proxy.closing.wait(fault.seconds)
        if isinstance(fault, Reset):
            self._reset()
        self.close_connection = not isinstance(fault, Short)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()


def _place(fault: Fault | None, size: int) -> int:
    """The byte at which a fault strikes, of a body of that size."""
    if not isinstance(fault, Cut | Reset | Stall | Short | Flip):
        return size
    return min(size, fault.at if isinstance(fault.at, int) else int(fault.at * size))


def _flipped(blocks: Iterator[bytes], at: int) -> Iterator[bytes]:
    for block in blocks:
        if 0 <= at < len(block):
            yield block[:at] + bytes([block[at] ^ 1]) + block[at + 1 :]
        else:
            yield block
        at -= len(block)
