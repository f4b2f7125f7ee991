"""Deriving: a pipeline's output as a version of a data set, computed once for everybody."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dload.api.dataset import Dataset
from dload.api.pipeline import Pipeline, run_seed
from dload.api.views import derived_from, selection
from dload.errors import ConfigError, InfeasiblePipelineError
from dload.manifest import Manifest, Packing, ShardInfo
from dload.pack import Cutter, sample_size
from dload.plan import sources_of
from dload.repo import derived
from dload.repo.commit import CommitOptions, commit, commit_view, packing_for
from dload.repo.history import History
from dload.repo.packing import Part, ShardDone
from dload.repo.progress import Mark, Progress
from dload.repo.publish import missing_shards
from dload.run.spread import spread

if TYPE_CHECKING:
    from dload.api.repository import Repository


class Engine(Protocol):
    """Something else than this machine that computes a pipeline's output: a cluster."""

    def parts(self, repo: Repository, name: str, pipe: Pipeline, packing: Packing) -> Iterable[Part]:
        """Epoch 0 of `pipe`, in its order, as parts of data set `name`, cut as `packing` says, that are in the store of
        `repo` (see `dload.repo.parts`). Called when the version that will hold them has its lease."""
        ...


# By the names that users give them. They stand above this room, so they are found when they are asked for.
ENGINES = {"ray": "dload.ray"}


@dataclass(frozen=True)
class _Job:
    """One derivation. `remember`: the folder of what this machine remembers of those that were cut off."""

    repo: Repository
    name: str
    pipe: Pipeline
    options: CommitOptions
    tag: object
    fingerprint: str
    remember: Path

    @property
    def history(self) -> History:
        return History(self.repo.store, self.repo.cache)

    def known(self) -> derived.Known | None:
        return derived.find(self.history, self.name, self.fingerprint)

    def published(self, made: Manifest, known: derived.Known | None) -> Manifest:
        """What is the output for everybody from now on: this, or what somebody else published first."""
        version = derived.publish(self.history, self.name, self.fingerprint, made.version, known)
        return made if version == made.version else self.history.stored_manifest(self.name, version)

    def told(self, packing: Packing | None = None, **more: Any) -> CommitOptions:
        """The options of the commit: with the meta that is reserved."""
        sources = [source.manifest for source in sources_of(self.pipe.node)]
        reserved = {"derived_from": derived_from(self.history, sources), "fingerprint": self.fingerprint}
        meta = {**derived.own_meta(self.options.meta), **reserved, **({} if self.tag is None else {"tag": self.tag})}
        if packing is not None:
            more |= {"target": packing.target, "boundaries": packing.boundaries, "codecs": packing.codecs}
        return replace(self.options, meta=meta, op="derive", **more)


def derive(
    repo: Repository,
    name: str,
    pipe: Pipeline,
    options: CommitOptions,
    remember: Path,
    *,
    tag: object = None,
    view: bool = False,
    engine: Engine | str | None = None,
    progress: Callable[[str], object] | None = None,
) -> Dataset:
    """See `Repository.derive`."""
    if not isinstance(pipe, Pipeline):
        raise ConfigError(f"derive needs a Pipeline, got {type(pipe).__name__}", remedy="pass ds.samples().map(fn)")
    if view and engine is not None:
        raise ConfigError("a view stores row numbers, which this machine finds", remedy="leave out engine=, or view=")
    identity = pipe.fingerprint(tag={"view": True, "tag": tag} if view else tag)
    job = _Job(repo, name, pipe, options, tag, identity, remember)
    known = job.known()
    if known is not None and known.manifest is not None:
        return Dataset(repo, known.manifest)
    if view:
        made = commit_view(job.history, name, selection(pipe), job.told(tell=options.tell or progress)).manifest
    elif engine is not None:
        made = _by_engine(job, _engine(engine), progress)
    else:
        return Dataset(repo, _by_this_machine(job, progress))
    return Dataset(repo, job.published(made, known))


def _engine(given: Engine | str) -> Engine:
    if not isinstance(given, str):
        return given
    if given not in ENGINES:
        raise ConfigError(f"there is no engine {given!r}", remedy=f"there is {', '.join(map(repr, ENGINES))}")
    try:
        found: Engine = importlib.import_module(ENGINES[given]).Engine()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("dload"):
            raise
        raise ConfigError(
            f"the engine {given!r} needs the package {error.name}", remedy=f"pip install 'dload-ml[{given}]'"
        ) from error
    return found


