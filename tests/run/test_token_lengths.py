"""The tokens of each sample, from the shards' indexes alone."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dload.api import Pipeline, Repository
from dload.cache import ShardCache
from dload.errors import SampleError
from dload.manifest import Manifest, chosen
from dload.pack import Sample
from dload.pipeline.sources import Samples
from dload.run.token_lengths import TokenLengths, field_sizes
from dload.store.faulty import Faulty

NONE = (1 << 32) - 1


@pytest.fixture
def repo(store: Faulty, cache: ShardCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Repository(store, cache, tmp_path / "dload.lock")


def raw(*sizes: int) -> Iterator[Sample]:
    for number, size in enumerate(sizes):
        yield f"d{number:04d}", {"a": b"x" * number, "tokens": bytes(4 * size), "z": b"z"}


def committed(repo: Repository, samples: Iterable[Sample], **more: object) -> Samples:
    """As a source, its shards small."""
    repo.commit("docs", samples, target_shard_size=400, **more)
    return source(repo.store, repo.cache, repo.manifest("docs"))


def source(store: object, cache: ShardCache, manifest: Manifest) -> Samples:
    return Samples(manifest, SimpleNamespace(store=store, cache=cache))


SIZES = [5, 0, 30, 7, 7, 100, 1, 2, 3, 60, 9]


def test_lengths_are_read_once_and_kept(repo: Repository, store: Faulty) -> None:
    docs = committed(repo, raw(*SIZES))
    assert len(docs.manifest.shards) > 2
    store.calls.clear()
    lengths = TokenLengths("tokens", "int32")
    assert list(lengths(docs)) == SIZES
    assert store.count() == {"get_range": len(docs.manifest.shards)}
    assert lengths(docs) is lengths(docs)
    again = pickle.loads(pickle.dumps(lengths))
    assert list(again(docs)) == SIZES  # from the cache
    assert list(TokenLengths("tokens", "uint16")(docs)) == [2 * size for size in SIZES]
    assert store.count() == {"get_range": len(docs.manifest.shards)}
    assert list(TokenLengths("z", "int8")(docs)) == [1] * len(SIZES)  # of another field, from the store
    assert store.count() == {"get_range": 2 * len(docs.manifest.shards)}


@pytest.mark.parametrize("damage", [b"", b"x" * 100, "crc"])
def test_a_damaged_file_is_made_anew(repo: Repository, damage: bytes | str) -> None:
    docs = committed(repo, raw(*SIZES))
    field_sizes(repo.store, repo.cache, docs.manifest, "tokens")
    (file,) = (repo.cache.root / "keys").iterdir()
    good = file.read_bytes()
    file.write_bytes(good[:-1] + b"\7" if isinstance(damage, str) else damage)
    assert list(TokenLengths("tokens", "int32")(docs)) == SIZES
    assert file.read_bytes() == good


def test_no_room_in_the_cache_is_no_error(repo: Repository, tmp_path: Path) -> None:
    docs = committed(repo, raw(*SIZES))
    tiny = ShardCache(tmp_path / "tiny", 10)
    assert list(TokenLengths("tokens", "int32")(source(repo.store, tiny, docs.manifest))) == SIZES


def test_samples_with_other_fields_have_their_own_layout(repo: Repository) -> None:
    samples = [
        (f"d{number}", {"tokens": bytes(4 * number)} if number % 2 else {"a": b"a", "tokens": bytes(4 * number)})
        for number in range(20)
    ]
    docs = committed(repo, samples)
    assert list(TokenLengths("tokens", "int32")(docs)) == list(range(20))


def test_a_compressed_field_says_nothing(repo: Repository) -> None:
    docs = committed(repo, raw(*SIZES), codecs={"tokens": "zstd"})
    assert TokenLengths("tokens", "int32")(docs) is None
    assert list(TokenLengths("z", "int8")(docs)) == [1] * len(SIZES)


def test_what_is_no_tokens_is_named(repo: Repository) -> None:
    docs = committed(repo, [*raw(1, 2), ("e", {"other": b""}), ("f", {"tokens": b"123"})])
    assert list(field_sizes(repo.store, repo.cache, docs.manifest, "tokens") or ()) == [4, 8, NONE, 3]
    with pytest.raises(SampleError, match=r"sample 'e' of docs@.*a field 'tokens' of numbers of 4 bytes, got none"):
        TokenLengths("tokens", "int32")(docs)
    docs = committed(repo, [*raw(1, 2), ("f", {"tokens": b"123"})])
    with pytest.raises(SampleError, match=r"sample 'f' of docs@.*got 3 bytes"):
        TokenLengths("tokens", "int16")(docs)
    with pytest.raises(SampleError, match=r"sample 'd0000' of docs@.*got none"):
        TokenLengths("missing", "int16")(docs)


def test_of_another_version_everything_is_read_anew(repo: Repository) -> None:
    first = committed(repo, raw(*SIZES))
    lengths = TokenLengths("tokens", "int32")
    assert list(lengths(first)) == SIZES
    second = committed(repo, raw(*SIZES, 77))
    assert list(lengths(second)) == [*SIZES, 77]
    assert array("I", lengths(first)) == array("I", SIZES)


def test_of_a_view_only_its_rows_count(repo: Repository) -> None:
    docs = committed(repo, raw(*SIZES))
    flags = bytes(number % 3 != 1 for number in range(len(SIZES)))
    shards, rows = chosen(docs.manifest.shards, None, flags)
    view = source(repo.store, repo.cache, replace(docs.manifest, shards=shards, rows=rows, version="f" * 64))
    expected = [size for size, flag in zip(SIZES, flags, strict=True) if flag]
    assert list(TokenLengths("tokens", "int32")(view)) == expected
    pipe = Pipeline(view).pack(8, eos_id=0, pad_id=1, dtype="int32")
    tokens = sum(size + 1 for size in expected if size)
    assert len(pipe) == -(-tokens // 8) and sum(block["valid"] for block in pipe) == tokens
