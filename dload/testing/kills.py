"""Verbs as real processes, killed at random moments: `python -m dload.testing.kills --count 200 --store folder`.

Each round forks a process that runs a verb of the command line, kills it (SIGKILL) at a moment drawn by chance, looks
at what must hold of the store, runs the verb again to its end, and looks once more. A process that ends before its
kill doesn't count. Prints what was killed; raises AssertionError at the first broken promise.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dload.api import Repository
from dload.cache import ShardCache
from dload.repo import keys
from dload.store import open_store
from dload.store.base import Store
from dload.testing import invariants
from dload.testing.s3_server import S3Server

_HOURS_AGO = 2 * 3600.0
_RECIPES = """
def backward(sample):
    return sample[0], {name: value[::-1] for name, value in sample[1].items()}

def is_even(sample):
    return int(sample[0][-1]) % 2 == 0

def reversed_(repo):
    return repo.dataset("speech", "latest").samples().map(backward)

def even(repo):
    return repo.dataset("speech", "latest").samples().filter(is_even)
"""
_FOREIGN = {"shards/README": b"mine", "elsewhere/x": b"mine"}


@dataclass
class World:
    """A store, the trees of files that are committed to it, and what has been seen in it."""

    folder: Path
    url: str
    draw: random.Random
    trees: dict[str, dict[str, bytes]] = field(default_factory=dict)
    seen: set[tuple[str, str]] = field(default_factory=set)  # (data set, version) that must be there until a gc
    seconds: dict[str, float] = field(default_factory=dict)  # how long a verb takes, by its last full run
    killed: Counter[str] = field(default_factory=Counter)

    @cached_property
    def store(self) -> Store:
        return open_store(self.url, endpoint_url=os.environ.get("DLOAD_ENDPOINT_URL"))

    def write_trees(self) -> None:
        """Trees that share most of their files, so that versions share shards."""
        common = {f"{i:03}.bin": random.Random(i).randbytes(8000) for i in range(60)}
        for number in range(4):
            own = {f"{i:03}.bin": random.Random(1000 * number + i).randbytes(8000) for i in range(20, 30 + 5 * number)}
            self.trees[f"tree{number}"] = common | own
        self.trees["more"] = {f"z{i:03}.bin": random.Random(-i).randbytes(8000) for i in range(10)}
        (self.folder / "recipes.py").write_text(_RECIPES)
        for name, files in self.trees.items():
            for path, data in files.items():
                target = self.folder / name / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)


# ---- verbs
@dataclass(frozen=True)
class Verb:
    """Arguments of a command line; codes that its second run may end with besides 0, where the first had done it."""

    arguments: tuple[str, ...]
    again: tuple[int, ...] = ()
    removes: tuple[tuple[str, str], ...] = ()  # what may be out of sight afterwards
    collects: bool = False
    holds: str | None = None  # the tree that is the latest version of speech afterwards
    makes: str | None = None  # the data set that is then derived from the latest version of speech


def _draw(world: World) -> Verb:
    """A verb that makes sense now."""
    living = invariants.living(world.store)
    speech, latest = sorted(living.get("speech", ())), _latest(world, "speech")
    others = [version for version in speech if version != latest]
    tree = world.draw.choice([name for name in world.trees if name.startswith("tree")])
    path, size = str(world.folder / tree), ("--shard-size", "40KB")
    commit = Verb(("commit", "speech", "--from", path, *size), holds=tree)
    if len(others) < 2:
        return commit
    one = world.draw.choice(others)
    verbs = [
        commit,
        commit,
        Verb(("append", "speech", "--from", str(world.folder / "more")), again=(1,)),
        Verb(("rm", f"speech@{one}", "--yes"), again=(10,), removes=(("speech", one),)),
        Verb(("revert", "speech", one), again=(2,)),
        Verb(("tag", f"birds@{_latest(world, 'birds') or 'latest'}", f"t{world.draw.randrange(1 << 30)}")),
        Verb(("gc", "--yes", "--grace", "0s"), collects=True),
        Verb(("copy", "speech", "--to", f"{world.url}-copy")),
        Verb(("derive", "recipes:reversed_", "backward", *size, "--workers", "1"), makes="backward"),
        Verb(("derive", "recipes:even", "some", "--view"), makes="some"),
        Verb(("pull", "speech")),
        Verb(("pull", "speech", "--to", str(world.folder / f"out{world.draw.randrange(1 << 30)}"))),
        Verb(("verify", "--all", "--read-data")),
    ]
    if "birds" not in living:
        verbs = [Verb(("commit", "birds", "--from", path, *size))]
    elif "spare" not in living:
        verbs += [Verb(("commit", "spare", "--from", path, *size))] * 2
    else:
        verbs += [Verb(("rm", "spare", "--yes"), again=(10,), removes=tuple(("spare", v) for v in living["spare"]))] * 2
    hidden = [key for key in sorted(world.seen) if key[0] == "speech" and key[1] not in speech]
    if hidden:
        verbs += [Verb(("undo", f"speech@{world.draw.choice(hidden)[1]}"), again=(10,))] * 2
    return world.draw.choice(verbs)


def _latest(world: World, name: str) -> str | None:
    body = world.store.head(keys.latest_key(name))
    return world.store.get(keys.latest_key(name)).data[:64].decode() if body else None


# ---- one round
def _start(arguments: tuple[str, ...], log: Path) -> int:
    """A process that runs the command line; returns its id. Everything is imported already, so that no kill is wasted
    on the start of an interpreter."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        from dload.cli.main import run

        code = run([*arguments])
    finally:
        sys.stdout.flush()
        os._exit(code)


