"""Data sets that the real `datasets` and TFDS hold in local folders: no network, no TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RECORDS = 40  # of the training split, in four files


@pytest.fixture(scope="session", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`datasets` asks nobody, and keeps what it prepares in a folder of this run."""
    import datasets

    cache = str(tmp_path_factory.mktemp("hf"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")  # processes that are started
        patch.setenv("HF_HOME", cache)
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
        datasets.disable_progress_bars()
        yield


def write_jsonl(path: Path, numbers: range) -> None:
    path.write_text("".join(json.dumps({"x": number, "text": f"row {number}"}) + "\n" for number in numbers))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder as `datasets.load_dataset` takes it: 40 records in four files, and 10 to validate."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    for number in range(4):
        write_jsonl(folder / f"train-{number}.jsonl", range(number * 10, number * 10 + 10))
    write_jsonl(folder / "test-0.jsonl", range(100, 110))
    return folder


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `save_to_disk` writes."""
    import datasets

    folder = tmp_path_factory.mktemp("saved") / "numbers"
    splits = {"train": range(RECORDS), "test": range(100, 110)}
    made = {split: datasets.Dataset.from_list([{"x": x} for x in numbers]) for split, numbers in splits.items()}
    datasets.DatasetDict(made).save_to_disk(folder)
    return folder


@pytest.fixture(scope="session")
def tfds_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data_dir of TFDS with one data set, `numbers`, that TFDS wrote in ArrayRecord."""
    import numpy as np
    import tensorflow_datasets as tfds

    with tfds.core.registered.skip_registration():  # as where only the data is there

        class Numbers(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
            VERSION = tfds.core.Version("1.2.0")

            def _info(self) -> Any:
                row = tfds.features.Tensor(shape=(3,), dtype=np.float32)
                features = {"x": np.int64, "text": tfds.features.Text(), "row": row}
                return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

            def _split_generators(self, _: Any) -> dict[str, Any]:
                return {
                    "train": self._generate_examples(range(RECORDS)),
                    "test": self._generate_examples(range(100, 110)),
                }

            def _generate_examples(self, numbers: range) -> Any:
                for x in numbers:
                    yield x, {"x": x, "text": f"row {x}", "row": np.full(3, x, dtype=np.float32)}

    folder = tmp_path_factory.mktemp("tfds")
    tfds.disable_progress_bar()
    Numbers(data_dir=str(folder), file_format="array_record").download_and_prepare()
    return folder
