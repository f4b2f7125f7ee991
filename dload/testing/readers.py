"""Processes that read a data set through a cache, for tests of what they do to each other.

They come from a fork server that has imported all they need: real processes, each in some milliseconds, and without the
threads and locks of the test's own process.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import resource
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from types import SimpleNamespace, TracebackType
from typing import Any

from dload.api.pipeline import Pipeline
from dload.cache import ShardCache
from dload.manifest import Manifest
from dload.pack import Sample
from dload.pipeline.sources import Samples
from dload.run import fetch_shards
from dload.store.base import Store

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__, "dload.store.s3"])


@dataclass(frozen=True)
class Reading:
    """What to read, and how: so many shards at once, in so many threads that read all of it, with at most so many open
    files, and in the end all shards fetched with so many jobs."""

    store: Store
    cache: ShardCache
    manifest: Manifest
    prefetch: int = 4
    threads: int = 1
    most_files: int | None = None
    fetch_jobs: int = 0
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def samples(self) -> Iterator[Sample]:
        origin: Any = SimpleNamespace(store=self.store, cache=self.cache)
        yield from Pipeline(Samples(self.manifest, origin, None, self.prefetch))


class Readers:
    """Processes that each do a reading, beginning at the same moment. `with` kills those that are left in the end."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._gate = _context.Event()
        self._answers: list[Connection] = []
        self.processes: list[ForkServerProcess] = []
        for reading in readings:
            answer, end = _context.Pipe(duplex=False)
            process = _context.Process(target=_read, args=(reading, self._gate, end))
            process.start()
            end.close()
            self._answers.append(answer)
            self.processes.append(process)

    def __enter__(self) -> Readers:
        for answer in self._answers:
            assert answer.recv() == "ready"
        self._gate.set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for answer in self._answers:
            answer.close()

    def running(self) -> bool:
        return any(process.is_alive() for process in self.processes)

    def answers(self) -> list[list[str]]:
        """Of each process the digest of what each of its threads has read. Raises EOFError where one has died."""
        found = [answer.recv() for answer in self._answers]
        for process in self.processes:
            process.join()
        return found


def digest_of(samples: Iterable[Sample]) -> str:
    sha256 = hashlib.sha256()
    for key, fields in samples:
        sha256.update(key.encode() + b"".join(fields.values()))
    return sha256.hexdigest()


def _read(reading: Reading, gate: Any, end: Any) -> None:
    os.environ.update(reading.environment)
    end.send("ready")
    gate.wait()
    if reading.most_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reading.most_files, reading.most_files))
    digests: list[str] = []
    threads = [
        threading.Thread(target=lambda: digests.append(digest_of(reading.samples()))) for _ in range(reading.threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if reading.fetch_jobs:
        reading.cache.clear()
        fetch_shards(reading.store, reading.cache, reading.manifest, reading.fetch_jobs, None)
    end.send(digests)
