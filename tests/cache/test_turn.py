"""Room that others hold: who waits for it, in which order, and that nobody stands still."""

from __future__ import annotations

import multiprocessing
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dload.cache import Pin, ShardCache
from dload.cache import turn as turns
from dload.cache.pins import own
from dload.errors import CacheFullError
from dload.files.locks import locked
from dload.testing.sources import LoggedSource

SIZE = 100_000

Python = Callable[..., subprocess.Popen[str]]

# Holds `window` pins at a time, as a pipeline does whose batches come from several shards.
WINDOW = """
root, folder, budget, window, seed, rounds, size = sys.argv[1:8]
digests = sys.argv[8:]
import random
rng = random.Random(int(seed))
cache = ShardCache(Path(root), int(budget), patience=30)
source = LoggedSource(Path(folder))
pins = {}
def give_up():
    for digest in list(pins):
        pins.pop(digest).release()
seat = cache.seat(give_up)
say("ready")
hear()
for _ in range(int(rounds)):
    wanted = rng.sample(digests, int(window))
    for digest in wanted:
        if digest not in pins:
            pin = cache.ensure(digest, int(size), source.opener(digest), seat=seat)
            pins[digest] = pin
        assert pins[digest].path.read_bytes() == source.body(digest)
        time.sleep(0.002)
    seat.settled()
    for digest in list(pins)[: -int(window) + 1 or None]:
        pins.pop(digest).release()
seat.close()
say("done")
"""

HOLDER = """
root, folder, digest, size = sys.argv[1:]
source = LoggedSource(Path(folder))
pin = ShardCache(Path(root)).ensure(digest, int(size), source.opener(digest))
say("pinned")
hear()
"""


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], word: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()


def state(root: Path) -> tuple[str, int]:
    with locked(root / "lock"):
        return turns.state(root)


@pytest.mark.parametrize(("room", "window"), [(2, 2), (3, 2), (1, 1)])
def test_case_c41_each_holds_one_and_wants_another_and_all_finish(
    root: Path, source: LoggedSource, python: Python, room: int, window: int
) -> None:
    digests = [source.make(number, SIZE) for number in range(8)]
    budget = room * SIZE + 100
    readers = [python(WINDOW, root, source.folder, budget, window, seed, 5, SIZE, *digests) for seed in range(6)]
    assert [line(reader) for reader in readers] == ["ready"] * 6
    for reader in readers:
        tell(reader)
    assert [line(reader) for reader in readers] == ["done"] * 6
    assert [reader.wait() for reader in readers] == [0] * 6
    assert ShardCache(root).status().pinned == 0
    assert state(root) == ("", 0)


def test_who_waits_without_the_turn_gives_up_its_pins(root: Path, source: LoggedSource, python: Python) -> None:
    held, mine, wanted = (source.make(number, SIZE) for number in range(3))
    holder = python(HOLDER, root, source.folder, held, SIZE)
    assert line(holder) == "pinned"
    cache = ShardCache(root, 2 * SIZE + 100)
    other = cache.seat(lambda: None)
    pins = [cache.ensure(mine, SIZE, source.opener(mine))]
    taken = python(
        """
from dload.files.locks import LockFile, locked, wait_lock
lock = LockFile(Path(sys.argv[1]) / "turn", os.O_RDWR)
wait_lock(lock.descriptor)
say("taken")
hear()
""",
        root,
    )
    assert line(taken) == "taken"

    def pause(seconds: float) -> None:
        if seconds and not pins and holder.poll() is None:
            tell(holder)  # lets go
            tell(taken)

    seat = cache.seat(lambda: [pins.pop().release() for _ in list(pins)])
    with cache.ensure(wanted, SIZE, source.opener(wanted), seat=seat, pause=pause) as pin:
        assert pin.path.read_bytes() == source.body(wanted)
        assert not pins
    seat.close()
    other.close()


def test_who_has_the_turn_keeps_its_pins_until_it_is_settled(root: Path, source: LoggedSource, python: Python) -> None:
    held, mine, wanted, small = (source.make(number, SIZE) for number in range(4))
    holder = python(HOLDER, root, source.folder, held, SIZE)
    assert line(holder) == "pinned"
    cache = ShardCache(root, 2 * SIZE + 100)
    pin = cache.ensure(mine, SIZE, source.opener(mine))
    states = []

    def pause(seconds: float) -> None:
        if seconds:
            states.append(state(root))
            tell(holder)
            holder.wait()

    seat = cache.seat(lambda: pytest.fail("it has the turn"))
    cache.ensure(wanted, SIZE, source.opener(wanted), seat=seat, pause=pause).release()
    assert not pin.lock.closed and states[0][1] == SIZE
    assert seat.has_turn() and state(root)[1] == 0
    assert b" 0" in (root / "turn").read_bytes()
    seat.settled()
    assert not seat.has_turn() and state(root) == ("", 0)
    seat.close()
    pin.release()
    assert small