def _by_engine(job: _Job, engine: Engine, progress: Callable[[str], object] | None) -> Manifest:
    packing = packing_for(job.history, job.name, job.options)

    def parts() -> Iterator[Part]:
        yield from engine.parts(job.repo, job.name, job.pipe, packing)

    return _commit(job, (), parts(), job.told(packing), progress)


def _by_this_machine(job: _Job, progress: Callable[[str], object] | None) -> Manifest:
    """What a run that was cut off has packed is taken over, and the pipeline goes on behind it."""
    packing = packing_for(job.history, job.name, job.options)

    def waiting() -> None:
        if (tell := job.options.tell or progress) is not None:
            tell(f"waiting for another process of this machine, which derives the same for {job.name}")

    work = [job.fingerprint, packing.target, packing.boundaries, dict(packing.codecs)]
    with Progress(_path(job), work, waiting) as before:
        known = job.known()  # who had the lock before may have done it
        if known is not None and known.manifest is not None:
            return known.manifest
        infos = [ShardInfo(one.digest, one.size, one.num_samples, one.index_size) for one in before.shards]
        if missing_shards(job.repo.store, infos):
            before.forget()
        first = len(before.shards)
        with closing(_Output(job.pipe, job.options.workers, before.mark)) as output:
            samples = _Marked(output, packing, first)

            def note(done: ShardDone) -> None:
                if done.number >= first:
                    before.note(done.shard, samples.marks.pop(done.number, None))
                if job.options.report is not None:
                    job.options.report(done)

            taken = [Part(before.shards)] if first else []
            made = _commit(job, samples, taken, job.told(packing, report=note), progress)
        made = job.published(made, known)  # before the next process of this machine looks
        before.done()
        return made


def _commit(
    job: _Job,
    samples: Iterable[Any],
    parts: Iterable[Part],
    options: CommitOptions,
    progress: Callable[[str], object] | None,
) -> Manifest:
    return job.repo.write(partial(commit, packed=parts), job.name, samples, options, progress=progress).manifest


def _path(job: _Job) -> Path:
    where = f"{job.repo.store.url} {job.name} {job.fingerprint}"
    return job.remember / hashlib.sha256(where.encode()).hexdigest()[:32]


# ---- the output, and where it goes on
class _Output:
    """The elements of epoch 0 from a mark on (None: from the start); `mark()` says where the next one is."""

    def __init__(self, pipe: Pipeline, workers: int, mark: Mark | None) -> None:
        pipe = Pipeline(pipe.node)  # whose epochs nobody else counts
        self._spread: Iterator[tuple[int, Any]] | None = None
        self._place = 0
        if pipe.node.indexed and workers > 1:
            report = pipe.check()
            if not report.ok:
                raise InfeasiblePipelineError(report.message)
            self._place = mark["step"] if mark else 0
            self._spread = spread(pipe.node, run_seed(pipe), report.prefetch, workers, self._place)
            return
        self._items = pipe.iter(epoch=0)
        if mark is not None:
            with self._items as start:
                state = start.get_state() | mark
            self._items = pipe.iter(state=state)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._spread is None:
            return next(self._items)
        self._place, item = next(self._spread)
        return item

    def mark(self) -> Mark:
        if self._spread is not None:
            return {"step": self._place, "lanes": None}
        state = self._items.get_state()
        return {"step": state["step"], "lanes": state["lanes"]}

    def close(self) -> None:
        if self._spread is None:
            self._items.close()
        else:
            self._spread.close()  # type: ignore[attr-defined]  # a generator


class _Marked:
    """The samples of an output; `marks`: number of a shard -> where the samples behind it begin, if its last sample
    alone says that it ends there."""

    def __init__(self, output: _Output, packing: Packing, first: int) -> None:
        self.marks: dict[int, Mark] = {}
        self._output = output
        self._cutter = Cutter(packing.target, packing.boundaries)
        self._number = first

    def __iter__(self) -> Iterator[Any]:
        for item in self._output:
            yield item
            # Only now: whoever cuts has looked whether it is a sample.
            key, fields = item
            if self._cutter.begins(key, sample_size(key, fields), fields):
                self._number += 1
            if self._cutter.ended:
                self.marks[self._number] = self._output.mark()
