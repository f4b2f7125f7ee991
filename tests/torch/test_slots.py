"""Values left in shared memory by one process for another; here both are this one."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.torch.slots import Slots


def sent(slots: Slots, value: Any) -> Any:
    parcel = slots.put(value)
    assert parcel is not None
    data = pickle.dumps(parcel)
    assert len(data) < 400, "what goes through the pipe is small"
    return pickle.loads(data)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.binary(max_size=100_000), max_size=3), max_size=8))
def test_whatever_sizes_come_after_one_another_arrive(values: list[list[bytes]]) -> None:
    slots = Slots(2)
    taken = [sent(slots, value) for value in values]
    assert taken == values, "none of them is written over"


def test_slots_are_taken_until_they_are_read() -> None:
    slots = Slots(2)
    first, second = slots.put("first"), slots.put(b"2" * 500_000)
    assert slots.put("third") is None
    assert pickle.loads(pickle.dumps(first)) == "first"
    third = slots.put("third")
    assert pickle.loads(pickle.dumps(second)) == b"2" * 500_000
    assert pickle.loads(pickle.dumps(third)) == "third"


def test_what_can_not_be_pickled_takes_no_slot() -> None:
    slots = Slots(1)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        slots.put([b"x" * 100_000, lambda: 1])
    assert sent(slots, "fine") == "fine"


def test_arrays_and_tensors_are_copies_that_can_be_written() -> None:
    slots = Slots(1)
    array, tensor = np.arange(100_000), torch.arange(100_000, dtype=torch.float32).view(-1, 2)[::3]
    found = sent(slots, {"array": array, "tensor": tensor, "read-only": np.frombuffer(b"1" * 99, np.uint8)})
    sent(slots, bytes(2_000_000))
    assert np.array_equal(found["array"], array)
    assert torch.equal(found["tensor"], tensor)
    assert found["read-only"].tobytes() == b"1" * 99
    found["array"] += 1
    found["tensor"] += 1


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2, requires_grad=True), torch.eye(3).to_sparse(), torch.nn.Parameter(torch.ones(2)), torch.ones(0, 3)],
)
def test_tensors_that_are_more_than_numbers_arrive_as_torch_sends_them(tensor: torch.Tensor) -> None:
    found = sent(Slots(1), [tensor])[0]
    assert type(found) is type(tensor)
    assert found.requires_grad == tensor.requires_grad
    assert torch.equal(found.to_dense(), tensor.to_dense())
