"""Pipelines as users write them: what they refuse, what identifies them, what they answer without touching storage."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dload
from dload.api import Pipeline, Repository
from dload.cache import ShardCache
from dload.errors import ConfigError
from dload.pipeline.fingerprint import same_as
from dload.store.memory import MemoryStore


def double(x: int) -> int:
    return 2 * x


def even(x: int) -> bool:
    return x % 2 == 0


def total(state: int, x: int) -> int:
    return state + x


def twice(x: int) -> list[int]:
    return [x, x]


def add(x: int, y: int) -> int:
    return x + y


@same_as("1")
def marked(x: int) -> int:
    return x + 1


def numbers(count: int = 10) -> Pipeline:
    return dload.from_iterable(list(range(count)))


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    repo = Repository(MemoryStore(), ShardCache(tmp_path / "cache"), tmp_path / "dload.lock")
    repo.commit("speech", [(f"k{i}", {"x": b"%d" % i}) for i in range(20)])
    return repo


# ---- operators, by what they give
@pytest.mark.parametrize(
    ("pipe", "expected"),
    [
        (numbers(3).map(double), [0, 2, 4]),
        (numbers(6).filter(even), [0, 2, 4]),
        (numbers(6).filter(even, holes=True), [0, 2, 4]),
        (numbers(3).flat_map(twice), [0, 0, 1, 1, 2, 2]),
        (numbers(3).flat_map(twice, fanout=2), [0, 0, 1, 1, 2, 2]),
        (numbers(4).scan(total, 10), [10, 11, 13, 16]),
        (numbers(5).batch(2), [[0, 1], [2, 3], [4]]),
        (numbers(5).batch(2, drop_last=True), [[0, 1], [2, 3]]),
        (numbers(5).batch(2, collate=sum), [1, 5, 4]),
        (numbers(5).batch(2).unbatch(), [0, 1, 2, 3, 4]),
        (numbers(5).window(3), [[0, 1, 2], [3, 4]]),
        (numbers(5).window(3, 1), [[0, 1, 2], [1, 2, 3], [2, 3, 4]]),
        (numbers(2).window(3, 1), [[0, 1]]),
        (numbers(2).window(3, 1, drop_last=True), []),
        (numbers().take(3), [0, 1, 2]),
        (numbers().skip(8), [8, 9]),
        (numbers(2).repeat(2), [0, 1, 0, 1]),
        (numbers(2).enumerate(), [(0, 0), (1, 1)]),
        (numbers(3).maybe(double, 1.0), [0, 2, 4]),
        (numbers(3).maybe(double, 0.0), [0, 1, 2]),
        (numbers(3).maybe(double, even), [0, 1, 4]),
        (numbers(3).maybe(double, dload.from_iterable([0.0, 1.0, 0.0])), [0, 2, 2]),
        (numbers(3).zip_with(add, numbers(5)), [0, 2, 4]),
        (dload.zip(numbers(2), numbers(3)), [(0, 0), (1, 1)]),
        (dload.zip(numbers(2), numbers(3)).star_map(add), [0, 2]),
        (dload.concat([numbers(2), numbers(1)]), [0, 1, 0]),
        (dload.select(dload.from_iterable([1, 0, 1]), numbers(9), numbers(9).map(double)), [0, 0, 2]),
        (numbers(3).through(lambda it: iter(list(it)[::-1])), [2, 1, 0]),
        (numbers(4).tap(print).prefetch(2), [0, 1, 2, 3]),
        (dload.from_iterable(lambda: iter([1, 2])), [1, 2]),
        (dload.mix([numbers(4), numbers(0).map(double)], [1, 0]), [0, 1, 2, 3]),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_operators(pipe: Pipeline, expected: list[Any]) -> None:
    assert list(pipe) == expected
    assert list(pipe) == expected


def test_lengths_where_they_are_known() -> None:
    assert len(numbers(10).map(double).batch(3)) == 4
    assert len(numbers(10).filter(even, holes=True)) == 10
    with pytest.raises(TypeError, match="isn't known"):
        len(numbers(10).filter(even))
    with pytest.raises(TypeError, match="no end"):
        len(dload.random_stream(0))


def test_random_streams_and_choices_follow_their_seeds() -> None:
    one = list(dload.random_stream(3).take(1000))
    assert list(dload.random_stream(3).take(1000)) == one
    assert list(dload.random_stream(4).take(1000)) != one
    assert 0.45 < sum(one) / 1000 < 0.55
    chosen = list(dload.choice([numbers(1).repeat(), numbers(1).map(marked).repeat()], 0.25, seed=1).take(2000))
    assert 0.7 < sum(chosen) / 2000 < 0.8


@pytest.mark.parametrize(
    "build",
    [
        lambda: numbers().batch(0), lambda: numbers().take(-1), lambda: numbers().shuffle(0),
        lambda: numbers().window(2, 0),
        lambda: numbers().repeat(-1), lambda: numbers().maybe(double, 1.5), lambda: dload.concat([]), dload.zip,
        lambda: dload.random_stream(0).shuffle(full=True), lambda: numbers().filter(even).shuffle(full=True),
        lambda: dload.mix([numbers()], [float("nan")]), lambda: dload.mix([numbers()], [0]),
        lambda: dload.mix([numbers(3)], [-1]),
        lambda: dload.concat([numbers(), 3]), lambda: numbers().repeat().repeat(),
        lambda: numbers().map(double).batch(2.5),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_when_it_is_built(build: Callable[[], Pipeline]) -> None:
    with pytest.raises(ConfigError):
        build()


# ---- identity
def test_the_same_pipeline_has_the_same_fingerprint_and_any_change_another(repo: Repository) -> None:
    def make(
        seed: int = 1, size: int = 4, fn: Callable[..., Any] = marked, fields: list[str] | None = None
    ) -> Pipeline:
        return repo.dataset("speech").samples(fields=fields).shuffle(100, seed=seed).map(fn).batch(size)

    base = make().fingerprint()
    assert len(base) == 64
    assert make().fingerprint() == base
    assert make().fingerprint(tag="v2") != base
    others = [make(seed=2), make(size=5), make(fn=double), make(fields=["x"]), make().take(1)]
    assert len({base, *(other.fingerprint() for other in others)}) == 6
    repo.commit("speech", [("other", {"x": b""})])
    assert make().fingerprint() != base
    assert repo.dataset("speech").samples().source_versions() == {"speech": repo.resolve("speech")}


def test_a_fingerprint_is_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def work(x):\n    # a comment\n    return x + 1\n")
    code = "import dload, mine; print(dload.from_iterable([1, 2]).map(mine.work).fingerprint())"
    first, second = (
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first == second
    (tmp_path / "mine.py").write_text("def work(x):  # another comment\n\n    return x   + 1\n")
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        == first
    )
    (tmp_path / "mine.py").write_text("def work(x):\n    return x + 2\n")
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        != first
    )


@pytest.mark.parametrize(
    ("pipe", "message"),
    [
        (numbers().map(lambda x: x), "define it with def"),
        (numbers().shuffle(10), "seed=0"),
        (numbers().map(add, rng=True), "rng_seed=0"),
        (numbers().repeat(), "number of times"),
        (dload.random_stream(1), "take"),
        (dload.from_iterable(iter), "commit it as a data set"),
        (dload.from_iterable([object()]), "not a JSON value"),
    ],
)
def test_what_has_no_identity_says_what_to_do(pipe: Pipeline, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipe.fingerprint()


def test_same_as_keeps_the_identity_across_edits() -> None:
    def version(text: str) -> Callable[[int], int]:
        def work(x: int) -> int:
            return x + len(text)

        work.__qualname__ = "work"
        return same_as(text)(work)

    one, again, two = (numbers().map(version(text)).fingerprint() for text in ("a", "a", "b"))
    assert one == again != two


# ---- questions touch nothing
def test_check_and_explain_touch_no_storage(repo: Repository) -> None:
    pipe = repo.dataset("speech").samples().shuffle(5, seed=1).batch(3)
    repo.store._objects.clear()  # type: ignore[attr-defined]
    assert pipe.check().ok
    assert "index tier" in pipe.explain()
    assert len(pipe) == 7


@pytest.mark.parametrize("take", [lambda ds: dload.mix([ds]), lambda ds: dload.Loader(ds, 1)])
def test_a_data_set_in_place_of_its_samples_is_refused_with_what_to_write(
    take: Callable[[Any], object], repo: Repository
) -> None:
    repo.commit("words", [("a", {"txt": b"a"})])
    with pytest.raises(ConfigError, match=r"expected a Pipeline, got Dataset — .* ds\.samples\(\)"):
        take(repo.dataset("words"))
