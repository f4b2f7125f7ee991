"""Whether what a store holds is what it should be: refs, log, manifests, shards, and with `read_data` every byte.

Cheap by default: manifests are read, shards are only listed. What is wrong is a `Fault`, and not an exception: one
look finds all of them.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dload.errors import DloadError, IntegrityError, NotFoundError, PackFormatError
from dload.manifest import Manifest, ShardInfo, decode
from dload.pack import ShardReader
from dload.repo import keys
from dload.repo.footers import read_index
from dload.repo.history import History
from dload.repo.parallel import ordered
from dload.repo.readback import fetched
from dload.repo.refs import Record, Ref, read_latest
from dload.repo.repair import Repair, lost_samples
from dload.repo.uniqueness import KeyCheck
from dload.store.base import Store

_JOBS = 16
_READERS = 4  # shards that are read back at a time, each in a file of its own
_KEYS_HELD = 1 << 20  # by all versions together, before they go to disk

_NO_LATEST = "there is no latest version"

Kind = Literal["ref", "log", "manifest", "shard", "keys"]


@dataclass(slots=True)
class Fault:
    """One thing that isn't as it should be.

    `versions`: the ids of those that need it, for a shard each with the number of its first sample there. `lost`: the
    keys of the samples that can't be read, as far as they can be told; `lost_samples`: how many these are in all.
    `repaired`: it is as it should be again.
    """

    kind: Kind
    key: str
    what: str
    name: str
    versions: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    lost_samples: int = 0
    repaired: bool = False


@dataclass
class VerifyReport:
    """What was looked at, and what is wrong."""

    manifests: dict[str, Manifest] = field(default_factory=dict)  # by version: those that can be read
    shards: int = 0
    shards_read: int = 0
    bytes_read: int = 0
    faults: list[Fault] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong (any more)."""
        return all(fault.repaired for fault in self.faults)


def verify(
    history: History,
    wanted: Mapping[str, Collection[str] | None],
    *,
    read_data: bool = False,
    subset: float = 1.0,
    repair: Repair | None = None,
    tell: Callable[[str], object] | None = None,
) -> VerifyReport:
    """Look at versions of data sets: name -> full ids, or None for all that live, with refs, tags and log.

    `read_data`: read back a share of all shards, drawn by chance (`subset`, 0 to 1): sha256, index, each sample's
    crc32, and whether keys are unique. Reads the store alone, never a cache; changes nothing but what `repair` does.
    """
    history = History(history.store)
    report = VerifyReport()
    for name, versions in wanted.items():
        chosen = _names(history, name, report, repair) if versions is None else versions
        for version in sorted(chosen):
            _manifest(history.store, name, version, report, repair)
    shards = _shards(report)
    _listed(history.store, shards, report)
    with tempfile.TemporaryDirectory(prefix="dload-") as folder:
        if read_data:
            _read_back(history.store, shards, subset, report, Path(folder), tell)
        for fault in report.faults:
            if fault.kind == "shard":
                shard = shards[fault.key.rpartition("/")[2]].shard
                fault.repaired = repair is not None and repair.shard(shard, Path(folder))
                if not fault.repaired:
                    fault.lost, fault.lost_samples = lost_samples(history.store, shard)
    return report


# ---- refs, tags, log
def _names(history: History, name: str, report: VerifyReport, repair: Repair | None) -> set[str]:
    """Look at what names versions; returns the versions of a data set that must be whole."""
    latest = _latest(history.store, name, report, repair)
    tagged = _tagged(history, name, report)
    if latest is None or latest.removed:
        return tagged
    removed = {removal.version for removal in history.removed(name)}
    return tagged | {latest.version} | (_logged(history, name, latest, report) - removed)


def _latest(store: Store, name: str, report: VerifyReport, repair: Repair | None) -> Ref | None:
    try:
        found = read_latest(store, name)
        what = _NO_LATEST
    except PackFormatError as error:
        found, what = None, error.message
    if found is not None or (what == _NO_LATEST and not any(store.list(keys.log_prefix(name)))):
        return found  # of a data set whose first commit never came to its end there is none
    fault = Fault("ref", keys.latest_key(name), what, name)
    report.faults.append(fault)
    if repair is None or not repair.latest(name):
        return None
    fault.repaired = True
    return read_latest(store, name)


def _tagged(history: History, name: str, report: VerifyReport) -> set[str]:
    found = set()
    for info in history.store.list(keys.tags_prefix(name)):
        try:
            ref = history.listed_tag(info.key)
        except PackFormatError as error:
            report.faults.append(Fault("ref", info.key, error.message, name))
            continue
        if ref is not None:
            found.add(ref.version)
    return found


def _logged(history: History, name: str, latest: Ref, report: VerifyReport) -> set[str]:
    """Look at the log; returns the versions that it names since the data set was last removed as a whole, and those
    that have no record, since dload-ml 0.3 wrote them."""
    records = {latest.seq: latest.record} if latest.record else {}
    for info in history.store.list(keys.log_prefix(name)):
        try:
            record = Record.decode(history.store.get(info.key).data, info.key)
            records[record.seq] = record
        except PackFormatError as error:
            report.faults.append(Fault("log", info.key, error.message, name))
    bad = {fault.key for fault in report.faults}
    for seq in range(1, latest.seq + 1):
        if seq not in records and keys.log_key(name, seq) not in bad:
            report.faults.append(Fault("log", keys.log_key(name, seq), "the record is missing", name))
    named: set[str] = set()
    for seq in sorted(records, reverse=True):
        if records[seq].op == "remove":
            return named
        named.add(records[seq].version)
    return named | set(history.manifest_ids(name))


