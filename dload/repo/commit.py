"""Commit and append: from samples to a version that everyone sees, or to nothing.

The steps, in the order that keeps every ref pointing at something whole:
read the ref, write a lease (the permission check) · send the missing shards · look that everything is there and the
lease young · write the manifest · compare-and-swap the ref · write the log · look once more.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dload.errors import ConfigError, ConflictError, DuplicateKeyError, IntegrityError
from dload.files.atomic import disk_full
from dload.manifest import (
    FieldStats,
    Manifest,
    Packing,
    ShardInfo,
    ShardList,
    chosen,
    is_name,
    new_manifest,
)
from dload.pack import check_codecs, validate_key
from dload.repo import keys
from dload.repo.derived import sources
from dload.repo.footers import read_index, read_indexes
from dload.repo.group import Item
from dload.repo.history import History
from dload.repo.leases import Lease
from dload.repo.packing import PackMemo, Part, ShardDone, ShardSender
from dload.repo.publish import hide_torn, missing_shards, publish, put_once
from dload.repo.refs import OvertakenError, Record, Ref, new_record, read_latest, require_conditions
from dload.repo.uniqueness import KeyCheck
from dload.store.base import Store


@dataclass(frozen=True)
class CommitOptions:
    """How to commit. None means: as the parent version has it (packing; for append also meta and recipe)."""

    meta: Mapping[str, Any] | None = None
    recipe: str | None = None
    message: str | None = None
    target: int | None = None
    boundaries: str | None = None
    codecs: Mapping[str, str] | None = None
    workers: int = 1
    expect: str | None = None  # the version, or its first digits, that latest must be
    check_parent: bool = True  # append: whether the new keys must not be the parent's
    unsafe_single_writer: bool = False
    memo: PackMemo | None = None
    keep: Callable[[str, Path], object] | None = None
    report: Callable[[ShardDone], object] | None = None
    tell: Callable[[str], object] | None = None  # a line for the user, where something happened he should know of
    op: str = "commit"  # what the history calls it


@dataclass(frozen=True)
class Outcome:
    """What a commit did. `record` is None where the latest version was the same already: nothing was written."""

    manifest: Manifest
    record: Record | None
    shards_sent: int
    bytes_sent: int


@dataclass
class _Draft:
    """What was packed: the new shards and the totals of their fields."""

    shards: list[ShardInfo] = field(default_factory=list)
    fields: dict[str, FieldStats] = field(default_factory=dict)
    shards_sent: int = 0
    bytes_sent: int = 0

    def add(self, done: ShardDone) -> None:
        shard = done.shard
        self.shards.append(ShardInfo(shard.digest, shard.size, shard.num_samples, shard.index_size))
        self.fields = merge_fields(self.fields, {name: FieldStats(*stats) for name, stats in shard.fields.items()})
        if done.sent:
            self.shards_sent += 1
            self.bytes_sent += shard.size


def commit(
    history: History, name: str, samples: Iterable[Item], options: CommitOptions, packed: Iterable[Part] = ()
) -> Outcome:
    """Make the samples the latest version of a data set: the whole of it. Before them come those of `packed`, whose
    shards are in the store already; they are asked for one by one, with a lease at hand that keeps gc from deleting.

    Raises SampleError, DuplicateKeyError; ConflictError where `expect` isn't what is latest; whatever the iterable
    raises; and the store's errors. Nothing is visible unless it returns.
    """
    return _Writing(history, name, options).commit(samples, packed)


def append(history: History, name: str, samples: Iterable[Item], options: CommitOptions) -> Outcome:
    """Make the latest version's shards and new ones of these samples the latest version. Raises as `commit` does."""
    return _Writing(history, name, options).append(samples)


def commit_view(history: History, name: str, view: Manifest, options: CommitOptions) -> Outcome:
    """Make what `view` holds the latest version of a data set, over its shards as they are: nothing is copied.

    Its packing is that of `view`. Raises IntegrityError where shards of it are gone, and as `commit` does.
    """
    return _Writing(history, name, options).view(view)


def packing_for(history: History, name: str, options: CommitOptions) -> Packing:
    """The packing that a commit with these options has now. Two requests."""
    return _Writing(history, name, options).packing


