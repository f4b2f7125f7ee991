"""Users' values as JSON, for states: copied, exact, bounded, and refused with a reason where they can't be."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

from dload.errors import ConfigError

LIMIT = 1 << 16
"""A state is small: about so many characters of one user's value at most."""


_REMEDY = "keep numbers, texts, lists, tuples and dicts with text keys in it, and few of them"


class Late(ABC):
    """Stands in a state for what is known only when the state is taken out."""

    __slots__ = ()

    @abstractmethod
    def value(self) -> Any:
        """What stands there, as JSON."""


class NoState:
    """Stands in a state where there is none, and says why. Only who asks for the whole state gets to hear of it."""

    def __init__(self, reason: str, remedy: str = _REMEDY) -> None:
        self.reason, self.remedy = reason, remedy

    def error(self) -> ConfigError:
        """What to raise."""
        return ConfigError(f"this pipeline has no state: {self.reason}", remedy=self.remedy)


def frozen(value: Any, what: str) -> Any:
    """A copy of the value as JSON, from which `thawed` makes an equal one; NoState where that can't be."""
    try:
        return _frozen(value, [LIMIT])
    except (TypeError, ValueError) as error:
        return NoState(f"{what} {error}")


def _frozen(value: Any, left: list[int]) -> Any:
    left[0] -= len(value) if type(value) is str else 8
    if left[0] < 0:
        raise ValueError(f"is larger than {LIMIT:,} characters")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_frozen(item, left) for item in value]
    if type(value) is tuple:
        return {"tuple": [_frozen(item, left) for item in value]}
    if type(value) is dict:
        if not all(type(key) is str for key in value):
            raise TypeError("has a dict whose keys aren't all text")
        return {"dict": {key: _frozen(item, left) for key, item in value.items()}}
    raise TypeError(f"has a {type(value).__name__} in it")


def thawed(state: Any) -> Any:
    """The value that was frozen. Raises ConfigError for NoState, ValueError for what isn't a frozen value."""
    if isinstance(state, NoState):
        raise state.error()
    if isinstance(state, list):
        return [thawed(item) for item in state]
    if isinstance(state, dict):
        match state:
            case {"tuple": list(items), **rest} if not rest:
                return tuple(thawed(item) for item in items)
            case {"dict": dict(items), **rest} if not rest:
                return {key: thawed(item) for key, item in items.items()}
        raise ValueError(f"not a saved value: {state!r}")
    return state


def exported(state: Any) -> Any:
    """A copy of a state, which must be plain JSON. Raises ConfigError, with the reason, where a part of it has no
    state."""
    return json.loads(json.dumps(state, default=_refused))


def exported_or_none(state: Any) -> Any:
    """A copy of a state, as `exported` gives it; the NoState that says why, where there is none."""
    reasons: list[NoState] = []

    def plain(value: Any) -> Any:
        if isinstance(value, NoState):
            reasons.append(value)
            return None
        return _refused(value)

    text = json.dumps(state, default=plain)
    return reasons[0] if reasons else json.loads(text)


def _refused(value: Any) -> Any:
    if isinstance(value, Late):
        return value.value()
    if isinstance(value, NoState):
        raise value.error()
    raise TypeError(f"a {type(value).__name__} in a state")
