"""What comes from others, fed with bytes that a coverage-guided fuzzer makes:
`python -m dload.testing.fuzz --minutes 60`.

Each target gets its share of the time in a process of its own: manifests, shards, refs and leases, lock files, settings
files, tar archives, names of files. Whatever the bytes, it must end soon, within bounded memory, with a value or one of
dload's own errors. An input that breaks that is kept, its path is printed, and the exit code is 1.

Needs atheris (the extra `fuzz`; Linux and macOS).
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgpack

from dload.config import sources
from dload.errors import DloadError
from dload.importers.names import join_path
from dload.importers.tar import read_members
from dload.manifest import Packing, ShardInfo, decode, new_manifest
from dload.pack import ShardIndex, ShardReader, ShardWriter
from dload.repo import keys
from dload.repo.leases import planned, read_lease
from dload.repo.lockfile import read_pins, write_pin
from dload.repo.refs import Record, Ref, new_record, ref_bytes
from dload.store.base import Body
from dload.store.memory import MemoryStore

_LONGEST = 1 << 13  # bytes of an input
_MEMORY = 1024  # MiB that a target may take, with all that is imported
_PATIENCE = 10  # seconds that one input may take
_ID = hashlib.sha256(b"").hexdigest()
_CRASHED = 1


class Target(NamedTuple):
    """`run` is fed; `seeds` are inputs that are good, to begin with."""

    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]


# ---- shards
def _shard(data: bytes) -> None:
    """The first byte says whether the rest is a whole shard, or the payload and index of one whose trailer is right:
    no fuzzer finds a checksum."""
    kind, rest = data[:1], data[1:]
    if kind in (b"1", b"2"):
        length = max(0, len(rest) - int.from_bytes(rest[:2], "little")) if len(rest) > 1 else 0
        payload, index = rest[2:][: len(rest) - length], rest[2:][len(rest) - length :]
        rest = payload + index + _trailer(kind, index)
    for read in (_read_shard, lambda whole: ShardIndex.from_footer(whole, len(whole), "fuzzed")):
        with suppress(DloadError):
            read(rest)


def _trailer(kind: bytes, index: bytes) -> bytes:
    if kind == b"1":
        return struct.pack("<Q", len(index)) + b"DLOADPK1"
    return struct.pack("<QII", len(index), zlib.crc32(index), 0) + b"DLOADPK2"


def _read_shard(data: bytes) -> None:
    with ShardReader(data, name="fuzzed") as reader:
        samples = list(reader)
        assert [reader[row] for row in range(len(reader))] == samples
        assert sum(len(value) for _, fields in reader.samples() for value in fields.values()) >= 0


def _shards() -> Iterable[bytes]:
    file = io.BytesIO()
    writer = ShardWriter(file)
    for key, fields in (("a", {"x": b"one", "y": b""}), ("b", {"x": b"two"}), ("c", {})):
        writer.add(key, fields)
    writer.finish()
    whole = file.getvalue()
    size = struct.unpack("<Q", whole[-24:-16])[0]
    payload, index = whole[: -24 - size], whole[-24 - size : -24]
    old = msgpack.packb({"keys": ["a"], "samples": [{"x": [0, 3]}]})
    return (
        b"0" + whole,
        b"2" + struct.pack("<H", len(payload) + 2) + payload + index,
        b"1" + struct.pack("<H", 5) + b"one" + old,
    )


# ---- manifests, refs, leases
def _manifest(data: bytes) -> None:
    manifest = decode(data, version=hashlib.sha256(data).hexdigest(), where="fuzzed")
    assert manifest.num_samples == sum(shard.num_samples for shard in manifest.shards)


def _manifests() -> Iterable[bytes]:
    yield new_manifest("a", [ShardInfo(_ID, 9, 2, 3)], {}, Packing(), {"m": [1, None]}, "recipe")[1]
    old = {"format": 1, "name": "a", "created": "2026", "shards": [], "meta": {}, "recipe": None}
    yield json.dumps(old, sort_keys=True, separators=(",", ":")).encode()


def _ref(data: bytes) -> None:
    """A ref, a record, a lease and a gc's plan, each from the same bytes."""
    store = MemoryStore()
    for key in (keys.GC_PLAN, keys.lease_key("ab" * 16)):
        store.put(key, data)
    info = store.head(keys.lease_key("ab" * 16))
    assert info is not None
    reads: list[Callable[[], Any]] = [
        lambda: Ref.parse(Body(data, "", 0.0), "fuzzed"), lambda: Record.decode(data, "fuzzed"),
        lambda: read_lease(store, info, store.clock()), lambda: planned(store),
    ]  # fmt: skip
    for read in reads:
        with suppress(DloadError):
            read()