class _Writing:
    """One commit or append under way."""

    def __init__(self, history: History, name: str, options: CommitOptions) -> None:
        if options.workers < 1:
            raise ConfigError(f"workers must be at least 1, got {options.workers}")
        self.history = history
        self.store = history.store
        self.name = _writable(self.store, name)
        self.options = options
        self.base = read_latest(self.store, name)
        self.parent = self._manifest_of(self.base)
        self.packing = self._packing()
        self._expected(self.base)

    def _manifest_of(self, base: Ref | None) -> Manifest | None:
        if base is None or base.removed:
            return None
        return self.history.stored_or_cached(self.name, base.version)

    def _packing(self) -> Packing:
        asked, inherited = self.options, self.parent.packing if self.parent else Packing()
        packing = Packing(
            target=inherited.target if asked.target is None else asked.target,
            boundaries=inherited.boundaries if asked.boundaries is None else asked.boundaries,
            codecs=inherited.codecs if asked.codecs is None else dict(asked.codecs),
        )
        check_codecs(packing.codecs)
        return packing

    def _expected(self, base: Ref | None) -> None:
        expect = self.options.expect
        if expect is None or (base is not None and not base.removed and base.version.startswith(expect)):
            return
        now = base.version[:12] if base is not None and not base.removed else "nothing"
        raise ConflictError(
            f"latest of {self.name} is {now}, expected {expect[:12]}", remedy=f"look at it with: dload log {self.name}"
        )

    # ---- the operations
    def commit(self, samples: Iterable[Item], packed: Iterable[Part] = ()) -> Outcome:
        with Lease(self.store, self.name, self.parent.version if self.parent else None) as lease, KeyCheck() as check:
            draft = self._pack(samples, lease, check, 0, packed)
            _refuse_duplicates(self.store, ShardList.of(draft.shards), check)
            meta, recipe = self.options.meta or {}, self.options.recipe
            manifest, data = new_manifest(
                self.name, ShardList.of(draft.shards), draft.fields, self.packing, meta, recipe
            )
            return self._publish(lease, draft, lambda _parent: (manifest, data), self.options.op)

    def view(self, of: Manifest) -> Outcome:
        every = chosen(of.shards, None, b"\1" * of.num_samples)[1] if of.rows is None else of.rows
        made = new_manifest(self.name, of.shards, {}, of.packing, self.options.meta or {}, self.options.recipe, every)
        with Lease(self.store, self.name, self.parent.version if self.parent else None) as lease:
            require_conditions(self.store, self.options.unsafe_single_writer)
            return self._publish(lease, _Draft([*of.shards]), lambda _parent: made, self.options.op)

    def append(self, samples: Iterable[Item]) -> Outcome:
        if self.parent is None:
            self.history.latest(self.name)
        elif self.parent.rows is not None:
            of = " and ".join(name for name, _ in sources(self.parent)) or "the data set"
            raise ConfigError(
                f"{self.name}@{self.parent.version[:12]} is a view, and nothing can be put behind it",
                remedy=f"append to {of}, of which it is a view, and make the view again",
            )
        old = self.parent.shards if self.parent else ShardList.of([])
        with Lease(self.store, self.name, self.parent.version if self.parent else None) as lease:
            with KeyCheck() as check:
                first = self._known_keys(check, old, 0) if self.options.check_parent else 0
                draft = self._pack(samples, lease, check, first)
                new = ShardList.of(draft.shards)
                _refuse_duplicates(self.store, old + new if self.options.check_parent else new, check, first)

            def extended(parent: Manifest | None) -> tuple[Manifest, bytes]:
                if parent is None:
                    raise ConflictError(
                        f"data set {self.name!r} was removed meanwhile", remedy=f"undo with: dload undo {self.name}"
                    )
                if self.options.check_parent and parent.shards != old:
                    self._check_all(parent.shards + new)
                return self._extension(parent, draft, new)

            return self._publish(lease, draft, extended, "append")

    def _known_keys(self, check: KeyCheck, shards: ShardList, ordinal: int) -> int:
        for index in read_indexes(self.store, shards):
            for key in index.keys:
                check.add(key, ordinal)
                ordinal += 1
        return ordinal

    def _check_all(self, shards: ShardList) -> None:
        """The parent is another one than when the samples were packed: compare with its keys, too."""
        with KeyCheck() as check:
            self._known_keys(check, shards, 0)
            _refuse_duplicates(self.store, shards, check)

    def _extension(self, parent: Manifest, draft: _Draft, new: ShardList) -> tuple[Manifest, bytes]:
        shards, fields = parent.shards, dict(parent.fields)
        if parent.format == 1:  # has neither the sizes of the indexes nor the totals of the fields
            shards, fields = described(self.store, shards)
        meta = parent.meta if self.options.meta is None else self.options.meta
        recipe = parent.recipe if self.options.recipe is None else self.options.recipe
        return new_manifest(self.name, shards + new, merge_fields(fields, draft.fields), self.packing, meta, recipe)

    def _pack(
        self, samples: Iterable[Item], lease: Lease, check: KeyCheck, first: int, packed: Iterable[Part] = ()
    ) -> _Draft:
        require_conditions(self.store, self.options.unsafe_single_writer)
        draft = _Draft()
        for part in packed:
            first = self._take(part, draft, check, first)
        with staging(self.store) as folder:
            sender = ShardSender(
                self.store,
                lease,
                folder,
                self.packing,
                covered=self._covered(),
                memo=self.options.memo,
                keep=self.options.keep,
                tell=self.options.tell,
            )
            for done in sender.send(_checked(samples, check, first), self.options.workers, len(draft.shards)):
                draft.add(done)
                if self.options.report is not None:
                    self.options.report(done)
        return draft

    def _take(self, part: Part, draft: _Draft, check: KeyCheck, first: int) -> int:
        """Shards that are there already; returns the number of the sample behind them."""
        done = [ShardDone(number, shard, sent=False) for number, shard in enumerate(part.shards, len(draft.shards))]
        for each in done:
            draft.add(each)
            if self.options.report is not None:
                self.options.report(each)
        count = sum(shard.num_samples for shard in part.shards)
        if part.hashes is None:
            new = ShardList.of(draft.shards[len(draft.shards) - len(done) :])
            return self._known_keys(check, new, first)
        if len(part.hashes) != 8 * count:
            raise ConfigError(f"a part of {count} samples has {len(part.hashes)} bytes of hashes, expected {8 * count}")
        check.add_hashes(part.hashes, first)
        return first + count

    def _covered(self) -> frozenset[str]:
        """The shards that the lease protects as the parent's."""
        return frozenset(self.parent.shards.digests) if self.parent else frozenset()

    # ---- from shards to a version
    def _publish(
        self, lease: Lease, draft: _Draft, make: Callable[[Manifest | None], tuple[Manifest, bytes]], op: str
    ) -> Outcome:
        while True:
            manifest, data = make(self.parent)
            if self.parent is not None and self.parent.version == manifest.version:
                record = self.history.record_of(self.name, manifest.version)
                return Outcome(manifest.with_created(record.time), None, draft.shards_sent, draft.bytes_sent)
            record = new_record(
                manifest,
                seq=self.base.seq + 1 if self.base else 1,
                parent=self.parent.version if self.parent else None,
                op=op,
                message=self.options.message,
            )
            self._rely_on(lease, manifest, draft.shards)
            self._write_manifest(manifest, data)
            unsafe = self.options.unsafe_single_writer
            try:
                publish(self.history, lease, self.name, self.base, manifest, record, data=data, unsafe=unsafe)
            except OvertakenError:
                if self.options.expect is not None:
                    raise
                self._take_new_base(op)
                continue
            if self.parent is not None and self.parent.format == 1:
                self._tell(
                    f"{self.name} is in format 2 from now on: programs older than dload 0.4 can't read this version"
                )
            return Outcome(manifest.with_created(record.time), record, draft.shards_sent, draft.bytes_sent)

    def _take_new_base(self, op: str) -> None:
        self.base = read_latest(self.store, self.name)
        self.parent = self._manifest_of(self.base)
        now = self.base.record if self.base else None
        who = f" by {now.author} at {now.time}" if now else ""
        if op == "append":
            self._tell(f"latest of {self.name} moved while you appended{who}; your samples go behind theirs")
        else:
            theirs = self.base.version[:12] if self.base else ""
            self._tell(
                f"latest of {self.name} moved while you committed{who}; yours replaces it: "
                f"dload diff {self.name} {theirs} latest"
            )

    def _tell(self, line: str) -> None:
        if self.options.tell is not None:
            self.options.tell(line)

    def _write_manifest(self, manifest: Manifest, data: bytes) -> None:
        put_once(self.store, keys.manifest_key(self.name, manifest.version), data)
        if self.history.cache is not None:
            self.history.cache.write_manifest(manifest.version, data)

    def _rely_on(self, lease: Lease, manifest: Manifest, shards: Iterable[ShardInfo]) -> None:
        """Be sure of all shards but the parent's: these stay for as long as it is the latest, or the ref has moved."""
        covered = self._covered()
        own = [shard for shard in shards if shard.digest not in covered]
        lease.cover([manifest.version, *(shard.digest for shard in own)], waiting=self.options.tell)
        missing = missing_shards(self.store, own)
        if missing:
            hide_torn(self.store, manifest)
            raise IntegrityError(
                f"{len(missing)} shards of this commit are not in {self.store.url} (any more), "
                f"the first is {missing[0].digest}",
                remedy="commit again: only what is missing is sent"
                if manifest.rows is None
                else "a view lives where its shards are: bring them there first, as with dload copy",
            )


