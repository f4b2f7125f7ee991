"""Pipelines drawn at random over two caches with hardly any room, for as long as you like, looking for anything that
must not happen.

    python -m dload.testing.pipeline_stress --seconds 600

Processes with several threads each run pipelines that mix, zip, join and shuffle two data sets; they abandon some and
go on from their states. Calls of the store fail, bodies break off and come damaged, cached shards are damaged and the
caches cleared. Checked all the while: each element is the right one, the caches are within their budgets, nobody stands
still. And in the end: no thread, no pin and no turn is left.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import multiprocessing
import os
import random
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dload.api.pipeline import Pipeline, concat, mix, zip_streams
from dload.cache import ShardCache
from dload.cache.inventory import scan
from dload.cache.pins import own
from dload.errors import AccessError, DloadError, PackFormatError
from dload.files.locks import LockFile, try_lock
from dload.manifest import Manifest
from dload.pack import Sample
from dload.pipeline.sources import Samples
from dload.run.iterate import PipelineIterator
from dload.store.base import Store
from dload.store.faulty import Call, Fault, Faulty
from dload.store.local import FolderStore
from dload.store.retrying import Backoff, Retrying
from dload.testing.shards import made_samples, manifest_of, put_shard

PROCESSES, THREADS = 2, 3
NAMES = "speech", "noise"
EPOCHS = 3
STILL = 30.0  # seconds without an element after which a thread counts as standing still
_QUICK = Backoff(patience=60, first=0.001, longest=0.01)


def summary(sample: Sample) -> str:
    key, fields = sample
    return f"{key} {zlib.crc32(b''.join(fields.values()))}"


def kept(text: str) -> bool:
    return zlib.crc32(text.encode()) % 3 != 0


def joined(*texts: str) -> str:
    return " ".join(texts)


def _pipelines(a: Pipeline, b: Pipeline) -> list[Pipeline]:
    """Every way of reading: one cursor or several, over one cache or both."""
    a, b = a.map(summary), b.map(summary)
    return [
        a,
        b.shuffle(full=True, seed=1),
        a.shuffle(25, seed=2).batch(7),
        zip_streams(a.shuffle(15, seed=3), b.repeat(2).shuffle(15, seed=4)),
        mix([a.shuffle(15, seed=5), b, a.skip(50)], [3, 1, 2], seed=6),
        mix([a.shuffle(15, seed=7).filter(kept), b.shuffle(30, seed=8).filter(kept)], seed=9, until="all"),
        concat([a.filter(kept), b.shuffle(15, seed=10)]).window(3, 2),
        zip_streams(a.filter(kept), a.shuffle(15, seed=11).filter(kept), b.filter(kept)),
    ]


@dataclass(frozen=True)
class World:
    """Two data sets in a folder, caches with just room for one of some of the pipelines at a time, and what each of
    these gives in each epoch."""

    folder: Path
    manifests: tuple[Manifest, Manifest]
    budgets: tuple[int, int]
    expected: dict[int, list[list[Any]]]

    @classmethod
    def make(cls, folder: Path, seed: int) -> World:
        draw, store = random.Random(seed), FolderStore(folder / "store")
        manifests = []
        for name, count in zip(NAMES, (14, 5), strict=True):
            shards = [
                put_shard(store, made_samples(100 * len(name) + number, draw.randrange(4, 20), 500))
                for number in range(count)
            ]
            manifests.append(manifest_of(shards, name))
        budgets = [10_000, 10_000]
        alone = _pipelines(*(_pipeline(store, folder / f"unlimited-{name}", None, manifest)
                             for name, manifest in zip(NAMES, manifests, strict=True)))  # fmt: skip
        chosen = draw.sample(range(len(alone)), draw.randrange(1, 4))
        for which in chosen:
            for resident in alone[which].check().residents:
                number = NAMES.index(resident.source.partition("@")[0])
                budgets[number] = max(budgets[number], resident.bytes)
        expected = {which: [list(alone[which].iter(epoch=epoch)) for epoch in range(EPOCHS)] for which in chosen}
        return cls(folder, (manifests[0], manifests[1]), (budgets[0] + 100, budgets[1] + 100), expected)

    def cache(self, number: int) -> Path:
        return self.folder / f"cache-{NAMES[number]}"

    def pipelines(self, store: Store) -> list[Pipeline]:
        made = [
            _pipeline(store, self.cache(number), self.budgets[number], self.manifests[number]) for number in range(2)
        ]
        return _pipelines(made[0], made[1])


def _pipeline(store: Store, root: Path, budget: int | None, manifest: Manifest) -> Pipeline:
    return Pipeline(Samples(manifest, SimpleNamespace(store=store, cache=ShardCache(root, budget, patience=STILL))))


class Worker:
    """One process: threads that read at random, and what is done to them."""

    def __init__(self, world: World, seed: int, seconds: float) -> None:
        self._world = world
        self._seed = seed
        self._until = time.monotonic() + seconds
        self._wrong: list[str] = []
        self._moved: dict[int, float] = {}  # thread -> when it last got something
        self.done = 0  # passes that were read to their end
        self.failed = 0

    def run(self) -> list[str]:
        """What went wrong."""
        threads = [threading.Thread(target=self._read, args=(number,), daemon=True) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        draw = random.Random(self._seed)
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.02)
            self._disturb(draw)
            late = [number for number, moved in self._moved.items() if time.monotonic() - moved > STILL]
            if late and any(threads[number].is_alive() for number in late):
                faulthandler.dump_traceback()
                return [*self._wrong, f"threads {late} stand still"]
        return self._wrong + self._left()

    def _left(self) -> list[str]:
        deadline = time.monotonic() + 10
        while True:
            fetching = [thread.name for thread in threading.enumerate() if thread.name.startswith("dload-fetch")]
            left = [f"left in the end: {what}" for what in (fetching, own()) if what]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.02)

    def _disturb(self, draw: random.Random) -> None:
        """Damage the index of a cached shard, which shows when it is opened; or clear a cache."""
        root = self._world.cache(draw.randrange(2))
        if draw.random() < 0.02:
            ShardCache(root).clear()
        shards = [entry.path for entry in scan(root) if entry.kind == "shard"]
        if shards and draw.random() < 0.1:
            with suppress(FileNotFoundError), draw.choice(shards).open("r+b") as file:
                file.seek(-20, os.SEEK_END)
                file.write(b"damage")

    def _plan(self, draw: random.Random) -> Callable[[Call], Fault | DloadError | None]:
        def plan(_: Call) -> Fault | DloadError | None:
            chance = draw.random()
            time.sleep(0.002 * chance)
            if chance < 0.01:
                return AccessError("not now")
            return draw.choice([Fault.BEFORE, Fault.TORN]) if chance < 0.15 else None

        return plan

    def _read(self, number: int) -> None:
        draw = random.Random(f"{self._seed} {number}")
        faulty = Faulty(FolderStore(self._world.folder / "store"), self._plan(draw))
        pipes = self._world.pipelines(Retrying(faulty, _QUICK))
        try:
            while time.monotonic() < self._until and not self._wrong:
                which, epoch = draw.choice(list(self._world.expected)), draw.randrange(EPOCHS)
                self._pass(number, draw, pipes[which], epoch, self._world.expected[which][epoch], f"pipeline {which}")
                faulty.calls.clear()
        except BaseException as error:
            self._wrong.append(f"{type(error).__name__}: {error}")
            raise

    def _pass(
        self, number: int, draw: random.Random, pipe: Pipeline, epoch: int, expected: list[Any], what: str
    ) -> None:
        """One epoch, abandoned now and then, and gone on with, or not, from its state."""
        state, got = None, 0
        while time.monotonic() < self._until + STILL:
            iterator = pipe.iter(epoch=epoch, state=state)
            most = draw.choice([1, 3, 30, 10_000, 10_000])
            try:
                for item in islice(self._watched(number, iterator), most):
                    if got == len(expected) or item != expected[got]:
                        self._wrong.append(f"{what}, epoch {epoch}: element {got} is {item}")
                        return
                    got += 1
            except (AccessError, PackFormatError):  # the second where a shard was damaged again as soon as it had come
                self.failed += 1
            state = self._state(iterator)
            if draw.random() < 0.5:
                iterator.close()
            del iterator
            if got == len(expected):
                self.done += 1
                return
            if draw.random() < 0.2:
                return

    def _state(self, iterator: PipelineIterator) -> Any:
        """It may have to read again, and that may fail, too."""
        while True:
            try:
                return json.loads(json.dumps(iterator.get_state()))
            except (AccessError, PackFormatError):
                self.failed += 1

    def _watched(self, number: int, items: Iterator[Any]) -> Iterator[Any]:
        self._moved[number] = time.monotonic()
        for item in items:
            self._moved[number] = time.monotonic()
            yield item


def _work(world: World, seed: int, seconds: float, answer: Any) -> None:
    worker = Worker(world, seed, seconds)
    wrong = worker.run()
    answer.send((wrong, worker.done, worker.failed))


def stress(folder: Path, seconds: float, seed: int = 0) -> tuple[int, int]:
    """Passes that were read to their end, and errors that came out as they should. Raises AssertionError."""
    world = World.make(folder, seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    answers = []
    for number in range(PROCESSES):
        answer, end = context.Pipe(duplex=False)
        context.Process(target=_work, args=(world, 100 * seed + number, seconds, end), daemon=True).start()
        end.close()
        answers.append(answer)
    while not all(answer.poll() for answer in answers):
        for number in range(2):
            cache = ShardCache(world.cache(number))
            with cache._room.lock():
                # The notes that failed downloads leave for those who wait for them come without asking for room.
                used = sum(entry.size for entry in scan(cache.root) if entry.kind != "failure")
            assert used <= world.budgets[number], f"{used} bytes of {world.budgets[number]}"
        time.sleep(0.002)
    found = [answer.recv() for answer in answers]
    assert not any(wrong for wrong, _, _ in found), found
    for number in range(2):
        with suppress(FileNotFoundError), LockFile(world.cache(number) / "turn") as turn:
            assert try_lock(turn.descriptor), "someone has the turn"
    return sum(done for _, done, _ in found), sum(failed for _, _, failed in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done, failed = stress(Path(folder), arguments.seconds, arguments.seed)
    print(f"{done} passes, {failed} errors as planned, nothing wrong")  # noqa: T201


if __name__ == "__main__":
    main()
