"""`dload.load` over what the real `datasets` and TFDS hold in local folders: each of its rules."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dload
from dload.api import Pipeline
from dload.api.loader import Loader, merge_states
from dload.errors import ConfigError, NotFoundError, UnavailableError
from dload.pipeline.lanes import Grid, Lane
from dload.providers import huggingface
from dload.testing.pipelines import restores_everywhere

pytest.importorskip("datasets")
pytest.importorskip("tensorflow_datasets")
from .conftest import RECORDS, write_jsonl


def number(record: Any, rng: random.Random) -> int:
    return int(record["x"])


def drawn(record: Any, rng: random.Random) -> tuple[int, float]:
    return int(record["x"]), rng.random()


def rows_of(pipe: Pipeline, world: int, epoch: int = 0, **options: Any) -> list[list[list[Any]]]:
    """What each rank gets of an epoch: its rows, step by step."""
    found = []
    for rank in range(world):
        with Loader(pipe, rank=rank, world_size=world, threads=0, **options) as loader:
            loader.set_epoch(epoch)
            found.append(list(loader))
    return found


def whole(parts: list[list[list[Any]]]) -> list[list[Any]]:
    """The global batches."""
    return [[row for part in step for row in part] for step in zip(*parts, strict=True)]


@pytest.fixture(params=["files", "saved", "tfds"])
def table(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`load` of the same 40 numbers as a table, from each provider."""
    if request.param == "tfds":
        folder = request.getfixturevalue("tfds_dir")
        options = dload.TFDSOptions(data_dir=str(folder))
        return lambda **more: dload.load("tfds/numbers", options=options, **more)
    name = f"hf/{request.getfixturevalue(request.param)}"
    return lambda **more: dload.load(name, **more)


@pytest.fixture
def stream(files: Path) -> Callable[..., Any]:
    """`load` of the same 40 numbers as a stream of four files, named one by one: of a folder the order may be any."""
    names: dict[str, Any] = {
        "train": [str(files / f"train-{number}.jsonl") for number in range(4)], "test": str(files / "test-0.jsonl"),
    }  # fmt: skip
    return lambda **more: dload.load("hf/json", options=dload.HFOptions(data_files=names), streaming=True, **more)


# ---- a split with places is in the index tier
def test_a_table_has_its_records_in_the_index_tier(table: Callable[..., Any]) -> None:
    pipe = table(preprocess=number, shuffle=0)
    assert pipe.node.indexed and len(pipe) == RECORDS
    assert sorted(pipe) == list(range(RECORDS))
    assert table(preprocess=number, shuffle=0, records=RECORDS).node.indexed


def test_a_table_is_elastic(table: Callable[..., Any]) -> None:
    pipe = table(preprocess=drawn, seed=1, shuffle=16)
    expected = whole(rows_of(pipe, 1, global_batch=8, columns=4))
    assert len(expected) == 5
    for world in (2, 4):
        assert whole(rows_of(pipe, world, global_batch=8, columns=4)) == expected


def test_a_table_goes_on_exactly_on_another_number_of_ranks(table: Callable[..., Any]) -> None:
    pipe = table(preprocess=drawn, seed=1, shuffle=16)
    expected = whole(rows_of(pipe, 1, global_batch=8))
    with Loader(pipe, 8, rank=1, world_size=2) as loader:
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
    assert state["lanes"] is None and len(json.dumps(state)) < 600
    with Loader(pickle.loads(pickle.dumps(pipe)), 8, rank=0, world_size=1) as loader:
        loader.load_state_dict(state)
        assert list(loader) == expected[2:]


def test_each_epoch_is_shuffled_anew_and_in_order_without(table: Callable[..., Any]) -> None:
    pipe = table(preprocess=number, seed=1)
    first, second = list(pipe), list(pipe)
    assert sorted(first) == sorted(second) == list(range(RECORDS)) and first != second
    assert list(table(preprocess=number, seed=1).iter(epoch=1)) == second
    unshuffled = table(preprocess=number, shuffle=0)
    assert list(unshuffled) == list(unshuffled)


