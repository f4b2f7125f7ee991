"""Where a run stands, as JSON: small, whole, and refused where it doesn't fit what it is loaded into."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from dload.pipeline.node import Node, walk
from dload.pipeline.sources import Samples

FORMAT = 1


def order_digest(top: Node) -> str:
    """What decides the order of elements: kinds, parameters and seeds of all nodes, without versions and functions."""
    rows = []
    for path, node in walk(top):
        parameters = node.parameters()
        if isinstance(node, Samples):
            parameters = {"fields": parameters["fields"]}
        rows.append([path, node.kind, parameters, node.seed])
    return sha256(json.dumps(rows, sort_keys=True, default=repr).encode()).hexdigest()


def functions_digest(top: Node) -> str:
    """The qualified names of the user's functions."""
    rows = [[path, [qualified(fn) for fn in node.functions()]] for path, node in walk(top)]
    return sha256(json.dumps(rows).encode()).hexdigest()


def qualified(function: Callable[..., Any]) -> str:
    """module:qualified name, of the class where it is an object."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def versions(top: Node) -> list[list[str]]:
    """(name, version id) of every data set that is read, each once, in the order of the pipeline."""
    found = {(node.manifest.name, node.manifest.version) for _, node in walk(top) if isinstance(node, Samples)}
    return [list(pair) for pair in sorted(found)]


def make_state(top: Node, plan: dict[str, Any], epoch: int, step: int, lanes: list[Any] | None) -> dict[str, Any]:
    """The state of a run. `step`: elements (or steps) handed out in this epoch; `lanes`: None in the index tier."""
    return {
        "dload": FORMAT,
        "plan": plan,
        "sources": versions(top),
        "order": order_digest(top),
        "functions": functions_digest(top),
        "epoch": epoch,
        "step": step,
        "lanes": lanes,
    }


def check_state(state: Any, top: Node, describe: Callable[[], str]) -> dict[str, Any]:
    """The state, if it is one of this pipeline. Raises ValueError, naming both values, where it is of another.

    Functions of other names are only warned about. `describe` gives the pipeline in words, for the message.
    """
    if not isinstance(state, dict) or state.get("dload") != FORMAT:
        got = state.get("dload") if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"not a state that this dload reads: expected format {FORMAT}, got {got!r}")
    missing = {"plan", "sources", "order", "functions", "epoch", "step", "lanes"} - state.keys()
    if missing:
        raise ValueError(f"the state lacks {sorted(missing)}")
    if state["sources"] != versions(top):
        raise ValueError(
            f"the state is of other data: it has {_named(state['sources'])}, "
            f"this pipeline reads {_named(versions(top))}; read the same versions: dload pin NAME VERSION"
        )
    if state["order"] != order_digest(top):
        raise ValueError(
            f"the state is of another pipeline: its order is {state['order'][:12]}, this one's "
            f"{order_digest(top)[:12]}. This one is:\n{describe()}"
        )
    if state["functions"] != functions_digest(top):
        warnings.warn(
            "the functions of this pipeline have other names than when the state was saved: "
            "elements may differ from those before",
            stacklevel=3,
        )
    return state


def _named(sources: Any) -> str:
    try:
        return ", ".join(f"{name}@{version[:12]}" for name, version in sources) or "no data set"
    except (TypeError, ValueError):
        return repr(sources)
