"""Several clients of one store, stepped through chosen interleavings of their calls.

Each client runs on a thread of its own, over a view of the store that is its own. Exactly one call is let through at a
time, and between two calls nobody else runs, so a schedule gives the same run each time. `schedules` walks through all
schedules with up to so many switches away from a client that could have gone on: most races need one or two.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from dload.errors import DloadError
from dload.store.base import Body, ObjectInfo, Store

_T = TypeVar("_T")
_PATIENCE = 30.0  # seconds that a client may compute between two calls
_READS = {"get", "get_range", "stream", "head", "list", "list_folders", "clock", "conditional"}


class KilledError(DloadError):
    """This client was killed: none of its calls has an effect any more."""


@dataclass(frozen=True, slots=True)
class Step:
    """A call, about to be let through or done. `keys`: what it touches; of a listing, its prefix."""

    client: int
    operation: str
    keys: tuple[str, ...]

    def meets(self, other: Step) -> bool:
        """Whether the order of the two can matter."""
        if "wait" in (self.operation, other.operation):
            return True
        if self.operation in _READS and other.operation in _READS:
            return False
        return any(_touch(self, a, other, b) for a in self.keys for b in other.keys)


def _touch(one: Step, a: str, other: Step, b: str) -> bool:
    listing = {"list", "list_folders"}
    return (
        a == b
        or (one.operation in listing and b.startswith(a))
        or (other.operation in listing and a.startswith(b))
        or "*" in (a, b)
    )


@dataclass
class Run:
    """One run: the calls in their order, who could have gone on at each, and what became of each client."""

    steps: list[Step] = field(default_factory=list)
    pending: list[dict[int, Step]] = field(default_factory=list)
    outcomes: list[Any] = field(default_factory=list)  # what a client returned, or the exception that ended it

    def __str__(self) -> str:
        calls = [f"{step.client} {step.operation} {', '.join(step.keys)[:100]}" for step in self.steps]
        return "\n".join([*calls, *(f"{number} ended: {end!r:.300}" for number, end in enumerate(self.outcomes))])


Choose = Callable[[int, dict[int, Step]], int]  # (number of the step, who is waiting with what) -> who goes on
Client = Callable[["Stepped"], object]
Kill = tuple[int, int]


class _Clients:
    """The clients of one run: one computes, the others wait at a call or have ended.

    Whoever comes to a call decides who goes on; so a client that goes on itself costs no change of threads.
    """

    def __init__(
        self, store: Store, clients: Sequence[Client], choose: Choose, idle: Callable[[], object], kill: Kill | None
    ) -> None:
        self.done = Run(outcomes=[None] * len(clients))
        self._choose, self._idle, self._kill = choose, idle, kill
        self._waiting: dict[int, Step] = {}
        self._asleep: set[int] = set()  # who has waited in vain since the last call of another
        self._calls = [0] * len(clients)
        self._killed: int | None = None
        self._begun = False
        self._main = threading.Semaphore(0)
        self._turns = [threading.Lock() for _ in clients]
        for turn in self._turns:
            turn.acquire()
        self.threads = [
            threading.Thread(target=self._live, args=(number, client, Stepped(store, number, self)), daemon=True)
            for number, client in enumerate(clients)
        ]

    def run(self) -> Run:
        for thread in self.threads:  # up to its first call
            thread.start()
            self._wait()
        self._begun = True
        if self._waiting:
            self._go_on()
            self._wait()
        return self.done

    def _wait(self) -> None:
        if not self._main.acquire(timeout=_PATIENCE):
            raise TimeoutError(f"a client hangs:\n{self.done}")

    def _live(self, number: int, client: Client, view: Stepped) -> None:
        try:
            self.done.outcomes[number] = client(view)
        except Exception as error:
            self.done.outcomes[number] = error
        if self._begun and self._waiting:
            self._go_on()
        else:
            self._main.release()

    def turn(self, step: Step) -> None:
        """Wait until this call is let through."""
        if step.client != self._killed:
            self._waiting[step.client] = step
            if self._begun:
                self._go_on()
            else:
                self._main.release()
            if not self._turns[step.client].acquire(timeout=_PATIENCE):
                raise KilledError("the run was given up")
        if step.client == self._killed:
            raise KilledError("this client was killed")

    def _go_on(self) -> None:
        """Let one of those that wait make its call."""
        awake = {number: step for number, step in self._waiting.items() if number not in self._asleep}
        if not awake:
            self._idle()
            awake = dict(self._waiting)
        number = self._choose(len(self.done.steps), awake)
        step = self._waiting.pop(number)
        self._calls[number] += 1
        if self._kill == (number, self._calls[number]):
            self._killed = number
        self.done.steps.append(step)
        self.done.pending.append(awake)
        self._asleep = self._asleep | {number} if step.operation == "wait" else set()
        self._turns[number].release()


def run(
    store: Store,
    clients: Sequence[Client],
    choose: Choose,
    *,
    idle: Callable[[], object] = lambda: None,
    kill: Kill | None = None,
) -> Run:
    """Let `choose` decide, before each call, who goes on. `kill` (client, n): it is killed before its n-th call.

    `idle` is called where everybody waits for somebody else: time passes.
    """
    every = _Clients(store, clients, choose, idle, kill)
    with without_pools(), _waiting_for_others(every):
        return every.run()


@contextmanager
def _waiting_for_others(clients: _Clients) -> Iterator[None]:
    """Whoever waits for a gc waits for other clients, not for a second to pass."""
    by_thread = {thread: number for number, thread in enumerate(clients.threads)}

    def sleep(_seconds: float) -> None:
        clients.turn(Step(by_thread[threading.current_thread()], "wait", ()))

    with mock.patch("dload.repo.leases.time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic)):
        yield


@contextmanager
def without_pools() -> Iterator[None]:
    """No requests side by side within a client: their order would be chance, and threads cost more than a call."""
    with (
        mock.patch("dload.repo.parallel.ThreadPoolExecutor", _Inline),
        mock.patch("dload.repo.packing.ThreadPoolExecutor", _Inline),
    ):
        yield


class _Inline:
    """An executor that does the work when it is given."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., _T], *arguments: Any, **named: Any) -> Future[_T]:
        future: Future[_T] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, *_: object, **__: object) -> None:
        pass


