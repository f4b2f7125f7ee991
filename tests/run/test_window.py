"""Shards fetched ahead of a pipeline that reads them in order: when they come, when they go, and what goes wrong."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import pytest

import dload
from dload.api.pipeline import Pipeline
from dload.cache import ShardCache
from dload.cache.pins import own
from dload.errors import AccessError, InfeasiblePipelineError, IntegrityError, NotFoundError, PackFormatError
from dload.manifest import ShardInfo
from dload.pack import Sample, ShardReader
from dload.pipeline.node import Run, paths_of
from dload.repo.keys import shard_key
from dload.run import open_shard
from dload.run.indexes import indexes
from dload.run.window import ShardWindow
from dload.store.faulty import Call
from dload.store.local import FolderStore
from dload.testing.shards import made_samples, manifest_of, put_shard
from dload.testing.waiting import eventually


def fetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("dload-fetch")]


def descriptors(folder: Path) -> list[str]:
    """What this process has open in a folder."""
    found = []
    for link in Path("/dev/fd").iterdir():
        with suppress(OSError):  # the one of the listing itself
            found.append(str(link.readlink()))
    return [path for path in found if path.startswith(f"{folder}/")]


def one_by_one(pipe: Pipeline, size: int) -> Pipeline:
    """Lists of `size` samples, of which each is read only when it is asked for: they take long."""
    return pipe.batch(size).tap(lambda _: time.sleep(0.01))


@pytest.mark.parametrize("prefetch", [0, 1, 2, 4, 21])
def test_every_sample_in_order_each_shard_fetched_once(store, cache: ShardCache, made, streamed, prefetch: int) -> None:
    pipe = streamed(store, cache, made.manifest, prefetch)
    assert len(pipe) == 80
    assert list(pipe) == made.all
    assert store.count() == {"stream": 8}
    assert list(pipe) == made.all
    assert store.count() == {"stream": 8}
    eventually(lambda: not fetch_threads() and own() == [])


def test_no_shards_no_threads(store, cache: ShardCache, streamed) -> None:
    assert list(streamed(store, cache, manifest_of([]))) == []
    assert not fetch_threads()


def test_case_c84_samples_outlive_their_shard(store, cache: ShardCache, made, streamed) -> None:
    pipe = streamed(store, cache, made.manifest)
    kept = [sample for number, sample in enumerate(pipe) if number % 10 >= 2]
    eventually(lambda: own() == [])
    assert cache.clear() > 0
    for number, shard in enumerate(made.shards):
        with (cache.root / "elsewhere").open("wb") as file:
            file.write(bytes(shard.size))
        assert kept[number * 8 : number * 8 + 8] == made.samples[number][2:]


def test_a_window_of_shards_is_fetched_ahead_and_no_more(store, cache: ShardCache, made, streamed) -> None:
    with one_by_one(streamed(store, cache, made.manifest, prefetch=3), 5).iter() as halves:
        for half in range(1, 11):
            next(halves)
            fetched = half // 2 + 3  # those that were read, the one that is being read or comes next, two more
            eventually(lambda: store.count()["stream"] == fetched)  # noqa: B023
            eventually(lambda: len(own(cache.root)) == 3)
            time.sleep(0.02)
            assert store.count()["stream"] == fetched


def test_the_first_shard_does_not_wait_for_the_second(store, cache: ShardCache, made, streamed) -> None:
    gate = threading.Event()
    second = shard_key(made.shards[1].digest)

    def plan(call: Call) -> None:
        if call.key == second:
            gate.wait()

    store.plan = plan
    with streamed(store, cache, made.manifest).batch(10).iter() as batches:
        assert next(batches) == made.samples[0]
        gate.set()
        assert next(batches) == made.samples[1]


@pytest.mark.parametrize("how", ["closed", "forgotten", "broken off"])
def test_an_abandoned_iterator_lets_go(store, cache: ShardCache, made, streamed, how: str) -> None:
    gc.collect()
    eventually(lambda: not fetch_threads() and own() == [])  # those of the tests before this one
    iterator = one_by_one(streamed(store, cache, made.manifest), 5).iter()
    next(iterator)
    next(iterator)
    next(iterator)
    eventually(lambda: len(own(cache.root)) == 4)
    assert fetch_threads()
    assert descriptors(cache.root)
    if how == "closed":
        iterator.close()
    elif how == "broken off":
        with pytest.raises(ZeroDivisionError), iterator:
            raise ZeroDivisionError
    else:
        del iterator
        gc.collect()
    eventually(lambda: not fetch_threads() and own() == [] and not descriptors(cache.root))
    assert cache.status().pinned == 0


def test_an_abandoned_download_ends_and_leaves_its_part(store, cache: ShardCache, made, streamed) -> None:
    real, slow = store.stream, shard_key(made.shards[1].digest)
    coming = threading.Event()

    def stream(key: str, start: int = 0) -> Iterator[bytes]:
        if key != slow:
            yield from real(key, start)
            return
        data = store.get(key).data[start:]
        yield data[:5000]
        coming.set()
        while True:
            time.sleep(0.001)
            yield b""

    store.stream = stream
    two = manifest_of(made.shards[:2])
    iterator = streamed(store, cache, two).iter()
    next(iterator)
    coming.wait()
    iterator.close()
    eventually(lambda: not fetch_threads() and own() == [])
    assert cache.status().partials == 1
    starts = []
    store.stream = lambda key, start=0: starts.append(start) or real(key, start)
    assert list(streamed(store, cache, two)) == made.all[:20]
    assert starts == [5000]


def test_an_error_comes_out_where_its_shard_would_have_with_its_traceback(
    store, cache: ShardCache, made, streamed
) -> None:
    store.delete(shard_key(made.shards[2].digest))
    got = []
    with pytest.raises(NotFoundError) as caught:
        for sample in streamed(store, cache, made.manifest):
            got.append(sample)
    assert got == made.all[:20]
    assert made.shards[2].digest in str(caught.value)
    frames = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert "fill" in frames and "_fetch" in frames
    eventually(lambda: not fetch_threads() and own() == [])


def test_after_an_error_the_feed_can_be_iterated_again(store, cache: ShardCache, made, streamed) -> None:
    denied = shard_key(made.shards[1].digest)
    store.plan = lambda call: AccessError("expired") if call.key == denied else None
    pipe = streamed(store, cache, made.manifest)
    with pytest.raises(AccessError, match="expired"):
        list(pipe)
    store.plan = lambda _: None
    assert list(pipe) == made.all


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_small_budget_shrinks_the_window(store, tmp_path: Path, made, streamed, shards: int) -> None:
    largest = max(shard.size for shard in made.shards)
    cache = ShardCache(tmp_path / "cache", shards * largest + 100, patience=1e9)
    assert list(streamed(store, cache, made.manifest, prefetch=7)) == made.all
    assert cache.used_bytes() <= shards * largest
    eventually(lambda: not fetch_threads() and own() == [])


def test_case_c40_a_budget_under_one_shard_is_an_error_at_once(store, tmp_path: Path, made, streamed) -> None:
    cache = ShardCache(tmp_path / "cache", made.shards[0].size // 10, patience=1e9)
    first = manifest_of(made.shards[:1])
    with pytest.raises(InfeasiblePipelineError, match="at least") as caught:
        list(streamed(store, cache, first))
    assert store.count() == {}
    least = re.search(r"at least (\d+) bytes", str(caught.value))
    assert least
    enough = ShardCache(tmp_path / "cache", int(least[1]), patience=1e9)
    assert list(streamed(store, enough, first)) == made.samples[0]


def test_shards_of_very_different_sizes_in_a_tight_budget(store, tmp_path: Path, streamed) -> None:
    samples = [made_samples(number, 1 + 30 * (number % 3 == 0)) for number in range(12)]
    manifest = manifest_of([put_shard(store, one) for one in samples])
    cache = ShardCache(tmp_path / "cache", max(shard.size for shard in manifest.shards) + 100, patience=1e9)
    assert list(streamed(store, cache, manifest, prefetch=6)) == [it for one in samples for it in one]


def test_case_c48_two_feeds_share_what_is_fetched(store, cache: ShardCache, made, streamed) -> None:
    train = streamed(store, cache, made.manifest).batch(10).iter()
    validation = streamed(store, ShardCache(cache.root), made.manifest).batch(10).iter()
    for one, other, samples in zip(train, validation, made.samples, strict=True):
        assert one == other == samples
    assert store.count() == {"stream": 8}


def test_the_same_shard_many_times(store, cache: ShardCache, made, streamed) -> None:
    assert list(streamed(store, cache, manifest_of([made.shards[0]] * 5))) == made.samples[0] * 5
    assert store.count() == {"stream": 1}


def test_memory_stays_bounded(store, cache: ShardCache, streamed) -> None:
    manifest = manifest_of([put_shard(store, made_samples(number, 2, size=500_000)) for number in range(20)])
    pipe = streamed(store, cache, manifest)
    tracemalloc.start()
    try:
        for sample in pipe:
            assert sample
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12_000_000  # of 20 MB; a chunk of one shard for each thread that fetches, and one chunk of samples


def test_damage_in_the_store_is_an_error_and_the_cache_stays_clean(store, cache: ShardCache, made, streamed) -> None:
    key = shard_key(made.shards[1].digest)
    data = bytearray(store.get(key).data)
    data[100] ^= 1
    store.put(key, bytes(data))
    with pytest.raises(IntegrityError) as caught:
        list(streamed(store, cache, made.manifest))
    assert key in str(caught.value) and made.shards[1].digest in str(caught.value)
    assert not cache.contains(made.shards[1].digest)


def test_case_c45_damage_after_the_first_use_is_found_when_it_matters(store, cache: ShardCache, made, streamed) -> None:
    """An index that this process knows already isn't read again."""
    assert list(streamed(store, cache, made.manifest)) == made.all
    with (cache.root / "shards" / made.shards[3].digest[:2] / made.shards[3].digest).open("r+b") as file:
        file.seek(-30, os.SEEK_END)  # in the index; this process has hashed the shard already
        file.write(b"damage")
    assert list(streamed(store, cache, made.manifest)) == made.all
    assert store.count() == {"stream": 8}
    indexes.clear()
    assert list(streamed(store, cache, made.manifest)) == made.all
    assert store.count() == {"stream": 9}


