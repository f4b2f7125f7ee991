"""Packed pipelines as users run them: known lengths and random access, any ranks, resumed on others."""

from __future__ import annotations

import json
import pickle
import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dload
from dload.api import Pipeline, Repository
from dload.api.loader import Loader, merge_states
from dload.cache import ShardCache
from dload.errors import ConfigError
from dload.pack import Sample
from dload.pipeline.pack_plan import document_ends
from dload.store.faulty import Faulty
from dload.store.local import FolderStore
from tests.pipeline.test_packing import EOS, PAD, plain, reference

rng = random.Random(3)
DOCS = [[1000 * number + at + 1 for at in range(rng.randrange(60))] for number in range(240)]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    folder = tmp_path_factory.mktemp("packing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        repo = Repository(FolderStore(folder / "store"), ShardCache(folder / "cache"), folder / "dload.lock")
        samples = ((f"d{number:04d}", {"tokens": array("i", doc).tobytes()}) for number, doc in enumerate(DOCS))
        repo.commit("docs", samples, target_shard_size=3000)
        yield repo


def decoded(sample: Sample) -> Any:
    return {"tokens": array("i", sample[1]["tokens"])}


def some(sample: Sample) -> bool:
    return int(sample[0][1:]) % 3 != 0


def packed(pipe: Pipeline, length: int = 32, **more: Any) -> Pipeline:
    return pipe.pack(length, eos_id=EOS, pad_id=PAD, **more).map(plain)


INDEXED: dict[str, Callable[[Repository], Pipeline]] = {
    "concat": lambda repo: packed(repo.dataset("docs").samples(), dtype="int32"),
    "shuffled below": lambda repo: packed(repo.dataset("docs").samples().shuffle(30, seed=1), dtype="int32"),
    "shuffled above": lambda repo: packed(repo.dataset("docs").samples(), dtype="int32").shuffle(30, seed=1),
    "first fit": lambda repo: packed(repo.dataset("docs").samples(), dtype="int32", mode="first_fit", seed=2),
    "best fit": lambda repo: packed(repo.dataset("docs").samples(), dtype="int32", mode="best_fit"),
    "so many": lambda repo: packed(repo.dataset("docs").samples(), dtype="int32", blocks_per_epoch=100),
}


def in_part(sample: Sample) -> Any:
    if int(sample[0][1:]) % 7 == 2:
        raise ValueError("a bad row")
    return decoded(sample)


STREAMED: dict[str, Callable[[Repository], Pipeline]] = {
    "concat": lambda repo: packed(repo.dataset("docs").samples().shuffle(30, seed=1).filter(some).map(decoded)),
    "first fit": lambda repo: packed(repo.dataset("docs").samples().map(decoded), mode="first_fit", seed=1),
    "rows skipped": lambda repo: packed(repo.dataset("docs").samples().map(in_part, on_error="skip"), mode="best_fit"),
    "holes": lambda repo: packed(repo.dataset("docs").samples().filter(some, holes=True).map(decoded)),
    "on threads": lambda repo: packed(repo.dataset("docs").samples().map(decoded, workers=2, queue=4)),
    "so many": lambda repo: packed(
        repo.dataset("docs").samples().map(decoded), mode="best_fit", blocks_per_epoch=96
    ).map(plain),
}


def steps(repo: Repository, pipe: Pipeline, ranks: int, batch: int = 12, **more: Any) -> list[list[Any]]:
    """The global batches of an epoch, put together of all ranks'."""
    loaders = [Loader(pipe, batch, rank=rank, world_size=ranks, threads=0, **more) for rank in range(ranks)]
    return [joined(parts) for parts in zip(*loaders, strict=True)]


def run(
    pipe: Pipeline, batch: int, ranks: int, state: Any, most: int, **more: Any
) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """So many global batches from a state on, and the ranks' states behind them."""
    loaders = [Loader(pipe, batch, rank=rank, world_size=ranks, threads=0, seed=0, **more) for rank in range(ranks)]
    for loader in loaders if state is not None else []:
        loader.load_state_dict(json.loads(json.dumps(state)))
    iterators = [iter(loader) for loader in loaders]
    found = [joined(map(next, iterators)) for _ in range(most)]
    states = [loader.state_dict() for loader in loaders]
    for loader in loaders:
        loader.close()
    return found, states


def joined(parts: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


# ---------------------------------------------------------------- lengths that are known
def test_blocks_are_planned_from_the_indexes_alone(repo: Repository, tmp_path: Path) -> None:
    store = Faulty(repo.store)
    counted = Repository(store, ShardCache(tmp_path / "cache"), tmp_path / "dload.lock")
    samples = counted.dataset("docs").samples()
    store.calls.clear()
    pipe = samples.pack(32, eos_id=EOS, pad_id=PAD, dtype="int32")
    shards = len(repo.manifest("docs").shards)
    assert shards > 8
    assert store.count() == {"get_range": shards}
    expected = reference(DOCS, 32)
    assert len(pipe) == len(expected)
    assert pipe.check().ok and "index tier" in pipe.explain()
    assert store.count() == {"get_range": shards}  # neither asks for anything
    assert [plain(block) for block in pipe] == expected


@pytest.mark.parametrize("kind", INDEXED)
def test_it_pickles_and_goes_on_from_any_step(repo: Repository, kind: str) -> None:
    pipe = INDEXED[kind](repo)
    whole = list(pipe.iter(epoch=1))
    assert len(whole) == len(pipe)
    for step in (0, 1, len(whole) // 2, len(whole) - 1):
        with pipe.iter(epoch=1) as iterator:
            assert [next(iterator) for _ in range(step)] == whole[:step]
            state = json.loads(json.dumps(iterator.get_state()))
        assert state["lanes"] is None and state["step"] == step
        assert list(pickle.loads(pickle.dumps(pipe)).iter(state=state)) == whole[step:]


@pytest.mark.parametrize("kind", INDEXED)
def test_the_same_global_batch_on_any_ranks(repo: Repository, kind: str) -> None:
    pipe = INDEXED[kind](repo)
    alone = steps(repo, pipe, 1, seed=0)
    assert len(alone) == len(pipe) // 12
    for ranks in (2, 3, 4, 12):
        assert steps(repo, pipe, ranks, seed=0, columns=1, homes=1) == alone
    if kind not in ("shuffled below", "shuffled above"):
        rows = joined(alone)
        assert rows == list(pipe.iter(epoch=0))[: len(rows)]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(INDEXED)), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3, 6]), st.integers(0, 9),
    st.sampled_from([1, 2, 3]), st.sampled_from(["drop", "pad", "endless"]),
)  # fmt: skip
def test_a_run_goes_on_on_other_ranks(
    repo: Repository, kind: str, before: int, after: int, stop: int, columns: int, ends: str
) -> None:
    pipe = INDEXED[kind](repo)

    more = {"columns": columns, "homes": 1, "ends": ends}
    whole, _ = run(pipe, 6, 1, None, stop + 4, **more)
    first, states = run(pipe, 6, before, None, stop, **more)
    rest, _ = run(pipe, 6, after, states[-1], 4, **more)
    assert first + rest == whole


