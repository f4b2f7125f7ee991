"""Elements that aren't there yet: functions at work on threads, ahead of who asks for what they give."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakSet

_UNSET = object()


class Promise:
    """Stands for an element in what `Node.fetch` gives where a node below runs ahead (`Node.ahead`)."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> Any:
        """The element. Waits for it; raises what making it raises."""
        raise NotImplementedError

    def failures(self) -> tuple[int, int]:
        """Once it has failed: (how many failed of the list that its function was given, 0 but for the first of them;
        the length of that list)."""
        return 1, 1


class Lazy(Promise):
    """`fn(*arguments)`, of which some may be promises; called once it is asked for, by who asks."""

    __slots__ = ("_arguments", "_fn", "_value")

    def __init__(self, fn: Callable[..., Any], *arguments: Any) -> None:
        self._fn, self._arguments = fn, arguments
        self._value: Any = _UNSET

    def result(self, timeout: float | None = None) -> Any:
        if self._value is _UNSET:
            self._value = self._fn(*settled(self._arguments))
            self._arguments = ()
        return self._value


class ClosedError(RuntimeError):
    """A pool was closed before a call was begun."""


class Task(Future[Any], Promise):
    """A call on a thread of a `Pool`."""

    def result(self, timeout: float | None = None) -> Any:
        try:
            return super().result(timeout)
        except CancelledError:
            if not self.cancelled():
                raise  # the function's own
        raise ClosedError("this iterator was closed while it was waiting")


def settled(items: Sequence[Any]) -> list[Any]:
    """The items, promises among them kept. Raises what the first of them raises that fails."""
    return [item.result() if isinstance(item, Promise) else item for item in items]


class Pool:
    """So many threads, begun at the first call. They end when it is closed (what is under way is finished, what waits
    is cancelled), and when nobody has it any more. A forked child has threads of its own."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads, self._name = threads, name
        self._running: list[threading.Thread] = []
        self.closed = False
        self._begin()
        _pools.add(self)

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._jobs: _Jobs | None = None

    def submit(self, fn: Callable[..., Any], *arguments: Any) -> Task:
        """`fn(*arguments)`, in the order of calls. Raises ClosedError."""
        if self._process != os.getpid():
            self._begin()
        task = Task()
        with self._lock:
            if self.closed:
                raise ClosedError("this iterator was closed")
            if self._jobs is None:
                self._jobs = self._started()
            self._jobs.put((task, fn, arguments))
        return task

    def _started(self) -> _Jobs:
        """Threads that do what is put into this."""
        jobs: _Jobs = SimpleQueue()
        self._running = []
        for number in range(self._threads):
            thread = threading.Thread(
                target=_work, args=(jobs,), name=f"dload-{self._name}-{number + 1}", daemon=True
            )  # fmt: skip
            try:
                thread.start()
            except RuntimeError:  # no more threads to be had: those that are there do it all
                if not number:
                    raise
                break
            self._running.append(thread)
        return jobs

    def close(self) -> None:
        if self._process != os.getpid():
            return
        with self._lock:
            self.closed = True
            jobs, self._jobs = self._jobs, None
        if jobs is None:
            return
        try:
            while True:
                job = jobs.get_nowait()
                assert job is not None
                job[0].cancel()
        except Empty:
            for _ in self._running:
                jobs.put(None)

    def join(self) -> None:
        """Wait until the threads of a closed pool have ended."""
        for thread in self._running if self._process == os.getpid() else []:
            thread.join()

    def __del__(self) -> None:
        self.close()


_Jobs = SimpleQueue[tuple[Task, Callable[..., Any], tuple[Any, ...]] | None]
_pools: WeakSet[Pool] = WeakSet()


@atexit.register
def _end_all() -> None:
    """A daemon thread is killed where it stands when the interpreter goes, which libraries in C++ take badly."""
    pools = list(_pools)
    for pool in pools:
        pool.close()
    for pool in pools:
        pool.join()


def _work(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        task, fn, arguments = job
        try:
            task.set_result(fn(*arguments))
        except BaseException as error:
            task.set_exception(error)
        del job, task, fn, arguments  # a thread that waits holds nothing


class Workers:
    """The threads of one run: those of each node, shared by all its lanes, begun when they are needed."""

    def __init__(self) -> None:
        self._readers: WeakSet[Any] = WeakSet()
        self._pools: dict[str, Pool] = {}
        self._closed = False

    def pool(self, path: str, threads: int, name: str) -> Pool:
        """That of the node at `path`."""
        pool = self._pools.get(path)
        if pool is None:
            pool = self._pools[path] = Pool(threads, name)
            pool.closed = self._closed
        return pool

    def enter(self, reader: Any) -> None:
        """A pass begins that reads ahead; threads may begin again."""
        self._readers.add(reader)
        self._closed = False
        for pool in self._pools.values():
            pool.closed = False

    def leave(self, reader: Any) -> None:
        """A pass has ended."""
        self._readers.discard(reader)

    def share(self, most: int) -> int:
        """How many of `most` elements that may be under way one of these passes may have."""
        return max(1, -(-most // 4), most // max(1, len(self._readers)))

    def close(self) -> None:
        """End all threads. Closing twice is fine."""
        self._closed = True
        for pool in list(self._pools.values()):
            pool.close()
