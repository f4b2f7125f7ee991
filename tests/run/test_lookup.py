from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dload.cache import ShardCache
from dload.cache.pins import own
from dload.errors import IntegrityError, NotFoundError
from dload.repo.keys import shard_key
from dload.run import Lookup, fetch_shards
from dload.run.indexes import Indexes, indexes
from dload.testing.shards import made_samples, manifest_of, put_shard


def test_a_cold_sample_costs_its_index_once_and_its_bytes(store, cache: ShardCache, made) -> None:
    lookup = Lookup(store, cache, made.manifest)
    assert lookup.by_ordinal(13) == made.all[13]
    assert store.count() == {"get_range": 2}
    assert lookup.by_ordinal(17) == made.all[17]
    assert store.count() == {"get_range": 3}
    assert lookup.by_ordinal(-1) == made.all[-1]
    assert cache.used_bytes() == 0


def test_a_resident_shard_is_read_without_the_store(store, cache: ShardCache, made) -> None:
    fetch_shards(store, cache, made.manifest, 2, None)
    store.calls.clear()
    lookup = Lookup(store, cache, made.manifest)
    assert [lookup.by_ordinal(number) for number in range(80)] == made.all
    assert lookup.rows(slice(5, 75)) == made.all[5:75]
    assert store.calls == []
    assert own(cache.root) == []


def test_fields_are_chosen(store, cache: ShardCache, made) -> None:
    lookup = Lookup(store, cache, made.manifest)
    key, fields = made.all[42]
    assert lookup.by_ordinal(42, ["label"]) == (key, {"label": fields["label"]})
    assert lookup.by_key(key, ["label", "unknown"]) == {"label": fields["label"]}


@pytest.mark.parametrize("ordinal", [80, -81, 10**30])
def test_no_such_number(store, cache: ShardCache, made, ordinal: int) -> None:
    with pytest.raises(IndexError, match=rf"there is no sample {ordinal}: \S+@\w+ has 80"):
        Lookup(store, cache, made.manifest).by_ordinal(ordinal)


@given(st.slices(80))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_slices_are_those_of_a_list(store, cache: ShardCache, made, which: slice) -> None:
    assert Lookup(store, cache, made.manifest).rows(which) == made.all[which]


def test_any_rows_in_any_order(store, cache: ShardCache, made) -> None:
    wanted = random.Random(0).choices(range(80), k=40)
    assert Lookup(store, cache, made.manifest).rows(wanted) == [made.all[number] for number in wanted]


def test_neighbours_come_by_one_request(store, cache: ShardCache, made) -> None:
    assert Lookup(store, cache, made.manifest).rows(slice(12, 15)) == made.all[12:15]
    assert store.count() == {"get_range": 2}


def test_most_of_a_shard_comes_whole_through_the_cache(store, cache: ShardCache, made) -> None:
    assert Lookup(store, cache, made.manifest).rows(slice(10, 20)) == made.samples[1]
    assert store.count()["stream"] == 1
    assert cache.contains(made.shards[1].digest)


def test_case_c45_damage_in_the_cache_is_found_by_the_crc(store, cache: ShardCache, made) -> None:
    fetch_shards(store, cache, made.manifest, 2, None)
    digest = made.shards[2].digest
    with (cache.root / "shards" / digest[:2] / digest).open("r+b") as file:
        file.seek(1500)  # sample 1 of the shard
        file.write(b"????")
    store.calls.clear()
    lookup = Lookup(store, cache, made.manifest)
    assert lookup.by_ordinal(20) == made.all[20]
    assert store.calls == []
    assert lookup.by_ordinal(21) == made.all[21]
    assert store.count() == {"get_range": 1}
    assert not cache.contains(digest)


def test_case_c45_damage_of_a_cached_index_is_found_by_its_crc(store, cache: ShardCache, made) -> None:
    fetch_shards(store, cache, made.manifest, 2, None)
    digest = made.shards[2].digest
    with (cache.root / "shards" / digest[:2] / digest).open("r+b") as file:
        file.truncate(5000)
    indexes.clear()
    assert Lookup(store, cache, made.manifest).by_ordinal(21) == made.all[21]
    assert not cache.contains(digest)


def test_a_bad_reply_is_asked_for_again_then_an_error(store, cache: ShardCache, made) -> None:
    real, key = store.inner.get_range, shard_key(made.shards[0].digest)
    bad = [True]
    lookup = Lookup(store, cache, made.manifest)
    lookup.by_ordinal(0)

    def get_range(asked: str, start: int, length: int) -> bytes:
        data = real(asked, start, length)
        return bytes(length) if asked == key and bad and (len(bad) > 1 or bad.pop()) else data

    store.inner.get_range = get_range
    assert lookup.by_ordinal(3) == made.all[3]
    bad[:] = [True, True]
    with pytest.raises(IntegrityError, match="shard0/sample3"):
        lookup.by_ordinal(3)


def test_samples_by_key(store, cache: ShardCache, made) -> None:
    lookup = Lookup(store, cache, made.manifest)
    for key, fields in random.Random(1).sample(made.all, 30):
        assert lookup.by_key(key) == fields
    with pytest.raises(NotFoundError, match="no sample 'nowhere' in made@"):
        lookup.by_key("nowhere")
    with pytest.raises(KeyError):
        lookup.by_key("")


def test_more_shards_than_indexes_are_kept(store, cache: ShardCache, monkeypatch: pytest.MonkeyPatch) -> None:
    few = Indexes(most=33)
    monkeypatch.setattr("dload.run.lookup.indexes", few)
    samples = [made_samples(number, 2, size=10) for number in range(40)]
    manifest = manifest_of([put_shard(store, one) for one in samples])
    lookup = Lookup(store, cache, manifest)
    assert [lookup.by_ordinal(2 * number) for number in range(40)] == [one[0] for one in samples]
    assert len(few) == 16


def test_it_works_from_a_cache_that_has_no_room(store, tmp_path: Path, made) -> None:
    lookup = Lookup(store, ShardCache(tmp_path / "cache", 10), made.manifest)
    key, fields = made.all[50]
    assert lookup.by_key(key) == fields