def test_an_order_is_looked_at_once_an_epoch(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []

    def counted(node: Any, run: Any, epoch: Any, *more: Any) -> Any:
        looked.append(epoch)
        return document_ends(node, run, epoch, *more)

    monkeypatch.setattr("dload.pipeline.packing.document_ends", counted)
    pipe = INDEXED["shuffled below"](repo)
    for _ in range(4):
        assert len(list(pipe)) == len(pipe)
    assert set(range(4)) <= {epoch for (epoch,) in looked} <= set(range(5))
    assert len(looked) == len(set(looked))


# ---------------------------------------------------------------- streams
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(STREAMED)), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(0, 5),
    st.sampled_from([1, 2]),
)  # fmt: skip
def test_streams_go_on_on_other_ranks(
    repo: Repository, kind: str, before: int, after: int, stop: int, turns: int
) -> None:
    pipe = STREAMED[kind](repo)

    more = {"columns": 4, "turns": turns, "ends": "endless"}
    whole, _ = run(pipe, 8, 1, None, stop + 3, **more)
    first, states = run(pipe, 8, before, None, stop, **more)
    state = merge_states(states)
    assert len(json.dumps(state)) < 2500
    rest, _ = run(pipe, 8, after, state, 3, **more)
    assert first + rest == whole


