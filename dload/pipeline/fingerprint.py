"""The identity of what a pipeline gives: two that are alike give the same elements in the same order, on any machine.

It is made of the versions that are read, the shape of the pipeline, every parameter and seed, and the functions: their
qualified names and, where it can be had, their source text without comments and layout. A function that says
`same_as` counts by that instead, so that an edit that changes nothing keeps the identity.
"""

from __future__ import annotations

import inspect
import io
import json
import tokenize
from collections.abc import Callable
from hashlib import sha256
from textwrap import dedent
from typing import Any, TypeVar

from dload.pipeline.node import Node, walk
from dload.pipeline.provided import Provided, ProvidedStream
from dload.pipeline.reorder import Repeat
from dload.pipeline.sources import Factory, Sequenced
from dload.pipeline.state import qualified

_F = TypeVar("_F", bound=Callable[..., Any])
_MARK = "__dload_same_as__"
_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def same_as(version: str) -> Callable[[_F], _F]:
    """A decorator: the function counts as this version of it in fingerprints, whatever its text is."""

    def mark(function: _F) -> _F:
        setattr(function, _MARK, version)
        return function

    return mark


def fingerprint(top: Node, tag: object = None) -> str:
    """The sha256 (hex) of the pipeline's identity; `tag`, a JSON value, is mixed in.

    Raises ValueError, with what to do, where there is none: functions without a name of their own, draws without a
    seed, no end, values in memory that aren't JSON.
    """
    rows = []
    for path, node in walk(top):
        _refuse(node)
        functions = [_identity(function) for function in node.functions()]
        rows.append([path, node.kind, node.parameters(), node.seed, functions, _items(node)])
    if top.indexed and top.length is None:
        raise ValueError("a pipeline without an end has no fingerprint: put a take(n) behind it")
    try:
        text = json.dumps(["dload-fingerprint-1", rows, tag], sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a parameter of this pipeline, or its tag, is not a JSON value: {error}") from error
    return sha256(text.encode()).hexdigest()


def _refuse(node: Node) -> None:
    if node.draws and node.seed is None:
        raise ValueError(f"{node.kind} draws without a seed of its own: give it one, seed=0 (map: rng_seed=0)")
    if isinstance(node, Repeat) and node.times is None:
        raise ValueError("repeat() without an end has no fingerprint: give the number of times")
    if isinstance(node, Factory):
        raise ValueError(
            "what a function makes anew each epoch has no fingerprint: pass a list, or commit it as a data set"
        )
    if isinstance(node, Provided | ProvidedStream):
        raise ValueError("records that a provider holds may change, and have no fingerprint: import them as a data set")
    for function in node.functions():
        name = qualified(function)
        if "<" in name or not hasattr(function, "__qualname__"):
            raise ValueError(
                f"{name} in {node.kind} has no name that another process would find: "
                "define it with def at the top of a module"
            )


def _items(node: Node) -> Any:
    return list(node.items) if isinstance(node, Sequenced) else None


def _identity(function: Callable[..., Any]) -> list[str | None]:
    marked = getattr(function, _MARK, None)
    return [qualified(function), f"same as {marked}" if marked is not None else _source_digest(function)]


def _source_digest(function: Callable[..., Any]) -> str | None:
    """The digest of a function's tokens, which comments and layout don't change; None where its text can't be had."""
    try:
        text = dedent(inspect.getsource(function))
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        words = [token.string for token in tokens if token.type not in _LAYOUT]
    except (OSError, TypeError, tokenize.TokenError, IndentationError, SyntaxError):
        return None
    return sha256("\0".join(words).encode()).hexdigest()
