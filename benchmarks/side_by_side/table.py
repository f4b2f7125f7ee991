"""Results as a Markdown table: a line for each figure, a column for each system."""

from __future__ import annotations

from typing import Any

from .plots import BOUNDS, number

LEFT_OUT = {"cpu", "displaced", "requests", "off", "process", "rss"}  # too many for a page; they are in the JSON


def table(record: dict[str, Any]) -> str:
    """The medians of a record as `run` writes it. Ours are bold where no peer is ahead; empty is what a system can't
    do. The bound is the bare loop."""
    ours = record["ours"]
    peers = [system for system in record["labels"] if system not in BOUNDS and system != ours]
    heads = ["", record["labels"][ours], "bound", *(record["labels"][system] for system in peers)]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for result in record["results"]:
        medians: dict[str, float] = result["medians"]
        if result["figure"] in LEFT_OUT or ours not in medians:
            continue
        best = max if result["more is better"] else min
        rivals = [medians[system] for system in peers if system in medians]
        own = number(medians[ours])
        if not rivals or best(medians[ours], *rivals) == medians[ours]:
            own = f"**{own}**"
        others = [number(medians[system]) if system in medians else "" for system in ("bare", *peers)]
        lines.append(_line([f"{result['title']}, {result['unit']}", own, *others]))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