def test_a_fixed_number_of_blocks_ends_all_ranks_together(repo: Repository) -> None:
    pipe = STREAMED["so many"](repo)
    assert len(pipe) == 96
    alone = steps(repo, pipe, 1, columns=4)
    assert len(alone) == 8
    assert steps(repo, pipe, 2, columns=4) == steps(repo, pipe, 4, columns=4) == alone
    with pytest.raises(ConfigError, match="blocks_per_epoch=96 can't be shared evenly by 36 lanes"):
        Loader(pipe, 36, columns=36)


def test_the_functions_of_a_pipeline_see_blocks_by_their_identity(repo: Repository) -> None:
    def rolled(block: Any, rng: Any) -> Any:
        return block["input_ids"], rng.random()

    docs = repo.dataset("docs").samples()
    planned = list(packed(docs, dtype="int32").map(rolled, rng=True, rng_seed=1))
    streamed = list(packed(docs.filter(bool), dtype="int32").map(rolled, rng=True, rng_seed=1))
    assert planned == streamed
    assert len({draw for _, draw in planned}) == len(planned)


def test_what_is_stored_as_token_arrays_needs_no_dtype(repo: Repository) -> None:
    samples = [(f"d{number}", {"tokens": dload.codecs.tokens_bytes(doc)}) for number, doc in enumerate(DOCS[:40])]
    repo.commit("arrays", samples)
    pipe = packed(repo.dataset("arrays").samples(), tokens="tokens")
    assert list(pipe) == reference(DOCS[:40], 32)
    with pytest.raises(TypeError, match="isn't known"):
        len(pipe)


def test_two_data_sets_are_planned_as_one(repo: Repository) -> None:
    samples = [(f"e{number}", {"tokens": array("i", doc).tobytes()}) for number, doc in enumerate(DOCS[:40])]
    repo.commit("more", samples)
    both = dload.concat([repo.dataset("more").samples(), repo.dataset("docs").samples()])
    pipe = packed(both, dtype="int32")
    expected = reference(DOCS[:40] + DOCS, 32)
    assert len(pipe) == len(expected) and list(pipe) == expected


def test_fingerprints_tell_packings_apart(repo: Repository) -> None:
    docs = repo.dataset("docs").samples()
    prints = {
        pipe.fingerprint()
        for pipe in (
            docs.pack(32, eos_id=0, pad_id=1),
            docs.pack(33, eos_id=0, pad_id=1),
            docs.pack(32, eos_id=0, pad_id=2),
            docs.pack(32, eos_id=None, pad_id=1),
            docs.pack(32, eos_id=0, pad_id=1, mode="best_fit"),
            docs.pack(32, eos_id=0, pad_id=1, mode="best_fit", seed=1),
            docs.pack(32, eos_id=0, pad_id=1, mode="best_fit", max_documents=4),
            docs.pack(32, eos_id=0, pad_id=1, dtype="int32"),
            docs.pack(32, eos_id=0, pad_id=1, aligned=["roles"]),
        )
    }
    assert len(prints) == 9


def test_a_compressed_field_is_streamed(repo: Repository) -> None:
    samples = [(f"d{number}", {"tokens": array("i", doc).tobytes()}) for number, doc in enumerate(DOCS[:40])]
    repo.commit("small", samples, codecs={"tokens": "zstd"})
    pipe = packed(repo.dataset("small").samples(), dtype="int32")
    assert not pipe.node.indexed
    assert list(pipe) == reference(DOCS[:40], 32)