# ---- which schedules
@dataclass(frozen=True)
class Schedule:
    """Clients run to their ends one after another in this order, but for switches: at that step to that client."""

    order: tuple[int, ...]
    switches: tuple[tuple[int, int], ...] = ()

    def __call__(self, number: int, waiting: dict[int, Step]) -> int:
        first = self.order
        for at, client in self.switches:
            if at <= number:
                first = (client, *(each for each in first if each != client))
        return next(client for client in first if client in waiting)


def schedules(
    attempt: Callable[[Choose], Run], clients: int, switches: int, most: int | None = None
) -> Iterator[Schedule]:
    """Every schedule with up to `switches` switches, or `most` of them drawn by chance: each is run by `attempt`, then
    yielded.

    A switch is tried only where the call that is put off meets a call that another client makes later on.
    """
    draw = random.Random(0)
    pending = [Schedule(tuple((first + i) % clients for i in range(clients))) for first in range(clients)]
    for _ in itertools.count() if most is None else range(most):
        if not pending:
            return
        at = draw.randrange(len(pending))
        pending[at], pending[-1] = pending[-1], pending[at]
        schedule = pending.pop()
        done = attempt(schedule)
        yield schedule
        if len(schedule.switches) < switches:
            pending += _further(schedule, done)


def _further(schedule: Schedule, done: Run) -> Iterator[Schedule]:
    last = schedule.switches[-1][0] if schedule.switches else -1
    for at in range(last + 1, len(done.steps)):
        step = done.steps[at]
        for other in done.pending[at]:
            if other == step.client:
                continue
            if any(later.client == other and later.meets(step) for later in done.steps[at + 1 :]):
                yield Schedule(schedule.order, (*schedule.switches, (at, other)))


class ByChance:
    """Who goes on is drawn; the same seed draws the same."""

    def __init__(self, seed: int, stay: float = 0.7) -> None:
        self._name = f"ByChance({seed}, {stay})"
        self._draw = random.Random(seed)
        self._stay = stay
        self._now: int | None = None

    def __repr__(self) -> str:
        return self._name

    def __call__(self, number: int, waiting: dict[int, Step]) -> int:
        if self._now not in waiting or self._draw.random() > self._stay:
            self._now = self._draw.choice(sorted(waiting))
        return self._now


# ---- a client's view
class Stepped:
    """A store whose every call waits until it is let through."""

    def __init__(self, inner: Store, client: int, clients: _Clients) -> None:
        self.inner = inner
        self._client = client
        self._clients = clients

    def step(self, operation: str, *keys: str) -> None:
        """Wait for one's turn; also for what isn't a call of the store, as a jump of its clock (key "*")."""
        self._clients.turn(Step(self._client, operation, keys))

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def staging(self) -> Path | None:
        return self.inner.staging

    def get(self, key: str) -> Body:
        self.step("get", key)
        return self.inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.step("get_range", key)
        return self.inner.get_range(key, start, length)

    def stream(self, key: str, start: int = 0) -> Generator[bytes, None, None]:
        self.step("stream", key)
        yield from self.inner.stream(key, start)

    def put(self, key: str, data: bytes) -> str:
        self.step("put", key)
        return self.inner.put(key, data)

    def put_file(self, key: str, path: Path, *, move: bool = False) -> str:
        self.step("put_file", key)
        return self.inner.put_file(key, path, move=move)

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        self.step("put_if", key)
        return self.inner.put_if(key, data, etag=etag)

    def conditional(self, *, refresh: bool = False) -> bool:
        return self.inner.conditional(refresh=refresh)

    def head(self, key: str) -> ObjectInfo | None:
        self.step("head", key)
        return self.inner.head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self.step("list", prefix)
        return iter([*self.inner.list(prefix)])

    def list_folders(self, prefix: str) -> Iterator[str]:
        self.step("list_folders", prefix)
        return iter([*self.inner.list_folders(prefix)])

    def delete(self, key: str) -> None:
        self.step("delete", key)
        self.inner.delete(key)

    def delete_many(self, keys: Iterable[str]) -> None:
        """One step a key: servers delete them one by one."""
        for key in keys:
            self.step("delete_many", key)
            self.inner.delete(key)

    def abort_unfinished(
        self, before: float, *, mine: Callable[[str], bool] = lambda _: True, dry_run: bool = False
    ) -> int:
        return self.inner.abort_unfinished(before, mine=mine, dry_run=dry_run)

    def clock(self) -> float:
        self.step("clock", "")
        return self.inner.clock()