def _writable(store: Store, name: str) -> str:
    if not is_name(name) and keys.is_known_name(name) and read_latest(store, name) is not None:
        raise ConfigError(
            f"data set {name!r} has a name that only dload-ml 0.3 allowed: it can be read, not written",
            remedy=f"go on under another name: dload pull {name!r} --to DIR, then dload commit NEW --from DIR",
        )
    return keys.check_name(name)


def _checked(samples: Iterable[Item], check: KeyCheck, first: int) -> Iterator[Item]:
    """The samples, their keys noted on the way."""
    for ordinal, item in enumerate(samples, first):
        key = item[0] if isinstance(item, tuple) and item else getattr(item, "key", None)
        if isinstance(key, str):  # whatever isn't a sample is refused where samples are cut
            validate_key(key)
            check.add(key, ordinal)
        yield item


def _refuse_duplicates(store: Store, shards: ShardList, check: KeyCheck, old: int = 0) -> None:
    """Raise DuplicateKeyError. `old`: how many of the samples are those of the parent."""
    for a, b in check.finish():
        first, second = key_at(store, shards, a), key_at(store, shards, b)
        if first == second:
            remedy = "give each sample a key of its own"
            if a < old:
                remedy = "the first of them is in the latest version: leave the other out, or commit the whole anew"
            what = f"samples {a} and {b} have the same key {first!r}; nothing was published"
            raise DuplicateKeyError(what, remedy=remedy, key=first)


