"""The default collate: torch's where torch has one, lists where it raises."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from dload.torch import collate

Point = namedtuple("Point", ["x", "y"])

ALIKE: list[Any] = [
    1, 2.5, True, "text", b"bytes", (1, "a"), [1.5, b"x"], {"a": 1, "b": {"c": "d"}}, torch.ones(2, 3),
    np.ones((2, 3), np.float32), np.float32(2), np.int16(4), Point(1, torch.zeros(2)), ("key", {"x": b"1", "y": b"2"}),
    torch.tensor(3), {"deep": [{"x": (torch.ones(1), 2)}]},
]  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("row", ALIKE, ids=repr)
def test_what_torch_can_collate_comes_as_torch_collates_it(row: Any) -> None:
    expected, found = default_collate([row] * 3), collate([row] * 3)
    assert same(found, expected), (found, expected)
    assert hasattr(found, "_fields") == hasattr(expected, "_fields")


def test_samples_become_keys_and_columns() -> None:
    rows = [("a", {"x": b"1", "y": b"2"}), ("b", {"x": b"3", "y": b"4"})]
    assert collate(rows) == [["a", "b"], {"x": [b"1", b"3"], "y": [b"2", b"4"]}]


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": 1}, {"b": 1}], [(1, 2), (1,)], [1, "a"], [1, None], [None, None], [1 << 70, 1], [object, object],
        [np.array(["a"]), np.array(["b"])],
    ],
    ids=repr,
)  # fmt: skip
def test_what_can_not_be_stacked_stays_a_list(rows: list[Any]) -> None:
    assert collate(rows) == rows


def test_arrays_of_other_shapes_or_types_stay_a_list() -> None:
    for rows in ([torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(2, dtype=torch.int64)]):
        assert collate(rows) is not rows
        assert same(collate(rows), rows)
    assert [len(row) for row in collate([np.ones(2), np.ones(3)])] == [2, 3]
    assert same(collate([("k", np.ones(2)), ("l", np.ones(3))])[0], ["k", "l"])
