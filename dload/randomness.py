"""Randomness that is a pure function of names and numbers: the same on every machine, process and Python version.

Nothing here has hidden state or draws from the system. NumPy makes some of it faster where it is installed and changes
no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b, sha256
from importlib.util import find_spec
from math import isqrt
from random import Random
from typing import Any

HAVE_NUMPY = find_spec("numpy") is not None

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_DOUBLE = 1.0 / (1 << 53)


# ---------------------------------------------------------------- hashes
def hash64(*parts: object) -> int:
    """A stable 64-bit integer of the parts' `repr`, top bit set (so that it always fills two 32-bit words)."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little") | 1 << 63


def seeded(*parts: object) -> int:
    """A stable 64-bit seed of the parts: anything with a stable `repr`, as strings, numbers, bytes and tuples of them.

    For chance that hangs on a sample alone: `random.Random(dload.seeded(key, "crop")).randrange(n)` draws the same for
    a key in every process, whatever came before it.
    """
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:8], "big")


def seeded_rng(*parts: object) -> Random:
    """A `random.Random` seeded with `seeded(*parts)`."""
    return Random(seeded(*parts))


# ---------------------------------------------------------------- a generator for every sample
class SplitMix(Random):
    """A `random.Random` over splitmix64 (Steele, Lea, Flood 2014): as good for a sample's draws, and 20 times cheaper
    to make than the standard one, whose 2,500 bytes of state take 5 µs to fill.

    Seeds are integers, of which the low 64 bits count; any other value is hashed. Pickles and copies with its state.
    """

    def __init__(self, seed: object = 0) -> None:
        # Random.__init__ would fill the standard generator, which nothing here reads.
        self._state = seed & _WORD if isinstance(seed, int) else hash64(seed)
        self.gauss_next: float | None = None

    def seed(self, a: object = 0, version: int = 2) -> None:
        """Begin again from a seed. `version` is there because `Random.seed` has it."""
        del version
        SplitMix.__init__(self, a)

    def _next(self) -> int:
        self._state = z = (self._state + _GOLDEN) & _WORD
        z = ((z ^ z >> 30) * _MIX1) & _WORD
        z = ((z ^ z >> 27) * _MIX2) & _WORD
        return z ^ z >> 31

    def random(self) -> float:
        """The next double in [0, 1), of 53 random bits."""
        return (self._next() >> 11) * _DOUBLE

    def getrandbits(self, k: int, /) -> int:
        """An integer of k random bits. Raises ValueError for a negative k."""
        if k < 0:
            raise ValueError(f"the number of bits must not be negative, got {k}")
        value = 0
        for _ in range((k + 63) // 64):
            value = value << 64 | self._next()
        return value >> (-k % 64)

    def getstate(self) -> tuple[Any, ...]:
        """What `setstate` takes to go on from here."""
        return self._state, self.gauss_next

    def setstate(self, state: tuple[Any, ...]) -> None:
        """Go on from where `getstate` was called."""
        self._state, self.gauss_next = state

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (0,), self.getstate()


# ---------------------------------------------------------------- permutations
def random_order(n: int, key: int) -> list[int]:
    """The numbers 0 to n - 1 in a uniformly random order drawn from `key`, as a table. `key` as of `hash64`.

    They are sorted by n draws of `random.Random(key)`, whose doubles Python promises to keep; its `shuffle` it doesn't.
    """
    if HAVE_NUMPY and n > 64:
        order: list[int] = twister(key).random_sample(n).argsort(kind="stable").tolist()
        return order
    draw = Random(key).random
    draws = [draw() for _ in range(n)]
    return sorted(range(n), key=draws.__getitem__)


def twister(key: int) -> Any:
    """NumPy's generator that gives the doubles of `random.Random(key)`. `key` as of `hash64`.

    Both begin from the key's 32-bit words; Python leaves out leading zeros, so the key must fill two.
    """
    import numpy as np

    return np.random.RandomState(words(key))


def words(key: int) -> list[int]:
    """The two 32-bit words of a key, as NumPy's seeding takes them."""
    return [key & 0xFFFFFFFF, key >> 32]


class Permutation:
    """The numbers 0 to n - 1 in an order drawn from `key`, by arithmetic: the state is a few words, whatever n is.

    A Feistel network over pairs (x // b, x % b), with a*b barely more than n; numbers that come out at n or above go
    through it again (cycle walking; Black and Rogaway 2002), which keeps it a bijection of the n. Up to 1,024 numbers
    are a table instead: rounds over so few values would mix them badly.
    """

    _ROUNDS = 3  # pairs of them
    _TABLE = 1024

    def __init__(self, n: int, key: int) -> None:
        if n < 0:
            raise ValueError(f"a permutation has 0 or more numbers, got {n}")
        self.n = n
        self._a = isqrt(n - 1) + 1 if n else 1
        self._b = max(1, -(-n // self._a))
        self._table = random_order(n, key | 1 << 63) if n <= self._TABLE else None
        rng = SplitMix(key)
        self._keys = [(rng.getrandbits(64), rng.getrandbits(64)) for _ in range(self._ROUNDS)]

    def __len__(self) -> int:
        return self.n

    def __call__(self, i: int) -> int:
        """The i-th number. Raises IndexError where i isn't one of 0 to n - 1."""
        if not 0 <= i < self.n:
            raise IndexError(f"place {i} of a permutation of {self.n} numbers")
        if self._table is not None:
            return self._table[i]
        i = self._once(i)
        while i >= self.n:
            i = self._once(i)
        return i

    def _once(self, i: int) -> int:
        a, b = self._a, self._b
        x, y = divmod(i, b)
        for k1, k2 in self._keys:
            x = (x + _scrambled(y ^ k1)) % a
            y = (y + _scrambled(x ^ k2)) % b
        return x * b + y

    def many(self, places: Sequence[int]) -> list[int]:
        """The numbers at these places, a range or any sequence; faster than one by one. Raises IndexError."""
        if not HAVE_NUMPY or self._table is not None or self.n >> 62 or len(places) < 16:
            return [self(i) for i in places]
        import numpy as np

        if isinstance(places, range):
            index = np.arange(places.start, places.stop, places.step, dtype=np.int64)
        else:
            index = np.asarray(places, dtype=np.int64)
        wrong = (index < 0) | (index >= self.n)
        if wrong.any():
            raise IndexError(f"place {int(index[wrong][0])} of a permutation of {self.n} numbers")
        numbers = self._all_once(index.astype(np.uint64))
        while (outside := numbers >= self.n).any():
            numbers[outside] = self._all_once(numbers[outside])
        result: list[int] = numbers.tolist()
        return result

    def _all_once(self, index: Any) -> Any:
        """`_once` of an array of 64-bit integers, which wrap around where `_once` masks."""
        import numpy as np

        a, b = np.uint64(self._a), np.uint64(self._b)
        x, y = np.divmod(index, b)
        for k1, k2 in self._keys:
            x = (x + _all_scrambled(y ^ np.uint64(k1))) % a
            y = (y + _all_scrambled(x ^ np.uint64(k2))) % b
        return x * b + y


def _scrambled(z: int) -> int:
    """Half of a 64-bit hash of a 64-bit number: the round function."""
    z = ((z ^ z >> 32) * _MIX1) & _WORD
    return ((z ^ z >> 29) * _MIX2 & _WORD) >> 32


def _all_scrambled(z: Any) -> Any:
    import numpy as np

    z = (z ^ z >> np.uint64(32)) * np.uint64(_MIX1)
    return ((z ^ z >> np.uint64(29)) * np.uint64(_MIX2)) >> np.uint64(32)