def test_what_the_one_whose_turn_it_is_waits_for_is_left_to_it(
    root: Path, source: LoggedSource, python: Python
) -> None:
    """A small shard would fit at once; it must not take, again and again, what a large one waits for."""
    large, small = source.make(1, 3 * SIZE), source.make(2, SIZE // 10)
    held = [source.make(number, SIZE) for number in (3, 4)]
    holders = [python(HOLDER, root, source.folder, digest, SIZE) for digest in held]
    assert [line(holder) for holder in holders] == ["pinned"] * 2
    budget = 4 * SIZE + 1000
    waiter = python(
        """
root, folder, digest, size, budget = sys.argv[1:]
source = LoggedSource(Path(folder))
def pause(seconds):
    if seconds and not said.append(seconds) and len(said) == 2:
        say("waiting")
    time.sleep(seconds)
said = []
cache = ShardCache(Path(root), int(budget))
with cache.ensure(digest, int(size), source.opener(digest), pause=pause) as pin:
    say("got", len(os.listdir(Path(root) / "partial")))
""",
        root, source.folder, large, 3 * SIZE, budget,
    )  # fmt: skip
    assert line(waiter) == "waiting"
    cache = ShardCache(root, budget)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)
            assert not cache.contains(small)
            if len(pauses) == 3:
                tell(holders[0])
            time.sleep(seconds)

    with cache.ensure(small, SIZE // 10, source.opener(small), pause=pause) as pin:
        assert line(waiter).startswith("got")
        assert pin.path.read_bytes() == source.body(small)
    assert len(pauses) >= 3


def test_what_is_only_fetched_ahead_never_takes_the_turn(root: Path, source: LoggedSource, python: Python) -> None:
    held, wanted = source.make(1, SIZE), source.make(2, SIZE)
    holder = python(HOLDER, root, source.folder, held, SIZE)
    assert line(holder) == "pinned"
    cache = ShardCache(root, SIZE + 100)

    class NotWantedError(Exception):
        pass

    def pause(seconds: float) -> None:
        assert state(root) == ("", 0)
        if seconds:
            raise NotWantedError

    with pytest.raises(NotWantedError):
        cache.ensure(wanted, SIZE, source.opener(wanted), urgent=lambda: False, pause=pause)


def test_other_readers_of_the_process_give_up_what_is_in_the_way(root: Path, source: LoggedSource) -> None:
    first, second = source.make(1, SIZE), source.make(2, SIZE)
    cache = ShardCache(root, SIZE + 100)
    pins: list[Pin] = [cache.ensure(first, SIZE, source.opener(first))]
    idle = cache.seat(lambda: [pins.pop().release() for _ in list(pins)])
    with pytest.raises(CacheFullError, match="at least"):
        cache.ensure(second, SIZE, source.opener(second), urgent=lambda: False)
    assert pins
    cache.ensure(second, SIZE, source.opener(second)).release()
    assert not pins and not cache.contains(first)
    idle.close()


def test_a_killed_process_leaves_no_turn(root: Path, source: LoggedSource, python: Python) -> None:
    held, wanted = source.make(1, SIZE), source.make(2, SIZE)
    holder = python(HOLDER, root, source.folder, held, SIZE)
    assert line(holder) == "pinned"
    waiter = python(WINDOW, root, source.folder, SIZE + 100, 1, 0, 1, SIZE, wanted)
    assert line(waiter) == "ready"
    tell(waiter)
    while not state(root)[1]:
        time.sleep(0.005)
    waiter.kill()
    waiter.wait()
    assert state(root) == ("", 0)


def _child(results: multiprocessing.Queue[object], root: Path) -> None:
    results.put((turns.make_way(root), state(root)[1]))


def test_a_fork_has_neither_the_turn_nor_the_seats_of_its_parent(root: Path, source: LoggedSource) -> None:
    digest = source.make(1, SIZE)
    cache = ShardCache(root, 10 * SIZE)
    pin = cache.ensure(digest, SIZE, source.opener(digest))
    called: list[int] = []
    seat = cache.seat(lambda: called.append(1))
    with locked(root / "lock"):
        assert turns.take(seat, "x", 7)
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[object] = context.Queue()
    child = context.Process(target=_child, args=(results, root))
    child.start()
    assert results.get() == (False, 7)
    child.join()
    seat.close()
    assert state(root) == ("", 0) and not called
    pin.release()


def test_threads_of_one_process_share_its_turn(root: Path, source: LoggedSource) -> None:
    """Readers in threads, each with windows of two, in room for three."""
    digests = [source.make(number, SIZE) for number in range(6)]
    cache = ShardCache(root, 3 * SIZE + 100, patience=30)
    errors: list[BaseException] = []

    def read(seed: int) -> None:
        lock, pins, reading = threading.Lock(), dict[str, Pin](), [""]

        def give_up() -> None:
            with lock:
                for digest in [digest for digest in pins if digest != reading[0]]:
                    pins.pop(digest).release()

        seat = cache.seat(give_up)
        try:
            for step in range(12):
                digest = digests[(seed + step) % len(digests)]
                with lock:
                    reading[0] = digest
                if digest not in pins:
                    pin = cache.ensure(digest, SIZE, source.opener(digest), seat=seat)
                    with lock:
                        pins[digest] = pin
                assert pins[digest].path.read_bytes() == source.body(digest)
                with lock:
                    reading[0] = ""
                    while len(pins) > 1:
                        pins.pop(next(iter(pins))).release()
                seat.settled()
        except BaseException as error:
            errors.append(error)
        finally:
            give_up()
            seat.close()

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and own(root) == []
