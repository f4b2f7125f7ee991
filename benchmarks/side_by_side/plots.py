"""Results as SVG: bars with ratios for groups of rows, and an overview. Readable on light and on dark ground.

Written by hand: a few rectangles and texts need no library, and the files stay small and alike from run to run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, BAR, ROW = 860, 130, 400, 19
BOUNDS = ("bare", "ideal")
GROUPS = {
    "reading": ("read-", "shuffled-"),
    "loaders": ("loader-", "decode", "tokenize"),
    "stores": ("cold-", "second-", "commit-"),
    "access": ("access-", "resume", "mix-", "packing"),
}
PLOTTED = {"samples", "megabytes", "first", "first at 50%", "tokens", "own"}
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; font-size: 13px; }
.quiet { fill: #656d76; }
.grid { stroke: #8c959f; stroke-opacity: .35; }
.one { stroke: #8c959f; stroke-width: 1.5; }
.ours { fill: #0969da; }
.peer { fill: #8c959f; }
.bound { fill: none; stroke: #8c959f; stroke-width: 1.5; stroke-dasharray: 3 2; }
.behind { fill: #cf222e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .quiet { fill: #9198a1; }
  .ours { fill: #4493f8; }
  .behind { fill: #f85149; }
}
"""


@dataclass
class Drawing:
    """Elements from above to below."""

    parts: list[str]
    height: float = 8.0

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>')

    def rectangle(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        shape = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}"'
        self.parts.append(f'<rect {shape} rx="2" class="{kind}"/>')

    def line(self, x: float, top: float, bottom: float, kind: str) -> None:
        self.parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" class="{kind}"/>')

    def dot(self, x: float, y: float, kind: str, label: str) -> None:
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" class="{kind}" fill-opacity=".75">'
            f"<title>{escape(label)}</title></circle>"
        )

    def save(self, path: Path, title: str) -> None:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:.0f}" '
            f'width="{WIDTH}" height="{self.height:.0f}" role="img" aria-label="{escape(title)}">'
        )
        path.write_text("\n".join([head, f"<style>{_STYLE}</style>", *self.parts, "</svg>\n"]))


def number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write_plots(record: dict[str, Any], folder: Path) -> list[Path]:
    """The SVG files of a record as `run` writes it, next to it; groups without results have none."""
    written = []
    for name, beginnings in GROUPS.items():
        shown = [one for one in record["results"] if one["row"].startswith(beginnings) and one["figure"] in PLOTTED]
        shown = [one for one in shown if record["ours"] in one["medians"]]
        if shown:
            path = folder / f"{name}.svg"
            _bars(record, shown, path)
            written.append(path)
    path = folder / "overview.svg"
    if _overview(record, path):
        written.append(path)
    return written


# ---- bars
def _bars(record: dict[str, Any], results: list[dict[str, Any]], path: Path) -> None:
    drawing = Drawing([])
    for result in results:
        _panel(drawing, record, result)
    drawing.height += 4
    drawing.save(path, path.stem)


def _panel(drawing: Drawing, record: dict[str, Any], result: dict[str, Any]) -> None:
    medians: dict[str, float] = result["medians"]
    better = "" if result["more is better"] else ", less is better"
    drawing.height += 14
    drawing.text(8, drawing.height, result["title"], "title")
    drawing.text(WIDTH - 8, drawing.height, result["unit"] + better, "quiet", "end")
    drawing.height += 8
    top = max(medians.values()) or 1.0
    order = sorted(medians, key=lambda system: (system not in BOUNDS, medians[system] * _sign(result)))
    for system in order:
        ours, y = system == record["ours"], drawing.height
        kind = "ours" if ours else "bound" if system in BOUNDS else "peer"
        length = max(2.0, BAR * medians[system] / top)
        drawing.text(LEFT - 8, y + 13, record["labels"][system], "title" if ours else "", "end")
        drawing.rectangle(LEFT, y + 3, length, ROW - 6, kind)
        told = number(medians[system])
        ratio = result["dload is ahead"].get(system)
        drawing.text(LEFT + length + 6, y + 13, told, "title" if ours else "")
        if ratio is not None:
            behind = ratio < 1 and system not in BOUNDS
            drawing.text(WIDTH - 8, y + 13, f"dload {_ratio(ratio)} ×", "behind" if behind else "quiet", "end")
        drawing.height += ROW
    drawing.height += 12


def _sign(result: dict[str, Any]) -> int:
    return -1 if result["more is better"] else 1


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


# ---- the overview
def _overview(record: dict[str, Any], path: Path) -> bool:
    """A line for each row: how many times as good as each peer, on a logarithmic scale."""
    rows = [
        (
            result,
            {system: ratio for system, ratio in result["dload is ahead"].items() if ratio and system not in BOUNDS},
        )
        for result in record["results"]
        if result["figure"] in PLOTTED
    ]
    rows = [(result, ratios) for result, ratios in rows if ratios]
    if not rows:
        return False
    low, high = 0.1, max(10.0, *(ratio for _, ratios in rows for ratio in ratios.values()))
    left, right = 330.0, WIDTH - 150.0

    def x(ratio: float) -> float:
        return left + (right - left) * math.log(max(low, ratio) / low) / math.log(high / low)

    drawing = Drawing([])
    drawing.height += 14
    drawing.text(8, drawing.height, "dload, times as good as each peer", "title")
    drawing.height += 14
    top, bottom = drawing.height + 6, drawing.height + 8 + ROW * len(rows)
    for exponent in range(-1, math.ceil(math.log10(high)) + 1):
        if 10.0**exponent <= high:
            drawing.line(x(10.0**exponent), top, bottom, "one" if exponent == 0 else "grid")
            drawing.text(x(10.0**exponent), top - 4, f"{10.0**exponent:g} ×", "quiet", "middle")
    drawing.height += 8
    for result, ratios in rows:
        least = min(ratios, key=lambda system: ratios[system])
        unit = "" if result["figure"] in {"samples", "megabytes", "tokens"} else f", {result['unit']}"
        drawing.text(left - 12, drawing.height + 13, result["title"] + unit, "", "end")
        for system, ratio in ratios.items():
            label = f"{record['labels'][system]}: {ratio:.2f}"
            drawing.dot(x(ratio), drawing.height + ROW / 2, "behind" if ratio < 1 else "ours", label)
        name = f"{record['labels'][least]} {_ratio(ratios[least])}"
        if ratios[least] < 1:
            drawing.text(WIDTH - 8, drawing.height + 13, name, "quiet", "end")
        drawing.height += ROW
    drawing.height += 10
    drawing.save(path, "overview")
    return True