def test_a_batch_is_a_list_and_whole_in_training(table: Callable[..., Any]) -> None:
    train, validation = table(preprocess=number, seed=1, batch=7, val_split="test")
    assert [len(batch) for batch in train] == [7] * 5 and len(train) == 5
    assert [len(batch) for batch in validation] == [7, 3] and len(validation) == 2


# ---- preprocess
def test_draws_hang_on_record_epoch_and_seed_alone(table: Callable[..., Any]) -> None:
    unshuffled = dict(table(preprocess=drawn, seed=3, shuffle=0).iter(epoch=0))
    assert len(set(unshuffled.values())) == RECORDS
    assert dict(table(preprocess=drawn, seed=3).iter(epoch=0)) == unshuffled
    assert dict(row for batch in table(preprocess=drawn, seed=3, batch=4) for row in batch) == unshuffled
    assert dict(table(preprocess=drawn, seed=3).iter(epoch=1)) != unshuffled
    assert dict(table(preprocess=drawn, seed=4).iter(epoch=0)) != unshuffled


def test_preprocess_is_required(files: Path) -> None:
    with pytest.raises(TypeError, match="preprocess"):
        dload.load(f"hf/{files}")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="needs a function, got None"):
        dload.load(f"hf/{files}", preprocess=None)  # type: ignore[call-overload]


# ---- validation
def test_validation_is_read_in_order(table: Callable[..., Any]) -> None:
    train, validation = table(preprocess=number, seed=1, val_split="test")
    in_order = list(validation)
    assert sorted(in_order) == list(range(100, 110)) and list(validation) == in_order
    assert in_order == list(table(preprocess=number, split="test", shuffle=0))
    assert sorted(train) == list(range(RECORDS))


def test_a_streamed_validation_is_read_in_order(stream: Callable[..., Any]) -> None:
    train, validation = stream(preprocess=number, seed=1, val_split="test")
    assert list(validation) == list(validation) == list(range(100, 110))
    assert list(train) != sorted(train)


# ---- records
def test_records_that_contradict_a_table_are_an_error(table: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"records=41, and split train of .* has 40"):
        table(preprocess=number, records=41)


CARD = """---
dataset_info:
  features:
  - {name: x, dtype: int64}
  - {name: text, dtype: string}
  splits:
  - {name: train, num_bytes: 1, num_examples: 40}
---
"""


def test_records_that_contradict_a_stream_are_an_error(stream: Callable[..., Any], files: Path) -> None:
    for records, what in ((41, "has 40"), (39, "has more")):
        pipe = stream(preprocess=number, records=records, shuffle=0)
        iterator = iter(pipe)
        assert [next(iterator) for _ in range(39)] == list(range(39))
        with pytest.raises(ConfigError, match=f"records={records}, and .* {what}"):
            list(iterator)
    (files / "README.md").write_text(CARD)  # where the description says how many there are, it shows at once
    assert len(dload.load(f"hf/{files}", preprocess=number, records=40, streaming=True)) == 40
    with pytest.raises(ConfigError, match=r"records=41, and split train of .* has 40"):
        dload.load(f"hf/{files}", preprocess=number, records=41, streaming=True)


# ---- streams
def test_a_stream_has_no_length_unless_it_is_given(stream: Callable[..., Any]) -> None:
    pipe = stream(preprocess=number, batch=3, shuffle=0)
    with pytest.raises(TypeError, match="length"):
        len(pipe)
    with pytest.raises(ConfigError, match="needs a length"):
        Loader(pipe, 2)
    pipe = stream(preprocess=number, batch=3, records=RECORDS, shuffle=0)
    assert len(pipe) == 13 and len(stream(preprocess=number, records=RECORDS)) == RECORDS
    assert len(Loader(pipe, 2)) == 6


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_with_records_ranks_share_a_stream_evenly_and_together(stream: Callable[..., Any], world: int) -> None:
    pipe = stream(preprocess=number, records=RECORDS, shuffle=0, seed=0)
    parts = rows_of(pipe, world, global_batch=12)
    assert [len(part) for part in parts] == [3] * world
    assert whole(parts) == [list(range(step * 12, step * 12 + 12)) for step in range(3)]


