"""Splits are disjoint, in proportion and stable; joins put together what has the same key."""

from __future__ import annotations

import functools
import importlib
import itertools
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import dload
from dload.api import Repository
from dload.cache import ShardCache
from dload.errors import ConfigError, UnknownKeyError
from dload.pack import Sample
from dload.store.memory import MemoryStore

COUNT = 4_000


@functools.cache
def samples() -> list[Sample]:
    rng = random.Random(1)
    classes = [b"rare" if i % 20 == 7 else b"c" for i in range(COUNT)]
    return [
        (f"s{i:05}", {"wav": bytes(20), "who": f"p{rng.randrange(50)}".encode(), "cls": cls})
        for i, cls in enumerate(classes)
    ]


def speaker(sample: Sample) -> str:
    return sample[1]["who"].decode()


@pytest.fixture
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    folder = tmp_path_factory.mktemp("split")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        repo = Repository(MemoryStore(), ShardCache(folder / "cache"), folder / "dload.lock")
        repo.commit("speech", samples(), target_shard_size=20_000)
        yield repo


def keys_of(parts: dict[str, dload.Dataset]) -> dict[str, list[str]]:
    return {name: [key for key, _ in part.samples()] for name, part in parts.items()}


# ---- splits
def test_parts_are_disjoint_and_in_proportion(repo: Repository) -> None:
    found = keys_of(repo.dataset("speech").split({"train": 0.7, "val": 0.2, "test": 0.1}, seed=3))
    assert sorted(itertools.chain(*found.values())) == [key for key, _ in samples()]
    assert len(found["train"]) == pytest.approx(2800, abs=120)
    assert len(found["test"]) == pytest.approx(400, abs=80)
    again = keys_of(repo.dataset("speech").split({"train": 0.7, "val": 0.2, "test": 0.1}, seed=3))
    other = keys_of(repo.dataset("speech").split({"train": 0.7, "val": 0.2, "test": 0.1}, seed=4))
    assert again == found != other
    some = keys_of(repo.dataset("speech").split({"a": 0.1, "none": 0, "b": 0.2}))
    assert (len(some["a"]), some["none"], len(some["b"])) == (
        pytest.approx(400, abs=80), [], pytest.approx(800, abs=100),
    )  # fmt: skip


def test_a_sample_stays_on_its_side_whatever_comes_and_goes(repo: Repository) -> None:
    shares = {"train": 0.8, "val": 0.2}
    before = keys_of(repo.dataset("speech").split(shares))
    inserted = sorted([*samples()[100:], *((f"s{i:05}x", {"wav": b""}) for i in range(0, COUNT, 3))])
    repo.commit("speech", inserted)
    after = keys_of(repo.dataset("speech").split(shares))
    for name in shares:
        assert {key for key in before[name] if key >= "s00100"} == {key for key in after[name] if "x" not in key}


@pytest.mark.parametrize("by", ["who", speaker])
def test_all_with_the_same_value_go_together(repo: Repository, by: Any) -> None:
    parts = repo.dataset("speech").split({"train": 0.6, "val": 0.4}, by=by)
    speakers = {name: {speaker(sample) for sample in part.samples()} for name, part in parts.items()}
    assert not speakers["train"] & speakers["val"]
    assert len(speakers["train"] | speakers["val"]) == 50
    assert len(parts["train"]) + len(parts["val"]) == COUNT


def test_strata_have_their_shares_exactly_and_samples_stay_as_it_grows(repo: Repository) -> None:
    shares = {"train": 0.9, "val": 0.05, "test": 0.05}
    parts = repo.dataset("speech").split(shares, stratify="cls", seed=5)
    found = {name: Counter(sample[1]["cls"] for sample in part.samples()) for name, part in parts.items()}
    for cls, total in ((b"rare", 200), (b"c", 3800)):
        for name, share in shares.items():
            assert abs(found[name][cls] - share * total) <= 3, (name, cls)
    before = keys_of(parts)
    repo.append("speech", [(f"t{i}", {"wav": b"", "cls": b"c"}) for i in range(300)])
    after = keys_of(repo.dataset("speech").split(shares, stratify="cls", seed=5))
    assert {name: [key for key in kept if key[0] == "s"] for name, kept in after.items()} == before


