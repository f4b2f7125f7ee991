"""What becomes of elements whose function fails: policies, what they left out, and where that was."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dload.errors import ConfigError, TooManyFailuresError
from dload.pipeline.plain import Late
from dload.pipeline.promises import ClosedError

if TYPE_CHECKING:
    from dload.pipeline.node import Node
    from dload.pipeline.running import Epoch, Run

_WAYS = ("raise", "skip", "warn", "hole")
_LISTED = 100  # elements left out that are listed; all are counted
_RECENT = 4096  # places of the latest failures: what fails again there isn't counted again
_log = logging.getLogger("dload.pipeline")

Decide = Callable[[Exception, Any], Any]


class Spared:
    """Elements that were stepped over once, whose errors leave a HOLE wherever they are met again: pairs of the path of
    the node that failed and the element's identity, which no lane or resume changes. While it is `learning`, all that
    fail are among them.

    The latest are kept: an element is met again only as long as something holds it.
    """

    _MOST = 1000

    def __init__(self, pairs: Iterable[Sequence[Any]] = (), learning: bool = False) -> None:
        self._pairs = dict.fromkeys((path, name) for path, name in pairs)
        self._learning = learning

    def covers(self, path: str, name: int) -> bool:
        """Whether the failure of this element at this node is among them."""
        if self._learning:
            self._pairs[path, name] = None
        return (path, name) in self._pairs

    def pairs(self) -> list[list[Any]]:
        """As JSON."""
        return [list(pair) for pair in self._pairs][-self._MOST :]


@dataclass(frozen=True, slots=True)
class OnError:
    """`how`: "raise", "skip", "warn" (skip, and log), "hole", a function that says of an exception and its element
    whether that is left out, or those whose errors are `Spared`. `in_place`: a HOLE stays where the element was.
    `fail_after` failures in a row end it."""

    how: str | Decide | Spared
    in_place: bool
    fail_after: int = 100

    @property
    def raises(self) -> bool:
        return self.how == "raise"

    @property
    def skips(self) -> bool:
        """Whether what is left out leaves no place behind, so that places aren't known any more."""
        return not self.raises and not self.in_place


def on_error_given(how: object, fail_after: object, *, in_place: bool = False) -> OnError | None:
    """The policy that a user gave; None where none was. Raises ConfigError. `in_place`: whatever leaves an element out
    keeps its place."""
    if isinstance(fail_after, bool) or not isinstance(fail_after, int) or fail_after < 1:
        raise ConfigError(f"fail_after is a number of failures in a row, at least 1, got {fail_after!r}")
    if how is None:
        return None
    if not (callable(how) or (isinstance(how, str) and how in _WAYS)):
        ways = ", ".join(f'"{way}"' for way in _WAYS)
        raise ConfigError(
            f"on_error is {how!r}", remedy=f"give one of {ways}, or a function fn(exception, element) -> bool"
        )
    return OnError(how, in_place or how == "hole", fail_after)


Origin = tuple["Node", "Epoch", int]
"""Where an element is: a node of the index tier, the epoch, and its place there."""


class Failed(NamedTuple):
    """An element whose function failed. `origin`: where it is, or what it was made of, if that is known. `name`: gives
    its identity, where that isn't the one of its origin."""

    error: Exception
    item: Any
    origin: Origin | None = None
    name: Callable[[], int] | None = None


class Failures:
    """What was left out in this process: counted, and the first of it listed."""

    def __init__(self) -> None:
        self.rows = 0
        """How many elements were left out."""
        self.listed: list[dict[str, str]] = []
        """Of the first, each once: the node, the data set, the element's key, the error."""
        self.streaks: dict[str, int] = {}
        """Failures in a row, by the node's path."""
        self._passes: dict[Hashable, int] = {}  # how far a pass has come, as to what it leaves out
        self._recent: dict[Hashable, None] = {}

    def passed(self, key: Hashable, position: int) -> bool:
        """A pass has left out the element at a position. Says whether that is news: a pass may go over the same
        elements again."""
        if position <= self._passes.get(key, -1):
            return False
        self._passes[key] = position
        return True

    def is_news(self, where: Hashable) -> bool:
        """Whether this failure was unknown before; now it is known."""
        if where in self._recent:
            return False
        while len(self._recent) >= _RECENT:
            del self._recent[next(iter(self._recent))]
        self._recent[where] = None
        return True

    def add(self, node: str, data: str, key: str, error: Exception) -> None:
        """One more was left out."""
        self.rows += 1
        if len(self.listed) < _LISTED:
            entry = {"node": node, "data": data, "key": key, "error": said(error)}
            if entry not in self.listed:
                self.listed.append(entry)


