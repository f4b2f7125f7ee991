"""Pipelines, as users write them: a fluent face over the nodes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from dload.cache import Budget
from dload.errors import ConfigError, InfeasiblePipelineError
from dload.pipeline import combine, elementwise, group, reorder, sources
from dload.pipeline.failures import on_error_given
from dload.pipeline.fingerprint import fingerprint
from dload.pipeline.mix import Mix
from dload.pipeline.node import Node, Run, paths_of, walk
from dload.pipeline.pack_documents import dtype_name
from dload.pipeline.packing import UNSAID, Pack
from dload.pipeline.state import check_state
from dload.plan import CacheLimit, PlanReport, check, explain, sources_of
from dload.run.iterate import PipelineIterator, iterate
from dload.run.token_lengths import TokenLengths
from dload.run.window import ShardWindow

if TYPE_CHECKING:
    from dload.api.share import ShareIterator

OnErrorGiven = str | Callable[[Exception, Any], Any] | None


class Pipeline:
    """A lazy, immutable description of a stream of elements. Each `iter()` is its next epoch.

    Methods give new pipelines and touch nothing; iterating plans first, and raises InfeasiblePipelineError before any
    storage is touched where what must be resident exceeds the cache budget. The same seeds give the same elements in
    the same order, anywhere. It pickles where its functions do; the count of epochs begins at 0 in a copy. It is made
    by `Dataset.samples` and the functions of this module; `node` is the description itself.

    Where a method has `seed`, None means the run's: that of the loader or `iter(seed=)`, else the first that is met
    from the top, else drawn once for this pipeline. `fn` gets one element where nothing else is said.

    Where a method has `on_error`, that says what becomes of an element whose function raises an Exception: "raise" it
    in the element's place (None does, too, unless a loader says otherwise); "skip" the element, or "warn" and skip it;
    leave a "hole", which keeps its place; or `fn(exception, element) -> bool` says whether it is skipped. A pipeline
    that skips is in the stream tier, like one with a filter. What is left out is counted and listed in a loader's
    `stats()`; after `fail_after` failures in a row TooManyFailuresError is raised. Methods raise ConfigError for
    arguments that make no sense.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self._epoch = 0
        self._drawn: int | None = None

    # ---- one element in, one out
    def map(
        self,
        fn: Callable[..., Any],
        *,
        rng: bool = False,
        rng_seed: int | None = None,
        workers: int = 0,
        queue: int | None = None,
        on_error: OnErrorGiven = None,
        fail_after: int = 100,
    ) -> Pipeline:
        """`fn(element)` for every element; with `rng`, `fn(element, rng)`: `rng` is a random.Random whose draws hang on
        what the element is and the seed (`rng_seed`, else the run's), and on nothing else.

        `workers`: so many threads call it ahead of who takes the elements, which come in their order all the same; at
        most `queue` (default: four for each thread, at least 16) are under way or wait. That pays where `fn` lets go of
        the interpreter: decoding, NumPy, I/O. The threads are shared by all lanes, and end with the iterator.
        """
        policy = on_error_given(on_error, fail_after)
        return Pipeline(
            elementwise.Map(
                self.node, fn, rng=rng, rng_seed=rng_seed, workers=workers, queue=queue, on_error=policy
            )
        )  # fmt: skip

    def map_batches(
        self,
        fn: Callable[[list[Any]], Any],
        size: int,
        *,
        workers: int = 0,
        queue: int | None = None,
        on_error: OnErrorGiven = None,
        fail_after: int = 100,
    ) -> Pipeline:
        """`fn(elements)`, a list of up to `size`, gives one result for each, in order (ConfigError where it doesn't).
        What it gives for an element mustn't hang on the others: which come together isn't fixed, and where it fails it
        is called with each alone, so that only those that fail are lost. `workers` and `queue` (elements): see
        `map`."""
        policy = on_error_given(on_error, fail_after)
        return Pipeline(elementwise.MapBatches(self.node, fn, size, workers=workers, queue=queue, on_error=policy))

    def star_map(self, fn: Callable[..., Any], *, on_error: OnErrorGiven = None, fail_after: int = 100) -> Pipeline:
        """`fn(*element)` for every element: for tuples."""
        return Pipeline(elementwise.StarMap(self.node, fn, on_error=on_error_given(on_error, fail_after)))

    def filter(
        self,
        pred: Callable[[Any], Any],
        *,
        holes: bool = False,
        on_error: OnErrorGiven = None,
        fail_after: int = 100,
    ) -> Pipeline:
        """The elements for which `pred` is true. With `holes`, each keeps its place, so that length and seeking stay;
        what is left out shows in steps only."""
        make = elementwise.FilterHoles if holes else group.Filter
        return Pipeline(make(self.node, pred, on_error=on_error_given(on_error, fail_after)))

    def maybe(
        self,
        fn: Callable[[Any], Any],
        p: float | Callable[[Any], float] | Pipeline,
        *,
        seed: int | None = None,
        on_error: OnErrorGiven = None,
        fail_after: int = 100,
    ) -> Pipeline:
        """`fn(element)` for a share `p` of the elements, the others as they are; `p`: a number, a function of the
        element, or a pipeline of numbers."""
        policy = on_error_given(on_error, fail_after)
        if isinstance(p, Pipeline):
            return Pipeline(elementwise.Maybe(combine.Zip(self.node, p.node), fn, None, seed, on_error=policy))
        return Pipeline(elementwise.Maybe(self.node, fn, p, seed, on_error=policy))

    def enumerate(self) -> Pipeline:
        """`(number, element)`, counted from 0 in each epoch."""
        return Pipeline(elementwise.Enumerate(self.node))

    def tap(self, fn: Callable[[Any], object]) -> Pipeline:
        """Call `fn(element)` for what it does, and hand the element on."""
        return Pipeline(elementwise.Tap(self.node, fn))

    def select_fields(self, *names: str) -> Pipeline:
        """Of each sample only the fields with these `names`."""
        return Pipeline(elementwise.SelectFields(self.node, names))

    # ---- others
    def flat_map(
        self,
        fn: Callable[[Any], Iterable[Any]],
        fanout: int | None = None,
        *,
        on_error: OnErrorGiven = None,
        fail_after: int = 100,
    ) -> Pipeline:
        """All that `fn(element)` gives, element after element; `fanout`: always that many, so that places stay known.
        A shuffle above calls `fn` once for each of them: shuffle below. What fails under `on_error` gives none (all are
        made before the first is given then), or as many holes."""
        return Pipeline(group.Expand(self.node, fn, fanout, on_error=on_error_given(on_error, fail_after)))

    def scan(self, fn: Callable[[Any, Any], Any], init: Any) -> Pipeline:
        """A fold that gives each state: `state = fn(state, element)`, beginning with `init`."""
        return Pipeline(group.Scan(self.node, fn, init))

    def through(self, fn: Callable[[Iterator[Any]], Iterator[Any]]) -> Pipeline:
        """The whole stream through `fn(iterator) -> iterator`.

        An iterator with `get_state()` and `set_state(state)` is resumed by these, behind the elements that it had
        drawn. Any other is resumed by drawing anew all that came before, which a warning says.
        """
        return Pipeline(group.Through(self.node, fn))

    def batch(
        self, size: int, *, collate: Callable[[list[Any]], Any] | None = None, drop_last: bool = False
    ) -> Pipeline:
        """Lists of `size` elements (`collate(list)` if given); the last may be shorter, or with `drop_last` is left
        out."""
        return Pipeline(group.Windows(self.node, size, None, drop_last, collate))

    def unbatch(self) -> Pipeline:
        """The elements of each list, one by one."""
        return Pipeline(group.unbatch(self.node))

    def window(self, size: int, stride: int | None = None, *, drop_last: bool = False) -> Pipeline:
        """Lists of `size` elements, each beginning `stride` (default `size`) behind the one before. A last, shorter
        one is given only where its elements were in no full one, and not with `drop_last`."""
        return Pipeline(group.Windows(self.node, size, stride, drop_last))

    def pack(
        self,
        length: int,
        *,
        tokens: str = "tokens",
        eos_id: int | None = UNSAID,
        pad_id: int = UNSAID,
        mode: str = "concat",
        aligned: Sequence[str] | Mapping[str, Any] = (),
        max_documents: int | None = None,
        blocks_per_epoch: int | str | None = None,
        dtype: Any = None,
        seed: int | None = None,
    ) -> Pipeline:
        """Blocks of `length` tokens for language models, from elements that hold documents of any length.

        An element is a sample `(key, fields)` or a dict, with integers in the field `tokens`: a list, an array, or
        bytes: a .npy file, `codecs.tokens_bytes`, or raw little-endian numbers of type `dtype` ("uint16", ...). Or it
        is the tokens themselves. Empty documents and HOLEs are left out; what isn't integers raises SampleError.

        Each block is a dict of arrays of shape (length,): `input_ids`; `doc_ids`, 0 at the block's first document and
        one more at each that begins in it; `positions`, from 0 at each document's first token in the block;
        `loss_mask`, true where there is no padding; and `valid`, how many tokens that are. int64 and bool in NumPy, or
        where it isn't installed `array.array` of "q" and "b". `aligned`: other fields of one integer for each token,
        cut alike (the eos gets the last one's value, padding 0); a dict says the dtype of each.

        `mode`: "concat" joins documents, each with `eos_id` behind it, and cuts at `length`. "first_fit" and "best_fit"
        keep documents whole (longer ones are cut first), with at most `max_documents` a block; they place those of 64
        blocks' tokens at a time, whose blocks then come in an order drawn from `seed` (None: as they were begun).
        `eos_id=None`: documents bring their own. What is left of a block is `pad_id`; its doc_ids go on.

        With `dtype`, over samples as they are stored (in "concat" also shuffled) the number of blocks is exact and each
        can be had by itself: the pipeline keeps places, length and seeking. For that this call reads, once, the indexes
        of the shards, and keeps what they say in the cache. Otherwise it is streamed, each lane packing the documents
        that it gets, and touches nothing here.

        `blocks_per_epoch`: so many, exactly. In a stream each lane gives its share; one that runs dry gives empty
        blocks, and what is left over stays out. "auto" estimates the number from a sample when it runs, and warns what
        it is.

        Raises ConfigError for what makes no sense: no eos_id or pad_id, an unknown mode, a length below 1.
        """
        name = None if dtype is None else dtype_name(dtype, tokens)
        node = Pack(
            self.node, length, tokens=tokens, aligned=aligned, dtype=dtype, eos_id=eos_id, pad_id=pad_id, mode=mode,
            max_documents=max_documents, blocks=blocks_per_epoch, seed=seed,
            lengths=None if name is None else TokenLengths(tokens, name),
        )  # fmt: skip
        return Pipeline(node)

    def shuffle(self, buffer_size: int = 4096, *, seed: int | None = None, full: bool = False) -> Pipeline:
        """Another order each epoch: shards permuted, and elements spread over the `buffer_size` places behind them; no
        samples are held in memory. The shards of about `buffer_size` samples, and two more, must fit into the cache.
        `full`: a uniform permutation, for which all must."""
        return Pipeline(reorder.Shuffle(self.node, buffer_size, seed, full))

    def take(self, n: int) -> Pipeline:
        """The first `n` elements."""
        return Pipeline(reorder.Take(self.node, n))

    def skip(self, n: int) -> Pipeline:
        """All but the first `n` elements."""
        return Pipeline(reorder.Skip(self.node, n))

    def repeat(self, times: int | None = None) -> Pipeline:
        """`times` passes (None: without end), each an epoch of its own to what is below."""
        return Pipeline(reorder.Repeat(self.node, times))

    def prefetch(self, n: int) -> Pipeline:
        """Fetch up to `n` shards ahead of those that are being read, as far as the budget allows."""
        return Pipeline(elementwise.Prefetch(self.node, n))

    def zip_with(self, fn: Callable[..., Any], *others: Pipeline) -> Pipeline:
        """`fn(a, b, ...)` of one element of this and of each of `others`; ends with the shortest."""
        return zip_with(fn, self, *others)

    # ---- questions
    def __len__(self) -> int:
        total = self.node.total
        if total is None:
            raise TypeError("the length of this pipeline isn't known" if not self.node.indexed else "it has no end")
        return total

    def check(self) -> PlanReport:
        """Whether it fits into the cache: `.ok`, `.message`, with what must be resident against the budget, by
        source, and what to change. Touches no storage."""
        run = Run(self._seed(None), NOTHING, paths=paths_of(self.node))
        return check(self.node, run, cache_limits())

    def explain(self) -> str:
        """The nodes with tiers and lengths, and the beginning of the demand: which shards are needed when."""
        return explain(self.node, Run(self._seed(None), NOTHING, paths=paths_of(self.node)), self._epoch)

    def fingerprint(self, *, tag: object = None) -> str:
        """The identity of what it gives, 64 hex digits: the same on any machine, another if anything changes. `tag`,
        a JSON value, is mixed in. Raises ValueError, with what to do, where it has none: lambdas, draws without
        seeds, no end."""
        return fingerprint(self.node, tag)

    def source_versions(self) -> dict[str, str]:
        """The data sets that it reads: {name: version id}."""
        return {source.manifest.name: source.manifest.version for source in sources_of(self.node)}

    # ---- running
    def __iter__(self) -> PipelineIterator:
        return self.iter()

    @overload
    def iter(
        self, *, state: dict[str, Any] | None = None, epoch: int | None = None, seed: int | None = None
    ) -> PipelineIterator: ...
    @overload
    def iter(
        self,
        *,
        state: dict[str, Any] | None = None,
        epoch: int | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        global_batch: int | None = None,
    ) -> PipelineIterator | ShareIterator: ...
    def iter(
        self,
        *,
        state: dict[str, Any] | None = None,
        epoch: int | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        global_batch: int | None = None,
    ) -> PipelineIterator | ShareIterator:
        """One epoch: the next, or that number; with `state` (of an iterator's `get_state()`), the rest of its epoch,
        which is nothing behind the last element. The `iter()` that follows is the next epoch.

        With any of `rank`, `world_size`, `global_batch`: the rows of that rank alone, those of each step of
        `global_batch` rows in order (one row a rank, if not given; the state's). All ranks get equally many; fewer than
        `global_batch` rows left over at an epoch's end are left out. What isn't given is found as a Loader finds it.

        Raises InfeasiblePipelineError where it doesn't fit; ValueError, naming both values, where the state is of
        another pipeline, data version, seed or epoch.
        """
        if state is not None:
            state = check_state(state, self.node, self.explain)
            epoch = _agreed("epoch", epoch, state["epoch"])
        number = self._epoch if epoch is None else epoch
        if not (rank is world_size is global_batch is None):
            from dload.api.share import share  # which stands on pipelines

            found = share(self, rank, world_size, global_batch, state=state, epoch=number, seed=seed)
            self._epoch = number + 1
            return found
        step, lane = 0, None
        if state is not None:
            seed = _agreed("seed", seed, state["plan"]["seed"])
            step = state["step"]
            lane = None if state["lanes"] is None else state["lanes"][0][2][0]
        report = self.check()
        if not report.ok:
            raise InfeasiblePipelineError(report.message)
        self._epoch = number + 1
        window = ShardWindow(report.prefetch)
        run = Run(self._seed(seed), window, paths=paths_of(self.node))
        return iterate(self.node, run, window, number, step, lane)

    def _seed(self, given: int | None) -> int:
        return run_seed(self) if given is None else given

    def __getstate__(self) -> dict[str, Any]:
        return {"node": self.node, "_epoch": 0, "_drawn": self._drawn}

    def __repr__(self) -> str:
        return f"Pipeline({' ← '.join(_chain(self.node))})"


def run_seed(pipe: Pipeline, alone: bool = True) -> int:
    """The seed of a run that was given none: the first met from the top, else 0 where nothing needs one, else drawn
    once for this pipeline. Raises ConfigError where it would be drawn and the process isn't `alone`: each would draw
    another."""
    found = next((node.seed for _, node in walk(pipe.node) if node.seed is not None), None)
    if found is not None:
        return found
    if not any(node.draws for _, node in walk(pipe.node)):
        return 0
    if not alone:
        raise ConfigError(
            "several ranks need one seed, and none was given", remedy="pass seed=0, the same on each rank"
        )
    if pipe._drawn is None:
        pipe._drawn = random.SystemRandom().randrange(1 << 62)
    return pipe._drawn


class _Nothing:
    """What a plan reads with: nothing."""

    def read(self, source: sources.Samples, ordinals: Sequence[int]) -> list[Any]:
        raise AssertionError("planning reads nothing")

    def follow(self, demand: Iterator[Any], later: Any = None) -> Any:
        raise AssertionError("planning reads nothing")


NOTHING = _Nothing()


def cache_limits() -> Callable[[sources.Samples], CacheLimit]:
    """What says how much room for shards a source's cache has. Reads each directory once, however many repositories
    have it as their cache."""
    limits: dict[tuple[Path, Budget], CacheLimit] = {}

    def limit_of(source: sources.Samples) -> CacheLimit:
        cache = source.origin.cache
        place = cache.root, cache.asked_budget
        if place not in limits:
            budget, room = cache.budget, cache.room_for_shards()
            limits[place] = CacheLimit(f"the cache {cache.root}", room, 0 if room is None else budget - room)
        return limits[place]

    return limit_of


def _chain(node: Node) -> Iterator[str]:
    while True:
        yield node.kind
        if not node.parents:
            return
        node = node.parents[0]


def _agreed(what: str, given: int | None, saved: int) -> int:
    if given is not None and given != saved:
        raise ValueError(f"the state has {what} {saved}, but {what}={given} was given: leave it out, or begin anew")
    return saved


# ---- from nothing, and from several
def from_iterable(source: Iterable[Any] | Callable[[], Iterable[Any]], *, shard: bool = False) -> Pipeline:
    """A pipeline of a `source`: a sequence (a list, an array: seekable), or what a function gives that is called once
    an epoch.

    Over several workers or ranks, each goes over all of what a function gives (a side stream); with `shard` they
    share it.
    """
    if callable(source):
        return Pipeline(sources.Factory(source, shard))
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return Pipeline(sources.Sequenced(cast("Sequence[Any]", source)))
    return Pipeline(sources.Factory(_Again(source), shard))


class _Again:
    """The same iterable again, each epoch."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable = iterable

    def __call__(self) -> Iterable[Any]:
        return self.iterable


def random_stream(seed: int | None = None) -> Pipeline:
    """An endless pipeline of uniform floats in [0, 1): a pure function of seed, epoch and place."""
    return Pipeline(sources.RandomStream(seed))


def concat(pipes: Sequence[Pipeline]) -> Pipeline:
    """One of `pipes` after another."""
    return Pipeline(combine.Concat(*_nodes(pipes)))


def zip_streams(*pipes: Pipeline) -> Pipeline:
    """Tuples of one element of each of `pipes`; ends with the shortest. Exported as `dload.zip`."""
    return Pipeline(combine.Zip(*_nodes(pipes)))


def zip_with(fn: Callable[..., Any], *pipes: Pipeline) -> Pipeline:
    """`fn(a, b, ...)` of one element of each of `pipes`; ends with the shortest."""
    return Pipeline(combine.Zip(*_nodes(pipes), fn=fn))


def select(index: Pipeline, *pipes: Pipeline) -> Pipeline:
    """`index` gives numbers, from 0: the next element comes from that one of `pipes`, and only that one goes forward.
    Ends when `index` or the chosen one does."""
    return Pipeline(combine.Select(*_nodes([index, *pipes])))


def choice(
    pipes: Sequence[Pipeline], p: float | Sequence[float] | Pipeline = 0.5, *, seed: int | None = None
) -> Pipeline:
    """For each element one of `pipes` at random, drawn from `seed` (as in `Pipeline`); only that one goes forward. `p`:
    the probability of the first of two, one weight a pipeline, or a pipeline of either. Ends when a chosen one does."""
    chosen = p.node if isinstance(p, Pipeline) else p
    return Pipeline(combine.choice(_nodes(pipes), chosen, seed))


def mix(
    pipes: Sequence[Pipeline],
    weights: Sequence[float] | Pipeline | Any = None,
    *,
    seed: int | None = None,
    until: str = "first",
) -> Pipeline:
    """Several `pipes` interleaved by weight: any stretch holds each one's share to within a few elements: three of 256,
    seven of a million.

    `until` says when it ends: when one that has ended is due ("first", dload-ml's "any"), when all have been read once,
    the others going round again ("cycle"), or when all have ended, the rest sharing what is left ("all"). `weights`:
    one each (None: all alike), a schedule (a list of (first element, weights), or a function of the number of elements
    // 65,536), or a pipeline of weights. Which comes when is arithmetic; another `seed` (None: 0) shifts it.
    """
    given = weights.node if isinstance(weights, Pipeline) else weights
    return Pipeline(Mix(_nodes(pipes), given, seed, until))


def _nodes(pipes: Iterable[Pipeline]) -> list[Node]:
    return [a_pipeline(pipe).node for pipe in pipes]


def a_pipeline(given: object) -> Pipeline:
    """What was given, if it is a pipeline. Raises ConfigError, which says how to make one."""
    if not isinstance(given, Pipeline):
        raise ConfigError(
            f"expected a Pipeline, got {type(given).__name__}",
            remedy="a data set's is ds.samples(), that of anything else dload.from_iterable(...)",
        )
    return given
