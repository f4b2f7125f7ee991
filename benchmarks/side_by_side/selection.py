"""The rows of a run, with sizes: full, quick (a few minutes), or tiny (for the tests)."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .peers.samples import Spec, write_corpus
from .rows import Access, Again, Cold, Figure, Insert, Load, Memory, Mix, Pack, Read, Resume, Row, Write

MB = 1 << 20

SAMPLES = Figure("samples", "samples/s")
CPU = Figure("cpu", "processor s / million samples", False)
CPU_GB = Figure("cpu", "processor s / GB", False)
DISPLACED = Figure("displaced", "mean way from the place in storage, as a share of chance's")
MEGABYTES = Figure("megabytes", "MB/s")
FIRST = Figure("first", "s to the first batch", False)
REQUESTS = Figure("requests", "requests", False)
BYTES = Figure("bytes", "x the data set's bytes", False)


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    small: int  # samples of 1 KB
    middle: int  # of 100 KB
    large: int  # of 4 MB
    commit: int  # of 100 KB, to be written
    mixed: int  # of 1 KB, of all sources together
    photos: int
    texts: int
    documents: int
    remote: int  # bytes of a shard in S3, where 100 KB samples are read from
    least: float  # seconds that a warm measurement takes at least


FULL = Sizes(25_600, 2_560, 64, 2_000, 10_000, 512, 4_096, 10_000, 16 * MB, 0.3)
QUICK = Sizes(12_800, 768, 24, 500, 4_000, 128, 1_024, 4_000, 4 * MB, 0.1)
TINY = Sizes(256, 256, 4, 8, 500, 0, 128, 64, MB // 2, 0.0)


def rows(sizes: Sizes, folder: Path) -> list[Row]:
    """All rows, in the order in which they are run. `folder` is for the photographs and texts."""
    made: list[Row] = []
    for size, count, shard, name in (
        (1000, sizes.small, 8 * MB, "1 KB"), (100_000, sizes.middle, 32 * MB, "100 KB"),
        (4_000_000, sizes.large, 32 * MB, "4 MB"),
    ):  # fmt: skip
        made += _of_one_size(name, Spec(count, size), shard, sizes.least)
    made += _from_s3(Spec(sizes.middle, 100_000), sizes.remote)
    for sources in (2, 10, 100):
        spec, figures = Spec(sizes.mixed, 1000), (SAMPLES, CPU, Figure("off", "samples off an equal share", False))
        made.append(
            Mix(f"mix-{sources}", f"Mixing {sources} sources of 1 KB samples", f"mix-{sources}", spec, 8 * MB, figures,
                sources=sources)
        )  # fmt: skip
    made += _real(sizes, folder)
    tokens = (Figure("tokens", "million tokens/s"), Figure("cpu", "processor s / billion tokens", False))
    made.append(
        Pack("packing", "Documents into blocks of 2,048 tokens", "tokens", Spec(1, 1), 32 * MB, tokens,
             documents=sizes.documents)
    )  # fmt: skip
    made += _writing(Spec(sizes.commit, 100_000))
    return made


def _of_one_size(name: str, spec: Spec, shard: int, least: float) -> list[Row]:
    figures = (SAMPLES, CPU)
    slug = name.lower().replace(" ", "")
    made: list[Row] = [
        Read(f"read-{slug}", f"Warm, {name}, in order", name, spec, shard, figures, least=least),
        Read(f"shuffled-{slug}", f"Warm, {name}, shuffled", name, spec, shard, (*figures, DISPLACED), shuffled=True,
             least=least),
    ]  # fmt: skip
    if slug != "4mb":
        made += [
            Load(f"loader-{slug}-{workers}", f"DataLoader, {name}, {workers or 'no'} workers", name, spec, shard,
                 figures, workers=workers, least=least)
            for workers in (0, 2, 4)
        ]  # fmt: skip
    if slug == "1kb":
        at = tuple(
            Figure(f"first at {share:.0%}", f"ms to the first batch, at {share:.0%}", False)
            for share in (0.1, 0.5, 0.9)
        )
        exact = Figure("exact", "goes on exactly (1: yes)")
        made += [
            Access("access-index", "Single samples of 1 KB by number", name, spec, shard, (SAMPLES,), by="index"),
            Access("access-key", "Single samples of 1 KB by key", name, spec, shard, (SAMPLES,), by="key"),
            Resume("resume", "Resuming in an epoch", name, spec, shard, (*at, exact)),
        ]
    if slug == "100kb":
        note = "own and shared pages, not those of files, beyond the imports"
        memory = (
            Figure("own", "MB beyond the imports", False, note), Figure("process", "MB with the imports", False),
            Figure("rss", "MB peak RSS, with pages of files", False),
        )  # fmt: skip
        made.append(Memory("memory", "Memory of a shuffled pass, 100 KB", name, spec, shard, memory, rounds=2))
    return made


def _from_s3(spec: Spec, shard: int) -> list[Row]:
    near, again = (MEGABYTES, FIRST, CPU_GB), (MEGABYTES, BYTES)
    return [
        Cold("cold-near", "Cold from S3, near", "s3", spec, shard, near),
        Cold("cold-distant", "Cold from S3, distant", "s3", spec, shard, (*near, REQUESTS, BYTES), distant=True),
        Again("second-epoch", "Second epoch, a cache of 60 %, distant", "s3", spec, shard, again, rounds=3),
        Insert("insert", "Commit again after an insert at the front", "s3-insert", spec, shard,
               (BYTES, Figure("seconds", "s", False)), rounds=1),
    ]  # fmt: skip


def _writing(spec: Spec) -> list[Row]:
    figures = (MEGABYTES, CPU_GB)
    return [
        Write("commit-folder", "Writing a data set to a folder", "commit", spec, 32 * MB, figures),
        Write("commit-s3", "Writing a data set to S3", "commit-s3", spec, 32 * MB, figures, remote=True),
    ]


# ---- photographs and texts
def _real(sizes: Sizes, folder: Path) -> list[Row]:
    made: list[Row] = []
    for name, title, count, make in (
        ("decode", "JPEGs decoded, 2 workers", sizes.photos, _photographs),
        ("tokenize", "Text tokenized, 2 workers", sizes.texts, _texts),
    ):
        corpus = folder / name
        if count and _made(corpus, make):
            spec = Spec(count, 0, corpus=str(corpus))
            made.append(Load(name, title, name, spec, 4 * MB, (SAMPLES, CPU), workers=2, work=name, least=sizes.least))
    return made


def _made(corpus: Path, make: Callable[[], list[bytes]]) -> bool:
    if not corpus.exists():
        try:
            write_corpus(corpus, make())
        except ImportError as error:
            print(f"{corpus.name}: left out, since there is no {error.name}")
            return False
    return True


def _photographs() -> list[bytes]:
    """Crops of the two photographs that scikit-learn brings, each a JPEG of about 50 KB."""
    import sklearn.datasets
    from PIL import Image

    images = [
        Image.open(Path(sklearn.datasets.__file__).parent / "images" / name).convert("RGB")
        for name in ("china.jpg", "flower.jpg")
    ]
    found = []
    for number in range(128):
        left, top, data = number * 7 % 120, number * 11 % 80, io.BytesIO()
        images[number % 2].crop((left, top, left + 520, top + 347)).save(data, "JPEG", quality=90)
        found.append(data.getvalue())
    return found


def _texts() -> list[bytes]:
    """English: the pages of Python's own reference, which it brings as `pydoc_data`, in pieces of about 2 KB."""
    from pydoc_data.topics import topics

    pieces: list[bytes] = []
    for page in topics.values():
        piece = ""
        for paragraph in page.split("\n\n"):
            piece += paragraph + "\n\n"
            if len(piece) > 2000:
                pieces.append(piece.encode())
                piece = ""
    return pieces