@pytest.mark.parametrize(
    ("shares", "options", "says"),
    [
        ({}, {}, "1 to 254 parts, got 0"),
        ({"a": 0.7, "b": 0.4}, {}, "add up to 1.1, more than 1"),
        ({"a": -0.1}, {}, "must be a number from 0 to 1, got -0.1"),
        ({"a": "x"}, {}, "must be a number"),
        ({"a": float("nan")}, {}, "must be a number"),
        ({"a": 0.5}, {"by": "nothing"}, "'s00000' has no field 'nothing'"),
        ({"a": 0.5}, {"by": "who", "stratify": "cls"}, "exclude one another"),
        ({"a": 0.5}, {"by": lambda _: 0.5}, "whole numbers or tuples of them, got 0.5"),
    ],
)
def test_what_makes_no_sense_is_refused(repo: Repository, shares: Any, options: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        repo.dataset("speech").split(shares, **options)


def test_shares_are_what_people_write(repo: Repository) -> None:
    repo.commit("few", [("a", {"x": b""})])
    assert sum(map(len, repo.dataset("few").split({"a": 0.7, "b": 0.2, "c": 0.1}).values())) == 1


def test_a_part_is_as_good_as_a_version(repo: Repository) -> None:
    speech = repo.dataset("speech")
    part = speech.split({"val": 0.25})["val"]
    copied = pickle.loads(pickle.dumps(part))
    assert list(copied.samples().shuffle(100, seed=1)) == list(part.samples().shuffle(100, seed=1))
    assert copied[-1] == part[-1]
    state = part.samples().iter().get_state()
    assert state["sources"] == [["speech", part.version]]
    assert list(speech.split({"val": 0.25})["val"].samples().iter(state=state)) == list(part.samples())
    stored = repo.view("val", part)
    assert stored.manifest.meta == {"derived_from": {"speech": speech.version}, "split": {"part": "val", "seed": 0}}
    assert list(stored.samples()) == list(part.samples())
    derived = repo.derive("head", part.samples().take(3))
    assert derived.manifest.meta["derived_from"] == {"speech": speech.version}, "what is in memory alone has no name"
    halves = stored.split({"a": 0.5, "b": 0.5}, seed=9)
    assert halves["a"].manifest.meta["derived_from"] == {"val": stored.version}
    assert len(halves["a"]) + len(halves["b"]) == len(stored)
    both = dload.concat([half.samples() for half in halves.values()])
    assert sorted(both) == sorted(stored.samples())


def test_a_split_by_key_asks_for_nothing_twice(repo: Repository) -> None:
    speech = repo.dataset("speech")
    speech.split({"a": 0.5})
    again = dload.Dataset(Repository(MemoryStore(), repo.cache), speech.manifest)  # whose store has nothing to give
    assert len(again.split({"a": 0.5})["a"]) == len(speech.split({"a": 0.5})["a"])


# ---- joins
def features(repo: Repository, order: list[int], **options: Any) -> dload.Dataset:
    every = samples()
    chosen = [(every[i][0], {"vec": f"v{i}".encode()}) for i in order]
    repo.commit("vectors", chosen, target_shard_size=5_000, **options)
    return repo.dataset("vectors")


def expected(present: set[int], keep: bool = False) -> list[Sample]:
    return [
        (key, {**fields, "vec": f"v{i}".encode()} if i in present else fields)
        for i, (key, fields) in enumerate(samples())
        if keep or i in present
    ]


@pytest.mark.parametrize("shuffled", [False, True])
def test_samples_with_one_key_are_one(repo: Repository, shuffled: bool) -> None:
    order = list(range(COUNT))
    if shuffled:
        random.Random(2).shuffle(order)
    pipe = repo.dataset("speech").join(features(repo, order))
    assert (len(pipe), pipe.node.indexed) == (COUNT, True)
    assert list(pipe) == expected(set(order))
    assert sorted(pipe.shuffle(200, seed=1)) == expected(set(order))
    it = pipe.shuffle(200, seed=1).iter(epoch=0)
    head = [next(it) for _ in range(1234)]
    assert head + list(pipe.shuffle(200, seed=1).iter(state=it.get_state())) == list(
        pipe.shuffle(200, seed=1).iter(epoch=0)
    )
    report = pipe.check()
    resident = {one.source.partition("@")[0]: one.shards for one in report.residents}
    assert resident["speech"] == 1
    assert resident["vectors"] == (len(repo.dataset("vectors").manifest.shards) if shuffled else 1)


@pytest.mark.parametrize("missing", ["error", "drop", "keep"])
def test_what_has_no_partner(repo: Repository, missing: str) -> None:
    order = random.Random(3).sample(range(COUNT), 3_000)
    vectors = features(repo, order)
    speech = repo.dataset("speech")
    if missing == "error":
        first = min(set(range(COUNT)) - set(order))
        with pytest.raises(UnknownKeyError, match=rf"1000 of 4000 .* the first is 's{first:05}'.*missing=\"drop\""):
            speech.join(vectors)
        return
    pipe = speech.join(vectors, missing=missing)
    assert list(pipe) == expected(set(order), keep=missing == "keep")
    assert sorted(pipe.shuffle(50, seed=1)) == expected(set(order), keep=missing == "keep")
    every = dict(samples())
    assert list(vectors.join(speech)) == [
        (key, {**every[key], **fields}) for key, fields in vectors.samples()
    ]  # what the other has besides is left out
    copied = pickle.loads(pickle.dumps(pipe))
    assert copied.fingerprint() == pipe.fingerprint()
    assert list(copied.take(5)) == list(pipe.take(5))


@pytest.mark.parametrize("missing", ["error", "drop", "keep"])
def test_several_are_joined_at_once(repo: Repository, missing: str) -> None:
    """Each has its own order, and its own gaps."""
    rng = random.Random(5)
    orders = {"vectors": rng.sample(range(COUNT), 3_000), "texts": rng.sample(range(COUNT), 2_000)}
    vectors = features(repo, orders["vectors"])
    repo.commit("texts", [(samples()[i][0], {"txt": f"t{i}".encode()}) for i in orders["texts"]])
    speech, texts = repo.dataset("speech"), repo.dataset("texts")
    if missing == "error":
        repo.commit("vectors", [(key, {"vec": b""}) for key, _ in samples()])
        with pytest.raises(UnknownKeyError, match="2000 of 4000 samples of speech have no partner in texts"):
            speech.join(repo.dataset("vectors"), texts)
        return
    wanted = []
    vec, txt = set(orders["vectors"]), set(orders["texts"])
    for i, (key, fields) in enumerate(samples()):
        if missing == "keep" or i in vec & txt:
            with_vec = fields | ({"vec": f"v{i}".encode()} if i in vec else {})
            wanted.append((key, with_vec | ({"txt": f"t{i}".encode()} if i in txt else {})))
    pipe = speech.join(vectors, texts, missing=missing)
    assert (len(pipe), pipe.node.indexed) == (len(wanted), True)
    assert list(pipe) == wanted
    assert sorted(pipe.shuffle(50, seed=1)) == wanted


def test_views_are_joined_like_versions(repo: Repository) -> None:
    vectors = features(repo, list(range(0, COUNT, 2)))
    part = repo.dataset("speech").split({"a": 0.5})["a"]
    keys = {key for key, _ in part.samples()} & {key for key, _ in vectors.samples()}
    assert [key for key, _ in part.join(vectors, missing="drop")] == sorted(keys)
    assert [key for key, _ in vectors.join(part, missing="drop")] == sorted(keys)


def test_fields_of_both_are_an_error(repo: Repository) -> None:
    repo.commit("other", [(key, {"wav": b"", "who": b""}) for key, _ in samples()])
    speech, other = repo.dataset("speech"), repo.dataset("other")
    with pytest.raises(ConfigError, match="speech and other both have the fields wav, who — leave them out"):
        speech.join(other)
    part = other.split({"a": 1.0})["a"]
    with pytest.raises(ConfigError, match="the two samples 's00000' both have the fields wav, who"):
        next(iter(speech.join(part)))
    repo.commit("vectors", [(key, {"vec": b""}) for key, _ in samples()])
    with pytest.raises(ConfigError, match="speech and other both have the fields wav, who"):
        repo.dataset("vectors").join(speech, other)  # two of those that are joined to it
    with pytest.raises(ConfigError, match=r"a join needs another data set — name one: ds.join\(other\)"):
        speech.join()
    with pytest.raises(ConfigError, match="unknown missing='what' — it is one of error, drop, keep"):
        speech.join(other, missing="what")


def test_keys_with_equal_hashes_are_told_apart(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    room = importlib.import_module("dload.run.key_index")
    monkeypatch.setattr(room, "key_hash", lambda key: len(key) * 7 + ord(key[-1]) % 3)
    every = [(f"{'k' * (i % 4 + 1)}{i}", {"a": str(i).encode()}) for i in range(60)]
    repo.commit("left", every)
    repo.commit("right", [(key, {"b": fields["a"]}) for key, fields in every[10:][::-1]])
    pipe = repo.dataset("left").join(repo.dataset("right"), missing="drop")
    assert list(pipe) == [(key, {"a": fields["a"], "b": fields["a"]}) for key, fields in every[10:]]
