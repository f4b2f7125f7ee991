"""Many samples at once, in any order: what NumPy finds is what is found without it."""

from __future__ import annotations

from array import array
from pathlib import Path
from random import Random

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload import randomness
from dload.pack import Sample, ShardReader
from dload.pack.locate import Locator
from dload.testing.shards import packed_shard, with_fields

MANY = 40  # more than are looked up one by one


def samples_of(width: int, size: int, seed: int) -> list[Sample]:
    """Some values are empty; a few are much larger than the others."""
    random = Random(seed)
    sizes = [0, 1, size, 2 * size, 40 * size if random.random() < 0.3 else size]
    return [
        (f"k{row}", {f"f{at}": random.randbytes(random.choice(sizes)) for at in range(width)}) for row in range(MANY)
    ]


@pytest.mark.parametrize("used", [True, False], ids=["numpy", "plain"])
@settings(max_examples=60)
@given(
    width=st.integers(0, 4),
    size=st.sampled_from([10, 700, 9000]),
    seed=st.integers(0, 99),
    rows=st.lists(st.integers(-MANY, MANY - 1), min_size=MANY, max_size=3 * MANY),
    fields=st.none() | st.lists(st.sampled_from(["f0", "f1", "f3"]), max_size=3),
)
def test_any_samples_in_any_order(
    used: bool, width: int, size: int, seed: int, rows: list[int], fields: list[str] | None
) -> None:
    samples = samples_of(width, size, seed)
    expected = with_fields([samples[row] for row in rows], fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomness, "HAVE_NUMPY", used)
        assert ShardReader(packed_shard(samples)[0]).read_many(rows, fields) == expected


@pytest.mark.parametrize("size", [700, 50_000])  # of which the one is mapped, the other read from the file
def test_samples_of_a_file_outlive_it(tmp_path: Path, numpy: bool, size: int) -> None:
    samples = samples_of(2, size, 0)
    path = tmp_path / "shard"
    path.write_bytes(packed_shard(samples)[0])
    rows = Random(1).choices(range(MANY), k=MANY)
    with ShardReader.open(path) as reader:
        found = reader.read_many(rows)
    assert found == [samples[row] for row in rows]
    with pytest.raises(ValueError, match="closed"):
        reader.read_many(rows)


def test_rows_that_are_not_there(numpy: bool) -> None:
    reader = ShardReader(packed_shard(samples_of(2, 10, 0))[0])
    for row in (MANY, -MANY - 1):
        with pytest.raises(IndexError):
            reader.read_many([row])
        with pytest.raises(IndexError):
            reader.read_many([*range(MANY), row])


def test_values_that_lie_anywhere(numpy: bool) -> None:
    """As they may in format 1, which other programs wrote."""
    payload = bytes(range(2 * MANY + 1))
    places = [{"x": [2 * MANY - row, 1], "y": [row, row % 2]} for row in range(MANY)]
    index = msgpack.packb({"keys": [f"k{row}" for row in range(MANY)], "samples": places})
    reader = ShardReader(payload + index + len(index).to_bytes(8, "little") + b"DLOADPK1")
    expected = [
        (f"k{row}", {"x": payload[2 * MANY - row :][:1], "y": payload[row : row + row % 2]}) for row in range(MANY)
    ]
    rows = Random(1).sample(range(MANY), MANY)
    assert reader.read_many(rows) == [expected[row] for row in rows]
    assert reader.read_many(rows, ["y"]) == with_fields([expected[row] for row in rows], ["y"])


def test_offsets_beyond_four_gigabytes(numpy: bool) -> None:
    far = 5 << 30
    spans = array("Q", [far + at for row in range(MANY) for at in (3 * row, 3 * row + 1, 3 * row + 1, 3 * row + 3)])
    rows = [*range(MANY), 0, -1]
    wanted = [(far + 3 * (row % MANY) + 1, far + 3 * (row % MANY) + 3) for row in rows]
    locator = Locator(spans, ("x", "y"), ["y"])
    assert locator.names == ("y",)
    assert list(map(tuple, locator.samples(rows))) == wanted
    assert locator.sample(2) == wanted[1]
