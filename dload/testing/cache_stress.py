"""Many processes over one cache, for as long as you like, looking for anything that must not happen.

    python -m dload.testing.cache_stress --seconds 600

Processes with several threads each read shards at random through a small budget: downloads (some fail, come short or
wrong), windows of several pins, evictions, clearing; they are killed at any moment and the budget changes. Checked all
the while: the files below the cache, by inode and under its lock, are within the budget; a pinned file is there; the
bytes are right; a shard is downloaded by one at a time; nobody stands still. And in the end: no lock is left, all is
sound, everything can still be read.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dload.cache import Pin, ShardCache
from dload.cache.pins import holders, in_use
from dload.errors import CacheFullError, IntegrityError, UnavailableError
from dload.files.atomic import write_atomic
from dload.files.locks import LockFile, locked, try_lock, wait_lock

PROCESSES, THREADS = 4, 3
SHARDS = 24
LARGEST = 200_000
BUDGETS = (2 * LARGEST, 5 * LARGEST, 9 * LARGEST)  # of about 13 * LARGEST in all
PHASE = 3.0  # seconds from one budget to the next, at least: until it is kept
PATIENCE = 40.0  # seconds without any change after which a wait counts as standing still
_SLOT = struct.Struct("<qq")  # of each thread: the phase that it has seen, what it has read so far
_IDLE = -1


@dataclass(frozen=True)
class Place:
    """The folder that parent and workers share: bodies, cache, what the budget is, who has seen that, what went
    wrong."""

    folder: Path

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def make(self) -> None:
        for name in ("bodies", "busy"):
            (self.folder / name).mkdir()
        rng = random.Random(0)
        for _ in range(SHARDS):
            body = rng.randbytes(rng.randrange(LARGEST // 10, LARGEST))
            (self.folder / "bodies" / hashlib.sha256(body).hexdigest()).write_bytes(body)
        (self.folder / "seen").write_bytes(_SLOT.pack(_IDLE, 0) * PROCESSES * THREADS)
        for name in ("violations", "killed"):
            (self.folder / name).touch()

    def body(self, digest: str) -> bytes:
        return (self.folder / "bodies" / digest).read_bytes()

    def digests(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "bodies").iterdir())

    def set_budget(self, phase: int, budget: int) -> None:
        write_atomic(self.folder / "budget", f"{phase} {budget}".encode())

    def budget(self) -> tuple[int, int]:
        phase, budget = (self.folder / "budget").read_text().split()
        return int(phase), int(budget)

    def see(self, slot: int, phase: int, more: int = 0) -> None:
        """Say by which phase's budget a thread works now, and how many shards more it has read."""
        with (self.folder / "seen").open("r+b", buffering=0) as file:
            _, reads = _SLOT.unpack(os.pread(file.fileno(), _SLOT.size, slot * _SLOT.size))
            os.pwrite(file.fileno(), _SLOT.pack(phase, reads + more), slot * _SLOT.size)

    def seen(self) -> list[int]:
        """The phases by whose budget anyone works now."""
        return [phase for phase, _ in self._slots() if phase != _IDLE]

    def reads(self) -> int:
        return sum(reads for _, reads in self._slots())

    def _slots(self) -> Iterator[tuple[int, int]]:
        return _SLOT.iter_unpack((self.folder / "seen").read_bytes())

    def will_kill(self, pid: int) -> None:
        with (self.folder / "killed").open("a") as file:
            file.write(f"{pid}\n")

    def was_killed(self, who: str) -> bool:
        """`who` begins with a process id."""
        return who.split(maxsplit=1)[0] in (self.folder / "killed").read_text().split()

    def violated(self, what: str) -> None:
        with (self.folder / "violations").open("a") as file:
            file.write(f"{what}\n")

    def violations(self) -> list[str]:
        return (self.folder / "violations").read_text().splitlines()


# ---- a worker


