"""JAX: NumPy batches of a process's share, partitions, resuming; processes that meet in jax.distributed for real."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dload
from dload.codecs import npy_bytes
from dload.errors import ConfigError
from dload.jax import DataPartition, Loader, stacked

ROOT = Path(__file__).resolve().parents[2]


def numbered(row: int) -> tuple[str, dict[str, Any]]:
    """A sample as a data set has it."""
    return f"k{row:02d}", {"x": npy_bytes(np.full((2, 3), row, np.float32)), "raw": bytes([row, 1])}


def rows(count: int = 40) -> dload.Pipeline:
    return dload.from_iterable(list(range(count))).shuffle(9, seed=1).map(numbered)


# ---- collate
def test_samples_become_arrays_field_by_field() -> None:
    keys, fields = stacked([numbered(row) for row in (3, 5)])
    assert keys == ["k03", "k05"]
    assert fields["x"].shape == (2, 2, 3)
    assert fields["x"].dtype == np.float32
    assert fields["x"][1].tolist() == [[5] * 3] * 2
    assert fields["raw"].tolist() == [[3, 1], [5, 1]]
    assert fields["raw"].dtype == np.uint8
    fields["x"][0] = 9  # theirs to change


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.float64(3), np.zeros((0,)),
        np.zeros((3, 0, 2), np.int8), np.array([True, False]), np.arange(3, dtype=">i4"),
        np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    ],
)  # fmt: skip
def test_every_array_comes_back_from_npy(array: Any) -> None:
    found = stacked([npy_bytes(array)] * 3)
    assert np.array_equal(found, np.stack([array] * 3))
    assert found.dtype == np.asarray(array).dtype.newbyteorder("=")


def test_structure_is_kept() -> None:
    point = namedtuple("point", "x y")
    found = stacked(
        [{"a": [1, 2.5], "b": (True, point(np.arange(2), "t"))}, {"b": (False, point([5, 6], "u")), "a": [3, 4]}]
    )
    assert [part.tolist() for part in found["a"]] == [[1, 3], [2.5, 4]]
    assert found["b"][0].tolist() == [True, False]
    assert found["b"][1].x.tolist() == [[0, 1], [5, 6]]
    assert found["b"][1].y == ["t", "u"]
    assert stacked([b"", b""]).shape == (2, 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([b"ab", b"abc"], r"the shape of a row differs within a batch: \(2,\) and \(3,\)"),
        ([("k", {"x": npy_bytes([1, 2])}), ("k", {"x": npy_bytes([3])})], r"npy header of a row\[1\]\['x'\] differs"),
        ([{"x": npy_bytes([1, 2])}, {"x": npy_bytes([1.0, 2.0])}], r"npy header of a row\['x'\] differs"),
        ([{"x": 1}, {"y": 1}], "a row differs within a batch"), ([{"x": 1}, 1], "a row differs"),
        ([(1, 2), (1,)], "a row differs within a batch: 2 and 1"), ([b"ab", "ab"], "the type of a row differs"),
        ([[1], [None]], r"a row\[0\] is None, which is no array"), ([{1, 2}], "a row is {1, 2}, which is no array"),
        ([], "all of them are holes"),
    ],
)  # fmt: skip
def test_rows_that_do_not_go_together_are_refused_naming_the_place(values: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stacked(values)


# ---- shares and state
def share(count: int, batch: int = 8, steps: int = 5, state: Any = None, replicas: int = 1) -> tuple[list[Any], Any]:
    """The first steps, put together from the processes' shares; and where they stand."""
    parts, states = [], []
    for index in range(count):
        with Loader(rows(), batch, DataPartition(index, count, replicas), columns=4) as loader:
            if state is not None:
                loader.set_state(state)
            iterator = iter(loader)
            parts.append([next(iterator) for _ in range(steps)])
            states.append(json.loads(json.dumps(loader.get_state())))
    assert all(state == states[0] for state in states)
    own = parts[::replicas]
    return [np.concatenate([part[1]["x"] for part in step]) for step in zip(*own, strict=True)], states[0]


def test_shares_are_one_global_batch_and_go_on_on_another_number_of_processes() -> None:
    expected, _ = share(1)
    assert {array.shape for array in expected} == {(8, 2, 3)}
    for count in (2, 4, 8):
        assert np.array_equal(share(count)[0], expected)
    first, state = share(4, steps=2)
    second, _ = share(2, steps=3, state=state)
    assert np.array_equal([*first, *second], expected)
    assert np.array_equal(share(4, replicas=2)[0], expected)


def test_replicas_get_the_same_rows() -> None:
    keys = [next(iter(Loader(rows(), 8, DataPartition(index, 4, 2))))[0] for index in range(4)]
    assert keys[0] == keys[1]
    assert keys[2] == keys[3]
    assert not {*keys[0]} & {*keys[2]}
    with pytest.raises(ConfigError, match="3 ranks can't be 2 replicas each"):
        Loader(rows(), 8, DataPartition(0, 3, 2))
    with pytest.raises(ConfigError, match="rank 4 is not one of 4"):
        Loader(rows(), 8, DataPartition(4, 4))


def test_collate_and_the_other_options_are_those_of_every_loader() -> None:
    with Loader(rows(10), 4, DataPartition(0, 1), collate=None, ends="pad") as loader:
        items = list(loader)
        assert items[0][0][1]["raw"][1] == 1, "rows as they are"
        assert loader.valid == [True, True, False, False]
    assert [len(keys) for keys, _ in Loader(rows(10), 4, DataPartition(0, 1), ends="pad")] == [4, 4, 4]


# ---- processes
PROCESS = """
import os
import jax
jax.distributed.initialize({address!r}, 2, {index})
import dload, dload.jax
pipe = dload.from_iterable(list(range(16)))
loader = dload.Loader(pipe, 8, threads=0)
print(jax.process_index(), loader.rank, loader.world_size, list(loader))
print([batch.tolist() for batch in dload.jax.Loader(pipe, 8)])
os.environ |= {{"RANK": "1", "WORLD_SIZE": "4"}}
print(list(dload.Loader(pipe, 8, threads=0)))
"""


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {**clean, "JAX_PLATFORMS": "cpu", **more}


@pytest.fixture
def processes() -> Any:
    """processes(commands, environment): what each printed, all of them run at once."""
    running: list[subprocess.Popen[str]] = []

    def run(commands: list[list[str]], env: dict[str, str]) -> list[str]:
        running.extend(
            subprocess.Popen(command, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for command in commands
        )
        found = [process.communicate(timeout=120) for process in running]
        assert not any(process.returncode for process in running), found
        return [out for out, _ in found]

    yield run
    for process in running:
        process.kill()


Processes = Callable[[list[list[str]], dict[str, str]], list[str]]


def test_ranks_are_those_of_jax_where_it_is_initialised(processes: Processes) -> None:
    address = free_address()
    commands = [[sys.executable, "-c", PROCESS.format(address=address, index=index)] for index in range(2)]
    found = processes(commands, environment())
    shares = "[[0, 1, 2, 3], [8, 9, 10, 11]]", "[[4, 5, 6, 7], [12, 13, 14, 15]]"
    by_environment = "[[2, 3], [10, 11]]"  # which comes first
    for index, share in enumerate(shares):
        assert found[index].splitlines() == [f"{index} {index} 2 {share}", share, by_environment]


def test_jax_that_is_only_imported_is_no_rank() -> None:
    import jax  # noqa: F401

    assert dload.Loader(rows(), 8).world_size == 1
    assert Loader(rows(), 8).world_size == 1