def _refs() -> Iterable[bytes]:
    manifest, _ = new_manifest("a", [], {}, Packing())
    yield ref_bytes(new_record(manifest, seq=1, parent=None, op="commit", message="m"))
    yield new_record(manifest, seq=1, parent=None, op="commit", message=None).encode()
    yield json.dumps({"dataset": "a", "parent": None, "ttl": 3600, "author": "me", "ended": True}).encode()
    yield json.dumps({"ids": [_ID], "ttl": 3600}).encode()


# ---- files of the user, archives, names
def _in_file(name: str, run: Callable[[Path], object]) -> Callable[[bytes], object]:
    folder = Path(tempfile.mkdtemp(prefix="dload-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))

    def fed(data: bytes) -> None:
        (folder / name).write_bytes(data)
        run(folder / name)

    return fed


def _lock(path: Path) -> None:
    pins = read_pins(path)
    write_pin(path, "new", _ID)
    assert read_pins(path) == {**pins, "new": _ID}


def _archive(data: bytes) -> None:
    total = sum(len(member.data) for member in read_members(io.BytesIO(data), "fuzzed"))
    assert total <= len(data)


def _archives() -> Iterable[bytes]:
    import tarfile

    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=form) as tar:
            for name in ("a.txt", "b/" + "c" * (90 if form == tarfile.USTAR_FORMAT else 120)):
                info = tarfile.TarInfo(name)
                info.size = 3
                tar.addfile(info, io.BytesIO(b"abc"))
        yield file.getvalue()[: 512 * 10]


def _name(data: bytes) -> None:
    key, _, field = data.decode("utf-8", "surrogateescape").partition("\n")
    path = join_path(key, field)
    inside = Path("/root-of-all/here", path)
    assert not path.startswith("/") and ".." not in path.split("/") and inside.is_relative_to("/root-of-all/here")


TARGETS: dict[str, Target] = {
    "shards": Target(_shard, _shards),
    "manifests": Target(_manifest, _manifests),
    "refs": Target(_ref, _refs),
    "locks": Target(_in_file("dload.lock", _lock), lambda: [f'[datasets]\na = "{_ID}"\n"b c" = "{_ID}"\n'.encode()]),
    "settings": Target(
        _in_file("dload.toml", sources.from_file),
        lambda: [b'[remote]\nstore = "s3://b/p"\nendpoint_url = "http://h"\n[cache]\nbudget = "5GB"\njobs = 3\n'],
    ),
    "archives": Target(_archive, _archives),
    "names": Target(_name, lambda: [b"a/b\nx", b"../a\ndata", b"/a\n.data"]),
}


# ---- running
def fed(target: Target, data: bytes) -> None:
    """Feed one input: its own errors are an answer."""
    with suppress(DloadError):
        target.run(data)


# What each process runs: only what is imported under its eyes tells the fuzzer where an input went.
_CHILD = """
import sys, atheris
with atheris.instrument_imports(include=["dload", "tomllib"], enable_loader_override=False):
    from dload.testing.fuzz import fuzz
fuzz(atheris, sys.argv[1], float(sys.argv[2]), sys.argv[3])
"""


def fuzz(atheris: ModuleType, name: str, seconds: float, where: str) -> None:
    """Feed a target for so long, and keep in the folder `where` what reaches something new, and what breaks it. Ends
    the process."""
    folder = Path(where)
    corpus = folder / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds()):
        (corpus / f"seed{number}").write_bytes(seed)
    options = [
        f"-max_total_time={int(seconds)}", f"-timeout={_PATIENCE}", f"-rss_limit_mb={_MEMORY}",
        f"-max_len={_LONGEST}", f"-artifact_prefix={folder}/{name}-", "-print_final_stats=1", "-verbosity=0",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: fed(TARGETS[name], data))
    atheris.Fuzz()


def _run(name: str, seconds: float, folder: Path) -> bool:
    command = [sys.executable, "-c", _CHILD, name, str(seconds), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    said = done.stderr + done.stdout
    runs = next((line.split()[-1] for line in said.splitlines() if "number_of_executed_units" in line), "?")
    found = len(list((folder / "corpus" / name).iterdir())) if (folder / "corpus" / name).is_dir() else 0
    sys.stdout.write(f"{name}: {runs} inputs, {found} that reach something new\n")
    if done.returncode:
        sys.stdout.write(f"{name} broke; what did it is in {folder}:\n{said[-4000:]}\n")
    sys.stdout.flush()
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dload.testing.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60, help="for all targets together")
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this one (may be given again)")
    parser.add_argument("--folder", type=Path, help="where inputs are kept for the next run (default: a temporary one)")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="dload-fuzz-"))
    names = given.target or list(TARGETS)
    sound = [_run(name, given.minutes * 60 / len(names), folder) for name in names]
    return 0 if all(sound) else _CRASHED


if __name__ == "__main__":
    sys.exit(main())
