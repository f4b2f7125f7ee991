from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.cache.eviction import MARGIN, stamp, victims
from dload.cache.inventory import Entry, Kind
from dload.testing.scans import Epochs, least_recently_used, optimum, orders, uses

SHARDS, ROOM, EPOCHS = 100, 60, 10


def entry(name: str, mtime: float, kind: Kind = "shard") -> Entry:
    return Entry(kind, name, 1, 1, mtime)


def test_the_farthest_from_now_goes_first_on_either_side() -> None:
    entries = [entry("soon", 110), entry("far ahead", 300), entry("overdue", -50), entry("just used", 100)]
    assert [victim.name for victim in victims(entries, 100)] == ["far ahead", "overdue", "soon", "just used"]


def test_where_nothing_is_expected_the_rule_is_lru() -> None:
    entries = [entry("b", 20), entry("a", 10), entry("c", 30)]
    assert [victim.name for victim in victims(entries, 1000)] == ["a", "b", "c"]


def test_unfinished_downloads_go_first_manifests_last_other_files_never() -> None:
    entries = [
        entry("m", 0, "manifest"), entry("s", 900, "shard"), entry("k", 500, "keys"),
        entry("p", 1000, "partial"), entry("lock", 0, "other"),
    ]  # fmt: skip
    assert [victim.name for victim in victims(entries, 1000)] == ["p", "k", "s", "m"]


@given(st.lists(st.floats(-1e9, 1e9), max_size=20), st.floats(-1e9, 1e9))
@settings(max_examples=50)
def test_the_order_depends_on_the_set_alone(times: list[float], now: float) -> None:
    entries = [entry(f"{number:02}", mtime) for number, mtime in enumerate(times)]
    shuffled = random.Random(0).sample(entries, len(entries))
    assert victims(shuffled, now) == victims(entries, now)


def test_a_release_stamps_the_next_use_with_a_margin() -> None:
    assert stamp(1000, 100, current=900) == 1000 + MARGIN * 100
    assert stamp(1000, None, current=900) == 1000


def test_a_release_keeps_the_nearer_stamp_of_another_job() -> None:
    assert stamp(1000, 100, current=1010) == 1010
    assert stamp(1000, 10, current=5000) == 1000 + MARGIN * 10


# ---- simulation: 100 equal shards, room for 60, ten epochs


def simulated(epochs: Epochs, estimate: Callable[[float], float | None], stall: Callable[[int], float]) -> int:
    """GETs of a cache that keeps to `victims` and `stamp`. A step takes one second, and `stall(step)` more; the
    estimate, made of the steps until the next use, may be wrong.
    """
    resident: dict[int, float] = {}
    gets, now = 0, 0.0
    for step, (shard, ahead) in enumerate(uses(epochs)):
        if shard not in resident:
            gets += 1
            if len(resident) == ROOM:
                first = victims((entry(str(number), mtime) for number, mtime in resident.items()), now)[0]
                del resident[int(first.name)]
        now += 1 + stall(step)
        resident[shard] = stamp(now, estimate(min(ahead, 1e6)), current=now - 1)
    return gets


def never(_: int) -> float:
    return 0


@pytest.mark.parametrize("shuffled", [False, True], ids=["fixed", "shuffled"])
def test_case_c44_cyclic_scans_within_a_tenth_of_the_optimum(shuffled: bool) -> None:
    epochs = orders(SHARDS, EPOCHS, shuffled=shuffled)
    best = optimum(epochs, ROOM)
    assert simulated(epochs, lambda ahead: ahead, never) <= 1.1 * best
    untold = simulated(epochs, lambda _: None, never)
    assert untold == least_recently_used(epochs, ROOM) > 1.5 * best


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shuffled", [False, True], ids=["fixed", "shuffled"])
def test_case_c44_estimates_that_are_wrong_cost_little(shuffled: bool, seed: int) -> None:
    rng = random.Random(seed)
    epochs = orders(SHARDS, EPOCHS, shuffled=shuffled, seed=seed)
    found = simulated(epochs, lambda ahead: ahead * rng.uniform(0.7, 1.5), never)
    assert found <= 1.1 * optimum(epochs, ROOM)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shuffled", [False, True], ids=["fixed", "shuffled"])
def test_stalls_cost_little(shuffled: bool, seed: int) -> None:
    """Now and then nothing goes on for as long as a fifth of an epoch takes; the estimates know the pace so far."""
    rng = random.Random(seed)
    epochs = orders(SHARDS, EPOCHS, shuffled=shuffled, seed=seed)
    passed = {"seconds": 0.0, "steps": 0}

    def stall(_: int) -> float:
        seconds = SHARDS / 5 if rng.random() < 0.01 else 0
        passed["seconds"] += 1 + seconds
        passed["steps"] += 1
        return seconds

    found = simulated(epochs, lambda ahead: ahead * passed["seconds"] / max(1, passed["steps"]), stall)
    assert found <= 1.1 * optimum(epochs, ROOM)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=300), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_any_plan_comes_near_the_optimum(demand: list[int], room: int) -> None:
    resident: dict[int, float] = {}
    gets = 0
    for step, (shard, ahead) in enumerate(uses([demand])):
        if shard not in resident:
            gets += 1
            if len(resident) == room:
                rest = [entry(str(number), mtime) for number, mtime in resident.items()]
                del resident[int(victims(rest, step)[0].name)]
        resident[shard] = stamp(step, min(ahead, 1e6), current=step)
    assert optimum([demand], room) <= gets <= 1.1 * optimum([demand], room) + 1