def test_a_manifest_that_counts_other_samples(store, cache: ShardCache, made) -> None:
    shard = made.shards[0]
    lying = ShardInfo(shard.digest, shard.size, shard.num_samples + 1, shard.index_size)
    with pytest.raises(PackFormatError, match="has 10 samples, its manifest says 11"):
        open_shard(store, cache, lying)
    assert own(cache.root) == []


def _child(batches: Iterator[list[Sample]], before: list[Sample], queue: multiprocessing.Queue) -> None:
    queue.put(before + [sample for batch in batches for sample in batch])


@pytest.mark.parametrize("moment", range(5))
def test_an_iterator_goes_on_in_a_forked_child_and_in_its_parent(tmp_path: Path, streamed, moment: int) -> None:
    store, cache = FolderStore(tmp_path / "store"), ShardCache(tmp_path / "cache")
    samples = [made_samples(number, 10) for number in range(8)]
    manifest = manifest_of([put_shard(store, one) for one in samples])
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    halves = one_by_one(streamed(store, cache, manifest), 5).iter()
    first = [sample for half in islice(halves, 3) for sample in half]
    time.sleep(0.001 * moment)  # the threads are at any point of their work
    child = context.Process(target=_child, args=(halves, first, queue))
    child.start()
    everything = [sample for one in samples for sample in one]
    assert queue.get() == everything
    child.join()
    assert child.exitcode == 0
    assert cache.status().pinned >= 1
    assert first + [sample for half in halves for sample in half] == everything


