"""Hashes, the small generator and permutations: their values are the same everywhere, and random enough."""

from __future__ import annotations

import copy
import pickle
import random
from collections import Counter
from itertools import permutations
from math import factorial, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload import randomness
from dload.randomness import Permutation, SplitMix, hash64, random_order, seeded, seeded_rng


# ---------------------------------------------------------------- golden values: any Python must give these
def test_hashes_are_the_same_everywhere() -> None:
    assert hash64() == 14917739426281197975
    assert hash64(7, (3,), "speech", b"x", 0.5, None) == 16527208093325105958


def test_seeds_are_those_of_dload_ml_0_3() -> None:
    assert seeded("a") == 7894844254800593944
    assert seeded("a", "crop") == 1623796956080685366
    assert seeded() == 3330666440490685604
    assert seeded(1, 2.5, None) == 1591041790041902393
    assert seeded(b"x") == 1890342079729613135
    assert seeded("é") == 14735765636086067814
    assert type(seeded_rng("a", "crop")) is random.Random
    assert seeded_rng("a", "crop").random() == 0.23256677130645997


def test_the_small_generator_is_the_same_everywhere() -> None:
    rng = SplitMix(1234567)
    # The reference values of splitmix64 for this seed, as in the Rosetta Code task of that name.
    assert [rng.getrandbits(64) for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    rng = SplitMix("sample")
    assert (rng.random(), rng.getrandbits(5), rng.getrandbits(70)) == (0.800499568014842, 24, 260503672372487646283)


def test_orders_and_permutations_are_the_same_everywhere(numpy: bool) -> None:
    assert random_order(10, hash64("order")) == [2, 7, 5, 1, 4, 6, 3, 0, 8, 9]
    assert hash64(random_order(1000, hash64("long"))) == 13088048770333918042
    assert Permutation(10, 5).many(range(10)) == [7, 2, 3, 5, 4, 8, 0, 1, 9, 6]
    assert Permutation(10**6, 5).many(range(20)) == [
        554812,
        81758,
        353123,
        776219,
        854210,
        264225,
        126669,
        558065,
        786378,
        239784,
        151873,
        792198,
        764811,
        891858,
        787638,
        467201,
        800063,
        753419,
        274591,
        22280,
    ]
    assert Permutation(2**61 + 9, 5).many(range(16)) == [
        1297883328540650084,
        1077947592733427526,
        1933821411581609519,
        2258952451486933074,
        2055090055533789077,
        6419155398941065,
        573057207265402854,
        2225830979462773091,
        298990744113400995,
        566249948881789260,
        2239587887424571388,
        1721988107925711549,
        2099636634893980421,
        1518224048397729437,
        847735916117188297,
        2262499080658511121,
    ]


# ---------------------------------------------------------------- hashes
def test_a_hash_fills_two_words_and_hangs_on_every_part() -> None:
    values = [hash64("a", i, j) for i in range(50) for j in range(50)]
    assert len(set(values)) == 2500
    assert all(value >> 63 == 1 and value < 1 << 64 for value in values)
    assert hash64("ab") != hash64("a", "b")


# ---------------------------------------------------------------- SplitMix
def test_a_generator_pickles_copies_and_starts_again() -> None:
    rng = SplitMix(3)
    rng.gauss(0, 1)  # keeps its second value for the next call
    others = [pickle.loads(pickle.dumps(rng)), copy.deepcopy(rng)]
    state = rng.getstate()
    want = [rng.gauss(0, 1), rng.random(), rng.gauss(0, 1)]
    for other in others:
        assert [other.gauss(0, 1), other.random(), other.gauss(0, 1)] == want
    rng.setstate(state)
    assert [rng.gauss(0, 1), rng.random(), rng.gauss(0, 1)] == want
    rng.seed(3)
    assert rng.random() == SplitMix(3).random()
    rng.seed("word")
    assert rng.random() == SplitMix("word").random()


@settings(deadline=None)
@given(st.integers(0, 200), st.integers())
def test_bits_are_as_many_as_asked_for(k: int, seed: int) -> None:
    assert 0 <= SplitMix(seed).getrandbits(k) < 1 << k


def test_negative_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        SplitMix(0).getrandbits(-1)


def test_it_draws_evenly() -> None:
    """From one generator, and the first draw of many, as samples use it."""
    rng = SplitMix(1)
    for draws in ([rng.random() for _ in range(20_000)], [SplitMix(hash64(i)).random() for i in range(20_000)]):
        counts = Counter(int(x * 20) for x in draws)
        assert sum((counts[i] - 1000) ** 2 / 1000 for i in range(20)) < 60  # 19 degrees of freedom: chance 4e-6
        assert all(0 <= x < 1 for x in draws)
    counts = Counter(rng.randrange(7) for _ in range(14_000))
    assert sum((counts[i] - 2000) ** 2 / 2000 for i in range(7)) < 40


# ---------------------------------------------------------------- permutations
@pytest.mark.parametrize("table", [0, 1024], ids=["rounds", "table"])
def test_it_is_a_bijection_for_every_n(numpy: bool, table: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Permutation, "_TABLE", table)
    for n in range(400):
        permutation = Permutation(n, hash64(n))
        numbers = permutation.many(range(n))
        assert sorted(numbers) == list(range(n)), n
        assert len(permutation) == n
        if n % 37 == 0:
            assert [permutation(i) for i in range(n)] == numbers


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2000, 1 << 70), key=st.integers(0, 1 << 64), data=st.data())
def test_large_ones_are_injective_and_one_with_and_without_numpy(n: int, key: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, n - 1), min_size=20, max_size=60, unique=True))
    permutation = Permutation(n, key)
    numbers = permutation.many(places)
    assert len(set(numbers)) == len(places)
    assert all(0 <= number < n for number in numbers)
    assert [permutation(place) for place in places] == numbers
    assert permutation.many(range(n - 20, n)) == [permutation(i) for i in range(n - 20, n)]


def test_a_large_one_covers_all(numpy: bool) -> None:
    assert sorted(Permutation(30_011, 9).many(range(30_011))) == list(range(30_011))


def test_places_outside_are_refused(numpy: bool) -> None:
    for n in (0, 5, 5000):
        permutation = Permutation(n, 1)
        for place in (-1, n):
            with pytest.raises(IndexError, match=f"{place} of a permutation of {n} "):
                permutation(place)
            with pytest.raises(IndexError, match=f"{place} of a permutation of {n} "):
                permutation.many([place] * 20)
    with pytest.raises(ValueError, match="-1"):
        Permutation(-1, 1)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_small_permutations_are_equally_likely(n: int) -> None:
    tries = 50 * factorial(n)
    counts = Counter(tuple(Permutation(n, hash64("uniform", n, k)).many(range(n))) for k in range(tries))
    squares = sum((counts[p] - 50) ** 2 / 50 for p in permutations(range(n)))
    freedom = factorial(n) - 1
    assert squares < freedom + 5 * sqrt(2 * freedom) + 10


def test_large_permutations_look_uniform() -> None:
    """Where one place goes, where its neighbour goes from there, and how far rows are moved."""
    n, keys = 2000, 2000
    first, step, moved = Counter[int](), Counter[int](), 0
    for k in range(keys):
        permutation = Permutation(n, hash64("large", k))
        a, b = permutation(777), permutation(778)
        first[a * 20 // n] += 1
        step[(b - a) % n * 20 // n] += 1
        moved += abs(a - 777)
    for counts in (first, step):
        assert sum((counts[i] - 100) ** 2 / 100 for i in range(20)) < 60
    mean = sum(abs(i - 777) for i in range(n)) / n
    assert abs(moved / keys - mean) < 50  # four standard errors


def test_a_random_order_is_one_with_and_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    keys = [hash64(i) for i in range(20)]
    monkeypatch.setattr(randomness, "HAVE_NUMPY", True)
    fast = [random_order(n, key) for key in keys for n in (0, 1, 65, 700)]
    monkeypatch.setattr(randomness, "HAVE_NUMPY", False)
    assert [random_order(n, key) for key in keys for n in (0, 1, 65, 700)] == fast
    assert all(sorted(order) == list(range(len(order))) for order in fast)