# ---- manifests and shards
def _manifest(store: Store, name: str, version: str, report: VerifyReport, repair: Repair | None) -> None:
    key = keys.manifest_key(name, version)
    try:
        report.manifests[version] = decode(store.get(key).data, version=version, where=key)
        return
    except NotFoundError:
        what = "it is missing"
    except (IntegrityError, PackFormatError) as error:
        what = error.message
    fault = Fault("manifest", key, what, name, {version: 0})
    report.faults.append(fault)
    manifest = repair.manifest(name, version) if repair else None
    if manifest is not None:
        fault.repaired = True
        report.manifests[version] = manifest


@dataclass(slots=True)
class _Needed:
    """A shard, and who needs it: (version, number of the shard there)."""

    shard: ShardInfo
    by: list[tuple[str, int]] = field(default_factory=list)

    def fault(self, what: str, report: VerifyReport) -> Fault:
        name = report.manifests[self.by[0][0]].name
        firsts = {version: report.manifests[version].starts[number] for version, number in reversed(self.by)}
        return Fault("shard", keys.shard_key(self.shard.digest), what, name, firsts)


def _shards(report: VerifyReport) -> dict[str, _Needed]:
    found: dict[str, _Needed] = {}
    for version, manifest in report.manifests.items():
        for number, shard in enumerate(manifest.shards):
            found.setdefault(shard.digest, _Needed(shard)).by.append((version, number))
    report.shards = len(found)
    return found


def _listed(store: Store, shards: Mapping[str, _Needed], report: VerifyReport) -> None:
    """Whether they are there, in their sizes, as far as a listing tells."""
    folders = sorted({digest[:2] for digest in shards})
    sizes = {}
    for found in ordered(lambda folder: [*store.list(f"{keys.SHARDS}{folder}/")], folders, _JOBS):
        sizes.update({info.key: info.size for info in found})
    for digest, needed in shards.items():
        size = sizes.get(keys.shard_key(digest))
        if size is None:
            report.faults.append(needed.fault("it is missing", report))
        elif size != needed.shard.size:
            report.faults.append(needed.fault(f"it has {size} bytes, expected {needed.shard.size}", report))


# ---- every byte
def _read_back(
    store: Store,
    shards: Mapping[str, _Needed],
    subset: float,
    report: VerifyReport,
    folder: Path,
    tell: Callable[[str], object] | None,
) -> None:
    bad = {fault.key for fault in report.faults}
    chosen = [needed for digest, needed in shards.items() if keys.shard_key(digest) not in bad]
    if subset < 1:
        chosen = random.sample(chosen, min(len(chosen), max(1, round(subset * len(chosen)))))
    limit = max(1 << 12, _KEYS_HELD // max(1, len(report.manifests)))
    with ExitStack() as stack:
        checks = {version: stack.enter_context(KeyCheck(folder, limit=limit)) for version in report.manifests}
        looked = ordered(lambda needed: _look(store, needed.shard, folder), chosen, _READERS)
        for number, (needed, found) in enumerate(zip(chosen, looked, strict=True), 1):
            report.shards_read += 1
            report.bytes_read += needed.shard.size
            if isinstance(found, DloadError):
                report.faults.append(needed.fault(found.message, report))
                continue
            for version, place in needed.by:
                manifest = report.manifests[version]
                held = found if manifest.rows is None else map(found.__getitem__, manifest.rows.of(place))
                for ordinal, key in enumerate(held, manifest.starts[place]):
                    checks[version].add(key, ordinal)
            if tell is not None:
                tell(f"shard {number} of {len(chosen)} read")
        for version, check in checks.items():
            _duplicates(store, report.manifests[version], check, report)


def _look(store: Store, shard: ShardInfo, folder: Path) -> list[str] | DloadError:
    """The keys of a shard, or what is wrong with it."""
    key = keys.shard_key(shard.digest)
    try:
        with (
            fetched(shard, lambda: store.stream(key), folder, key) as path,
            ShardReader.open(path, name=shard.digest) as reader,
        ):
            return _checked(shard, reader)
    except (IntegrityError, PackFormatError, NotFoundError) as error:
        return error


def _checked(shard: ShardInfo, reader: ShardReader) -> list[str]:
    """The keys of a shard whose digest is right, if what is inside agrees with the manifest and itself."""
    if len(reader) != shard.num_samples:
        raise IntegrityError(f"it has {len(reader)} samples, the manifest says {shard.num_samples}")
    if shard.index_size not in (None, reader.index.size):
        raise IntegrityError(f"its index has {reader.index.size} bytes, the manifest says {shard.index_size}")
    for row in range(len(reader)):
        reader.check(row)
    return reader.keys


def _duplicates(store: Store, manifest: Manifest, check: KeyCheck, report: VerifyReport) -> None:
    for a, b in check.finish():
        first, second = _key_at(store, manifest, a), _key_at(store, manifest, b)
        if first == second:
            what = f"samples {a} and {b} have the same key {first!r}"
            key = keys.manifest_key(manifest.name, manifest.version)
            report.faults.append(Fault("keys", key, what, manifest.name, {manifest.version: a}))


def _key_at(store: Store, manifest: Manifest, ordinal: int) -> str:
    number, row = manifest.locate(ordinal)
    return read_index(store, manifest.shards[number]).keys[row]
