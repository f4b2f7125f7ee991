"""On a real cluster: versions are those of one machine, whatever dies, and nothing secret travels."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import ray.data
from ray.data._internal.execution.interfaces.ref_bundle import BlockSlice

import dload.ray
from dload.api import Pipeline, Repository
from dload.cache import ShardCache
from dload.errors import ConfigError, DloadError, DuplicateKeyError, SampleError
from dload.importers import open_source
from dload.importers.columns import META, columns_meta
from dload.manifest import Manifest
from dload.pack import Sample
from dload.ray import engine, shards
from dload.ray.reading import ShardSource
from dload.repo import keys
from dload.store.local import FolderStore
from dload.store.s3 import S3Store
from dload.testing import invariants
from dload.testing.s3_server import S3Server

pytestmark = [pytest.mark.usefixtures("cluster", "small_parts"), pytest.mark.timeout(900)]  # workers start slowly

SIZE = 1_000
SAMPLES = [
    (f"k{i:03}", {"x": bytes([i % 256]) * (i * 7 % 90), **({"y": b"1"} if i % 3 else {})}) for i in range(300)
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def found_by_workers() -> Iterator[None]:
    """The functions of this module travel with their text, since workers can't import a test."""
    module = sys.modules[__name__]
    ray.cloudpickle.register_pickle_by_value(module)
    yield
    ray.cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few shards for each task, of many."""
    monkeypatch.setattr(shards, "PART_BYTES", 4 * SIZE)


def repository(folder: Path, store: Any = None) -> Repository:
    folder.mkdir(exist_ok=True)
    return Repository(store or FolderStore(folder / "store"), ShardCache(folder / "cache", 1 << 30), folder / "lock")


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return repository(tmp_path / "cluster")


def serial(folder: Path, samples: Any = SAMPLES, **options: Any) -> Manifest:
    """What one machine makes of them, in a store of its own."""
    return repository(folder / "serial").commit("out", samples, target_shard_size=SIZE, **options)


def row(given: dict[str, Any]) -> dict[str, Any]:
    key, fields = SAMPLES[given["id"]]
    return {"__key__": key, "x": fields["x"], "y": fields.get("y")}


def rows(blocks: int) -> ray.data.Dataset:
    return ray.data.range(len(SAMPLES), override_num_blocks=blocks).map(row)


def die_once(marker: Path) -> None:
    """The worker that comes here first is killed as the system kills: without a word."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyStore(FolderStore):
    """Kills the worker that sends a shard when there are five, once."""

    def put_file(self, key: str, path: Path, *, move: bool = False) -> str:
        sent = super().put_file(key, path, move=move)
        if len(list(self.list(keys.SHARDS))) >= 5:
            die_once(Path(self.url.removeprefix("file://")).parent / "died")
        return sent


# ---- writing
def test_a_version_is_that_of_the_serial_commit_also_when_a_worker_is_killed(tmp_path: Path) -> None:
    wanted = serial(tmp_path, meta={"a": 1})
    assert len(wanted.shards) > 10
    repo = repository(tmp_path / "cluster", DeadlyStore(tmp_path / "cluster" / "store"))
    lines: list[str] = []
    made = dload.ray.write(rows(7), repo, "out", target_shard_size=SIZE, meta={"a": 1}, progress=lines.append)
    assert (tmp_path / "cluster" / "died").exists()
    assert made.version == wanted.version
    assert invariants.content(repo.store, "out", made.version) == SAMPLES
    assert invariants.problems(repo.store, deep=True) == []
    assert len(repo.log("out")) == 1
    assert [line.split()[1] for line in lines[:-1]] == [f"{number}:" for number in range(len(made.shards))]
    there = rows(7).materialize()  # in the order in which blocks happened to get ready
    again = dload.ray.write(there, repo, "again", target_shard_size=3 * SIZE)
    assert invariants.content(repo.store, "again", again.version) == plain(there.take_all())


