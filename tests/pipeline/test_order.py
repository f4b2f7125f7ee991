"""An epoch's order: against the model, exact seeks, homes, what demand promises, and golden values."""

from __future__ import annotations

import gc
import random
import weakref
from itertools import accumulate, pairwise
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload import randomness
from dload.pipeline.order import DisplacedOrder, FullOrder, home_starts, left_out
from dload.randomness import hash64
from tests.models.lanes import Grid
from tests.models.order import Order

SIZES = st.lists(st.integers(0, 40) | st.integers(60, 90), max_size=12)
N = st.sampled_from([0, 1, 5, 40, 300, 5000])


def drawn(rng: random.Random) -> tuple[list[int], int, tuple[int, ...], int, int]:
    """Sizes, seed, epoch, homes, n."""
    sizes = [rng.choice([0, 1, rng.randint(1, 40), rng.randint(64, 150)]) for _ in range(rng.randint(0, 25))]
    epoch = tuple(rng.randrange(4) for _ in range(rng.randint(1, 3)))
    return sizes, rng.getrandbits(70), epoch, rng.choice([1, 2, 3, 8]), rng.choice([0, 1, 5, 40, 300, 5000])


def pieces(order: DisplacedOrder, homes: int) -> list[list[tuple[int, int, int]]]:
    """(unit, low, high) of each home, in the epoch's order."""
    return [[order.home(h).piece(s) for s in range(len(order.home(h).units))] for h in range(homes)]


# ---------------------------------------------------------------- golden values: any Python must give these
def test_orders_are_the_same_everywhere(numpy: bool) -> None:
    assert DisplacedOrder([5, 0, 9, 4, 7], 3, (2,), 2, 4).places(0, 25) == [
        16,
        17,
        14,
        11,
        15,
        12,
        6,
        8,
        10,
        7,
        5,
        9,
        4,
        2,
        1,
        3,
        22,
        0,
        23,
        20,
        19,
        18,
        21,
        13,
        24,
    ]
    assert hash64(DisplacedOrder([100] * 90, 3, (2, 1), 3, 500).places(0, 9000)) == 13496013394411988403
    assert FullOrder(11, 3, (0,), 2).places(0, 11) == [4, 2, 3, 1, 0, 5, 6, 7, 8, 10, 9]
    assert [left_out(3, (epoch,), 1003, 10, 1) for epoch in range(3)] == [((880, 3),), ((405, 3),), ((589, 3),)]
    assert left_out(3, (0,), 1003, 10, 2) == ((226, 1), (727, 2))


# ---------------------------------------------------------------- the order itself
def test_it_is_the_models_order_of_the_same_units(numpy: bool) -> None:
    rng = random.Random(1)
    for _ in range(60):
        sizes, seed, epoch, homes, n = drawn(rng)
        order = DisplacedOrder(sizes, seed, epoch, homes, n)
        model = Order(sizes, seed, epoch, home_starts(homes, sum(sizes)), n)  # type: ignore[arg-type]
        model.units = pieces(order, homes)
        model.offsets = [list(accumulate((b - a for _, a, b in units), initial=0)) for units in model.units]
        rows = model.rows(0, sum(sizes))
        assert order.places(0, len(order)) == [order.starts[unit] + row for unit, row in rows]


def test_equal_keys_come_by_place(numpy: bool) -> None:
    """Behind a unit of 2**52 rows doubles are whole numbers, and many keys are equal."""
    sizes = [1 << 52] + [100] * 30
    seed = next(s for s in range(99) if DisplacedOrder(sizes, s, (0,), 1, 50).home(0).units[0] == 0)
    order = DisplacedOrder(sizes, seed, (0,), 1, 50)
    start = (1 << 52) + 1000
    units = order.home(0).units
    keyed = []
    for s, unit in enumerate(units[1:]):
        draw = random.Random(hash64(seed, (0,), 0, unit)).random
        u, v = [draw() for _ in range(100)], [draw() for _ in range(100)]
        q = float((1 << 52) + 100 * s)
        keyed += [(q + 100 * a + 50 * b, order.starts[unit] + i) for i, (a, b) in enumerate(zip(u, v, strict=True))]
    keyed.sort()
    assert len({key for key, _ in keyed}) < 0.8 * len(keyed)
    assert order.places(start, start + 1500) == [place for _, place in keyed[1000:2500]]


def test_both_ways_of_drawing_give_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    rng = random.Random(2)
    for _ in range(40):
        given_ = drawn(rng)
        monkeypatch.setattr(randomness, "HAVE_NUMPY", True)
        fast = DisplacedOrder(*given_).places(0, sum(given_[0]))
        monkeypatch.setattr(randomness, "HAVE_NUMPY", False)
        assert DisplacedOrder(*given_).places(0, sum(given_[0])) == fast
        assert sorted(fast) == list(range(sum(given_[0])))


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, n=N, homes=st.integers(1, 5), full=st.booleans(), data=st.data())
def test_any_range_and_any_positions_are_parts_of_the_whole(
    sizes: list[int], n: int, homes: int, full: bool, data: st.DataObject
) -> None:
    def new() -> DisplacedOrder | FullOrder:
        return FullOrder(sum(sizes), 4, (1,), homes) if full else DisplacedOrder(sizes, 4, (1,), homes, n)

    T, order = sum(sizes), new()
    whole = new().places(0, T)
    assert sorted(whole) == list(range(T))
    cuts = sorted(data.draw(st.lists(st.integers(0, T), max_size=8)))
    ranges = list(pairwise([0, *cuts, T]))
    for start, stop in [*ranges, *data.draw(st.permutations(ranges)), (T, T)]:
        assert order.places(start, stop) == whole[start:stop]
    if T:
        positions = data.draw(st.lists(st.integers(0, T - 1), max_size=20))
        assert order.at(positions) == [whole[p] for p in positions]


