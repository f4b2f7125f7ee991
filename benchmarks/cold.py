"""How fast samples stream from a store into an empty cache, against a bare download of the same objects.

    python benchmarks/cold.py [--quick] [--rounds N]

24 shards of 64 MiB (--quick: 8) with samples of 100 KB on a real S3 server (SeaweedFS). dload streams them shuffled, in
batches of 64, through an empty cache: hashed, written to disk, read back. The bare download gets the same objects with
16 threads of one boto3 client, and drops the bytes as they come, or writes them to files unchecked. All in turns: near
(the server itself), distant (10 ms one way and 90 MB/s a connection, by dload.testing.shaping_proxy), and distant on a
line of 350 MB/s. Prints medians: seconds to the first sample (unshuffled) and to the first batch from an open data set
on, MB/s over all, the ratios to the bare downloads, and how many GETs a shard took. Server, proxy and client share this
machine's processors, which bounds all of them where the line doesn't.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import boto3
from botocore.config import Config

import dload
from dload.cache import ShardCache
from dload.store.retrying import Retrying
from dload.store.s3 import S3Store
from dload.testing.s3_server import S3Server
from dload.testing.shaping_proxy import ShapingProxy

BUCKET = "cold"
SHARD = 64 << 20
SAMPLE = 100_000
THREADS = 16


def samples(count: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    rng = random.Random(0)
    for row in range(count):
        yield f"sample-{row:08d}", {"image": rng.randbytes(SAMPLE - 1), "label": b"7"}


class Measured:
    """One round's numbers."""

    def __init__(self, megabytes: float, seconds: float, first: float, gets: float = 1.0) -> None:
        self.rate = megabytes / seconds
        self.first = first
        self.gets = gets


def bare(url: str, keys: list[str], folder: Path | None = None) -> Measured:
    """A download that does nothing with the bytes, or writes them to files below `folder`."""
    config = Config(
        max_pool_connections=THREADS, s3={"addressing_style": "path"},
        request_checksum_calculation="when_required", response_checksum_validation="when_required",
    )  # fmt: skip
    client = boto3.client("s3", endpoint_url=url, config=config)

    def download(key: str) -> int:
        body, length = client.get_object(Bucket=BUCKET, Key=key)["Body"], 0
        with Path(os.devnull if folder is None else f"{target}/{key.replace('/', '-')}").open("wb") as file:
            while chunk := body.read(1 << 20):
                length += file.write(chunk)
        return length

    with tempfile.TemporaryDirectory(dir=folder) as target:
        begin = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as pool:
            done = sum(pool.map(download, keys))
        return Measured(done / 1e6, time.perf_counter() - begin, 0.0)


class Counting(S3Store):
    """Counts the bodies that were asked for."""

    asked = 0

    def _open(self, key: str, wanted: str | None):  # type: ignore[no-untyped-def]
        self.asked += key.startswith("shards/")
        return super()._open(key, wanted)


def streamed(url: str, folder: Path, shuffle: int | None, whole: bool) -> Measured:
    store = Counting(BUCKET, endpoint_url=url)
    cache = Path(tempfile.mkdtemp(dir=folder))
    repo = dload.Repository(Retrying(store), ShardCache(cache))
    dataset = repo.dataset("cold")
    stream = dataset.samples()
    pipe = stream if shuffle is None else stream.shuffle(shuffle, seed=1).batch(64)
    begin = time.perf_counter()
    with pipe.iter() as elements:
        next(elements)
        first = time.perf_counter() - begin
        for _ in elements if whole else ():
            pass
    seconds = time.perf_counter() - begin
    shutil.rmtree(cache, ignore_errors=True)  # threads that were given up may just be ending
    shards = dataset.manifest.shards
    return Measured(sum(shards.sizes) / 1e6, seconds, first, store.asked / len(shards))


def compare(title: str, url: str, keys: list[str], folder: Path, rounds: int) -> None:
    runs: dict[str, Callable[[], Measured]] = {
        f"boto3, {THREADS} threads": lambda: bare(url, keys),
        f"boto3, {THREADS} threads, to files": lambda: bare(url, keys, folder),
        "dload, shuffle(1,000).batch(64)": lambda: streamed(url, folder, 1000, True),
        "dload, first sample": lambda: streamed(url, folder, None, False),
    }
    found: dict[str, list[Measured]] = {label: [] for label in runs}
    for _ in range(rounds):
        for label, run in runs.items():
            found[label].append(run())
    print(title)
    bases = list(found.values())[:2]
    for label, each in found.items():
        first = f"first after {median(one.first for one in each):5.2f} s" if each[0].first else ""
        if label.endswith("sample"):
            print(f"  {label:32} {first}")
            continue
        ratios = [median(one.rate / other.rate for one, other in zip(each, base, strict=True)) for base in bases]
        beside = " ".join(f"{ratio:.2f}" for ratio in ratios)
        rate, gets = median(one.rate for one in each), median(one.gets for one in each)
        print(f"  {label:32} {rate:6.0f} MB/s   ratios {beside}   {gets:.1f} GETs a shard   {first}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 shards, 2 rounds")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    shards, rounds = (8, 2) if given.quick else (24, given.rounds)
    with tempfile.TemporaryDirectory(prefix="dload-benchmark-") as name:
        folder = Path(name)
        server = S3Server(folder / "server")
        server.start()
        try:
            os.environ.update(server.environment())
            server.make_bucket(BUCKET)
            store = S3Store(BUCKET, endpoint_url=server.endpoint_url)
            repo = dload.Repository(store, ShardCache(folder / "unused"))
            repo.commit("cold", samples(shards * SHARD // SAMPLE), target_shard_size=SHARD)
            keys = [found.key for found in store.list("shards/")]
            print(f"{len(keys)} shards, {sum(repo.manifest('cold').shards.sizes) / 1e6:,.0f} MB, {rounds} rounds")
            compare("near", server.endpoint_url, keys, folder, rounds)
            for total, more in ((0.0, ""), (350e6, ", 350 MB/s in all")):
                with ShapingProxy(server.endpoint_url, latency=0.010, connection_rate=90e6, total_rate=total) as proxy:
                    compare(f"distant: 10 ms one way, 90 MB/s a connection{more}", proxy.url, keys, folder, rounds)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
