"""What a loader counts: what its builders do, and what it hands out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple

from dload.api.course import Course
from dload.cache import ShardCache
from dload.plan import sources_of
from dload.run.counters import Counters
from dload.run.stats import Stats
from dload.run.steps import Step


class Counted:
    """Since the loader was made."""

    def __init__(self, course: Course, builders: int) -> None:
        self._course = course
        sources = sources_of(course.top)
        self._caches: list[ShardCache] = list({id(source.origin): source.origin.cache for source in sources}.values())
        self._before = self._of_caches()
        self.counters = Counters(builders, sorted({source.manifest.name for source in sources}))
        self._steps = self._rows = self._holes = self._left = 0
        self._wait_time = self._consumer_time = 0.0
        self._returned: float | None = None  # when the consumer was last given something
        self._skipped = 0  # before the state that was loaded
        self._begun = 0  # rows that were built before the present builder
        self._taken = 0  # rows that came from it

    def begin(self) -> None:
        """A builder begins; what those before it had built ahead is forgotten."""
        self._begun, self._taken = self.counters.read()["rows_built"], 0

    def loaded(self) -> None:
        """A state was loaded."""
        if not self._steps:
            self._skipped = self._course.skipped()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the consumer waits for a step."""
        begin = time.perf_counter()
        if self._returned is not None:
            self._consumer_time += begin - self._returned
        try:
            yield
        finally:
            self._returned = time.perf_counter()
            self._wait_time += self._returned - begin

    def handed(self, step: Step) -> None:
        """A step was handed out."""
        self._steps += 1
        self._rows += len(step.valid)
        self._taken += len(step.valid)
        self._holes += step.holes

    def left(self, step: Step) -> None:
        """A step wasn't whole, and isn't handed out."""
        self._taken += len(step.valid)
        self._left += len(step.valid) + step.holes

    def stats(self) -> Stats:
        """All of it."""
        built = self.counters.read()
        cache = [now - before for now, before in zip(self._of_caches(), self._before, strict=True)]
        hits, misses, bytes_down, _, evictions, _ = cache or [0] * 6
        steps, course = self._course.steps, self._course
        return Stats(
            steps=self._steps,
            consumed_rows=self._rows,
            holes=self._holes,
            rows_left=self._left,
            unscanned_rows=None if steps is None else max(0, steps - course.step) * len(course.rows),
            raw_queue_depth=built["raw_queue_depth"],
            prefetch_queue_depth=max(0, built["rows_built"] - self._begun - self._taken),
            rows_skipped=self._skipped + built["rows_skipped"],
            skipped=built["skipped"],
            wait_time=self._wait_time,
            consumer_time=self._consumer_time,
            fetch_time=built["fetch_time"],
            transform_time=max(0.0, built["build_time"] - built["fetch_time"]),
            bytes_loaded=built["bytes_loaded"],
            sources=built["sources"],
            cache_hits=hits,
            cache_misses=misses,
            evictions=evictions,
            downloads=misses,
            bytes_downloaded=bytes_down,
        )

    def _of_caches(self) -> list[int]:
        return [sum(counts) for counts in zip(*[astuple(cache.counts()) for cache in self._caches], strict=True)]