def test_the_order_is_the_data_sets_own_and_blocks_play_no_part(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "second"

    def second_block_first(given: dict[str, Any]) -> dict[str, Any]:
        """The first row waits for one of the second block, for a while: where only one block is made at a time."""
        if given["id"] == len(SAMPLES) - 1:
            marker.touch()
        until = time.monotonic() + 60
        while given["id"] == 0 and not marker.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return row(given)

    dataset = ray.data.range(len(SAMPLES), override_num_blocks=2).map(second_block_first)
    made = dload.ray.write(dataset, repo, "out", target_shard_size=SIZE)
    assert made.version == serial(tmp_path).version
    assert not dataset.context.execution_options.preserve_order, "the caller's data set is left as it was"

    whole = ray.data.Dataset.iter_internal_ref_bundles

    def sliced(dataset: ray.data.Dataset) -> Iterator[Any]:
        """Ray may give parts of blocks: here all but their first rows."""
        for bundle in whole(dataset):
            slices = tuple(BlockSlice(1, facts.num_rows) for facts in bundle.metadata)
            yield dataclasses.replace(bundle, slices=slices)

    monkeypatch.setattr(ray.data.Dataset, "iter_internal_ref_bundles", sliced)
    some = dload.ray.write(rows(2), repo, "some", target_shard_size=SIZE)
    wanted = [sample for number, sample in enumerate(SAMPLES) if number not in (0, len(SAMPLES) // 2)]
    assert invariants.content(repo.store, "some", some.version) == wanted


def test_columns_become_what_an_import_makes_of_them(repo: Repository, tmp_path: Path) -> None:
    table = pa.table({
        "id": [5, 3, 4], "text": ["a", None, "c"], "number": [1.5, float("nan"), None],
        "list": [[1, 2], [], [3]], "none": [None, None, None],
    })  # fmt: skip
    pq.write_table(table.drop_columns(["none"]), tmp_path / "table.parquet")
    source = open_source(str(tmp_path / "table.parquet"), key="id")
    wanted = list(source)
    made = dload.ray.write(ray.data.from_arrow([table.slice(0, 1), table.slice(1)]), repo, "out", key="id")
    assert invariants.content(repo.store, "out", made.version) == wanted
    assert [key for key, _ in wanted] == ["5", "3", "4"]
    assert made.meta == {META: columns_meta(source.columns)}
    tensors = [{"t": np.full((2, 3), number, np.float32), "v": np.arange(number)} for number in range(3)]
    made = dload.ray.write(ray.data.from_items(tensors), repo, "arrays", columns=["t", "v"])
    for number, (key, fields) in enumerate(invariants.content(repo.store, "arrays", made.version)):
        assert key == f"{number:08d}"
        for name in ("t", "v"):
            found, there = dload.codecs.npy_from(fields[name]), tensors[number][name]
            assert (found.dtype, found.shape, found.tolist()) == (there.dtype, there.shape, there.tolist())


def test_what_cannot_be_written_is_refused_and_nothing_is_visible(repo: Repository) -> None:
    cases: list[tuple[Any, dict[str, Any], type[DloadError], str]] = [
        ([pa.table({"x": [b"a"]}), pa.table({"x": ["b"]})], {}, ConfigError, "of the type string in some rows"),
        ([pa.table({"__key__": ["a", "a"]})], {}, DuplicateKeyError, "the key 'a'"),
        ([pa.table({"__key__": ["a", ""]})], {}, SampleError, "row 1: the key"),
        ([pa.table({"x": [b"a"]})], {"key": "id"}, ConfigError, "no column 'id' for key="),
    ]
    for tables, options, kind, text in cases:
        with pytest.raises(kind, match=text):
            dload.ray.write(ray.data.from_arrow(tables), repo, "out", **options)
    with pytest.raises(ConfigError, match="Python objects"):
        dload.ray.write(ray.data.from_items([{"x": object()}]), repo, "out")
    with pytest.raises(ConfigError, match=r"needs a ray\.data\.Dataset, got list"):
        dload.ray.write([], repo, "out")  # type: ignore[arg-type]
    assert repo.list_datasets() == []
    assert not any(repo.store.list(keys.LEASES))


# ---- reading
def plain(found: list[dict[str, Any]]) -> list[Sample]:
    return [(one.pop("__key__"), {name: value for name, value in one.items() if value is not None}) for one in found]


def in_order(dataset: ray.data.Dataset) -> list[Sample]:
    dataset.context.execution_options.preserve_order = True
    return plain(dataset.take_all())


def test_reading_knows_all_but_the_bytes_before_and_goes_through_the_cache(repo: Repository) -> None:
    manifest = repo.commit("in", SAMPLES, target_shard_size=SIZE)
    source = ShardSource(repo.dataset("in"))
    assert len(source.get_read_tasks(1)) == len(manifest.shards)
    assert len(source.get_read_tasks(100)) >= 100
    for tasks in (source.get_read_tasks(1), source.get_read_tasks(100)):
        assert sum(task.metadata.num_rows for task in tasks) == len(SAMPLES)
        size = sum(task.metadata.size_bytes for task in tasks)
        assert abs(size - source.estimate_inmemory_data_size()) <= 2 * len(tasks), "but for what is rounded off"
    found = dload.ray.read(repo.dataset("in"))
    assert found.schema(fetch_if_missing=False).base_schema == pa.schema(
        [("__key__", pa.string()), ("x", pa.large_binary()), ("y", pa.large_binary())]
    )
    assert found.count() == len(SAMPLES)
    assert not any(repo.cache.contains(digest) for digest in manifest.shards.digests)
    assert in_order(found) == SAMPLES
    for digest in manifest.shards.digests:
        repo.store.delete(keys.shard_key(digest))
    some = dload.ray.read(repo.dataset("in"), ["y"], override_num_blocks=50)
    assert in_order(some) == [(key, {"y": fields["y"]} if "y" in fields else {}) for key, fields in SAMPLES]


def test_views_empty_versions_and_what_has_no_columns(repo: Repository) -> None:
    repo.commit("in", SAMPLES, target_shard_size=SIZE)
    view = repo.view("some", repo.dataset("in"), lambda sample: sample[0][-1] in "27")
    wanted = [sample for sample in SAMPLES if sample[0][-1] in "27"]
    found = dload.ray.read(view)
    assert found.schema(fetch_if_missing=False).names == ["__key__", "x", "y"]
    assert in_order(found) == wanted
    repo.commit("nothing", [])
    nothing = dload.ray.read(repo.dataset("nothing"))
    assert (nothing.count(), nothing.take_all()) == (0, [])
    assert dload.ray.write(nothing, repo, "out").num_samples == 0
    repo.commit("bad", [("a", {"__key__": b""})])
    with pytest.raises(ConfigError, match="has a field '__key__', where the key goes"):
        dload.ray.read(repo.dataset("bad"))
    with pytest.raises(ConfigError, match=r"pass \['x'\]"):
        dload.ray.read(repo.dataset("in"), "x")


# ---- deriving
def doubled(sample: Sample) -> Sample:
    return sample[0].upper(), {"z": sample[1]["x"] * 2}


def marked(sample: Sample, rng: Any) -> Sample:
    return sample[0], {**sample[1], "r": str(rng.random()).encode()}


def even(sample: Sample) -> bool:
    return len(sample[1]["x"]) % 2 == 0


def halves(sample: Sample) -> list[Sample]:
    middle = len(sample[1]["x"]) // 2
    return [
        (f"{sample[0]}-{i}", {"x": part}) for i, part in enumerate((sample[1]["x"][:middle], sample[1]["x"][middle:]))
    ]


def fatal(sample: Sample) -> Sample:
    if sample[0] == "k123":
        die_once(Path(sample[1]["died"].decode()))
    return sample


def spoiled(sample: Sample) -> Any:
    return sample[0] if sample[0] == "k200" else sample


def failing(sample: Sample) -> Sample:
    raise ValueError(f"no good: {sample[0]}")


def seekable(repo: Repository) -> Pipeline:
    return repo.dataset("in").samples().shuffle(40, seed=3).map(marked, rng=True, rng_seed=5).map(doubled)


def streamed(repo: Repository) -> Pipeline:
    chosen = repo.dataset("in").samples().shuffle(40, seed=3).filter(even).flat_map(halves)
    return chosen.map(marked, rng=True, rng_seed=5)


@pytest.mark.parametrize("pipe", [seekable, streamed])
def test_a_derivation_is_that_of_one_machine(repo: Repository, tmp_path: Path, pipe: Any) -> None:
    other = repository(tmp_path / "serial")
    for one in (repo, other):
        one.commit("in", SAMPLES, target_shard_size=3 * SIZE)
    made = repo.derive("out", pipe(repo), engine="ray", target_shard_size=SIZE)
    assert len(made.manifest.shards) > 8
    wanted = other.derive("out", pipe(other), target_shard_size=SIZE)
    assert made.version == wanted.version
    assert repo.derive("out", pipe(repo), engine="no engine is needed").version == made.version


def test_a_worker_killed_in_the_middle_changes_nothing(repo: Repository, tmp_path: Path) -> None:
    marker = tmp_path / "died"
    samples = [(key, {**fields, "died": str(marker).encode()}) for key, fields in SAMPLES]
    other = repository(tmp_path / "serial")
    for one in (repo, other):
        one.commit("in", samples, target_shard_size=3 * SIZE)
    made = repo.derive("out", repo.dataset("in").samples().map(fatal), engine="ray", target_shard_size=SIZE)
    assert marker.exists()
    wanted = other.derive("out", other.dataset("in").samples().map(fatal), target_shard_size=SIZE)
    assert made.version == wanted.version
    assert invariants.content(repo.store, "out", made.version) == samples
    assert invariants.problems(repo.store, deep=True) == []


def deadly(sample: Sample) -> Sample:
    os.kill(os.getpid(), signal.SIGKILL)
    return sample


def test_an_error_comes_out_as_itself_and_nothing_is_visible(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repo.commit("in", SAMPLES, target_shard_size=SIZE)
    pipe = repo.dataset("in").samples()
    with pytest.raises(ValueError, match="no good: k000"):
        repo.derive("out", pipe.map(failing), engine="ray")
    with pytest.raises(SampleError, match=r"of those made of places \d+ to \d+ is not a sample"):
        repo.derive("out", pipe.map(spoiled), engine="ray")
    with pytest.raises(ConfigError, match="scan can't be computed piece by piece: each of its states"):
        repo.derive("out", pipe.scan(last, None), engine="ray")
    once = engine._computing.options(num_returns=2, max_retries=0)
    monkeypatch.setattr(engine, "_computing", once)
    with pytest.raises(DloadError, match="the cluster gave up a task: WorkerCrashedError"):
        repo.derive("out", pipe.map(deadly), engine="ray")
    with pytest.raises(ConfigError, match="there is no engine 'spark'"):
        repo.derive("out", pipe.map(doubled), engine="spark")
    assert repo.list_datasets() == ["in"]
    assert not any(repo.store.list(keys.LEASES))


def last(state: Any, sample: Sample) -> Sample:
    return sample


def test_a_block_that_changes_between_measuring_and_packing_is_an_error(repo: Repository) -> None:
    there = ray.put([("a", {"x": b"1"})])
    other = shards.measured.remote(shards.Listed(), [("b", {"x": b"1"})], 0, 1, 0)
    blocks = (shards.Block(there, measure) for measure in [other])
    with pytest.raises(DloadError, match="samples changed between measuring and packing"):
        list(shards.parts(repo.store, "out", dload.manifest.Packing(), blocks, int, shards.Listed()))


# ---- secrets
def test_credentials_and_clients_never_travel(
    s3_server: S3Server, s3_place: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real S3 server, to which workers come with what their own environment says."""
    repo = repository(tmp_path / "cluster", S3Store(*s3_place, endpoint_url=s3_server.endpoint_url))
    repo.commit("in", SAMPLES, target_shard_size=SIZE)  # with a client at hand
    pickles: list[bytes] = []
    dumps = ray.cloudpickle.dumps

    def recorded(*given: Any, **more: Any) -> bytes:
        pickles.append(dumps(*given, **more))
        return pickles[-1]

    monkeypatch.setattr(ray.cloudpickle, "dumps", recorded)
    made = repo.derive("out", repo.dataset("in").samples().map(doubled), engine="ray")
    copy = dload.ray.write(dload.ray.read(made), repo, "copy")
    monkeypatch.undo()
    assert copy.num_samples == len(made) == len(SAMPLES)
    travelled = b"".join(pickles)
    assert travelled.count(s3_server.endpoint_url.encode()) > 2, "stores do travel, and this sees it"
    for secret in s3_server.keys:
        assert secret.encode() not in travelled
    assert b"botocore" not in travelled


def test_the_command_line_derives_on_the_cluster(repo: Repository, tmp_path: Path) -> None:
    repo.commit("in", SAMPLES, target_shard_size=3 * SIZE)
    (tmp_path / "recipes.py").write_text(
        "def upper(sample):\n    return sample[0].upper(), sample[1]\n\n\n"
        "def pipeline(repo):\n    return repo.dataset('in').samples().map(upper)\n"
    )
    settings = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, "DLOAD_STORE": repo.store.url}
    settings["DLOAD_CACHE_DIR"] = str(tmp_path / "cache")
    command = [sys.executable, "-m", "dload", "derive", "recipes:pipeline", "out", "--engine", "ray"]
    run = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=600
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "the output of recipes:pipeline" in run.stderr
    wanted = [(key.upper(), fields) for key, fields in SAMPLES]
    assert invariants.content(repo.store, "out", repo.dataset("out").version) == wanted
    run = subprocess.run(
        [*command[:-2], "--engine", "spark", "--tag", "again"],
        cwd=tmp_path, env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 2
    assert "there is no engine 'spark'" in run.stderr
    assert "there is 'ray'" in run.stderr
