"""Everything at once, for hours: `python -m dload.testing.soak --minutes 60 --s3`.

Several processes at a time run verbs of the command line and streams, drawn by chance, over one store and one small
cache: commit, append, rm, undo, revert, tag, gc, copy, pull, stream, verify. With `--s3` the store is a real server
behind a proxy that answers a fifth of all requests with 503, cuts bodies short, breaks connections and loses replies;
and in the middle of the run it is down for a minute. Nothing of that may be seen by the jobs, but for what they do to
each other. All bytes that were read are compared with the files that were committed, and in the end the store, too.

Prints what was done; raises AssertionError at the first broken promise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import click

from dload.api import Repository
from dload.cache import ShardCache
from dload.cli.root import root
from dload.cli.verbs import VERBS
from dload.errors import DloadError
from dload.importers.folder import Folder
from dload.repo import keys
from dload.repo.history import History
from dload.repo.refs import Record
from dload.store import open_store
from dload.store.base import Store
from dload.testing import invariants
from dload.testing.faulty_server import FaultyServer

LANES = 6  # processes at a time
CACHE = 600_000  # bytes, of about three times as many
NAMES = ("speech", "birds")
OUTAGE = 60.0  # seconds, or a tenth of a shorter run
_FOREIGN = {"shards/README": b"mine", "elsewhere/x": b"mine"}
_LOOK = 1.0  # seconds between two looks at what there is to work with
Files = dict[str, bytes]


def digest_of(files: Iterable[tuple[str, bytes]]) -> str:
    """One id for the files of a tree, in whatever order."""
    found = hashlib.sha256()
    for path, data in sorted(files):
        found.update(f"{path}\0{len(data)}\0".encode() + data)
    return found.hexdigest()


@dataclass
class World:
    """Where it all happens, and what was committed. `url` is reached through the proxy, `store` directly."""

    folder: Path
    url: str
    store: Store
    draw: random.Random
    trees: dict[str, Files] = field(default_factory=dict)

    def write_trees(self) -> None:
        """Trees that have most of their files in common, so that versions share shards; and small ones to append."""
        common = {f"{i:03}.bin": random.Random(i).randbytes(6000) for i in range(40)}
        for number in range(10):
            own = random.Random(1000 + number)
            changed = {f"{own.randrange(60):03}.bin": own.randbytes(own.randrange(100, 12_000)) for _ in range(8)}
            self.trees[f"tree{number}"] = common | changed
        for number in range(10):
            self.trees[f"more{number}"] = {f"z{number}-{i}.bin": random.Random(-i).randbytes(5000) for i in range(6)}
        for name, files in self.trees.items():
            (self.folder / name).mkdir()
            for path, data in files.items():
                (self.folder / name / path).write_bytes(data)

    def begin(self) -> None:
        """Import what jobs need, so that each doesn't for itself, and commit something to begin with."""
        os.environ.update(self.environment)
        for verb in VERBS:
            root.get_command(click.Context(root), verb)
        repo = Repository(self.store, ShardCache(self.folder / "cache", CACHE))
        for number, name in enumerate(NAMES * 3):
            tree = f"tree{number}"
            repo.commit(name, Folder(self.folder / tree), target_shard_size=30_000, message=f"first of {tree}")

    @cached_property
    def environment(self) -> dict[str, str]:
        own = {f"XDG_{each}_HOME": str(self.folder / each) for each in ("CONFIG", "CACHE", "DATA", "STATE")}
        cache = {"DLOAD_CACHE_DIR": str(self.folder / "cache"), "DLOAD_CACHE_BUDGET": str(CACHE)}
        return {**own, **cache, "DLOAD_STORE": self.url}


# ---- jobs
@dataclass(frozen=True)
class Job:
    """What one process does: a command line, or a stream of `reads`. `codes`: what it may end with because of what
    others do meanwhile, besides 0."""

    arguments: tuple[str, ...]
    codes: tuple[int, ...] = ()
    reads: tuple[str, str] | None = None  # the version whose content it leaves as a digest
    to: str | None = None  # the folder that it fills

    @property
    def kind(self) -> str:
        return "pull --to" if self.to else self.arguments[0]

    @property
    def collects(self) -> bool:
        return self.kind == "gc"

    def run(self) -> int:
        """Do it, in this process."""
        if self.kind == "stream":
            return _stream(*self.reads) if self.reads else 0
        from dload.cli.main import run

        code = run([*self.arguments])
        if code == 0 and self.to is not None:
            found = [(path.name, path.read_bytes()) for path in Path(self.to).iterdir()]
            sys.stdout.write(f"\ndigest {digest_of(found)}\n")
        return code


def _stream(name: str, version: str) -> int:
    try:
        pipe = Repository.open().dataset(name, version).samples().shuffle(16, seed=os.getpid())
        found = [(f"{key}.{suffix}", data) for key, fields in pipe for suffix, data in fields.items()]
    except DloadError as error:
        sys.stdout.write(f"{error!r}\n")
        return error.exit_code
    sys.stdout.write(f"\ndigest {digest_of(found)}\n")
    return 0


