"""Committing, reading and deriving on a Ray of this machine, beside the same without. Needs the extra `ray`.

    python benchmarks/ray_cluster.py [--megabytes 1000] [--cpus 2] [--runs 3] [--kill] [--quick]

Samples of 100 KB, made of their numbers, in shards of about 16 MB, in a plain folder. Committed: made, packed, sent.
Read: from an empty cache, their bytes counted. Derived: each turned round, packed, sent. Without Ray as many threads
(to commit) or processes (to derive) work as Ray has processors: at 1 the cluster costs nothing, and what it is for is
having more of them. In turns, medians. Starting Ray isn't counted, nor are its workers: a small run starts them before.
The versions must be the same. --kill: in each run on Ray a worker is killed by SIGKILL in the middle.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.data

import dload
import dload.ray
from dload.repo.keys import shard_key

SIZE, SHARD = 100_000, 16 << 20
NOISE = random.Random(0).randbytes(1 << 20)
ARMED = "BENCHMARK_ARMED"  # the file that the next worker in the middle deletes, and dies
Sample = tuple[str, dict[str, bytes]]


def sample(number: int) -> Sample:
    start = number * 7919 % (len(NOISE) - SIZE)
    return f"{number:08d}", {"x": number.to_bytes(8, "big") + NOISE[start : start + SIZE - 8]}


def strike(number: int) -> None:
    path, _, middle = os.environ[ARMED].rpartition(":")
    if number == int(middle):
        with suppress(FileNotFoundError):
            Path(path).unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def row(given: dict[str, Any]) -> dict[str, Any]:
    strike(given["id"])
    key, fields = sample(int(given["id"]))
    return {"__key__": key, **fields}


def turned(one: Sample) -> Sample:
    strike(int(one[0]))
    return one[0], {"x": one[1]["x"][::-1]}


def counted(batch: Any) -> Any:
    for key in batch["__key__"].to_pylist():
        strike(int(key))
    return {"bytes": [sum(map(len, batch["x"].to_pylist()))]}


class Place:
    """A repository that is gone behind each run, but for its data set `in`."""

    def __init__(self, folder: Path, armed: Path | None) -> None:
        self.folder, self.armed = folder, armed

    def open(self) -> dload.Repository:
        return dload.Repository.open(str(self.folder / "store"), cache_dir=self.folder / "cache", cache_budget="50GB")

    def timed(self, work: Callable[[dload.Repository], str]) -> tuple[float, str]:
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        if self.armed is not None:
            self.armed.touch()
        begun = time.perf_counter()
        found = work(self.open())
        seconds = time.perf_counter() - begun
        if self.armed is not None and self.armed.exists():
            raise RuntimeError("nobody was killed")
        return seconds, found


def commit(count: int, repo: dload.Repository, cpus: int) -> str:
    return repo.commit("in", map(sample, range(count)), target_shard_size=SHARD, workers=cpus).version


def ray_commit(count: int, repo: dload.Repository) -> str:
    return dload.ray.write(ray.data.range(count).map(row), repo, "in", target_shard_size=SHARD).version


def read(repo: dload.Repository) -> str:
    return str(sum(len(fields["x"]) for _, fields in repo.dataset("in").samples()))


def ray_read(repo: dload.Repository) -> str:
    batches = dload.ray.read(repo.dataset("in")).map_batches(counted, batch_format="pyarrow")
    return str(sum(one["bytes"] for one in batches.take_all()))


def derive(repo: dload.Repository, cpus: int) -> str:
    return repo.derive("out", repo.dataset("in").samples().map(turned), workers=cpus).version


def ray_derive(repo: dload.Repository) -> str:
    return repo.derive("out", repo.dataset("in").samples().map(turned), engine="ray").version


def forget(repo: dload.Repository, folder: Path) -> None:
    """As if nobody had derived it. Not by gc, which would wait for the lease of whoever was killed."""
    for digest in repo.manifest("out").shards.digests:
        repo.store.delete(shard_key(digest))
    shutil.rmtree(folder / "store" / "datasets" / "out")


def compare(what: str, folder: Path, given: argparse.Namespace, pair: list[Any], count: int) -> None:
    """Both, in turns. To derive and to read, the data set is there; what was made is deleted after each run."""
    seconds: list[list[float]] = [[], []]
    found = set()
    for _ in range(given.runs):
        for side, work in enumerate(pair):
            place = Place(folder, Path(os.environ[ARMED].rpartition(":")[0]) if given.kill and side else None)
            if what == "committed":
                shutil.rmtree(folder / "store", ignore_errors=True)
            took, result = place.timed(work)
            seconds[side].append(took)
            found.add(result)
            if what == "derived":
                forget(place.open(), folder)
    assert len(found) == 1, f"{what}: not the same with Ray and without: {found}"
    alone, on_ray = (statistics.median(each) for each in seconds)
    rate = count * SIZE / 1e6
    print(f"{what:12}{rate / alone:12.0f}{rate / on_ray:12.0f}{alone / on_ray:10.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.quick:
        given.megabytes, given.runs = 100, 1
    count = given.megabytes * 1_000_000 // SIZE
    folder = Path(tempfile.mkdtemp(prefix="ray-benchmark-"))
    os.environ |= {ARMED: f"{folder / 'armed'}:{count // 2}", "XDG_STATE_HOME": str(folder / "state")}
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    os.environ |= {"RAY_num_workers_soft_limit": str(4 * given.cpus)}  # else those that start before don't stay
    try:
        ray.init(num_cpus=given.cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray_commit(2 * given.cpus, Place(folder / "warm", None).open())
        print(f"{given.megabytes} MB, {given.cpus} processors" + ", a worker killed in each run on Ray" * given.kill)
        print(f"{'':12}{'MB/s':>12}{'MB/s on Ray':>12}{'ratio':>10}")
        sides = [partial(commit, count, cpus=given.cpus), partial(ray_commit, count)]
        compare("committed", folder, given, sides, count)
        compare("read", folder, given, [read, ray_read], count)
        compare("derived", folder, given, [partial(derive, cpus=given.cpus), ray_derive], count)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
