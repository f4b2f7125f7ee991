"""The distant server on this machine: what it counts, and that it doesn't outlive who asked for it."""

import http.client
import subprocess
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dload.testing.shaping_proxy import ShapingProxy

BODY = b"x" * 300_000


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads = True
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_address[1]}"
    running.shutdown()
    thread.join()
    running.server_close()


def test_requests_and_bytes_are_counted_each_way(server):
    with ShapingProxy(server, latency=0.001) as proxy:
        assert proxy.traffic().requests == 0
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(proxy.url).netloc, timeout=120)
        for _ in range(2):
            connection.request("GET", "/")
            assert connection.getresponse().read() == BODY
        connection.request("PUT", "/", b"GET " * 100_000)  # no request, though it looks like many
        connection.getresponse().read()
        connection.close()
        traffic = proxy.traffic()
    assert traffic.requests == 3
    assert 600_000 < traffic.down < 602_000
    assert 400_000 < traffic.up < 402_000


def test_it_ends_with_who_started_it():
    code = (
        "from dload.testing.shaping_proxy import ShapingProxy\n"
        "import os\n"
        "proxy = ShapingProxy('http://127.0.0.1:9').__enter__()\n"
        "print(proxy._process.pid, flush=True)\n"
        "os._exit(1)\n"
    )
    # The proxy has this pipe, too, as its standard error: it is at its end when the last of both has ended.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and int(done.stdout) > 0