@dataclass
class Seen:
    """What there is to work with, at the last look."""

    living: dict[str, list[str]] = field(default_factory=dict)
    removed: dict[str, list[str]] = field(default_factory=dict)
    tags: dict[str, list[str]] = field(default_factory=dict)
    at: float = float("-inf")

    def look(self, store: Store) -> None:
        history = History(store)
        for name in NAMES:
            # An append that was overtaken leaves the manifest behind that it couldn't publish: that is no version.
            published = {record.version for record in history.log(name)}
            there = published.intersection(history.manifest_ids(name))
            gone = {removal.version for removal in history.removed(name)}
            self.living[name], self.removed[name] = sorted(there - gone), sorted(there & gone)
            self.tags[name] = sorted(history.tags(name))
        self.at = time.monotonic()


def drawn(world: World, seen: Seen, number: int) -> Job:
    """A job that makes sense, by what was there a moment ago."""
    draw = world.draw
    name = draw.choice(NAMES)
    versions, removed = seen.living.get(name, []), seen.removed.get(name, [])
    commit = _write(world, "commit", name, "tree", number)
    if len(versions) < 3:
        return commit
    one = draw.choice(versions)
    at, out = f"{name}@{one}", str(world.folder / f"out{number}")
    gone = (10, 13)  # removed, collected or tagged by others since it was looked at
    jobs = [
        (6, commit),
        (3, _write(world, "append", name, "more", number)),
        (3, Job(("rm", at, "--yes"), gone)),
        (1, Job(("revert", name, one), (2, *gone))),  # 2: it is the latest by now
        (1, Job(("tag", at, f"t{number}"), gone)),
        (2, Job(("gc", "--yes", "--grace", "0s"), (13,))),
        (2, Job(("copy", at, "--to", f"{world.url}-copy"), gone)),
        (3, Job(("pull", at), (10,))),
        (3, Job(("pull", at, "--to", out), (10,), reads=(name, one), to=out)),
        (5, Job(("stream", name, one), (10,), reads=(name, one))),
        (1, Job(("verify", name, "--read-data"))),
        (1, Job(("ls",))),
    ]
    if removed:
        jobs.append((3, Job(("undo", f"{name}@{draw.choice(removed)}"), (*gone, 14))))  # 14: half of it is collected
    if seen.tags.get(name):
        jobs.append((1, Job(("untag", name, draw.choice(seen.tags[name])), (10,))))
    return draw.choices([job for _, job in jobs], [weight for weight, _ in jobs])[0]


def _write(world: World, verb: str, name: str, kind: str, number: int) -> Job:
    tree = world.draw.choice([tree for tree in world.trees if tree.startswith(kind)])
    told = f"job {number} of {tree}"
    arguments = (verb, name, "--from", str(world.folder / tree), "--shard-size", "30KB", "-m", told)
    return Job(arguments, (1, 10, 13) if verb == "append" else ())  # 1: these keys are there by now


# ---- many jobs
@dataclass
class Running:
    """A process at work."""

    job: Job
    log: Path
    begun: float


