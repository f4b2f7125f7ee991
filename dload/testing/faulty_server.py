"""A real S3 server behind a proxy that breaks things, for programs whose own process must stay free of threads: the
proxy has a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

from dload.testing.fault_proxy import Cut, Fault, FaultProxy, Flip, LostReply, Reset, Seen, Short, Status
from dload.testing.s3_server import S3Server

_SHARDS = "/shards/"
_ALL = "/"


class FaultyServer:
    """A server with one bucket, reached as it is at `direct`, and through the proxy with what `environment` says. A
    context manager; the server's credentials are in this process's environment meanwhile, too."""

    def __init__(self, folder: Path, bucket: str, seed: int) -> None:
        self._server = S3Server(folder)
        self._bucket = bucket
        self._seed = seed
        self._down = False

    def __enter__(self) -> FaultyServer:
        self._server.start()
        self._server.make_bucket(self._bucket)
        os.environ.update(self._server.environment())
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._server.endpoint_url, theirs, self._seed))
        self._process.start()
        self.environment = {"DLOAD_ENDPOINT_URL": self._pipe.recv()}
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()
        self._server.stop()

    @property
    def direct(self) -> str:
        return self._server.endpoint_url

    def log(self) -> str:
        """The last that the server said."""
        return self._server.log()[-20_000:]

    def outage(self, down: bool) -> None:
        """Whether nothing gets through from now on. Cheap to say again."""
        if down != self._down:
            self._down = down
            self._pipe.send(down)

    def summary(self) -> str:
        """How many requests came, and what became of them."""
        self._pipe.send(None)
        requests, faults = self._pipe.recv()
        struck = ", ".join(f"{number:,} {name}" for name, number in faults.most_common())
        return f"{requests:,} requests, of which failed: {struck}"


class _Counted(FaultProxy):
    """Counts requests and faults, and keeps no list of them, which may get long."""

    def __init__(self, target: str, seed: int) -> None:
        super().__init__(target, seed=seed)
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self._counting = threading.Lock()

    def choose(self, seen: Seen) -> Fault | None:
        fault = super().choose(seen)
        self.forget()
        with self._counting:
            self.requests += 1
            if fault is not None:
                self.faults[type(fault).__name__.lower()] += 1
        return fault


def _add_faults(proxy: FaultProxy) -> None:
    """What the store is like on a bad day. Shards are the large bodies, so the damage is theirs."""
    proxy.add(Status(503), rate=0.2)
    proxy.add(Short(0.5), method="GET", key=_SHARDS, rate=0.01)
    proxy.add(Short(0.5), method="GET", key="/datasets/", rate=0.01)
    proxy.add(Cut(0.5), method="GET", key=_ALL, rate=0.01)
    proxy.add(Reset(0), key=_ALL, rate=0.01)
    proxy.add(Reset(0.7), method="GET", key=_ALL, rate=0.01)
    proxy.add(Flip(0.4), method="GET", key=_SHARDS, rate=0.005)
    proxy.add(LostReply(), method="PUT", rate=0.01)
    proxy.add(LostReply(), method="DELETE", rate=0.01)
    proxy.add(Status(500, "InternalError"), rate=0.005)


def _serve(target: str, pipe: Connection, seed: int) -> None:
    proxy = _Counted(target, seed)
    with proxy:
        _add_faults(proxy)
        pipe.send(proxy.url)
        while True:
            told = pipe.recv()
            if told is None:
                pipe.send((proxy.requests, proxy.faults))
                continue
            proxy.clear()
            if told:
                proxy.add(Reset(0), rate=0.5)
                proxy.add(Status(503))
            else:
                _add_faults(proxy)
