"""A distant server on this machine: a TCP proxy on the loopback that adds latency and holds bytes to a rate.

    with ShapingProxy(server.endpoint_url, latency=0.010, connection_rate=90e6) as proxy:
        ... S3Store(bucket, endpoint_url=proxy.url) ...

It runs as a process of its own, so that it takes nothing of the interpreter of what is measured. Alone:

    python -m dload.testing.shaping_proxy http://127.0.0.1:9000 --latency 0.01 --connection-rate 90e6

Bytes pass as they are, so signatures hold. Latency is one way, in seconds, and delays bytes without making them fewer;
rates are bytes a second, each direction for itself, of one connection and of all together (0: as fast as they come).
It counts what passes: a request is a beginning of HTTP/1.1 that a client says first, or after the server has spoken.
For each line on its standard input it writes the counts as a line of JSON, and it ends when a pipe there does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import urllib.parse
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

_METHODS = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ")
_AHEAD = 1 << 20  # bytes that a line takes in beyond those that are on their way: a socket's buffer


@dataclass
class Traffic:
    """What has passed since the proxy began: requests, bytes to the server, bytes to the clients."""

    requests: int = 0
    up: int = 0
    down: int = 0


class ShapingProxy:
    """Listens from `with` until its end at `url`; `target` is the server's URL. Numbers as in the module's text."""

    def __init__(
        self, target: str, *, latency: float = 0.0, connection_rate: float = 0.0, total_rate: float = 0.0
    ) -> None:
        self._numbers = {"latency": latency, "connection-rate": connection_rate, "total-rate": total_rate}
        self._target = target
        self.url = ""

    def __enter__(self) -> ShapingProxy:
        command = [sys.executable, "-m", __spec__.name, self._target]
        command += [f"--{name}={value}" for name, value in self._numbers.items()]
        tree = Path(__file__).resolve().parents[2]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=tree)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError("the shaping proxy didn't start")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def traffic(self) -> Traffic:
        """What has passed so far."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Traffic(**json.loads(self._process.stdout.readline()))


class _Rate:
    """Gives bytes their place in time, so that they go at `per_second` at most."""

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._free = 0.0

    def leaves(self, size: int, now: float) -> float:
        """When the last of `size` bytes is through that come now."""
        if self.per_second:
            self._free = max(self._free, now) + size / self.per_second
        return max(self._free, now)


class _Line:
    """One direction of a connection: what comes in at one end goes out at the other, later."""

    def __init__(self, latency: float, connection_rate: float, total: _Rate) -> None:
        self._loop = asyncio.get_running_loop()
        self._latency = latency
        self._rates = (_Rate(connection_rate), total)
        self._room = _AHEAD + int(latency * (connection_rate or total.per_second or 1e9))
        self._on_the_way: deque[tuple[float, bytes]] = deque()  # b"" for the end
        self._length = 0
        self._timer: asyncio.TimerHandle | None = None
        self.held_up = False  # the far end takes nothing now
        self.ended = False
        self.back: _Line | None = None  # the other direction
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None

    def take(self, data: bytes) -> None:
        now = self._loop.time()
        through = max(rate.leaves(len(data), now) for rate in self._rates)
        self._on_the_way.append((through + self._latency, data))
        self._length += len(data)
        if self._length > self._room and self.source is not None:
            self.source.pause_reading()
        self.go_on()

    def go_on(self) -> None:
        """Let out what is due, and come back for the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._on_the_way and not self.held_up and self.sink is not None:
            due, data = self._on_the_way[0]
            if due > self._loop.time():
                self._timer = self._loop.call_at(due, self.go_on)
                break
            self._on_the_way.popleft()
            self._length -= len(data)
            if self.sink.is_closing():
                continue
            if data:
                self.sink.write(data)
            else:
                self._end()
        if self._length <= self._room and self.source is not None and not self.source.is_closing():
            self.source.resume_reading()

    def _end(self) -> None:
        self.ended = True
        assert self.sink is not None
        if self.back is not None and self.back.ended:
            for transport in filter(None, (self.sink, self.source)):
                if not transport.is_closing():
                    transport.close()
        elif self.sink.can_write_eof():
            self.sink.write_eof()


class _End(asyncio.Protocol):
    """One end of a connection: hears into one line, speaks from the other."""

    def __init__(self, heard: _Line, said: _Line) -> None:
        self._heard = heard
        self._said = said

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._heard.source = self._said.sink = transport
        self._said.go_on()

    def data_received(self, data: bytes) -> None:
        self._heard.take(data)

    def eof_received(self) -> bool:
        self._heard.take(b"")
        return True  # the other direction may have more to say

    def connection_lost(self, error: Exception | None) -> None:
        if self._heard.sink is not None and not self._heard.sink.is_closing():
            self._heard.sink.close()

    def pause_writing(self) -> None:
        self._said.held_up = True

    def resume_writing(self) -> None:
        self._said.held_up = False
        self._said.go_on()


class _NearEnd(_End):
    """The end of the client, whose coming opens the connection to the server."""

    def __init__(self, target: tuple[str, int], up: _Line, down: _Line, traffic: Traffic) -> None:
        super().__init__(up, down)
        self._target = target
        self._traffic = traffic
        self._opening: asyncio.Task[None] | None = None
        self.turn = True  # the client's, to begin a request

    def data_received(self, data: bytes) -> None:
        self._traffic.up += len(data)
        self._traffic.requests += self.turn and data.startswith(_METHODS)
        self.turn = False
        super().data_received(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opening = asyncio.get_running_loop().create_task(self._open(transport))

    async def _open(self, near: asyncio.BaseTransport) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _FarEnd(self._said, self._heard, self, self._traffic), *self._target)
        except OSError:
            near.close()


class _FarEnd(_End):
    """The end of the server."""

    def __init__(self, heard: _Line, said: _Line, client: _NearEnd, traffic: Traffic) -> None:
        super().__init__(heard, said)
        self._client = client
        self._traffic = traffic

    def data_received(self, data: bytes) -> None:
        self._traffic.down += len(data)
        self._client.turn = True
        super().data_received(data)


async def _serve(target: str, latency: float, connection_rate: float, total_rate: float) -> None:
    parts = urllib.parse.urlsplit(target)
    address = (parts.hostname or "127.0.0.1", parts.port or 80)
    total_up, total_down = _Rate(total_rate), _Rate(total_rate)
    traffic = Traffic()

    def connection() -> _NearEnd:
        up, down = (_Line(latency, connection_rate, total) for total in (total_up, total_down))
        up.back, down.back = down, up
        return _NearEnd(address, up, down, traffic)

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0, backlog=256)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    with contextlib.suppress(PermissionError):  # a file or /dev/null, which nobody asks by
        loop.add_reader(sys.stdin, _tell, traffic, over)
    async with server:
        await over


def _tell(traffic: Traffic, over: asyncio.Future[None]) -> None:
    if sys.stdin.readline():
        sys.stdout.write(json.dumps(asdict(traffic)) + "\n")
        sys.stdout.flush()
    elif not over.done():
        over.set_result(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="the server's URL")
    for name in ("latency", "connection-rate", "total-rate"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(given.target, given.latency, given.connection_rate, given.total_rate))


if __name__ == "__main__":
    main()
