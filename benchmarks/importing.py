"""How fast an imported data set is read, against the library that wrote it, on the same samples; and how fast it comes.

    python benchmarks/importing.py [--quick]

50,000 samples of 2 KB and 5,000 of 100 KB (bytes of an image that nobody decodes, a label, a short text) are written by
each library that is installed (webdataset, pyarrow, datasets, mosaicml-streaming, litdata, TFDS in ArrayRecord),
imported into a folder store, and streamed through the cache once. Then passes of the library over its own files and of
`dataset.samples()` in turns, all in file order in one process, each row as the library gives it: where that has the
label as a number and the text as a text, ours are decoded, too, and the rows are compared before time is taken. Prints
medians, and the ratio: 2.0 is twice as fast as the library. A library that isn't installed is left out, by name.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import sys
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from dload.api import Repository
from dload.cache import ShardCache
from dload.importers import open_source
from dload.store.local import FolderStore

Row = dict[str, Any]
Read = Callable[[], Iterator[Any]]


@lru_cache
def noise(size: int) -> bytes:
    return random.Random(0).randbytes(size + 4096)


def row(given: tuple[int, int]) -> Row:
    number, size = given
    return {"jpg": noise(size)[number % 4096 :][:size], "cls": number % 1000, "txt": f"caption of sample {number}"}


def rows(count: int, size: int) -> Iterator[Row]:
    return (row((number, size)) for number in range(count))


# ---- the libraries: each writes rows into a folder and gives what to import and what reads it
def webdataset(folder: Path, count: int, size: int) -> tuple[str, Read]:
    from webdataset import tariterators

    shards = [folder / f"s-{number:03d}.tar" for number in range(4)]
    every = list(rows(count, size))
    for number, shard in enumerate(shards):
        with tarfile.open(shard, "w") as archive:
            for at in range(number * count // 4, (number + 1) * count // 4):
                for field, value in every[at].items():
                    data = value if isinstance(value, bytes) else str(value).encode()
                    info = tarfile.TarInfo(f"{at:08d}.{field}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))

    def read() -> Iterator[Any]:
        for shard in shards:
            with shard.open("rb") as stream:
                members = tariterators.tar_file_expander([{"url": str(shard), "stream": stream}])
                yield from tariterators.group_by_keys(members)

    return str(folder), read


def parquet(folder: Path, count: int, size: int) -> tuple[str, Read]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "t.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows(count, size))), path, row_group_size=1000, compression="none")

    def read() -> Iterator[Any]:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(1000):
                yield from batch.to_pylist()

    return str(path), read


def hf(folder: Path, count: int, size: int) -> tuple[str, Read]:
    import datasets

    datasets.disable_progress_bars()
    made = datasets.Dataset.from_dict(
        {name: [row[name] for row in rows(count, size)] for name in ("jpg", "cls", "txt")}
    )
    made.save_to_disk(folder / "saved")
    return str(folder / "saved"), lambda: iter(datasets.load_from_disk(folder / "saved"))


def mds(folder: Path, count: int, size: int) -> tuple[str, Read]:
    from streaming import MDSWriter, StreamingDataset

    with MDSWriter(out=str(folder / "mds"), columns={"jpg": "bytes", "cls": "int", "txt": "str"}) as writer:
        for row in rows(count, size):
            writer.write(row)
    opened = StreamingDataset(local=str(folder / "mds"), shuffle=False, batch_size=1)

    def read() -> Iterator[Any]:
        return (opened[number] for number in range(count))

    return str(folder / "mds"), read


def litdata(folder: Path, count: int, size: int) -> tuple[str, Read]:
    from litdata import StreamingDataset, optimize

    place = str(folder / "litdata")
    optimize(row, [(n, size) for n in range(count)], place, chunk_bytes="64MB", num_workers=1, verbose=False)

    def read() -> Iterator[Any]:
        for row in StreamingDataset(place, shuffle=False):
            yield {**row, "jpg": bytes(row["jpg"])}  # a view of a mapped file becomes bytes, as dload's are

    return place, read


def tfds(folder: Path, count: int, size: int) -> tuple[str, Read]:
    import numpy as np
    import tensorflow_datasets as tfds

    with tfds.core.registered.skip_registration():

        class Samples(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
            VERSION = tfds.core.Version("1.0.0")

            def _info(self) -> Any:
                data = tfds.features.Tensor(shape=(), dtype=np.object_)
                features = {"jpg": data, "cls": np.int64, "txt": tfds.features.Text()}
                return tfds.core.DatasetInfo(
                    builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
                )

            def _split_generators(self, _: Any) -> dict[str, Any]:
                return {"train": self._generate_examples()}

            def _generate_examples(self) -> Any:
                return enumerate(rows(count, size))

    tfds.disable_progress_bar()
    builder = Samples(data_dir=str(folder / "tfds"), file_format="array_record")
    builder.download_and_prepare()

    def read() -> Iterator[Any]:
        for one in builder.as_data_source(split="train"):
            yield {**one, "txt": one["txt"].decode()}

    return str(builder.data_dir), read


LIBRARIES = {
    "webdataset": webdataset, "parquet": parquet, "hf": hf, "mds": mds, "litdata": litdata, "tfds": tfds,
}  # fmt: skip


def decoded(fields: dict[str, bytes]) -> Row:
    return {"jpg": fields["jpg"], "cls": int(fields["cls"]), "txt": fields["txt"].decode()}


# ---- measuring
def drain(read: Read) -> float:
    begin = time.perf_counter()
    deque(read(), maxlen=0)
    return time.perf_counter() - begin


def measure(name: str, count: int, size: int, turns: int, folder: Path) -> None:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            source, theirs = LIBRARIES[name](folder, count, size)
    except ImportError as error:
        print(f"{name:<12}{size:>8,} B   left out: {error}")
        return
    repo = Repository(FolderStore(folder / "store"), ShardCache(folder / "cache", 1 << 40))
    begin = time.perf_counter()
    repo.commit("imported", open_source(source), workers=2)
    came_in = time.perf_counter() - begin
    dataset = repo.dataset("imported")

    def ours() -> Iterator[Any]:
        if name == "webdataset":  # which gives bytes, too
            return (fields for _, fields in dataset.samples())
        return (decoded(fields) for _, fields in dataset.samples())

    number = -1
    for number, (one, other) in enumerate(zip(ours(), theirs(), strict=True)):
        assert all(other[field] == value for field, value in one.items()), number
    assert number == count - 1
    times: dict[str, list[float]] = {"theirs": [], "ours": []}
    for _ in range(turns):
        times["theirs"].append(drain(theirs))
        times["ours"].append(drain(ours))
    library, here = median(times["theirs"]), median(times["ours"])
    print(
        f"{name:<12}{size:>8,} B{count / library:>12,.0f} rows/s{count / here:>14,.0f} rows/s{library / here:>9.1f}"
        f"{count * size / came_in / 1e6:>10,.0f} MB/s{count / came_in:>12,.0f} rows/s"
    )


def main() -> None:
    sys.path.pop(0)  # another benchmark here has the name of MosaicML's package
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the samples, three turns")
    quick = parser.parse_args().quick
    print(f"{'written by':<12}{'size':>10}{'the library':>19}{'dload':>21}{'ratio':>9}{'import':>15}")
    for count, size in ((50_000, 2_000), (5_000, 100_000)):
        for name in LIBRARIES:
            with tempfile.TemporaryDirectory(prefix="dload-importing-") as folder:
                measure(name, count // 5 if quick else count, size, 3 if quick else 7, Path(folder))


if __name__ == "__main__":
    main()
