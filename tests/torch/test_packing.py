"""Packed blocks as PyTorch takes them: tensors, from worker processes, in one order."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader

from dload.api import Pipeline, Repository
from dload.cache import ShardCache
from dload.pack import Sample
from dload.store.local import FolderStore
from dload.torch import as_iterable_dataset
from tests.pipeline.test_packing import reference

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*number of workers.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*max number of worker.*:UserWarning"),
]

rng = random.Random(5)
DOCS = [[1000 * number + at + 1 for at in range(rng.randrange(40))] for number in range(120)]


def present(sample: Sample) -> bool:
    return bool(sample[1]["tokens"])


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    folder = tmp_path_factory.mktemp("packing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        repo = Repository(FolderStore(folder / "store"), ShardCache(folder / "cache"), folder / "dload.lock")
        made = ((f"d{number:04d}", {"tokens": array("i", doc).tobytes()}) for number, doc in enumerate(DOCS))
        repo.commit("docs", made, target_shard_size=2000)
        yield repo.dataset("docs").samples()


def test_workers_give_the_planned_blocks_in_order(samples: Pipeline) -> None:
    pipe = samples.pack(16, eos_id=0, pad_id=-1, dtype="int32")
    dataset = as_iterable_dataset(pipe)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    expected = reference(DOCS, 16)
    assert len(dataset) == len(expected)
    found = list(loader)
    assert all(block["input_ids"].dtype == torch.int64 and block["loss_mask"].dtype == torch.bool for block in found)
    assert [block["input_ids"].tolist() for block in found] == [block["input_ids"] for block in expected]
    assert [block["doc_ids"].tolist() for block in found] == [block["doc_ids"] for block in expected]


def test_streams_with_a_fixed_number_of_blocks_are_stacked(samples: Pipeline) -> None:
    pipe = samples.filter(present).pack(16, eos_id=0, pad_id=-1, dtype="int32", blocks_per_epoch=96)
    loader = DataLoader(as_iterable_dataset(pipe), batch_size=8, num_workers=2, multiprocessing_context="fork")
    batches = list(loader)
    assert [batch["input_ids"].shape for batch in batches] == [(8, 16)] * 12
    tokens = [token for batch in batches for token in batch["input_ids"].flatten().tolist() if token > 0]
    assert len(set(tokens)) == len(tokens) and set(tokens) <= {token for doc in DOCS for token in doc}