def _round(world: World) -> bool:
    """Run one verb, kill it, look, run it again, look. Whether the kill came in time."""
    verb, log = _draw(world), world.folder / "log"
    before = invariants.living(world.store)
    world.seen |= {(name, version) for name, versions in before.items() for version in versions}
    expected = {name: [v for v in versions if (name, v) not in verb.removes] for name, versions in before.items()}
    name = verb.arguments[0]
    pid = _start(verb.arguments, log)
    time.sleep(world.draw.uniform(0, 1.2 * world.seconds.get(name, 0.3)))
    os.kill(pid, signal.SIGKILL)
    killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    what = f"{' '.join(verb.arguments)}, {'killed' if killed else 'ended'}"
    _check(world, verb, expected, what)
    _hours_pass(world.store)
    begun = time.monotonic()
    code = os.waitstatus_to_exitcode(os.waitpid(_start(verb.arguments, log), 0)[1])
    world.seconds[name] = time.monotonic() - begun
    said = log.read_text(errors="replace")
    assert code == 0 or code in verb.again, f"{what}, then ended with {code}:\n{said}"
    _check(world, verb, expected, f"{what}, then run again:\n{said}")
    if verb.holds is not None:
        _holds_tree(world, verb.holds, what)
    if verb.makes is not None:
        _is_output(world, verb.makes, what)
    world.killed[name] += killed
    return killed


def _check(world: World, verb: Verb, expected: dict[str, list[str]], what: str) -> None:
    broken = invariants.problems(world.store, deep=True)
    assert not broken, f"{what}: {broken}"
    assert invariants.foreign(world.store) == _FOREIGN, what
    if verb.collects:  # what was removed may be gone now
        world.seen = {(name, version) for name, versions in expected.items() for version in versions}
    lost = invariants.lost(world.store, _by_name(world.seen))
    assert not lost, f"{what}: {lost}"


def _by_name(versions: set[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, version in sorted(versions):
        found.setdefault(name, []).append(version)
    return found


def _holds_tree(world: World, tree: str, what: str) -> None:
    latest = _latest(world, "speech")
    assert latest, what
    samples = invariants.content(world.store, "speech", latest)
    files = {f"{key}.{name}": data for key, fields in samples for name, data in fields.items()}
    assert files == world.trees[tree], f"{what}: the latest version isn't {tree}"


def _is_output(world: World, name: str, what: str) -> None:
    source = _latest(world, "speech")
    lineage = Repository(world.store, ShardCache(world.folder / "looking")).lineage("speech", source)
    versions = [version for derived, version in lineage.derived_by if derived == name]
    assert source and versions, what
    samples = invariants.content(world.store, "speech", source)
    outputs = {
        "backward": [(key, {name: value[::-1] for name, value in fields.items()}) for key, fields in samples],
        "some": [sample for sample in samples if int(sample[0][-1]) % 2 == 0],
    }
    for version in versions:
        assert invariants.content(world.store, name, version) == outputs[name], f"{what}: {name}@{version} is another"


def _hours_pass(store: Store) -> None:
    """Leases and locks of the dead are as old as they will be in two hours."""
    for info in [*store.list(keys.LEASES), *store.list("gc/")]:
        if store.staging is not None:
            path = store.staging.parent / info.key
            os.utime(path, (info.modified - _HOURS_AGO,) * 2)
        else:  # no server lets its clock be set: what gc would do with them by then
            store.delete(info.key)


# ---- many rounds
@contextmanager
def _world(kind: str, seed: int) -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="dload-kills-") as name:
        folder = Path(name)
        server = S3Server(folder / "s3") if kind == "s3" else None
        url = str(folder / "store")
        os.environ |= {f"XDG_{each}_HOME": str(folder / each) for each in ("CONFIG", "CACHE", "DATA", "STATE")}
        os.environ["DLOAD_CACHE_DIR"] = str(folder / "cache")
        try:
            if server is not None:
                server.start()
                server.make_bucket("kills")
                os.environ |= {**server.environment(), "DLOAD_ENDPOINT_URL": server.endpoint_url}
                url = "s3://kills/store"
            os.environ["DLOAD_STORE"] = url
            os.chdir(folder)
            world = World(folder, url, random.Random(seed))
            world.write_trees()
            for key, data in _FOREIGN.items():
                world.store.put(key, data)
            yield world
        finally:
            os.chdir("/")
            if server is not None:
                server.stop()


def kills(kind: str, count: int, seed: int, tell: Callable[[str], object]) -> Counter[str]:
    """Kill `count` processes; returns how many of each verb. `kind`: "folder" or "s3"."""
    with _world(kind, seed) as world:
        while world.killed.total() < count:
            if _round(world) and world.killed.total() % 20 == 0:
                tell(f"{kind}: {world.killed.total()} killed")
        return world.killed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dload.testing.kills", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="how many processes to kill")
    parser.add_argument("--store", choices=["folder", "s3"], default="folder", help="s3: a real server, started for it")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the verbs and moments")
    given = parser.parse_args()
    sys.stdout.write(f"seed {given.seed}\n")
    found = kills(given.store, given.count, given.seed, lambda line: sys.stdout.write(line + "\n"))
    sys.stdout.write(f"{found.total()} killed: {', '.join(f'{n} {verb}' for verb, n in found.most_common())}\n")


if __name__ == "__main__":
    main()
