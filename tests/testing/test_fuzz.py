"""What the fuzzer feeds, fed by hypothesis: the targets take their seeds, and what is made of them. The fuzzer itself,
guided by coverage, for an hour, with the extra `fuzz`:

python -m dload.testing.fuzz --minutes 60
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.errors import DloadError
from dload.testing.fuzz import TARGETS, Target, fed

REFUSED = {"names": 2}  # seeds that reach out of their folder


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_are_good_input(name: str) -> None:
    refused = 0
    for seed in TARGETS[name].seeds():
        try:
            TARGETS[name].run(seed)
        except DloadError:
            refused += 1
    assert refused == REFUSED.get(name, 0)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_made_of_them_is_read_or_refused(name: str) -> None:
    seeds = list(TARGETS[name].seeds())

    @settings(max_examples=60, deadline=None)
    @given(st.sampled_from(seeds), st.integers(0, 1 << 12), st.integers(0, 8), st.binary(max_size=8))
    def mutated(seed: bytes, at: int, length: int, middle: bytes) -> None:
        at %= len(seed) + 1
        fed(TARGETS[name], seed[:at] + middle + seed[at + length :])

    mutated()


def test_what_breaks_is_noticed() -> None:
    def breaks(data: bytes) -> None:
        raise IndexError(data)

    with pytest.raises(IndexError):
        fed(Target(breaks, list), b"")