class Soak:
    """A run. `summary` says in the end what was done."""

    def __init__(self, world: World, server: FaultyServer | None) -> None:
        self.world = world
        self.server = server
        self.ended: Counter[tuple[str, int]] = Counter()
        self.slowest: dict[str, float] = {}
        self.read: list[tuple[str, str, str]] = []  # data set, version, the digest of what a job read of it
        self._running: dict[int, Running] = {}
        self._number = 0
        self._down = (0.0, 0.0)  # from when until when the store is down

    def run(self, seconds: float) -> None:
        """Work for that long, with an outage in the middle; then wait for what is under way."""
        seen, begun = Seen(), time.monotonic()
        self._down = (begun + seconds / 2, begun + seconds / 2 + min(OUTAGE, seconds / 10))
        while time.monotonic() < begun + seconds:
            self._wait_for_fewer_than(LANES)
            if time.monotonic() - seen.at > _LOOK:
                seen.look(self.world.store)
            self._number += 1
            job = drawn(self.world, seen, self._number)
            if job.collects and self.world.draw.random() < 0.7:
                self._wait_for_fewer_than(1)  # beside writers it deletes nothing
            self._start(job)
        self._wait_for_fewer_than(1)

    def _start(self, job: Job) -> None:
        log = self.world.folder / "logs" / str(self._number)
        pid = os.fork()
        if pid:
            self._running[pid] = Running(job, log, time.monotonic())
            return
        code = 70
        try:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            if self.server is not None:
                os.environ.update(self.server.environment)
            code = job.run()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def kill(self) -> None:
        """End what is still running, after a failure."""
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _wait_for_fewer_than(self, lanes: int) -> None:
        """Until so few jobs are left; the outage begins and ends meanwhile."""
        while len(self._running) >= lanes:
            if self.server is not None:
                self.server.outage(self._down[0] <= time.monotonic() < self._down[1])
            self._reap()
            time.sleep(0.005)

    def _reap(self) -> None:
        for pid in [*self._running]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._ended(self._running.pop(pid), os.waitstatus_to_exitcode(status))

    def _ended(self, running: Running, code: int) -> None:
        job, said = running.job, running.log.read_text(errors="replace")
        assert code == 0 or code in job.codes, f"{' '.join(job.arguments)} ended with {code}:\n{said}"
        self.ended[job.kind, code] += 1
        self.slowest[job.kind] = max(self.slowest.get(job.kind, 0), time.monotonic() - running.begun)
        if code == 0 and job.reads is not None:
            self.read.append((*job.reads, said.rpartition("digest ")[2].strip()))
        if job.to is not None:
            shutil.rmtree(job.to, ignore_errors=True)
        running.log.unlink()

    # ---- what must hold in the end
    def check(self) -> int:
        """Raises AssertionError; returns how many versions were read back."""
        store, copied = self.world.store, open_store(f"{self.world.store.url}-copy", endpoint_url=_direct(self.server))
        expected = _expected(self.world, store)
        for name, version, digest in self.read:
            assert digest == expected[name, version], f"{name}@{version}: a job read other bytes than were committed"
        versions = 0
        for each in (store, copied):
            broken = invariants.problems(each, deep=True)
            assert not broken, broken
            for name, living in invariants.living(each).items():
                for version in living:
                    samples = invariants.content(each, name, version)
                    found = digest_of(
                        (f"{key}.{kind}", data) for key, fields in samples for kind, data in fields.items()
                    )
                    assert found == expected[name, version], f"{name}@{version} isn't what was committed"
                    versions += 1
            assert not [*each.list(keys.LEASES)], "all leases were given back"
        assert invariants.foreign(store) == _FOREIGN
        cache = ShardCache(self.world.folder / "cache", CACHE)
        status = cache.status()
        assert status.used <= CACHE and status.pinned == 0, status
        assert all(sound for _, sound in cache.verify())
        return versions

    def summary(self, versions: int) -> str:
        jobs = ", ".join(f"{n} {kind}" + (f" ({code})" if code else "") for (kind, code), n in self.ended.most_common())
        slowest = max(self.slowest, key=self.slowest.__getitem__)
        lines = [
            f"{self.ended.total()} jobs: {jobs}",
            f"{len(self.read)} of them compared with what was committed, and {versions} versions in the end",
            f"the slowest: {slowest}, {self.slowest[slowest]:.0f} s",
        ]
        return "\n".join(lines + ([self.server.summary()] if self.server else []))


def _expected(world: World, store: Store) -> dict[tuple[str, str], str]:
    """What each version must hold, by the files of the jobs that made it."""
    content: dict[tuple[str, str], Files] = {}
    for name in NAMES:
        history = History(store)
        for record in reversed(history.log(name)):
            if record.op in ("commit", "append"):
                _take(world, name, record, content)
    return {key: digest_of(files.items()) for key, files in content.items()}


def _take(world: World, name: str, record: Record, content: dict[tuple[str, str], Files]) -> None:
    files = world.trees[(record.message or "").rpartition(" ")[2]]
    if record.op == "append":
        files = content[name, record.parent or ""] | files
    before = content.setdefault((name, record.version), files)
    assert before == files, f"{name}@{record.version} has two contents"


def _direct(server: FaultyServer | None) -> str | None:
    return server.direct if server else None


@contextmanager
def _world(s3: bool, seed: int) -> Iterator[tuple[World, FaultyServer | None]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dload-soak-")))
        server = stack.enter_context(FaultyServer(folder / "s3", "soak", seed)) if s3 else None
        url = "s3://soak/store" if server else str(folder / "store")
        world = World(folder, url, open_store(url, endpoint_url=_direct(server)), random.Random(seed))
        (folder / "logs").mkdir()
        world.write_trees()
        for key, data in _FOREIGN.items():
            world.store.put(key, data)
        world.begin()
        stack.callback(os.chdir, Path.cwd())
        os.chdir(folder)
        yield world, server


def soak(seconds: float, *, s3: bool, seed: int, tell: Callable[[str], object]) -> None:
    """Run it, and `tell` what was done. Raises AssertionError."""
    with _world(s3, seed) as (world, server):
        run = Soak(world, server)
        try:
            run.run(seconds)
            tell(run.summary(run.check()))
        except BaseException:
            if server is not None:
                tell(server.log())
            raise
        finally:
            run.kill()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m dload.testing.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--s3", action="store_true", help="a real S3 server behind a faulty proxy, not a folder")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of jobs and faults")
    given = parser.parse_args()
    sys.stdout.write(json.dumps(vars(given)) + "\n")
    sys.stdout.flush()
    soak(given.minutes * 60, s3=given.s3, seed=given.seed, tell=lambda text: sys.stdout.write(f"{text}\n"))


if __name__ == "__main__":
    main()
