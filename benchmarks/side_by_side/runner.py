"""Runs rows: systems in turns, round after round; what a system can't do is kept as its reason."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from .children import Child, FailedError, RefusedError
from .plots import number
from .rows import Figure, Row
from .stage import Stage

OURS = "dload_now"
LABELS = {
    "bare": "bare", "ideal": "ideal", "dload_now": "dload", "dload_ml": "dload-ml 0.3", "litdata": "LitData",
    "mosaicml": "MosaicML", "webdataset": "WebDataset", "lancedb": "LanceDB", "huggingface": "HF datasets",
    "grain": "Grain",
}  # fmt: skip
PATIENCE = 30.0  # seconds of one system in one row: whoever takes longer has fewer rounds
Say = Callable[[str], None]


@dataclass
class Result:
    """One figure of one row: a value of each round for each system, or why there is none."""

    row: str
    title: str
    figure: Figure
    values: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def middle(self, system: str) -> float:
        return median(self.values[system])

    def ahead(self, system: str) -> float | None:
        """How many times as good ours is: the median of the rounds' ratios. None where one of them is 0."""
        pairs = list(zip(self.values.get(OURS, []), self.values.get(system, []), strict=False))
        if not pairs or any(0 in pair for pair in pairs):
            return None
        return median(ours / other if self.figure.more_is_better else other / ours for ours, other in pairs)

    def as_json(self) -> dict[str, Any]:
        return {
            "row": self.row, "title": self.title, "figure": self.figure.name, "unit": self.figure.unit,
            "more is better": self.figure.more_is_better, "values": self.values,
            "medians": {system: self.middle(system) for system in self.values},
            "dload is ahead": {system: self.ahead(system) for system in self.values if system != OURS},
            "unable": self.refused, "failed": self.failed,
        }  # fmt: skip


def run(stage: Stage, rows: list[Row], rounds: int, say: Say) -> Iterator[list[Result]]:
    """All rows on an opened stage, each one's results when it is done; rows of the same data together."""
    for _, group in groupby(rows, key=lambda row: row.data):
        for row in group:
            begin = time.monotonic()
            found = run_row(stage, row, min(rounds, row.rounds or rounds))
            say(f"{row.title} ({time.monotonic() - begin:.0f} s)")
            for result in found:
                say(describe(result))
            yield found
        stage.clear()


def run_row(stage: Stage, row: Row, rounds: int) -> list[Result]:
    results = [Result(row.name, row.title, figure) for figure in row.figures]
    going = []
    for child in stage.children.values():
        if _tried(results, child, row.prepare, stage):
            going.append(child)
    spent = dict.fromkeys(stage.children, 0.0)
    for round_number in range(rounds):
        turn = round_number % len(going) if going else 0  # nobody is always behind the same one
        for child in going[turn:] + going[:turn]:
            if spent[child.system] < PATIENCE:
                begin = time.monotonic()
                if not _tried(results, child, row.measure, stage):
                    spent[child.system] = PATIENCE
                spent[child.system] += time.monotonic() - begin
                child.settle()
    for child in going:
        row.finish(child)
    return results


def _tried(results: list[Result], child: Child, call: Callable[[Stage, Child], dict[str, float]], stage: Stage) -> bool:
    """Put the figures of a call into the results, or why there are none; whether the system goes on."""
    try:
        found = call(stage, child)
    except RefusedError as refusal:
        for result in results:
            result.refused[child.system] = str(refusal)
    except FailedError as failure:
        child.kill()
        for result in results:
            result.failed[child.system] = str(failure)
            result.values.pop(child.system, None)
    else:
        for result in results:
            if result.figure.name in found:
                result.values.setdefault(child.system, []).append(found[result.figure.name])
        return True
    return False


def describe(result: Result) -> str:
    """A result as text: each system's median, and how many times as good ours is."""
    lines = [f"  {result.figure.unit}"]
    for system, name in LABELS.items():
        if system in result.values:
            low, high = min(result.values[system]), max(result.values[system])
            ratio = result.ahead(system) if system != OURS else None
            beside = "" if ratio is None else f"  dload {ratio:.2f} x"
            rounds = len(result.values[system])
            span = f"({number(low)} to {number(high)}, {rounds} x)"
            line = f"    {name:14}{number(result.middle(system)):>12}  {span}{beside}"
            lines.append(line)
        elif system in result.failed:
            lines.append(f"    {name:14}      failed: {result.failed[system].strip().splitlines()[-1][:160]}")
        elif system in result.refused and result.figure.name != "cpu":
            lines.append(f"    {name:14}           -  {result.refused[system]}")
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """Where it was measured, without its name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": ", ".join(sorted(models)), "cores": os.cpu_count(), "memory, GiB": round(memory / 2**30),
        "system": f"{platform.system()} {platform.release()}", "python": sys.version.split()[0],
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip
