"""How fast a commit is beside the least that it could be.

    python benchmarks/commit.py [--quick] [--only memory|folder|s3]

Folder: a commit of samples that are in memory, against writing and hashing the same bytes once (files of the size of a
shard, each synced to the disk as the store does). S3: against boto3's `upload_file` of the same shards with as many
threads, to a server on this machine. Both in turns in one run; medians and the ratio (bare time / dload's time: 1 is
as fast). Peak memory is that of a process of its own that makes its samples as it goes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dload.repo.commit import CommitOptions, commit
from dload.repo.history import History
from dload.sizes import format_size
from dload.store.base import Store
from dload.store.local import FolderStore

SAMPLE = 100_000
SHARD = 128 << 20
BLOCK = os.urandom(SAMPLE * 64)


def samples(total: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    """`total` bytes of samples of 100 KB, all different."""
    for i in range(total // SAMPLE):
        start = (i * 97) % (len(BLOCK) - SAMPLE)
        yield f"sample-{i:08d}", {"image": i.to_bytes(8, "little") + BLOCK[start : start + SAMPLE - 8]}


def in_turns(jobs: dict[str, Callable[[Path], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each job in each round, in turns, each in a fresh folder."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            folder = Path(tempfile.mkdtemp(prefix="dload-benchmark-"))
            try:
                os.sync()
                begin = time.perf_counter()
                job(folder)
                times[name].append(time.perf_counter() - begin)
            finally:
                shutil.rmtree(folder)
    return times


def show(title: str, total: int, times: dict[str, list[float]]) -> None:
    bare = next(iter(times.values()))
    print(title)
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        ratios = [b / s for b, s in zip(bare, seconds, strict=True)]
        print(f"  {name:38} {total / middle / 1e6:8.0f} MB/s   ratio {statistics.median(ratios):.2f}")


def folder_rows(total: int, rounds: int) -> None:
    data = list(samples(total))

    def bare(folder: Path) -> None:
        per_file = SHARD // SAMPLE
        for start in range(0, len(data), per_file):
            digest = hashlib.sha256()
            with (folder / f"{start}").open("wb", buffering=0) as file:
                for key, fields in data[start : start + per_file]:
                    for part in (key.encode(), *fields.values()):
                        digest.update(part)
                    file.write(b"".join(fields.values()))
                os.fsync(file.fileno())

    def ours(workers: int) -> Callable[[Path], None]:
        return lambda folder: _commit(FolderStore(folder / "store"), data, workers)

    jobs = {"write and hash once": bare, "dload commit": ours(1), "dload commit, workers=2": ours(2)}
    show(f"folder store, {format_size(total)}", total, in_turns(jobs, rounds))


def _commit(store: Store, data: list[tuple[str, dict[str, bytes]]], workers: int) -> None:
    commit(History(store), "benchmark", data, CommitOptions(workers=workers))


def s3_rows(total: int, rounds: int) -> None:
    from dload.store import open_store
    from dload.testing.s3_server import S3Server

    data = list(samples(total))
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as name:
        root = Path(name)
        packed = FolderStore(root / "packed")
        _commit(packed, data, 1)
        files = [root / "packed" / info.key for info in packed.list("shards/")]
        server = S3Server.shared(root / "server")
        try:
            os.environ.update(server.environment())
            number = 0
            for threads in (1, 4):

                def bare(_: Path, threads: int = threads) -> None:
                    nonlocal number
                    number += 1
                    bucket = f"bare-{number}"
                    server.make_bucket(bucket)
                    _upload_all(server.endpoint_url, bucket, files, threads)
                    server.drop_bucket(bucket)

                def ours(folder: Path, threads: int = threads) -> None:
                    nonlocal number
                    number += 1
                    bucket = f"ours-{number}"
                    server.make_bucket(bucket)
                    store = open_store(f"s3://{bucket}", endpoint_url=server.endpoint_url, state_dir=folder)
                    _commit(store, data, threads)
                    server.drop_bucket(bucket)

                jobs = {f"upload_file, {threads} threads": bare, f"dload commit, workers={threads}": ours}
                show(f"S3 on this machine, {format_size(total)}", total, in_turns(jobs, rounds))
        finally:
            server.stop()


def _upload_all(endpoint: str, bucket: str, files: list[Path], threads: int) -> None:
    import boto3

    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda path: client.upload_file(str(path), bucket, path.name), files))


def memory_rows(total: int, _: int) -> None:
    print(f"peak memory of a commit of {format_size(total)} to a folder store, beyond that of a tiny one")
    base = _peak(SAMPLE, 1)
    for workers in (1, 2, 4):
        peak = _peak(total, workers) - base
        print(f"  workers={workers}: {format_size(peak)}, {peak / SHARD / workers:.2f} x shard size x workers")


def _peak(total: int, workers: int) -> int:
    command = [sys.executable, __file__, "--measure", str(total), str(workers)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(total: int, workers: int) -> None:
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as folder:
        commit(History(FolderStore(folder)), "benchmark", samples(total), CommitOptions(workers=workers))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data, fewer rounds")
    parser.add_argument("--only", choices=("memory", "folder", "s3"), help="one part (s3 needs the test extra)")
    parser.add_argument("--measure", nargs=2, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(*args.measure)
        return
    total, rounds = (300_000_000, 3) if args.quick else (1_200_000_000, 5)
    # Memory first: a child starts with the peak of the process that it came from.
    for part, rows in (("memory", memory_rows), ("folder", folder_rows), ("s3", s3_rows)):
        if args.only in (None, part):
            rows(total, rounds)


if __name__ == "__main__":
    main()