def key_at(store: Store, shards: ShardList, ordinal: int) -> str:
    """The key of one sample, read from its shard's index."""
    number, row = shards.locate(ordinal)
    return read_index(store, shards[number]).keys[row]


def described(store: Store, shards: ShardList) -> tuple[ShardList, dict[str, FieldStats]]:
    """Shards of format 1 with what format 2 says of them besides: sizes of indexes, totals of fields. Reads all
    indexes."""
    rows: list[ShardInfo] = []
    fields: dict[str, FieldStats] = {}
    for shard, index in zip(shards, read_indexes(store, shards), strict=True):
        rows.append(replace(shard, index_size=index.size))
        fields = merge_fields(fields, {name: FieldStats(*stats) for name, stats in index.field_stats().items()})
    return ShardList.of(rows), fields


def merge_fields(a: Mapping[str, FieldStats], b: Mapping[str, FieldStats]) -> dict[str, FieldStats]:
    """The totals of two sets of samples together."""
    merged = dict(a)
    for name, stats in b.items():
        had = merged.get(name, FieldStats(0, 0))
        merged[name] = FieldStats(had.count + stats.count, had.bytes + stats.bytes)
    return merged


@contextmanager
def staging(store: Store) -> Iterator[Path]:
    """A folder for shards on their way: on the store's own disk where it has one, else a temporary one."""
    own = store.staging
    if own is not None:
        with disk_full(own):
            own.mkdir(parents=True, exist_ok=True)
        yield own
        return
    folder = Path(tempfile.mkdtemp(prefix="dload-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
