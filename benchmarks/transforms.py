"""Decoding photographs in a pipeline: on one thread, on several by map(workers=), and in lists by map_batches.

    python benchmarks/transforms.py [--quick] [--workers 2]

Needs Pillow, NumPy and scikit-learn, which brings two photographs (640 x 427, JPEG): pip install pillow scikit-learn.
Crops of them are committed as a data set, so no two are alike. Each row is decoded, made 224 x 224 and an array. The
ways go in turns, since the machine may have other things to do, and each round gives a ratio to plain map(). Printed
are the medians, how many cores a way had, and what it does in a second of one core: where others use the machine, only
the last says something. "bare" is the same function on the same bytes in a loop, and on a ThreadPoolExecutor: what
map(workers=) can reach at most.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import sklearn.datasets
from PIL import Image

import dload

Sample = tuple[str, dict[str, bytes]]


def photographs(count: int) -> Iterator[Sample]:
    """Crops of the photographs, each as a JPEG of its own."""
    folder = Path(sklearn.datasets.__file__).parent / "images"
    images = [Image.open(folder / name).convert("RGB") for name in ("china.jpg", "flower.jpg")]
    for number in range(count):
        image = images[number % 2]
        left, top = number * 7 % 120, number * 11 % 80
        data = io.BytesIO()
        image.crop((left, top, left + 520, top + 347)).save(data, "JPEG", quality=90)
        yield f"photo-{number:05d}", {"jpg": data.getvalue()}


def decoded(sample: Sample) -> Any:
    image = Image.open(io.BytesIO(sample[1]["jpg"])).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
    return np.asarray(image)


def all_decoded(samples: list[Sample]) -> list[Any]:
    return [decoded(sample) for sample in samples]


def seconds(make: Callable[[], Iterable[Any]], count: int) -> tuple[float, float]:
    """(by the clock, of all cores)"""
    begin, used = time.perf_counter(), time.process_time()
    assert sum(1 for _ in make()) == count
    return time.perf_counter() - begin, time.process_time() - used


def pooled(samples: list[Sample], workers: int) -> list[Any]:
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(decoded, samples))


def main() -> None:
    arguments = argparse.ArgumentParser(description="Photographs decoded in a pipeline.")
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--workers", type=int, default=2)
    options = arguments.parse_args()
    count, rounds, workers = (300, 5, options.workers) if options.quick else (600, 15, options.workers)
    with tempfile.TemporaryDirectory() as folder:
        repo = dload.Repository.open(str(Path(folder) / "store"), cache_dir=str(Path(folder) / "cache"))
        repo.commit("photographs", photographs(count), target_shard_size=4 << 20)
        pipe = repo.dataset("photographs").samples().shuffle(200, seed=0)
        samples = list(pipe)
        size = sum(len(fields["jpg"]) for _, fields in samples) / count
        ways: dict[str, Callable[[], Iterable[Any]]] = {
            "map": lambda: pipe.map(decoded),
            f"map(workers={workers})": lambda: pipe.map(decoded, workers=workers),
            f"map(workers={workers}), stream": lambda: pipe.filter(bool).map(decoded, workers=workers),
            f"map(workers={workers}).batch(32)": lambda: pipe.map(decoded, workers=workers).batch(32).unbatch(),
            f"map_batches(16, workers={workers})": lambda: pipe.map_batches(all_decoded, 16, workers=workers),
            "bare loop": lambda: map(decoded, samples),
            f"bare, {workers} threads": lambda: pooled(samples, workers),
        }
        load = os.getloadavg()[0]
        print(f"{count} photographs of {size / 1000:.0f} kB, {rounds} rounds, {os.cpu_count()} cores, load {load:.1f}")
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, make in ways.items():
                taken[name].append(seconds(make, count))
        for name, times in taken.items():
            ratio = median(plain / own for (plain, _), (own, _) in zip(taken["map"], times, strict=True))
            cores = median(used / own for own, used in times)
            rate = count / median(own for own, _ in times)
            each = count / median(used for _, used in times)
            print(f"{name:32} {rate:7,.0f}/s  {ratio:5.2f} x map  {cores:4.2f} cores  {each:7,.0f}/s of one core")


if __name__ == "__main__":
    main()
