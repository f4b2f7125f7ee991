"""A data set that a provider holds, as a pipeline."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, overload

from dload.api.pipeline import Pipeline
from dload.errors import ConfigError
from dload.pipeline.provided import Provided, ProvidedStream, RecordStream, RecordTable
from dload.providers import HFOptions, TFDSOptions, open_split

__all__ = ["HFOptions", "TFDSOptions", "load"]

Preprocess = Callable[[Any, random.Random], Any]


@overload
def load(
    source: str,
    *,
    preprocess: Preprocess,
    batch: int | None = None,
    split: str = "train",
    val_split: None = None,
    records: int | None = None,
    seed: int | None = None,
    shuffle: int = 4096,
    options: HFOptions | TFDSOptions | None = None,
    streaming: bool = False,
) -> Pipeline: ...
@overload
def load(
    source: str,
    *,
    preprocess: Preprocess,
    batch: int | None = None,
    split: str = "train",
    val_split: str,
    records: int | None = None,
    seed: int | None = None,
    shuffle: int = 4096,
    options: HFOptions | TFDSOptions | None = None,
    streaming: bool = False,
) -> tuple[Pipeline, Pipeline]: ...
def load(
    source: str,
    *,
    preprocess: Preprocess,
    batch: int | None = None,
    split: str = "train",
    val_split: str | None = None,
    records: int | None = None,
    seed: int | None = None,
    shuffle: int = 4096,
    options: HFOptions | TFDSOptions | None = None,
    streaming: bool = False,
) -> Pipeline | tuple[Pipeline, Pipeline]:
    """A `split` of a `source`, "hf/NAME" or "tfds/NAME", as a pipeline, read where it is, without import; with
    `val_split`, the pair of both.

    NAME is what `datasets.load_dataset` or `tfds.builder` takes, or a folder that `save_to_disk` or TFDS wrote.
    Elements are `preprocess(record, rng)`: the provider's record, and a random.Random whose draws hang on which record
    it is, the epoch and `seed` alone. `batch`: lists of so many, a shorter last one only in validation; without,
    records alone, for a loader's `global_batch`. `shuffle`: as in `Pipeline.shuffle`; 0 reads in order. Validation is
    always read in order.

    A split is in the index tier: it has a length, seeks, and goes on exactly on any number of ranks. With `streaming`
    (Hugging Face) nothing is downloaded ahead of reading, and it is in the stream tier: lanes share the rows, it goes
    on at its record, and has no length unless `records` says how many records the split has. Then "drop" works as
    always, and every lane goes over the whole stream, to have its exact share. Fewer records than lanes are refused.

    Raises ConfigError where there is no such provider, split or format, or `records` isn't what there is (a stream may
    have to be read to its end for that); NotFoundError where the data isn't there, UnavailableError where the hub
    can't be asked for it; TypeError for another provider's options. Uses the network where the provider does.
    """
    train = _read(source, split, options, streaming, records)
    if shuffle:
        train = train.shuffle(shuffle, seed=seed)
    train = _made(train, preprocess, seed, batch, drop_last=True)
    if val_split is None:
        return train
    validation = _read(source, val_split, options, streaming, None)
    return train, _made(validation, preprocess, seed, batch, drop_last=False)


def _read(source: str, split: str, options: object, streaming: bool, records: int | None) -> Pipeline:
    found: RecordTable | RecordStream = open_split(source, split, options, streaming)
    if not streaming:
        table = Provided(found)  # type: ignore[arg-type]
        _agree(source, split, records, len(table.items))
        return Pipeline(table)
    stream = ProvidedStream(found, records)  # type: ignore[arg-type]
    _agree(source, split, records, stream.source.records)
    return Pipeline(stream)


def _agree(source: str, split: str, records: int | None, there: int | None) -> None:
    if records is not None and there is not None and records != there:
        raise ConfigError(
            f"records={records:,}, and split {split} of {source} has {there:,}", remedy="leave records out"
        )


def _made(pipe: Pipeline, preprocess: Preprocess, seed: int | None, batch: int | None, drop_last: bool) -> Pipeline:
    pipe = pipe.map(preprocess, rng=True, rng_seed=seed)
    return pipe if batch is None else pipe.batch(batch, drop_last=drop_last)
