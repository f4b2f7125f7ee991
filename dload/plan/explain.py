"""A pipeline and its demand, to read."""

from __future__ import annotations

from itertools import islice

from dload.pipeline.node import Node, Run
from dload.plan.tops import index_tops
from dload.sizes import format_size

_ENDLESS = 1 << 62


def explain(top: Node, run: Run, epoch: int, most: int = 12) -> str:
    """The nodes with their tiers and lengths, and the first `most` entries of each demand. Reads no storage."""
    lines = list(_tree(top, "", ""))
    for node in index_tops(top):
        lines += ["", f"demand of {_title(node)} (places: shard)"]
        stop = _ENDLESS if node.length is None else node.length
        needs = list(islice(node.demand(run, (epoch,), 0, stop), most + 1))
        for need in needs[:most]:
            shards = need.source.manifest.shards
            lines.append(
                f"  {need.first:>10,} to {need.last:<10,} {need.source.manifest.name} shard {need.shard}, "
                f"{format_size(shards.sizes[need.shard])}, {shards.digests[need.shard][:12]}"
            )
        if len(needs) > most:
            lines.append("  ...")
        if not needs:
            lines.append("  none")
    return "\n".join(lines)


def _tree(node: Node, first: str, rest: str) -> list[str]:
    lines = [first + _title(node)]
    for number, parent in enumerate(node.parents):
        last = number == len(node.parents) - 1
        lines += _tree(parent, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))
    return lines


def _title(node: Node) -> str:
    given = ", ".join(f"{name}={value!r:.40}" for name, value in node.parameters().items() if value is not None)
    functions = ", ".join(getattr(function, "__qualname__", repr(function)) for function in node.functions())
    inside = ", ".join(part for part in (functions, given) if part)
    if not node.indexed:
        return f"{node.kind}({inside}) — stream tier"
    length = "endless" if node.length is None else f"{node.length:,} elements"
    return f"{node.kind}({inside}) — index tier, {length}"
