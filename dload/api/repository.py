"""A store and a cache together: what users call."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs

from dload.api.dataset import Dataset
from dload.api.derive import Engine, derive
from dload.api.pipeline import Pipeline
from dload.api.progress import Progress, both, fetched_line, shard_line
from dload.api.views import store_view
from dload.cache import ShardCache
from dload.config import Config
from dload.errors import ConfigError, NotFoundError, SampleError
from dload.importers.kinds import Importer, with_columns
from dload.manifest import Manifest, SampleDiff
from dload.pack import Sample
from dload.repo import compare, copying, derived, gc, keys, removal
from dload.repo.commit import CommitOptions, Outcome, append, commit
from dload.repo.group import Item
from dload.repo.history import DatasetInfo, History, Removal
from dload.repo.lockfile import find_lock, read_pins, write_pin
from dload.repo.memo import FileMemo
from dload.repo.packing import Part
from dload.repo.refs import Record
from dload.repo.repair import Repair, Source, StoreSource
from dload.repo.verify import VerifyReport, verify
from dload.run import fetch_shards
from dload.run.cache_source import CacheSource
from dload.sizes import format_size, parse_duration
from dload.store import open_store
from dload.store.base import Store


class Repository:
    """Every data set of one store, read through one local cache.

    Made by `Repository.open()`, or of a `store`, a `cache` and the `lock_path` of a dload.lock (None: found from the
    working directory). It pickles (no clients, locks or credentials inside) and may be used from many threads and after
    a fork.

    What methods take: `name`, of a data set. `version`: "latest", a tag, a full id or its first four or more digits;
    None: what dload.lock pins, else the latest. `meta`, a JSON object, and `recipe`, a text that says how the data was
    made: both are kept in the version and part of what its id stands for. `message`: a line for the log. `progress` is
    called with lines of text.

    Methods ask the store over the network unless they say otherwise. What they raise besides what they name:
    NotFoundError where there is no such data set or version, AccessError (credentials, permission), UnavailableError
    (the store can't be reached), RemoteError.
    """

    def __init__(self, store: Store, cache: ShardCache, lock_path: Path | None = None) -> None:
        self.store = store
        self.cache = cache
        self._lock_path = lock_path

    @classmethod
    def open(
        cls,
        where: Config | str | Path | None = None,
        *,
        cache_dir: Path | str | None = None,
        cache_budget: int | str | None = None,
        cache_jobs: int | None = None,
        cache_rate: int | str | None = None,
    ) -> Repository:
        """The repository that the settings name, or the one at `where`: an `s3://bucket/prefix` URL, a folder, a
        Config. `cache_dir`: the folder of its cache; `cache_budget`: bytes, "60GB", "auto" or "unlimited";
        `cache_jobs`: downloads side by side; `cache_rate`: bytes a second that come down at most, or "50MB".

        Settings come, each from the first that has it, from these arguments, the environment (`DLOAD_STORE`, ...),
        ./dload.toml (or an ancestor's), the user's file, defaults. Raises ConfigError. No network is touched.
        """
        if isinstance(where, Config):
            config = where
        else:
            config = _load(
                store=where, cache_dir=cache_dir, cache_budget=cache_budget, cache_jobs=cache_jobs,
                cache_rate=cache_rate,
            )  # fmt: skip
        store = open_store(config.store_url(), endpoint_url=config.endpoint_url, state_dir=_state())
        return cls(store, config.shard_cache())

    @property
    def url(self) -> str:
        """Where the store is; never holds a secret."""
        return self.store.url

    @property
    def lock_path(self) -> Path:
        """The dload.lock of this folder or of its nearest ancestor that has one; else where `pin` makes it: here."""
        return self._lock_path or find_lock(Path.cwd()) or Path.cwd() / "dload.lock"

    @property
    def _history(self) -> History:
        return History(self.store, self.cache)

    # ---- reading
    def dataset(self, name: str, version: str | None = None) -> Dataset:
        """A version to read. Raises NotFoundError, RemovedError. A pinned or full id that is cached needs no
        network."""
        return Dataset(self, self._history.manifest(name, self.resolve(name, version)))

    def manifest(self, name: str, version: str | None = None) -> Manifest:
        """What a version holds, and when it was made (`created`, from the log)."""
        history = self._history
        manifest = history.manifest(name, self.resolve(name, version))
        return manifest if manifest.created else manifest.with_created(history.record_of(name, manifest.version).time)

    def resolve(self, name: str, version: str | None = None) -> str:
        """The full id of a version: 64 hex digits. No network for a pinned or full one."""
        wanted = version or self.pins().get(keys.check_known_name(name)) or "latest"
        try:
            return self._history.resolve(name, wanted)
        except NotFoundError as error:
            if "@" in name:  # as on the command line
                one, _, other = name.partition("@")
                error.remedy = f"a version is an argument of its own: {one!r}, {other!r}"
            raise

    def list_datasets(self) -> list[str]:
        """The names of all data sets, sorted."""
        return self._history.names()

    def overview(self) -> list[DatasetInfo]:
        """All data sets at a glance: one request each."""
        return self._history.overview()

    def versions(self, name: str) -> list[Manifest]:
        """All versions that aren't removed, newest first."""
        return self._history.versions(name)

    def log(self, name: str) -> list[Record]:
        """Every move of `latest`, newest first, also of a removed data set."""
        return self._history.log(name)

    def diff(self, name: str, a: str, b: str) -> SampleDiff:
        """The keys added, removed and changed from version `a` to version `b`, each as `version` elsewhere. Reads only
        indexes of shards that differ."""
        history = self._history
        old, new = (history.manifest(name, self.resolve(name, version)) for version in (a, b))
        return compare.diff(self.store, old, new)

    def fetch(self, manifest: Manifest, *, workers: int = 8, progress: Progress | None = None) -> None:
        """Bring every shard of the version that `manifest` describes into the cache, `workers` at a time.

        Raises CacheFullError before any byte moves where the version can't be resident as a whole.
        """
        fetch_shards(self.store, self.cache, manifest, workers, fetched_line(progress))

    # ---- writing
    def commit(
        self,
        name: str,
        samples: Iterable[Item],
        *,
        meta: Mapping[str, Any] | None = None,
        recipe: str | None = None,
        target_shard_size: int | None = None,
        progress: Progress | None = None,
        message: str | None = None,
        boundaries: str | None = None,
        codecs: Mapping[str, str] | None = None,
        workers: int = 1,
        expect: str | None = None,
    ) -> Manifest:
        """Make `samples`, `(key, {field: bytes})` each, the latest version: the whole data set.

        Packs them into shards of about `target_shard_size` bytes, sends what the store lacks, then publishes; what was
        cut off leaves nothing visible and is continued by the next commit. The same samples give the same version,
        whatever the number of `workers`, threads that pack and send. None for target_shard_size, `boundaries`
        ("content" or "size") and `codecs` ({field: "zstd"}): as the latest version has them, and for the first one 128
        MiB, "content" and none. `expect`: the version that must be latest. Where `samples` are those of an importer
        (`dload.importers`), meta gets the entry "columns" besides: how each field is stored.

        Raises SampleError, DuplicateKeyError, ConflictError, UnsafeStoreError, and whatever `samples` raises.
        """
        if isinstance(samples, Importer):
            meta = dict(meta or {})
            samples = with_columns(samples, meta)
        options = CommitOptions(
            meta=meta,
            recipe=recipe,
            message=message,
            target=target_shard_size,
            boundaries=boundaries,
            codecs=codecs,
            workers=workers,
            expect=expect,
        )
        return self.write(commit, name, samples, options, progress=progress).manifest

    def append(
        self,
        name: str,
        samples: Iterable[Item],
        *,
        meta: Mapping[str, Any] | None = None,
        recipe: str | None = None,
        target_shard_size: int | None = None,
        progress: Progress | None = None,
        message: str | None = None,
        boundaries: str | None = None,
        codecs: Mapping[str, str] | None = None,
        workers: int = 1,
        expect: str | None = None,
        check_parent: bool = True,
    ) -> Manifest:
        """Put `samples` behind those of the latest version. None for meta and recipe: as the latest version has them.

        The new keys must not be among the old ones; `check_parent=False` doesn't look. Where another version became
        latest meanwhile, the samples go behind that. Otherwise as `commit`.
        """
        options = CommitOptions(
            meta=meta,
            recipe=recipe,
            message=message,
            target=target_shard_size,
            boundaries=boundaries,
            codecs=codecs,
            workers=workers,
            expect=expect,
            check_parent=check_parent,
        )
        return self.write(append, name, samples, options, progress=progress).manifest

    def commit_shards(
        self,
        name: str,
        parts: Iterable[Part],
        *,
        meta: Mapping[str, Any] | None = None,
        recipe: str | None = None,
        target_shard_size: int | None = None,
        progress: Progress | None = None,
        message: str | None = None,
        boundaries: str | None = None,
        codecs: Mapping[str, str] | None = None,
        expect: str | None = None,
    ) -> Manifest:
        """Make shards that others have packed and sent, part after part, the latest version: see `dload.repo.parts`.

        `parts` is asked for only when the commit holds its lease: make them then. Otherwise as `commit`.
        """
        options = CommitOptions(
            meta=meta,
            recipe=recipe,
            message=message,
            target=target_shard_size,
            boundaries=boundaries,
            codecs=codecs,
            expect=expect,
        )
        return self.write(partial(commit, packed=parts), name, (), options, progress=progress).manifest

    def derive(
        self,
        name: str,
        pipeline: Pipeline,
        *,
        tag: object = None,
        meta: Mapping[str, Any] | None = None,
        recipe: str | None = None,
        target_shard_size: int | None = None,
        progress: Progress | None = None,
        message: str | None = None,
        boundaries: str | None = None,
        codecs: Mapping[str, str] | None = None,
        workers: int = 1,
        view: bool = False,
        engine: Engine | str | None = None,
    ) -> Dataset:
        """The output of a pipeline of samples as a version of data set `name`: run once, then the same for everybody.

        The pipeline's fingerprint (with `tag`, a JSON value) says whether somebody has run it. What its functions keep
        elsewhere, such as a model's weights, isn't in it: put their name into `tag`. If nobody has, its epoch 0 is
        committed, and the fingerprint published by compare-and-swap: of two at once, both get the version of the first.
        A run that was killed goes on where it was, on the same machine. `meta` gets the reserved entries derived_from,
        fingerprint and tag; it is that of whoever ran it.

        `workers` pack and send, and where the pipeline keeps places as many processes compute it; the result is the
        same. `view`: of a pipeline that only leaves samples out, the numbers of those that stay are stored, no bytes.
        `engine`: what computes it in place of this machine: "ray" (see `dload.ray.Engine`; the extra `ray`), or an
        object of one's own. What it can't share among machines it refuses.

        Raises ValueError, with what to do, where the pipeline has no fingerprint; SampleError where it gives something
        else than samples; and as `commit`.
        """
        options = CommitOptions(
            meta=meta,
            recipe=recipe,
            message=message,
            target=target_shard_size,
            boundaries=boundaries,
            codecs=codecs,
            workers=workers,
        )
        remember = _state() / "derived"
        return derive(
            self, name, pipeline, options, remember, tag=tag, view=view, engine=engine, progress=progress
        )  # fmt: skip

    def view(
        self,
        name: str,
        of: Dataset,
        where: Callable[[Sample], Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        recipe: str | None = None,
        message: str | None = None,
        progress: Progress | None = None,
    ) -> Dataset:
        """Make the samples of `of` for which `where(sample)` is true (None: all, as of a split's part) the latest
        version of data set `name`: their numbers alone are stored, over the shards of `of`, which stay as long as it.

        `where` reads all samples, each time: `derive(..., view=True)` remembers. Raises as `commit`.
        """
        options = CommitOptions(meta=meta, recipe=recipe, message=message, tell=progress)
        return Dataset(self, store_view(self._history, name, of, where, options))

    def lineage(self, name: str, version: str | None = None) -> derived.Lineage:
        """What a version was derived from, and what was derived from it. The latter looks at the latest version of each
        data set, and at all outputs of pipelines."""
        return derived.lineage(self._history, self.manifest(name, version))

    def write(
        self,
        operation: Callable[[History, str, Iterable[Item], CommitOptions], Outcome],
        name: str,
        samples: Iterable[Item],
        options: CommitOptions,
        *,
        progress: Progress | None = None,
    ) -> Outcome:
        """An `operation`, `commit` or `append` of dload.repo.commit, on `samples`, with all `options` and all that it
        has to say.

        Remembers on this machine which files gave which shards, and keeps new shards in the cache, where there is room.
        """
        if isinstance(samples, str | bytes | Path | Mapping):  # iterable, but not what was meant
            raise SampleError(
                f"expected an iterable of samples, (key, {{field: bytes}}) each, got {samples!r:.100}",
                remedy="of files: dload.importers.open_source(path); of a dict: its items()",
            )
        with FileMemo(self._memo_path(name)) as memo:
            options = replace(
                options,
                memo=memo,
                keep=self.cache.add if self.store.staging is None else None,
                report=both(options.report, shard_line(progress)),
                tell=options.tell or progress,
            )
            outcome = operation(self._history, name, samples, options)
        if progress is not None:
            m = outcome.manifest
            what = "committed" if outcome.record else "nothing to commit:"
            size = f"{m.num_samples} samples, {len(m.shards)} shards, {format_size(m.total_bytes)}"
            progress(f"{what} {name}@{m.version[:12]}: {size}")
        return outcome

    def _memo_path(self, name: str) -> Path:
        where = hashlib.sha256(f"{self.store.url} {keys.check_known_name(name)}".encode()).hexdigest()[:32]
        return _state() / "commits" / where

    def copy(
        self, name: str, *, to: Repository, version: str | None = None, progress: Progress | None = None
    ) -> Manifest:
        """Make a version the latest of the same name in another repository, `to`, under the same id. Shards that are
        there already aren't sent."""
        return copying.copy(self._history, to._history, name, self.resolve(name, version), tell=progress)

    def revert(self, name: str, version: str, *, message: str | None = None) -> Record:
        """Make an old version the latest again. History stays; this is a new record in it."""
        return removal.revert(self._history, name, self.resolve(name, version), message)

    def tag(self, name: str, tag: str, version: str | None = None) -> str:
        """Give a version a name, `tag`, that never moves; returns its id. Raises ConflictError where the tag is
        another version's."""
        resolved = self.resolve(name, version)
        self._history.tag(name, tag, resolved)
        return resolved

    def untag(self, name: str, tag: str) -> None:
        """Delete a `tag`; what it named stays."""
        self._history.untag(name, tag)

    def tags(self, name: str) -> dict[str, str]:
        """Tag -> version id."""
        return self._history.tags(name)

    # ---- this project's pins
    def pin(self, name: str, version: str | None = None) -> str:
        """Write into dload.lock which version of a data set this project uses; returns its id. None: the latest,
        whatever is pinned now."""
        resolved = self.resolve(name, version or "latest")
        write_pin(self.lock_path, name, resolved)
        return resolved

    def unpin(self, name: str) -> None:
        """Take a data set out of dload.lock. Raises NotFoundError where it isn't in it. No network."""
        if keys.check_known_name(name) not in self.pins():
            raise NotFoundError(f"{name} is not pinned in {self.lock_path}", remedy="see what is: dload ls")
        write_pin(self.lock_path, name, None)

    def pins(self) -> dict[str, str]:
        """Data set -> version id, as dload.lock says. No network."""
        return read_pins(self.lock_path) if self.lock_path.exists() else {}

    # ---- removing
    def delete_dataset(self, name: str, version: str | None = None) -> None:
        """Hide a version, or with `version=None` the whole data set, until `undelete`; `gc` deletes what has been
        hidden long enough.

        Raises ConflictError while a tag names what would be hidden, or where the version is the only one.
        """
        if version is None:
            removal.remove_dataset(self._history, name)
        else:
            removal.remove_version(self._history, name, self.resolve(name, version))

    def undelete(self, name: str, version: str | None = None) -> str:
        """Take back a removal; returns the id of the version that is back. `version=None`: of the whole data set, or of
        its only removed version. Raises NotFoundError where nothing is removed, or gc has taken it."""
        history = self._history
        if version is None and history.is_removed(name):
            return removal.restore_dataset(history, name).version
        removed = [r.version for r in history.removed(name) if r.version.startswith(version or "")]
        which = "" if version is None else f" that begins with {version!r}"
        if not removed:
            raise NotFoundError(f"{name} has no removed version{which}", remedy=f"see: dload log {name}")
        if len(removed) > 1:
            found = ", ".join(v[:12] for v in removed)
            raise ConfigError(
                f"{name} has {len(removed)} removed versions{which}: {found}",
                remedy=f"name one: dload undo {name}@{removed[0][:12]}",
            )
        removal.restore_version(history, name, removed[0])
        return removed[0]

    def removed(self, name: str) -> list[Removal]:
        """The versions that were removed one by one and can be brought back."""
        return self._history.removed(name)

    def retain(
        self, name: str, *, keep_last: int | None = None, keep_within: float | None = None, dry_run: bool = False
    ) -> list[removal.Retention]:
        """Hide the versions that no rule keeps: the last `keep_last`, those younger than `keep_within` seconds,
        tagged ones and the latest. Returns what becomes of each, newest first; `dry_run` changes nothing."""
        plan = removal.retention(self._history, name, keep_last=keep_last, keep_within=keep_within)
        if not dry_run:
            for each in plan:
                if not each.kept:
                    removal.remove_version(self._history, name, each.version)
        return plan

    def gc(self, *, dry_run: bool = False, grace: str | float = "7d", progress: Progress | None = None) -> gc.GcReport:
        """Delete shards and manifests that no version needs and that are older than `grace` ("7d", "12h", or seconds).

        Returns what went and what stayed and why; as an iterable it is (shards deleted, bytes freed). `dry_run` only
        looks. Raises ConflictError while another gc runs.
        """
        seconds = parse_duration(grace) if isinstance(grace, str) else float(grace)
        return gc.gc(self._history, grace=seconds, dry_run=dry_run, tell=progress)

    def verify(
        self,
        name: str | None = None,
        version: str | None = None,
        *,
        pinned: bool = False,
        read_data: bool = False,
        subset: float = 1.0,
        repair: bool = False,
        source: Repository | None = None,
        progress: Progress | None = None,
    ) -> VerifyReport:
        """Look whether the store holds what it should: of one version, of all versions of a data set (`version=None`),
        of what dload.lock pins (`pinned`), or of everything (no `name`).

        Cheap: reads refs, log and manifests, and lists the shards. With `read_data` it reads a share `subset` (0 to 1)
        of the shards, drawn by chance, and checks every byte and that keys are unique. `repair` writes again what is
        missing or damaged, from the cache or from `source`; for what can't be mended the report names the samples.
        Raises NotFoundError. What is wrong is in the report: `.sound`, `.faults`.
        """
        sources: list[Source] = [CacheSource(self.cache)]
        if source is not None:
            sources.append(StoreSource(source.store))
        return verify(
            self._history,
            self._to_verify(name, version, pinned),
            read_data=read_data,
            subset=subset,
            repair=Repair(self._history, sources) if repair else None,
            tell=progress,
        )

    def _to_verify(self, name: str | None, version: str | None, pinned: bool) -> dict[str, list[str] | None]:
        if pinned:
            return {name: [version] for name, version in self.pins().items()}
        if name is None:
            return dict.fromkeys(sorted(filter(keys.is_known_name, self.store.list_folders(keys.DATASETS))))
        if version is not None:
            return {name: [self.resolve(name, version)]}
        if not any(self.store.list(keys.dataset_prefix(keys.check_known_name(name)))):
            self._history.latest(name)
        return {name: None}

    def __repr__(self) -> str:
        return f"Repository({self.url}, cache {self.cache.root})"


def _load(**given: Path | str | int | None) -> Config:
    return Config.load(overrides={name: None if value is None else str(value) for name, value in given.items()})


def _state() -> Path:
    """Where this user's machine remembers what saves work: which files gave which shards, what a store can do."""
    return platformdirs.user_state_path("dload")
