"""A loader's counters, as a dict that prints as a table and says what it is waiting for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dload.sizes import format_size

_IDLE = 0.1  # share of the time that the consumer may wait without being slowed down by it


class Stats(dict[str, Any]):
    """The counters by name. Printed, it is a table, whose last line says what the bottleneck is.

    `bottleneck` is "consumer" where the loader is waited for in less than a tenth of the time; else "fetch" or
    "transform", whichever has taken more of the builders' time; None before the first step.
    """

    @property
    def bottleneck(self) -> str | None:
        waited, used = self["wait_time"], self["consumer_time"]
        if not self["steps"] or waited + used <= 0:
            return None
        if waited < _IDLE * (waited + used):
            return "consumer"
        return "fetch" if self["fetch_time"] > self["transform_time"] else "transform"

    def __str__(self) -> str:
        rows = list(self._rows())
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)

    def _rows(self) -> Iterator[tuple[str, str]]:
        for name, value in self.items():
            if name == "sources":
                for source, figures in value.items():
                    yield f"  {source}", f"{figures['rows_read']:,} rows, {format_size(figures['bytes_loaded'])}"
            elif name == "skipped":
                for entry in value[:3]:
                    yield "  skipped", f"{entry['key']} of {entry['data']} by {entry['node']}: {entry['error']}"
                if len(value) > 3:
                    yield "  skipped", f"... {len(value) - 3} more are listed"
            else:
                yield name, _text(name, value)
        yield "bottleneck", _ADVICE[self.bottleneck]


def _text(name: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if name.startswith("bytes"):
        return format_size(value)
    return f"{value:.3f} s" if name.endswith("_time") else f"{value:,}"


_ADVICE = {
    None: "nothing was handed out yet",
    "consumer": "the consumer: steps are ready before they are asked for",
    "fetch": "fetch: builders stand still for shards; a larger cache, prefetch(n), or a nearer store would help",
    "transform": "transform: functions take the time; map(workers=), map_batches, or more worker processes would help",
}