class Reader:
    """One thread's reader: a window of pins, of which it reads now one, now another."""

    def __init__(self, place: Place, cache: ShardCache, rng: random.Random) -> None:
        self._place = place
        self._rng = rng
        self._lock = threading.Lock()
        self._pins: dict[str, Pin] = {}
        self._reading = ""
        self.cache = cache
        self.seat = cache.seat(self.give_up)

    def read(self, digest: str) -> None:
        with self._lock:
            self._reading = digest
            there = digest in self._pins
        if not there:
            body = self._place.body(digest)
            open_stream = Source(self._place, digest, self._rng)
            next_use = self._rng.choice([None, 0.1, 10.0])
            pin = self.cache.ensure(digest, len(body), open_stream, next_use=next_use, seat=self.seat)
            with self._lock:
                self._pins[digest] = pin
        self._check(digest)
        self.seat.settled()
        with self._lock:
            self._reading = ""

    def _check(self, digest: str) -> None:
        pin = self._pins[digest]
        if not pin.path.exists() or not os.path.samestat(pin.path.stat(), os.fstat(pin.lock.descriptor)):
            self._place.violated(f"{digest} is pinned and its file isn't there")
        elif pin.path.read_bytes() != self._place.body(digest):
            self._place.violated(f"{digest} has other bytes")

    def give_up(self) -> None:
        with self._lock:
            for digest in [digest for digest in self._pins if digest != self._reading]:
                self._pins.pop(digest).release()

    def release(self, most: int) -> None:
        """Let the oldest pins go, but for so many."""
        with self._lock:
            for digest in list(self._pins)[: max(0, len(self._pins) - most)]:
                self._pins.pop(digest).release(self._rng.choice([None, 1.0]))

    def close(self) -> None:
        self.give_up()
        self.seat.close()


