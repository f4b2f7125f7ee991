"""The child's side: JSON lines in, JSON lines out. Started by the runner as

    python -c "...; serving.main('litdata')"

A request is {"do": operation, ...}; the answer {"done": figures}, {"unable": why} or {"failed": traceback}. Whatever a
system prints goes to the standard error instead.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

from .base import BATCH, Peer, Place, UnableError
from .samples import Seen, Spec
from .work import WORK

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds() -> float:
    """Of this process and all that it started (they share its process group), dead or alive."""
    group, own, ticks = os.getpgrp(), str(os.getpid()), 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(fields[2]) == group:
                ticks += sum(map(int, fields[13 if entry.name == own else 11 : 15]))
    return time.process_time() + ticks / _TICKS  # ticks are 10 ms; this process's own time is known better


class Timed:
    """By the clock and by the processors."""

    def __enter__(self) -> Timed:
        self._used = processor_seconds()
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._begin
        self.cpu = processor_seconds() - self._used


def _passes(make: Callable[[], Iterable[Any]], size: Callable[[Any], int] | None, least: float) -> dict[str, float]:
    """Pass after pass until `least` seconds are over: means of a pass."""
    counts = passes = 0
    with Timed() as timed:
        deadline = time.perf_counter() + least
        while not passes or time.perf_counter() < deadline:
            passes += 1
            if size is None:
                for _ in make():
                    counts += 1
            else:
                for batch in make():
                    counts += size(batch)
    return {"count": counts / passes, "seconds": timed.seconds / passes, "cpu": timed.cpu / passes, "passes": passes}


class Serving:
    """The operations; each is named as the request that asks for it."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._opened: dict[Any, Any] = {}
        self._states: dict[str, tuple[Any, list[str]]] = {}

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._opened:
            self._opened[key] = make()
        return self._opened[key]

    # ---- once
    def start(self) -> dict[str, Any]:
        self._peer.start()
        versions = {}
        for package in self._peer.packages:
            try:
                versions[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                versions[package] = "missing"
        return {"python": sys.version.split()[0], **versions}

    def forget(self) -> dict[str, Any]:
        self._opened.clear()
        self._states.clear()
        self._peer.forget()
        gc.collect()
        return {}

    # ---- writing
    def write(self, place: Place, spec: Spec) -> dict[str, Any]:
        samples = list(spec.samples()) if spec.bytes < 1 << 30 else spec.samples()
        with Timed() as timed:
            self._peer.write(place, samples, spec.count)
            if not place.endpoint:
                os.sync()
        return {"seconds": timed.seconds, "cpu": timed.cpu}

    def insert_first(self, place: Place, spec: Spec) -> dict[str, Any]:
        new = ("a-new-one", b"new", b"new")
        samples = [new, *spec.samples()]
        with Timed() as timed:
            self._peer.insert_first(place, samples)
        return {"seconds": timed.seconds, "cpu": timed.cpu}

    # ---- reading
    def verify(self, place: Place, shuffled: bool) -> dict[str, Any]:
        found = self._open(place, shuffled)
        return asdict(Seen.of(map(self._peer.sample, found)))

    def read(self, place: Place, shuffled: bool, least: float) -> dict[str, Any]:
        found = self._open(place, shuffled)
        return _passes(lambda: found, None, least)

    def _open(self, place: Place, shuffled: bool) -> Any:
        if place.budget and not self._peer.has_budget:
            raise UnableError("has no cache with a budget")
        return self._once(("open", place, shuffled), lambda: self._peer.open(place, shuffled))

    def cold(self, place: Place) -> dict[str, Any]:
        """One shuffled epoch through a cache that is empty: when was the first batch there?"""
        with Timed() as timed:
            begin, count, first = time.perf_counter(), 0, 0.0
            for _ in self._peer.open(place, True):
                count += 1
                if count == BATCH:
                    first = time.perf_counter() - begin
        self._peer.forget()
        return {"count": count, "first": first, "seconds": timed.seconds, "cpu": timed.cpu}

    # ---- loaders
    def verify_loader(self, place: Place, workers: int) -> dict[str, Any]:
        loader = self._loader(place, workers, "")
        return asdict(Seen.of(self._peer.sample(found) for batch in loader for found in batch))

    def load(self, place: Place, workers: int, work: str, least: float) -> dict[str, Any]:
        loader = self._loader(place, workers, work)
        if hasattr(loader, "settle"):  # it works ahead between passes: of a long time that is a small part
            loader.settle()
            least *= 4
        return _passes(lambda: loader, len, least)

    def _loader(self, place: Place, workers: int, work: str) -> Any:
        key = ("loader", place, workers, work)
        return self._once(key, lambda: self._peer.loader(place, workers, WORK[work]))

    # ---- single samples
    def access(self, place: Place, spec: Spec, by: str, reads: int, seed: int) -> dict[str, Any]:
        rows = random.Random(seed).sample(range(spec.count), reads)
        wanted: list[Any] = [spec.sample(row)[0] if by == "key" else row for row in rows]
        make = self._peer.by_key if by == "key" else self._peer.by_index
        get: Callable[[Any], Any] = self._once(("access", place, by), lambda: make(place))
        found: list[Any] = [get(wanted[0])]
        with Timed() as timed:
            for which in wanted[1:]:
                found.append(get(which))
        right = sum(self._peer.sample(one) == spec.sample(row) for one, row in zip(found, rows, strict=True))
        return {"count": reads - 1, "right": right / reads, "seconds": timed.seconds, "cpu": timed.cpu}

    # ---- going on
    def prepare_resume(self, place: Place, spec: Spec, shares: list[float]) -> dict[str, Any]:
        """States of one epoch, and the keys of the batch behind each."""
        batches, state = self._peer.batches(place, None)
        steps = [int(share * spec.count) // BATCH for share in shares]
        for number in range(max(steps) + 1):
            if number in steps:
                saved = state()
                self._states[str(shares[steps.index(number)])] = (saved, self._keys(next(batches)))
            else:
                next(batches)
        del batches, state
        self._peer.forget()
        return {"state, bytes": len(json.dumps(saved, default=repr))}

    def resume(self, place: Place, share: float) -> dict[str, Any]:
        saved, expected = self._states[str(share)]
        with Timed() as timed:
            batches, _ = self._peer.batches(place, saved)
            batch = next(batches)
        exact = self._keys(batch) == expected
        del batches
        self._peer.forget()
        return {"first": timed.seconds, "cpu": timed.cpu, "exact": exact}

    def _keys(self, batch: list[Any]) -> list[str]:
        return [self._peer.sample(found)[0] for found in batch]

    # ---- mixing, packing
    def mix(self, places: list[Place], take: int, least: float) -> dict[str, Any]:
        """The first `take` samples, again and again; and how far the share of a source is from an equal one."""
        mixed = self._once(("mix", tuple(places)), lambda: self._peer.mixed(places))

        def some() -> Iterator[Any]:
            return islice(iter(mixed), take)

        counts: dict[str, int] = {}
        for found in some():
            source = self._peer.sample(found)[0].rpartition("-")[0]
            counts[source] = counts.get(source, 0) + 1
        off = max(abs(counts.get(f"source{number}", 0) - take / len(places)) for number in range(len(places)))
        return {**_passes(some, None, least), "off": off, "sources": len(counts)}

    def write_tokens(self, place: Place, sizes: list[int]) -> dict[str, Any]:
        self._peer.write_tokens(place, map(document, sizes))
        return {}

    def pack(self, place: Place, sizes: list[int], length: int) -> dict[str, Any]:
        packed = self._once(("pack", place), lambda: self._peer.packed(place, sizes, length))
        done = _passes(lambda: packed, None, 0.0)
        return {**done, "tokens": done["count"] * length}

    # ---- memory
    def memory(self) -> dict[str, Any]:
        """(What getrusage calls so begins with the peak of who started the process.)"""
        lines = Path("/proc/self/status").read_text().splitlines()
        return {"peak RSS": next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024}


def document(size: int) -> bytes:
    """Tokens between 0 and 49,999."""
    return b"".join((size * number % 50_000).to_bytes(4, "little") for number in range(size))


def _arguments(request: dict[str, Any]) -> dict[str, Any]:
    made = dict(request)
    if "place" in made:
        made["place"] = Place(**made["place"])
    if "places" in made:
        made["places"] = [Place(**each) for each in made["places"]]
    if "spec" in made:
        made["spec"] = Spec(**made["spec"])
    return made


def main(name: str) -> None:
    """Serve the system `name` until the standard input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")
    module = importlib.import_module(f".{name}", __package__)
    serving = Serving(module.PEER())
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"done": getattr(serving, request.pop("do"))(**_arguments(request))}
        except UnableError as refusal:
            answer = {"unable": str(refusal)}
        except Exception:
            answer = {"failed": traceback.format_exc()}
        out.write(json.dumps(answer) + "\n")
        out.flush()
