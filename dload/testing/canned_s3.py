"""A tiny HTTP server that answers as S3 servers do that SeaweedFS can't play: canned refusals, and ETags taken bare,
conditions ignored, or neither. Signatures aren't looked at."""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass
class CannedS3:
    """`conditions`: quoted, bare, ignored or unknown (501). `canned`: (status, headers, body) given to everything."""

    conditions: str = "quoted"
    canned: tuple[int, dict[str, str], str] | None = None
    objects: dict[str, bytes] = field(default_factory=dict)
    headers_seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._server.canned = self  # type: ignore[attr-defined]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> CannedS3:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def refuses(self, key: str, if_match: str | None, if_none_match: str | None) -> int | None:
        """The status with which a PUT under these conditions is refused."""
        if self.conditions == "ignored" or (if_match is None and if_none_match is None):
            return None
        if self.conditions == "unknown":
            return 501
        found = self.objects.get(key)
        if if_none_match == "*":
            return 412 if found is not None else None
        etag = hashlib.md5(found).hexdigest() if found is not None else None
        wanted = if_match if self.conditions == "bare" else (if_match or "").strip('"')
        return None if wanted == etag else 412


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Silence."""

    def finish(self) -> None:
        with suppress(OSError, ValueError):
            super().finish()

    def _answer(self) -> None:
        server: CannedS3 = self.server.canned  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.headers_seen.append((self.command, {name.lower(): value for name, value in self.headers.items()}))
        key = urlsplit(self.path).path
        if server.canned:
            status, headers, text = server.canned
            self._reply(status, headers, text.encode())
        elif self.command == "PUT":
            refused = server.refuses(key, self.headers.get("If-Match"), self.headers.get("If-None-Match"))
            if refused is None:
                server.objects[key] = body
            self._reply(refused or 200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b"")
        elif self.command == "DELETE":
            server.objects.pop(key, None)
            self._reply(204, {}, b"")
        else:
            found = server.objects.get(key)
            headers = {"ETag": f'"{hashlib.md5(found or b"").hexdigest()}"', "Last-Modified": self.date_time_string()}
            self._reply(404 if found is None else 200, headers, found or b"")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    def _reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