class Source:
    """Opens a body, now and then a bad one; notices two that are open at a time."""

    def __init__(self, place: Place, digest: str, rng: random.Random) -> None:
        self._place = place
        self._digest = digest
        self._rng = rng

    def __call__(self, start: int) -> Iterator[bytes]:
        path = self._place.folder / "busy" / self._digest
        with LockFile(path, os.O_RDWR | os.O_CREAT) as busy:
            if not try_lock(busy.descriptor):
                others = [who for who in holders([path]) if not self._place.was_killed(who)]
                if others:  # a killed process gives up its locks one by one
                    self._place.violated(f"{self._digest} is downloaded by {others} and {os.getpid()} at a time")
                wait_lock(busy.descriptor)
            body = self._place.body(self._digest)[start:]
            fate = self._rng.random()
            if fate < 0.03:
                body = body[: len(body) // 2]
            elif fate < 0.04:
                body = bytes(len(body))
            for at in range(0, len(body), 1 << 14):
                time.sleep(0.0005)
                if fate > 0.98 and at > len(body) // 2:
                    raise UnavailableError("the source broke off")
                yield body[at : at + (1 << 14)]


def work(place: Place, worker: int, seed: int) -> None:
    threads = [
        threading.Thread(target=_read_on, args=(place, worker * THREADS + number, seed * THREADS + number))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _read_on(place: Place, slot: int, seed: int) -> None:
    rng = random.Random(seed)
    digests = place.digests()
    while True:
        phase, budget = place.budget()
        place.see(slot, phase)
        reader = Reader(place, ShardCache(place.cache, budget, patience=PATIENCE), rng)
        try:
            most = rng.choice([1, 1, 2, 3])
            for digest in rng.choices(digests, k=rng.randrange(1, 12)):
                reader.read(digest)
                place.see(slot, phase, more=1)
                time.sleep(rng.random() * 0.003)
                reader.release(most - 1)
            _disturb(reader.cache, rng, digests)
        except (UnavailableError, IntegrityError):
            pass  # as planned
        except CacheFullError as error:
            if "hasn't changed" in error.message:
                place.violated(f"stood still: {error}")
        except BaseException as error:
            place.violated(f"{type(error).__name__}: {error}")
            raise
        finally:
            reader.close()


def _disturb(cache: ShardCache, rng: random.Random, digests: list[str]) -> None:
    chance = rng.random()
    if chance < 0.1:
        cache.evict(rng.choice(digests))
    elif chance < 0.12:
        cache.clear()
    elif chance < 0.2:
        cache.expect((digest, rng.random() * 100) for digest in digests)
    elif chance < 0.3:
        version = hashlib.sha256(rng.randbytes(1)).hexdigest()
        cache.write_manifest(version, version.encode() * rng.randrange(1, 50))
    elif chance < 0.33:
        cache.status()


# ---- the parent


class Watch:
    """Is the budget kept? A smaller one holds from the moment on when it was first met by everybody who works by it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._ceiling = 0
        self.looks = 0
        self.most = 0

    def look(self) -> None:
        phase, budget = self._place.budget()
        used = self.used()
        self.looks += 1
        self.most = max(self.most, used)
        self._ceiling = max(self._ceiling, budget)
        if used > self._ceiling:
            self._place.violated(f"{used} bytes, by a budget of {self._ceiling}")
        if used <= budget and all(seen == phase for seen in self._place.seen()):
            self._ceiling = budget

    def is_kept(self, seconds: float) -> bool:
        """Whether the budget, which has held for so long, is kept to; on a machine that is busy that takes a while."""
        _, budget = self._place.budget()
        if self._ceiling <= budget or self.used() <= budget:
            return True
        if seconds > PATIENCE:
            self._place.violated(f"the budget has been {budget} for {seconds:.0f} s, and nobody keeps to it")
        return False

    def used(self) -> int:
        sizes = {}
        with locked(self._place.cache / "lock"):
            for folder, _, names in os.walk(self._place.cache):
                for name in names:
                    with suppress(FileNotFoundError):  # what isn't counted goes without the lock
                        status = (Path(folder) / name).stat()
                        digits = name.rpartition(".")[2]
                        reserved = int(digits) if folder.endswith("partial") and digits.isdigit() else 0
                        sizes[status.st_ino] = max(status.st_size, reserved)
        return sum(sizes.values())


class Stress:
    """A run of so many seconds. `seed` decides what is done, not when."""

    def __init__(self, folder: Path, seconds: float, *, processes: int = PROCESSES, seed: int = 0) -> None:
        self._place = Place(folder)
        self._seconds = seconds
        self._processes = processes
        self._rng = random.Random(seed)
        self._workers: list[subprocess.Popen[bytes]] = []
        self.summary = ""
        self._kills = 0

    def run(self) -> list[str]:
        """What went wrong; empty if nothing did. `summary` then says what was done."""
        place = self._place
        place.make()
        watch = Watch(place)
        phase, end = 0, time.monotonic() + self._seconds
        place.set_budget(phase, BUDGETS[-1])
        self._workers = [self._start(number) for number in range(self._processes)]
        begun = time.monotonic() - PHASE + 1
        next_kill = time.monotonic() + 1
        try:
            while time.monotonic() < end and not place.violations():
                watch.look()
                if time.monotonic() > next_kill:
                    self._kill_one()
                    next_kill = time.monotonic() + self._rng.random() * 1.5
                lasted = time.monotonic() - begun
                if lasted > PHASE and watch.is_kept(lasted):
                    phase += 1
                    place.set_budget(phase, self._rng.choice(BUDGETS))
                    begun = time.monotonic()
                time.sleep(0.01)
        finally:
            for worker in self._workers:
                worker.kill()
                worker.wait()
        self._check_the_end()
        reads = place.reads()
        self.summary = (
            f"{reads:,} reads, {watch.looks:,} looks at the budget, {self._kills} kills, {phase} changes of budget, "
            f"{watch.most:,} bytes at most"
        )
        return place.violations()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        seed = self._rng.randrange(1 << 30)
        command = [sys.executable, "-m", __spec__.name, "--worker", str(self._place.folder), str(number), str(seed)]
        return subprocess.Popen(command, cwd=Path(__file__).resolve().parents[2])

    def _kill_one(self) -> None:
        number = self._rng.randrange(self._processes)
        self._place.will_kill(self._workers[number].pid)
        self._workers[number].kill()
        self._workers[number].wait()
        for slot in range(number * THREADS, (number + 1) * THREADS):
            self._place.see(slot, _IDLE)
        self._workers[number] = self._start(number)
        self._kills += 1

    def _check_the_end(self) -> None:
        place = self._place
        for path in place.cache.rglob("*"):
            if path.is_file() and in_use(path):
                place.violated(f"{path} is locked, and nobody is there")
        cache = ShardCache(place.cache, BUDGETS[0], patience=1)
        for digest, sound in cache.verify():
            if not sound:
                place.violated(f"{digest} is damaged")
        for digest in place.digests():
            body = place.body(digest)
            with cache.ensure(digest, len(body), lambda start, body=body: iter([body[start:]])) as pin:  # type: ignore[misc]
                if pin.path.read_bytes() != body:
                    place.violated(f"{digest} can't be read in the end")
        if cache.status().used > BUDGETS[0]:
            place.violated("the last budget isn't kept")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=PROCESSES, help=f"at most {PROCESSES}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(Place(Path(given.worker[0])), int(given.worker[1]), int(given.worker[2]))
        return 0
    with tempfile.TemporaryDirectory(prefix="dload-stress-") as folder:
        stress = Stress(Path(folder), given.seconds, processes=given.processes, seed=given.seed)
        violations = stress.run()
    print(stress.summary)  # noqa: T201
    print("\n".join(violations) or "no violation")  # noqa: T201
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
