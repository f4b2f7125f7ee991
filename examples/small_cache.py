"""A large data set through a small cache: what fits stays, the rest slides by; what can't work is said beforehand.

    pip install dload-ml
    python examples/small_cache.py

The data are Python's standard library, in pages of fifty lines. The cache may hold a quarter of them, and holds no more
at any moment. An epoch that is shuffled within a window needs some shards at a time; dload knows how many, fetches them
ahead, and keeps those that come again soonest. A uniform shuffle of everything needs all of them, and is refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import dload
from dload import format_size

LINES = 50
SHARD = 64_000  # bytes, so that there are many; 128 MiB is what is good for real data
LEFT_OUT = ("site-packages", "test", "idlelib", "lib2to3")


def pages() -> Iterator[tuple[str, dict[str, bytes]]]:
    library = Path(tempfile.__file__).parent
    for path in sorted(library.rglob("*.py")):
        module = path.relative_to(library)
        if module.parts[0] not in LEFT_OUT:
            lines = path.read_bytes().splitlines(keepends=True)
            for first in range(0, len(lines), LINES):
                yield f"{module.as_posix()}:{first + 1}", {"txt": b"".join(lines[first : first + LINES])}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name:
        folder = Path(name)
        elsewhere = dload.Repository.open(folder / "store", cache_dir=folder / "elsewhere", cache_budget="unlimited")
        size = elsewhere.commit("library", pages(), target_shard_size=SHARD).total_bytes

        budget = size // 4
        repo = dload.Repository.open(folder / "store", cache_dir=folder / "cache", cache_budget=budget)
        library = repo.dataset("library")
        shards = len(library.manifest.shards)
        print(f"{library}, and a cache of {format_size(budget)}")

        pipe = library.samples().shuffle(200, seed=0)
        print(pipe.check().message)  # by arithmetic, before a byte has moved
        fetched = []
        for epoch in range(3):
            before = repo.cache.counts()
            read = sum(len(fields["txt"]) for _, fields in pipe)
            assert repo.cache.used_bytes() <= budget
            fetched.append(repo.cache.counts().misses - before.misses)
            print(f"epoch {epoch}: {format_size(read)} read, {fetched[-1]} of {shards} shards fetched")
        # Of the first epoch all, once. Later what the cache held is there already.
        assert fetched[0] == shards
        assert all(each < shards for each in fetched[1:])

        everything = library.samples().shuffle(full=True, seed=0)
        try:
            next(iter(everything))
        except dload.InfeasiblePipelineError as error:
            print(f"a uniform shuffle {error}")
        else:
            raise AssertionError("it can't fit")


if __name__ == "__main__":
    main()