@pytest.mark.parametrize(("world", "by_files"), [(2, True), (4, True), (3, False)])
def test_ranks_share_the_rows_of_a_stream(stream: Callable[..., Any], world: int, by_files: bool) -> None:
    pipe = stream(preprocess=number, shuffle=0, seed=0)
    parts = [
        [row for step in part for row in step]
        for part in rows_of(pipe, world, global_batch=world, ends="agree", agree=lambda whole: whole)
    ]
    assert sorted(row for part in parts for row in part) == list(range(RECORDS))
    files = [{row // 10 for row in part} for part in parts]
    assert all(len(found) == (4 // world if by_files else 4) for found in files)


def test_a_rank_that_would_get_none_is_refused(stream: Callable[..., Any], files: Path) -> None:
    pipe = stream(preprocess=number, records=RECORDS, shuffle=0, seed=0)
    for rank in (0, 63):  # all ranks, so that none waits for those that end
        for shared in (pipe, pipe.filter(bool)):  # whose length isn't known
            with pytest.raises(ConfigError, match=r"40 records, so that of 64 lanes some would get none"):
                Loader(shared, 64, rank=rank, world_size=64, ends="agree", agree=lambda whole: whole)
    with pytest.raises(ConfigError, match="40 records, so that of 8 lanes some would get none"):
        list(Loader(pipe.filter(bool), 64, rank=0, world_size=8, ends="ragged", threads=0))  # of 8 rows a step each
    for file in files.glob("train-*"):
        write_jsonl(file, range(0))
    write_jsonl(files / "train-1.jsonl", range(2))
    pipe = stream(preprocess=number, shuffle=0, seed=0)
    options: dict[str, Any] = {"ends": "agree", "agree": lambda whole: whole, "threads": 0}
    assert list(Loader(pipe, 3, rank=1, world_size=3, **options)) == [[1]]
    with pytest.raises(ConfigError, match="lane 2 of 3 gets no record"):
        list(Loader(pipe, 3, rank=2, world_size=3, **options))


@pytest.mark.parametrize("records", [None, RECORDS])
def test_a_stream_goes_on_at_its_record_with_the_same_draws(
    stream: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, records: int | None
) -> None:
    pipe = stream(preprocess=drawn, seed=2, shuffle=0, records=records)
    expected = list(pipe.iter(epoch=0))
    iterator = pipe.iter(epoch=0)
    begun = [next(iterator) for _ in range(25)]
    state = json.loads(json.dumps(iterator.get_state()))
    asked = []
    following = huggingface._Pass.__next__
    monkeypatch.setattr(huggingface._Pass, "__next__", lambda items: asked.append(1) or following(items))
    again = stream(preprocess=drawn, seed=2, shuffle=0, records=records)
    assert begun + list(again.iter(state=state)) == expected
    assert len(asked) == 15 + 1  # not those before
    assert again.iter(state=state).get_state() == state


@pytest.mark.parametrize("shuffle", [0, 8])
@pytest.mark.parametrize("records", [None, RECORDS])
def test_a_stream_goes_on_on_another_number_of_ranks(
    stream: Callable[..., Any], shuffle: int, records: int | None
) -> None:
    pipe = stream(preprocess=drawn, seed=2, shuffle=shuffle, records=records)
    options: dict[str, Any] = {"ends": "steps", "steps": 4, "columns": 4}
    expected = whole(rows_of(pipe, 1, global_batch=8, **options))
    assert whole(rows_of(pipe, 2, global_batch=8, **options)) == expected
    states = []
    for rank in range(2):
        with Loader(pipe, 8, rank=rank, world_size=2, **options) as loader:
            next(iter(loader))
            states.append(json.loads(json.dumps(loader.state_dict())))
    with Loader(pickle.loads(pickle.dumps(pipe)), 8, rank=0, world_size=1, **options) as loader:
        loader.load_state_dict(merge_states(states))
        assert list(loader) == expected[1:]


def test_draws_of_a_stream_hang_on_the_record_whatever_lane_it_is_in(stream: Callable[..., Any]) -> None:
    pipe = stream(preprocess=drawn, seed=2, shuffle=0, records=RECORDS)
    alone = dict(pipe.iter(epoch=0))
    for world in (1, 2, 4):
        rows = [row for step in whole(rows_of(pipe, world, global_batch=8, columns=4)) for row in step]
        assert dict(rows) == alone
    parted = stream(preprocess=drawn, seed=2, shuffle=0)  # each lane reads files of its own, and knows no numbers
    parts = rows_of(parted, 4, global_batch=4, ends="agree", agree=lambda whole: whole)
    assert len({draw for part in parts for step in part for _, draw in step}) == RECORDS


@pytest.mark.parametrize("records", [None, RECORDS])
def test_worker_processes_of_torch_share_a_stream(stream: Callable[..., Any], records: int | None) -> None:
    """Of which `datasets` would give each worker a part, and lanes a part of that."""
    torch = pytest.importorskip("dload.torch")
    pipe = stream(preprocess=drawn, seed=2, shuffle=0, records=records)
    options: dict[str, Any] = {"ends": "steps", "steps": 9, "turns": 2, "rank": 0, "world_size": 1}
    expected = whole(rows_of(pipe, 1, global_batch=4, ends="steps", steps=9, turns=2))
    with torch.StreamLoader(pipe, 4, num_workers=2, collate=list, **options) as loader:
        assert list(loader) == expected
    assert len({row for step in expected for row, _ in step}) == 36


def shuffled_by_datasets(dataset: Any) -> Any:
    return dataset.shuffle(seed=1, buffer_size=8).take(30)


def test_a_stream_that_cant_say_where_it_stands_says_so(files: Path) -> None:
    options = dload.HFOptions(prepare=shuffled_by_datasets)
    pipe = dload.load(f"hf/{files}", preprocess=number, options=options, streaming=True, shuffle=0)
    iterator = iter(pipe)
    assert next(iterator) in range(RECORDS)
    with pytest.raises(ConfigError, match=r"no state: .*numbers.* shuffled by `datasets`.* read it as a table"):
        iterator.get_state()
    assert len(list(iterator)) == 29  # and goes on
    loader = Loader(pipe, 2, ends="ragged", threads=0)
    next(iter(loader))
    with pytest.raises(ConfigError, match="no state"):
        loader.state_dict()


def test_epochs_of_a_stream_that_datasets_shuffles_differ(files: Path) -> None:
    options = dload.HFOptions(prepare=shuffled_by_datasets)
    pipe = dload.load(f"hf/{files}", preprocess=number, options=options, streaming=True, shuffle=0)
    assert list(pipe.iter(epoch=0)) == list(pipe.iter(epoch=0)) != list(pipe.iter(epoch=1))


def test_a_shuffled_stream_goes_on_exactly(stream: Callable[..., Any]) -> None:
    pipe = stream(preprocess=drawn, seed=2, shuffle=8)
    for epoch in range(2):
        expected = list(pipe.iter(epoch=epoch))
        assert expected != sorted(expected)
        for begun in (0, 1, 17, 39, 40):
            iterator = pipe.iter(epoch=epoch)
            for _ in range(begun):
                next(iterator)
            assert list(pipe.iter(state=json.loads(json.dumps(iterator.get_state())))) == expected[begun:]


def test_a_stream_that_was_closed_still_says_where_it_stands(stream: Callable[..., Any]) -> None:
    pipe = stream(preprocess=number, shuffle=0).take(15)
    iterator = iter(pipe)
    assert list(iterator) == list(range(15))
    assert list(pipe.iter(state=json.loads(json.dumps(iterator.get_state())))) == []
    iterator = iter(pipe)
    assert next(iterator) == 0
    iterator.close()
    assert list(pipe.iter(state=json.loads(json.dumps(iterator.get_state())))) == list(range(1, 15))


def test_a_state_of_another_split_is_refused(stream: Callable[..., Any]) -> None:
    iterator = iter(stream(preprocess=number))
    next(iterator)
    with pytest.raises(ValueError, match="another pipeline"):
        stream(preprocess=number, split="test").iter(state=iterator.get_state())


# ---- names, options, packages
@pytest.mark.parametrize(
    ("source", "options"),
    [("hf/numbers", dload.TFDSOptions()), ("tfds/numbers", dload.HFOptions()), ("hf/numbers", {"config": "x"})],
)
def test_options_of_another_provider_are_a_type_error(source: str, options: Any) -> None:
    with pytest.raises(TypeError, match=r"takes options=(HF|TFDS)Options\(...\), got (HF|TFDS)Options|got dict"):
        dload.load(source, preprocess=number, options=options)


@pytest.mark.parametrize("source", ["numbers", "kaggle/numbers", "hf/", "/x", ""])
def test_a_name_without_a_provider_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="names no provider"):
        dload.load(source, preprocess=number)


@pytest.mark.parametrize("streaming", [False, True])
def test_what_is_not_there(files: Path, saved: Path, tfds_dir: Path, streaming: bool) -> None:
    for source in (f"hf/{files}", f"hf/{saved}"):
        with pytest.raises(ConfigError, match=r"split nowhere: .*train"):
            list(dload.load(source, preprocess=number, split="nowhere", streaming=streaming))
    with pytest.raises(NotFoundError, match="nowhere"):
        list(dload.load(f"hf/{files}/nowhere", preprocess=number, streaming=streaming))
    with pytest.raises(UnavailableError, match=r"hf/nobody/nothing: .* — it is neither a folder here nor in the cache"):
        list(dload.load("hf/nobody/nothing", preprocess=number, streaming=streaming))


def test_what_tfds_does_not_have(tfds_dir: Path) -> None:
    options = dload.TFDSOptions(data_dir=str(tfds_dir))
    with pytest.raises(ConfigError, match=r"split nowhere: .*train"):
        dload.load("tfds/numbers", preprocess=number, split="nowhere", options=options)
    with pytest.raises(NotFoundError, match="tfds/nowhere isn't in"):
        dload.load("tfds/nowhere", preprocess=number, options=options)
    other = dload.TFDSOptions(data_dir=str(tfds_dir), version="9.9.9")
    with pytest.raises(NotFoundError, match=r"tfds/numbers:9.9.9 isn't in"):
        dload.load("tfds/numbers", preprocess=number, options=other)


def test_tfds_names_folders_versions_and_parts_of_splits(tfds_dir: Path) -> None:
    options = dload.TFDSOptions(data_dir=str(tfds_dir), version="1.2.0")
    by_name = list(dload.load("tfds/numbers", preprocess=number, options=options, shuffle=0))
    assert list(dload.load(f"tfds/{tfds_dir}/numbers/1.2.0", preprocess=number, shuffle=0)) == by_name
    part = dload.load("tfds/numbers", preprocess=number, split="train[:25%]", options=options, shuffle=0)
    assert list(part) == by_name[:10]


def test_tfds_is_not_streamed(tfds_dir: Path) -> None:
    options = dload.TFDSOptions(data_dir=str(tfds_dir))
    with pytest.raises(ConfigError, match=r"can't be streamed without TensorFlow.*ArrayRecord"):
        dload.load("tfds/numbers", preprocess=number, options=options, streaming=True)


def test_tfds_in_another_format_says_what_to_do(tfds_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "numbers"
    folder.mkdir()
    for file in (tfds_dir / "numbers" / "1.2.0").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    info = folder / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(ConfigError, match="file_format='array_record'"):
        dload.load(f"tfds/{folder}", preprocess=number)


def select_x(dataset: Any) -> Any:
    return dataset.select_columns(["x"])


def not_a_data_set(dataset: Any) -> Any:
    return list(dataset)


def fields(record: Any, rng: random.Random) -> list[str]:
    return sorted(record)


@pytest.mark.parametrize("streaming", [False, True])
def test_hugging_face_options(files: Path, streaming: bool) -> None:
    options = dload.HFOptions(data_files={"train": str(files / "train-[01].jsonl")}, prepare=select_x)
    pipe = dload.load("hf/json", preprocess=number, options=options, streaming=streaming, shuffle=0)
    assert list(pipe) == list(range(20))
    pipe = dload.load("hf/json", preprocess=fields, options=options, streaming=streaming, shuffle=0)
    assert next(iter(pipe)) == ["x"]
    with pytest.raises(ConfigError, match=r"expected a datasets.(Iterable)?Dataset, got list"):
        list(
            dload.load(
                f"hf/{files}", preprocess=number, options=dload.HFOptions(prepare=not_a_data_set), streaming=streaming
            )
        )


@pytest.mark.parametrize(
    ("source", "package", "extra"), [("hf/numbers", "datasets", "hf"), ("tfds/numbers", "tensorflow_datasets", "tfds")]
)
def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch, source: str, package: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs the package .*pip install 'dload-ml\[{extra}\]'"):
        dload.load(source, preprocess=number)


def test_neither_dload_nor_tfds_imports_what_is_not_needed(tfds_dir: Path) -> None:
    program = f"""
import sys
import dload
assert "datasets" not in sys.modules and "tensorflow_datasets" not in sys.modules
def number(record, rng): return int(record["x"])
pipe = dload.load("tfds/numbers", preprocess=number, options=dload.TFDSOptions(data_dir={str(tfds_dir)!r}), batch=4)
assert sum(len(batch) for batch in pipe) == 40
assert "tensorflow" not in sys.modules and "datasets" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_a_provider_holds_has_no_fingerprint(table: Callable[..., Any], stream: Callable[..., Any]) -> None:
    for pipe in (table(preprocess=number, seed=1), stream(preprocess=number, seed=1)):
        with pytest.raises(ValueError, match="import them as a data set"):
            pipe.fingerprint()


# ---- the stream under the pipeline's other nodes
@pytest.mark.parametrize("lane", [Lane(), Lane(Grid(4, 2), 1), Lane(Grid(3), 0), Lane(Grid(2, 1, 3), 2)])
@pytest.mark.parametrize("records", [None, RECORDS])
def test_a_stream_is_restored_at_every_step(stream: Callable[..., Any], lane: Lane, records: int | None) -> None:
    made = [stream(preprocess=drawn, seed=2, shuffle=shuffle, records=records).node for shuffle in (0, 5)]
    for node in made:
        restores_everywhere(lambda node=node: node, most=13, state_size=2500, lane=lane)


def test_a_stream_in_a_mix_and_repeated(stream: Callable[..., Any], table: Callable[..., Any]) -> None:
    pipe = dload.mix([stream(preprocess=drawn, seed=2), table(preprocess=drawn, seed=2)], seed=1, until="cycle")
    expected = list(pipe.iter(epoch=0))
    iterator = pipe.iter(epoch=0)
    begun = [next(iterator) for _ in range(33)]
    assert begun + list(pipe.iter(state=json.loads(json.dumps(iterator.get_state())))) == expected
    repeated = stream(preprocess=number, shuffle=0, records=RECORDS).repeat(2)
    assert list(repeated) == 2 * list(range(RECORDS))