def test_scattered_positions_over_many_blocks(numpy: bool) -> None:
    order = DisplacedOrder([700] * 300, 1, (0,), 2, 2000)
    whole = DisplacedOrder([700] * 300, 1, (0,), 2, 2000).places(0, 210_000)
    rng = random.Random(3)
    positions = [rng.randrange(210_000) for _ in range(600)] + list(range(104_000, 107_000))
    assert order.at(positions) == [whole[p] for p in positions]


def test_lanes_are_slices_and_each_unit_is_keyed_about_once(numpy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight lanes that go on side by side, as a worker reads them."""
    keyed = []
    order = DisplacedOrder([200] * 400, 1, (0,), 2, 1000)
    monkeypatch.setattr("dload.pipeline.order.hash64", lambda *parts: keyed.append(parts) or hash64(*parts))
    grid = Grid(64, 8)
    runs = [grid.run(lane, 0, 80_000) for lane in range(grid.lanes)]
    lanes: list[list[int]] = [[] for _ in runs]
    for at in range(0, 10_000, 250):
        for lane, (start, length) in enumerate(runs):
            lanes[lane] += order.places(start + at, start + min(at + 250, length))
    assert len(keyed) < 400 + 8 * 20
    assert [place for lane in lanes for place in lane] == DisplacedOrder([200] * 400, 1, (0,), 2, 1000).places(
        0, 80_000
    )


def test_who_leaves_out_a_few_goes_on_and_keys_each_unit_about_once(
    numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of several workers does, that share the batches."""
    keyed = []
    order = DisplacedOrder([200] * 400, 1, (0,), 2, 1000)
    monkeypatch.setattr("dload.pipeline.order.hash64", lambda *parts: keyed.append(parts) or hash64(*parts))
    found = [order.places(start, start + 64) for start in range(0, 79_900, 256)]
    assert len(keyed) < 400 + 20
    whole = DisplacedOrder([200] * 400, 1, (0,), 2, 1000).places(0, 80_000)
    assert found == [whole[start : start + 64] for start in range(0, 79_900, 256)]


def test_an_order_that_is_forgotten_is_gone_at_once() -> None:
    """It holds megabytes in few objects, so the garbage collector would leave many of them lying."""
    order = DisplacedOrder([200] * 40, 1, (0,), 2, 1000)
    order.places(0, 500)
    order.at([7000, 3000])
    gc.disable()
    try:
        forgotten = weakref.ref(order)
        del order
        assert forgotten() is None
    finally:
        gc.enable()


def test_positions_outside_are_refused() -> None:
    for order in (DisplacedOrder([3, 4], 0, (0,), 1, 2), FullOrder(7, 0, (0,), 1)):
        assert len(order) == 7
        for start, stop in ((-1, 3), (3, 8), (4, 3)):
            with pytest.raises(IndexError, match="of an order of 7"):
                order.places(start, stop)
            with pytest.raises(IndexError, match="of an order of 7"):
                list(order.demand(start, stop))
        for position in (-1, 7):
            with pytest.raises(IndexError, match="of an order of 7"):
                order.at([position])


def test_a_seek_keys_only_the_units_that_can_reach(numpy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    order = DisplacedOrder([1300] * 400, 1, (0,), 1, 4096)
    order.home(0)
    keyed = []
    monkeypatch.setattr("dload.pipeline.order.hash64", lambda *parts: keyed.append(parts) or hash64(*parts))
    order.places(260_000, 260_001)
    assert len(keyed) <= 8


# ---------------------------------------------------------------- homes
def test_homes_are_slices_of_a_base_order_that_epochs_share() -> None:
    rng = random.Random(5)
    for _ in range(30):
        sizes, seed, _, homes, n = drawn(rng)
        T, starts = sum(sizes), home_starts(homes, sum(sizes))
        contents = []
        for epoch in range(3):
            whole = DisplacedOrder(sizes, seed, (epoch,), homes, n).places(0, T)
            contents.append([set(whole[a:b]) for a, b in pairwise(starts)])
        assert contents[0] == contents[1] == contents[2]
        # Two homes, each cut into two, are four homes: there is one base order, whatever the number of homes.
        halves = pieces(DisplacedOrder(sizes, seed, (0,), 2, n), 2)
        quarters = pieces(DisplacedOrder(sizes, seed, (0,), 4, n), 4)
        rows = [{(unit, row) for unit, a, b in home for row in range(a, b)} for home in halves + quarters]
        for h in range(2):
            if T % 4 == 0:
                assert rows[h] == rows[2 + 2 * h] | rows[3 + 2 * h]


def test_epochs_seeds_and_homes_differ() -> None:
    def order(seed: int = 1, epoch: tuple[int, ...] = (0,), homes: int = 1) -> tuple[int, ...]:
        return tuple(DisplacedOrder([20] * 20, seed, epoch, homes, 30).places(0, 400))

    def full(seed: int = 1, epoch: tuple[int, ...] = (0,), homes: int = 1) -> tuple[int, ...]:
        return tuple(FullOrder(400, seed, epoch, homes).places(0, 400))

    for make in (order, full):
        different = {make(), make(seed=2), make(epoch=(1,)), make(epoch=(0, 0)), make(epoch=(0, 1)), make(homes=2)}
        assert len(different) == 6


def test_rows_are_spread_over_n_and_mixed_within() -> None:
    """Displacement behind the unit is about n / 2 on average, and neighbours mostly come from different units."""
    n, z = 1000, 100
    order = DisplacedOrder([z] * 100, 1, (0,), 1, n)
    rank = {unit: s for s, unit in enumerate(order.home(0).units)}
    units = [place // z for place in order.places(0, 10_000)]
    moved = [position - z * rank[unit] for position, unit in enumerate(units)][2000:8000]
    assert abs(mean(moved)) < 200  # all are delayed alike, so positions stay near the ranks
    assert max(moved) - min(moved) > n * 0.8
    assert mean(a == b for a, b in pairwise(units)) < 0.2


# ---------------------------------------------------------------- demand
@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, n=N, homes=st.integers(1, 4), data=st.data())
def test_demand_names_every_row_within_its_window(sizes: list[int], n: int, homes: int, data: st.DataObject) -> None:
    T = sum(sizes)
    order = DisplacedOrder(sizes, data.draw(st.integers(0, 99)), (0,), homes, n)
    start = data.draw(st.integers(0, T))
    stop = data.draw(st.integers(start, T))
    uses = list(order.demand(start, stop))
    assert [use[0] for use in uses] == sorted(use[0] for use in uses)
    for first, last, unit, low, high in uses:
        assert start <= first < last <= stop
        assert 0 <= low < high <= sizes[unit]
    for position, place in enumerate(order.places(start, stop), start):
        serving = [u for u in uses if order.starts[u[2]] + u[3] <= place < order.starts[u[2]] + u[4]]
        assert len(serving) == 1
        assert serving[0][0] <= position < serving[0][1]


def test_demand_is_of_about_n_rows_and_two_units_at_once() -> None:
    z, n = 1300, 4096
    order = DisplacedOrder([z] * 400, 1, (0,), 2, n)
    uses = list(order.demand(0, len(order)))
    assert len(uses) == 400
    most = max(sum(first <= p < last for first, last, *_ in uses) for p in range(0, len(order), 50))
    assert most <= -(-n // z) + 3
    for position, place in enumerate(order.places(0, len(order))):
        if position % 7 == 0:
            first, last = next(use[:2] for use in uses if use[2] == place // z)
            assert first <= position < last


def test_demand_is_lazy_and_begins_in_the_middle() -> None:
    order = DisplacedOrder([1000] * 100_000, 1, (0,), 1, 4096)
    first, last, unit, low, high = next(order.demand(50_000_000, 100_000_000))
    assert first == 50_000_000 < last < 50_010_000
    assert (low, high) == (0, 1000)
    assert unit in {place // 1000 for place in order.places(49_996_000, 50_004_000)}
    assert len(list(order.demand(50_000_000, 50_001_000))) <= 9


def test_demand_of_a_full_shuffle_is_everything_at_once() -> None:
    order = FullOrder(10, 1, (0,), 2)
    assert list(order.demand(2, 9)) == [(2, 5, 0, 0, 5), (5, 9, 0, 5, 10)]
    assert list(order.demand(6, 7)) == [(6, 7, 0, 5, 10)]
    assert list(order.demand(3, 3)) == []


# ---------------------------------------------------------------- rows that are left out
@settings(deadline=None)
@given(T=st.integers(0, 500), homes=st.integers(1, 5), c=st.integers(1, 20), seed=st.integers(0, 1 << 70))
def test_each_home_leaves_out_what_the_others_have_not(T: int, homes: int, c: int, seed: int) -> None:
    """So that all keep equally many, and whole batches together."""
    stretches = left_out(seed, (0,), T, homes * c, homes)
    assert sum(count for _, count in stretches) == T % (homes * c)
    gone = {place for first, count in stretches for place in range(first, first + count)}
    assert len(gone) == T % (homes * c)
    kept = [len(set(range(low, high)) - gone) for low, high in pairwise(home_starts(homes, T))]
    assert len(set(kept)) == 1


def test_what_is_left_out_moves_over_all_places() -> None:
    firsts = {left_out(1, (epoch,), 23, 5, 1)[0][0] for epoch in range(400)}
    assert firsts == set(range(21))
