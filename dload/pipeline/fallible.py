"""Nodes whose function may fail for an element, and what that means for the node."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dload.pipeline.cursors import applied
from dload.pipeline.failures import Failed, Guard, OnError, Origin
from dload.pipeline.node import Node
from dload.pipeline.promises import Lazy, Promise
from dload.pipeline.running import HOLE, Cursor, Epoch, Run
from dload.pipeline.streams import ElementCursor, GuardedCursor


class Fallible(Node):
    """`on_error`: what becomes of an element whose function fails; None: nothing was said, so its error is raised,
    unless who runs the pipeline says otherwise (`with_default`)."""

    on_error: OnError | None = None

    @property
    def indexed(self) -> bool:
        return super().indexed and not (self.on_error is not None and self.on_error.skips)

    @property
    def holes(self) -> bool:
        return super().holes or self.leaves_holes

    @property
    def leaves_holes(self) -> bool:
        """Whether a HOLE stays where its function fails."""
        return self.on_error is not None and self.on_error.in_place and not self.on_error.raises

    def parameters(self) -> dict[str, Any]:
        return {"on_error": "skip"} if self.on_error is not None and self.on_error.skips else {}

    def functions(self) -> tuple[Callable[..., Any], ...]:
        policy = self.on_error
        return (policy.how,) if policy is not None and policy.skips and callable(policy.how) else ()

    def guard(self, run: Run) -> Guard | None:
        """The policy at work in a run; None where errors are raised."""
        if self.on_error is None or self.on_error.raises:
            return None
        return Guard(self, self.on_error, run)

    def outcomes(
        self, run: Run, epoch: Epoch, places: Sequence[int], apply: Callable[..., Any], *columns: Iterable[Any]
    ) -> list[Any]:
        """apply(...) of each element that isn't a HOLE, by the policy; promises where elements are promises."""
        guard = self.guard(run)
        rows = zip(*columns, strict=True)
        if self.parents[0].ahead:
            return [
                Lazy(self.outcome, guard, (self, epoch, place), apply, *row)
                for place, row in zip(places, rows, strict=True)
            ]  # fmt: skip
        if guard is None:
            return [HOLE if row[0] is HOLE else applied(apply, *row) for row in rows]
        return self._guarded(guard, epoch, places, apply, list(rows))

    def _guarded(
        self, guard: Guard, epoch: Epoch, places: Sequence[int], apply: Callable[..., Any], rows: list[tuple[Any, ...]]
    ) -> list[Any]:
        found: list[Any] = []
        failed: dict[int, Exception] = {}
        for row in rows:
            try:
                found.append(HOLE if row[0] is HOLE else applied(apply, *row))
            except Exception as error:
                failed[len(found)] = error
                found.append(HOLE)
        before, count = -1, len(failed)
        for at, reason in failed.items():
            if at > before + 1:
                guard.fine()
            guard.leave_out(Failed(reason, rows[at][0], (self, epoch, places[at])), len(rows), count)
            before, count = at, 0
        if before < len(rows) - 1:
            guard.fine()
        return found

    def outcome(self, guard: Guard | None, origin: Origin | None, apply: Callable[..., Any], *row: Any) -> Any:
        """apply(*row), of one element, by the policy."""
        return HOLE if row[0] is HOLE else self.taken(guard, origin, Lazy(applied, apply, *row), row[0])

    def taken(self, guard: Guard | None, origin: Origin | None, promise: Promise, item: Any) -> Any:
        """What is promised for one element, by the policy."""
        if guard is None:
            return promise.result()
        try:
            found = promise.result()
        except Exception as error:
            guard.leave_out(Failed(error, item, origin), *promise.failures())
            return HOLE
        guard.fine()
        return found

    def guarded(
        self, run: Run, epoch: Epoch, parent: Cursor, apply: Callable[..., Any], named: bool = False, drop: bool = False
    ) -> Cursor:
        """A pass of apply(element), or apply(element, identity), by the policy; see `GuardedCursor`."""
        guard, lane = self.guard(run), run.lane
        if guard is None:
            return ElementCursor(parent, apply, named)
        return GuardedCursor(parent, apply, named, guard, (guard.path, lane.number, lane.base, epoch), drop)


def with_default(top: Node, policy: OnError, over_raising: bool = False) -> Node:
    """The same pipeline, where functions follow this policy whose node says nothing of errors; with `over_raising`,
    those as well whose node says that errors are raised."""
    made: dict[int, Node] = {}

    def changed(node: Node) -> Node:
        found = made.get(id(node))
        if found is None:
            found, parents = node, tuple(map(changed, node.parents))
            due = isinstance(node, Fallible) and (
                node.on_error is None or (over_raising and node.on_error.raises)
            )  # fmt: skip
            if due or any(new is not old for new, old in zip(parents, node.parents, strict=True)):
                found = copy.copy(node)
                found.parents = parents
            if isinstance(found, Fallible) and due:
                found.on_error = policy
            made[id(node)] = found
        return found

    return changed(top)