def test_case_c83_few_files_may_be_open(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from types import SimpleNamespace
from dload.api.pipeline import Pipeline
from dload.cache import ShardCache
from dload.pipeline.sources import Samples
from dload.run import fetch_shards
from dload.store.memory import MemoryStore
from dload.testing.shards import made_samples, manifest_of, put_shard
from dload.testing.waiting import eventually
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
store = MemoryStore()
manifest = manifest_of([put_shard(store, made_samples(number, 2)) for number in range(100)])
streamed, fetched, shuffled = (ShardCache(Path(folder)) for folder in sys.argv[1:])
print(len(list(Pipeline(Samples(manifest, SimpleNamespace(store=store, cache=streamed), None, 65)))))
fetch_shards(store, fetched, manifest, 64, None)
print(len(fetched.entries()))
whole = Pipeline(Samples(manifest, SimpleNamespace(store=store, cache=shuffled))).shuffle(full=True, seed=1)
print(len(list(whole)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "streamed", tmp_path / "fetched", tmp_path / "shuffled"],
        cwd=Path(dload.__file__).parent.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (["200", "100", "200"], "")


# ---- the end of an iterator
@pytest.mark.parametrize("tier", ["index", "stream"])
@pytest.mark.parametrize("error", [AccessError, KeyboardInterrupt])
def test_after_an_error_it_says_where_it_stood(
    store, cache: ShardCache, made, streamed, tier: str, error: type[BaseException]
) -> None:
    bad = [True]

    def label(sample: Sample) -> str:
        if sample[0] == "shard4/sample3" and bad:
            raise error("not now")
        return sample[0]

    pipe = streamed(store, cache, made.manifest).map(label)
    pipe = pipe.filter(lambda _: True).batch(1).unbatch() if tier == "stream" else pipe
    iterator, got = pipe.iter(epoch=0), []
    with pytest.raises(error, match="not now"):
        for key in iterator:
            got.append(key)
    eventually(lambda: not fetch_threads() and own() == [])
    if error is KeyboardInterrupt:
        bad.clear()  # it doesn't belong to an element
    state = iterator.get_state()
    eventually(lambda: not fetch_threads() and own() == [])
    bad.clear()
    assert error is KeyboardInterrupt or len(got) == 43  # an interruption may come in the middle of a chunk
    assert got + list(pipe.iter(state=state)) == [key for key, _ in made.all]


def test_a_closed_iterator_gives_nothing_more_and_says_where_it_stood(store, cache: ShardCache, made, streamed) -> None:
    pipe = streamed(store, cache, made.manifest)
    iterator = pipe.iter(epoch=0)
    head = list(islice(iterator, 37))  # in the middle of a chunk
    iterator.close()
    assert list(iterator) == []
    assert head + list(pipe.iter(state=iterator.get_state())) == made.all


def test_closing_ends_a_wait_in_another_thread(store, cache: ShardCache, made, streamed) -> None:
    gate, asked = threading.Event(), threading.Event()

    def plan(call: Call) -> None:
        asked.set()
        gate.wait()

    store.plan = plan
    iterator = streamed(store, cache, made.manifest).iter()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            next(iterator)
        except RuntimeError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    asked.wait()
    iterator.close()
    waiting.join()
    gate.set()
    assert "closed" in str(ended[0])
    eventually(lambda: not fetch_threads() and own() == [])


def test_ctrl_c_ends_a_wait_and_lets_go(tmp_path: Path) -> None:
    code = """
import signal, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
from dload.api.pipeline import Pipeline
from dload.cache import ShardCache
from dload.cache.pins import own
from dload.pipeline.sources import Samples
from dload.store.faulty import Faulty
from dload.store.memory import MemoryStore
from dload.testing.shards import made_samples, manifest_of, put_shard
from dload.testing.waiting import eventually
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background is born deaf to it
store = Faulty(MemoryStore())
manifest = manifest_of([put_shard(store, made_samples(number, 2)) for number in range(3)])
gate = threading.Event()
store.plan = lambda _: gate.wait() and None
pipe = Pipeline(Samples(manifest, SimpleNamespace(store=store, cache=ShardCache(Path(sys.argv[1])))))
started = threading.Timer(0.2, lambda: print("waits", flush=True))
started.start()
try:
    next(iter(pipe))
except KeyboardInterrupt:
    print("interrupted")
gate.set()
while own() or any(thread.name.startswith("dload-fetch") for thread in threading.enumerate()):
    time.sleep(0.01)
store.plan = lambda _: None
print(len(list(pipe)))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "cache"],
        cwd=Path(dload.__file__).parent.parent, text=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().split() == ["interrupted", "6"]
    assert process.returncode == 0


def test_a_broken_shard_is_asked_for_once_and_again_later(
    store, cache: ShardCache, made, streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that fails is read again one by one; that isn't another try."""
    broken = shard_key(made.shards[2].digest)
    bad = [True]
    store.plan = lambda call: AccessError("expired") if call.key == broken and bad else None
    pipe = streamed(store, cache, made.manifest, prefetch=1)
    window = ShardWindow(0)
    cursor = pipe.node.cursor(Run(0, window, paths=paths_of(pipe.node)), (0,))
    cursor.reset(None)
    got = [next(cursor) for _ in range(20)]
    with pytest.raises(AccessError):
        next(cursor)
    asked = [call.key for call in store.calls]
    assert asked.count(broken) == 1
    bad.clear()
    monkeypatch.setattr(sys.modules["dload.run.window"], "_HOLDS", 0.0)
    got += [next(cursor) for _ in range(60)]
    assert got == made.all
    window.close()


def test_opened_again_while_a_thread_is_ending(
    store, cache: ShardCache, made, streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = streamed(store, cache, made.manifest, prefetch=1)
    eventually(lambda: not fetch_threads())  # those of the tests before this one
    ending: list[str] = []
    may_end = threading.Event()
    following = ShardWindow._next

    def held_up(window: ShardWindow) -> Callable[[], None] | None:
        job = following(window)
        if job is None:
            ending.append(threading.current_thread().name)
            may_end.wait()
        return job

    monkeypatch.setattr(ShardWindow, "_next", held_up)
    window = ShardWindow(1)
    for _ in range(2):
        cursor = pipe.node.cursor(Run(0, window, paths=paths_of(pipe.node)), (0,))
        cursor.reset(None)
        assert list(cursor) == made.all
        window.close()
        eventually(lambda: len(ending) == len(fetch_threads()))
    may_end.set()


def test_a_hint_that_takes_long_holds_up_nobody(store, cache: ShardCache, made, streamed) -> None:
    pipe = streamed(store, cache, made.manifest, prefetch=1)
    assert list(pipe) == made.all  # so that one thread is enough from here on
    told, may_end = threading.Event(), threading.Event()

    def hint() -> None:
        told.set()
        may_end.wait()

    window = ShardWindow(0)
    cursor = pipe.node.cursor(Run(0, window, paths=paths_of(pipe.node)), (0,))
    cursor.reset(None)
    found = [next(cursor)]
    window._hint(hint)
    told.wait()
    found += cursor
    assert found == made.all
    may_end.set()
    window.close()


def test_what_fails_ahead_is_tried_again_when_it_is_needed(store, cache: ShardCache, made, streamed) -> None:
    second = shard_key(made.shards[1].digest)
    failed = threading.Event()

    def plan(call: Call) -> AccessError | None:
        if call.key == second and not failed.is_set():
            failed.set()
            return AccessError("not yet")
        return None

    store.plan = plan
    with streamed(store, cache, made.manifest, prefetch=2).batch(10).iter() as batches:
        assert next(batches) == made.samples[0]
        failed.wait()
        # Who waited for it by now would hear of the error.
        eventually(lambda: any(entry.failed for entry in list(batches.run.rows._entries.values())))
        assert list(batches) == made.samples[1:]


def test_a_read_over_many_shards_fetches_them_side_by_side(store, cache: ShardCache, made, streamed) -> None:
    together = threading.Barrier(4)
    store.plan = lambda call: together.wait() and None if call.operation == "stream" else None
    batch = next(streamed(store, cache, made.manifest, prefetch=4).batch(80).iter())
    assert batch == made.all


def test_two_threads_in_a_cache_with_room_for_one_shard(store, tmp_path: Path, made, streamed) -> None:
    """One waits for the other's shard, which is no error."""
    real = store.stream

    def stream(key: str, start: int = 0) -> Iterator[bytes]:
        for chunk in real(key, start):
            time.sleep(0.01)
            yield chunk

    store.stream = stream
    cache = ShardCache(tmp_path / "cache", max(shard.size for shard in made.shards) + 100)
    found: list[object] = []

    def read() -> None:
        try:
            found.append(list(streamed(store, cache, made.manifest)) == made.all)
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 3


def test_a_shard_that_others_find_damaged_as_it_is_opened(
    store, cache: ShardCache, made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They drop it, and the one that has come since stays."""
    real, dropped = ShardReader.open, []

    def open_reader(path: Path, **given: object) -> ShardReader:
        if len(dropped) < 3:
            with cache.pin(made.shards[0].digest) as pin:
                dropped.append(cache.drop(pin))
        return real(path, **given)

    monkeypatch.setattr(ShardReader, "open", open_reader)
    with closing(open_shard(store, cache, made.shards[0])) as opened:
        assert list(opened.reader.samples()) == made.samples[0]
    assert dropped == [True] * 3
    assert cache.contains(made.shards[0].digest)


def test_case_c44_a_cache_for_half_of_the_shards_spares_nearly_half_of_the_requests(
    store, tmp_path: Path, streamed
) -> None:
    manifest = manifest_of([put_shard(store, made_samples(number, 10, size=200)) for number in range(30)])
    cache = ShardCache(tmp_path / "cache", 15 * max(manifest.shards.sizes) + 100)
    pipe = streamed(store, cache, manifest, prefetch=1).tap(lambda _: time.sleep(0.0005))
    for _ in range(3):
        store.calls.clear()
        assert len(list(pipe)) == 300
    assert 15 <= store.count()["stream"] <= 22  # the last used goes first: 30