class Guard:
    """A policy at work at one node, in one run."""

    def __init__(self, node: Node, policy: OnError, run: Run) -> None:
        self.policy, self.failures = policy, run.failures
        self.path = run.paths.get(id(node), node.kind)
        self._node, self._run = node, run

    def fine(self) -> None:
        """An element didn't fail."""
        self.failures.streaks[self.path] = 0

    def leave_out(
        self, failed: Failed, size: int = 1, count: int = 1, is_news: Callable[[Failed], bool] | None = None
    ) -> None:
        """An element failed, of a batch of `size` of which `count` fail (0: that was logged before). Raises its error,
        where the policy doesn't leave it out; TooManyFailuresError after too many in a row.

        `is_news`: says whether it wasn't known before.
        """
        how, failures = self.policy.how, self.failures
        if isinstance(failed.error, ConfigError | ClosedError) or not self._is_left_out(failed):
            raise failed.error
        self._count_streak(failed)
        if is_news(failed) if is_news else self._is_news(failed.origin):
            data = self.data(failed.origin)
            failures.add(self.label, data, key_of(failed.item), failed.error)
            if count and how == "warn":
                _log.warning(
                    "%s: %d of %d elements failed and are left out; the first: %s (key %s, data set %s)",
                    self.label, count, size, said(failed.error), key_of(failed.item), data,
                )  # fmt: skip

    def _is_left_out(self, failed: Failed) -> bool:
        how = self.policy.how
        if isinstance(how, Spared):
            return how.covers(self.path, self._name(failed))
        return not callable(how) or bool(how(failed.error, failed.item))

    def _name(self, failed: Failed) -> int:
        """The identity of what failed."""
        if failed.name is not None:
            return failed.name()
        assert failed.origin is not None
        node, epoch, place = failed.origin
        return node.identities(self._run, epoch, [place])[0]

    def _is_news(self, origin: Origin | None) -> bool:
        return origin is None or self.failures.is_news((self.path, *origin[1:]))

    def _count_streak(self, failure: Failed) -> None:
        limit = self.policy.fail_after
        streak = self.failures.streaks.get(self.path, 0) + 1
        if streak >= limit:
            raise TooManyFailuresError(
                f"{self.label}: {limit} elements in a row failed, the last (key {key_of(failure.item)}, data set "
                f"{self.data(failure.origin)}) with {said(failure.error)}",
                remedy="mend the function or the data, or raise fail_after",
            ) from failure.error
        self.failures.streaks[self.path] = streak

    @property
    def label(self) -> str:
        """The node, in words."""
        functions = self._node.functions()
        name = getattr(functions[0], "__qualname__", type(functions[0]).__qualname__) if functions else ""
        return f"{self._node.kind}({name})"

    def data(self, origin: Origin | None) -> str:
        """The data sets that an element may be from."""
        from dload.pipeline.state import versions

        found = versions(self._node)
        if origin is not None and len(found) > 1:
            node, epoch, place = origin
            sources = {need.source.manifest.version for need in node.demand(self._run, epoch, place, place + 1)}
            found = [pair for pair in found if pair[1] in sources]
        return " or ".join(f"{name}@{version[:12]}" for name, version in found) or "none"


def said(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def key_of(item: Any) -> str:
    """A sample's key; of anything else the beginning of its repr."""
    if isinstance(item, tuple) and item and isinstance(item[0], str):
        return item[0]
    return reprlib.repr(item)


class Skip(Late):
    """A position that a pass has left out, and by `next` all those behind it.

    A state holds the last one before it. So it comes to have those that are left out while it is held, for elements
    that are read again from there, and nobody holds those that no state needs.
    """

    __slots__ = ("next", "position")

    def __init__(self, position: int, following: Skip | None = None) -> None:
        self.position, self.next = position, following

    @classmethod
    def chain(cls, positions: Sequence[int]) -> Skip:
        """What stands before these positions."""
        following = None
        for position in reversed(positions):
            following = cls(position, following)
        return cls(-1, following)

    def add(self, position: int) -> Skip:
        """Behind this one another; returns that."""
        self.next = Skip(position, self.next)
        return self.next

    def value(self) -> list[int]:
        """All positions behind this one."""
        found, following = [], self.next
        while following is not None:
            found.append(following.position)
            following = following.next
        return found


def skipped_before(state: Any) -> int:
    """How many elements were skipped up to the time of a lane's state, in the passes that it is in."""
    if isinstance(state, list):
        return sum(map(skipped_before, state))
    if isinstance(state, dict) and state.keys() == {"below", "at", "total", "skipped"}:  # else a value of the user's
        return int(state["total"]) + len(state["skipped"]) + skipped_before(state["below"])
    return 0
