"""What goes into a shard comes out, however it is read."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError, DuplicateKeyError, IntegrityError, SampleError
from dload.pack import MAX_LAYOUTS, Sample, ShardIndex, ShardReader, ShardWriter
from dload.testing.shards import packed_shard, with_fields

names = st.sampled_from(["image", "label", "text", "α", "json", "mask"])
sample_lists = st.lists(
    st.tuples(st.text(min_size=1, max_size=12), st.dictionaries(names, st.binary(max_size=40), max_size=6)),
    max_size=12, unique_by=lambda sample: sample[0],
)  # fmt: skip
uniform_lists = st.integers(0, 6).flatmap(
    lambda width: st.lists(
        st.tuples(
            st.text(min_size=1, max_size=12),
            st.fixed_dictionaries({f"field{at}": st.binary(max_size=40) for at in range(width)}),
        ),
        max_size=12, unique_by=lambda sample: sample[0],
    )
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    samples=sample_lists | uniform_lists,
    codecs=st.dictionaries(names, st.just("zstd"), max_size=2),
    fields=st.lists(names | st.sampled_from(["field0", "field3"]), max_size=3),
    data=st.data(),
)
def test_samples_come_back(
    samples: list[Sample], codecs: dict[str, str], fields: list[str], data: st.DataObject
) -> None:
    stored, packed = packed_shard(samples, codecs)
    assert packed.digest == hashlib.sha256(stored).hexdigest()
    assert (packed.size, packed.num_samples) == (len(stored), len(samples))
    everything: dict[str, tuple[int, int]] = {}
    for _, found in samples:
        for name, value in found.items():
            count, size = everything.get(name, (0, 0))
            everything[name] = (count + 1, size + len(value))
    assert packed.fields == everything

    reader = ShardReader(stored)
    assert reader.index.size == packed.index_size
    assert reader.keys == [key for key, _ in samples]
    assert list(reader) == samples
    assert [list(found) for _, found in reader] == [list(found) for _, found in samples]
    assert list(reader.samples(fields)) == with_fields(samples, fields)
    start = data.draw(st.integers(0, len(samples)))
    stop = data.draw(st.integers(0, len(samples)))
    assert list(reader.samples(start=start, stop=stop)) == samples[start:stop]
    assert reader[start:stop] == samples[start:stop]
    assert reader[::-1] == samples[::-1]
    rows = data.draw(st.lists(st.integers(-len(samples), len(samples) - 1), max_size=8)) if samples else []
    assert reader.read_many(rows) == [samples[row] for row in rows]
    assert reader.read_many(rows, fields) == with_fields([samples[row] for row in rows], fields)
    for row, (key, found) in enumerate(samples):
        assert reader[row] == reader[row - len(samples)] == (key, found)
        assert reader[key] == found
        assert reader.read(row, fields) == (key, with_fields(samples, fields)[row][1])
        reader.check(row)


@settings(max_examples=100, deadline=None)
@given(samples=sample_lists | uniform_lists, codecs=st.dictionaries(names, st.just("zstd"), max_size=2))
def test_ranged_reads_give_the_same(samples: list[Sample], codecs: dict[str, str]) -> None:
    """What the network path does: the footer by one range, a sample's bytes by another."""
    stored, packed = packed_shard(samples, codecs)
    needed = ShardIndex.footer_size(stored[-24:], len(stored), "s")
    assert needed == packed.index_size + 24
    index = ShardIndex.from_footer(stored[-needed:], len(stored), "s")
    assert index == ShardIndex.from_footer(stored, len(stored), "s")
    for row, (key, found) in enumerate(samples):
        start, length = index.span(index.row(key))
        assert index.decode(row, stored[start : start + length]) == found
        assert index.decode(row, stored[start : start + length], ["text"]) == with_fields(samples, ["text"])[row][1]


def test_many_samples_of_all_sizes(tmp_path: Path) -> None:
    """Across chunks and batches, small values and large, one layout and several."""
    random = Random(3)
    sizes = [random.choice([0, 1, 100, 3000, 70_000, 600_000]) for _ in range(400)]
    samples = [(f"k{row}", {"a": random.randbytes(size), "b": bytes([row % 256])}) for row, size in enumerate(sizes)]
    mixed = [(key, found if row % 3 else {"a": found["a"]}) for row, (key, found) in enumerate(samples)]
    for given_samples in (samples, mixed):
        path = tmp_path / "shard"
        with path.open("wb") as file:
            writer = ShardWriter(file)
            for key, fields in given_samples:
                writer.add(key, fields)
            packed = writer.finish()
        assert packed.digest == hashlib.sha256(path.read_bytes()).hexdigest()
        with ShardReader.open(path) as reader:
            assert list(reader) == given_samples
            assert list(reader.samples(["b"])) == with_fields(given_samples, ["b"])
            assert list(reader.samples(start=100, stop=333)) == given_samples[100:333]
            shuffled = random.sample(range(400), 400)
            assert reader.read_many(shuffled) == [given_samples[row] for row in shuffled]


def descriptors(path: Path) -> int:
    return sum(link.is_symlink() and link.resolve() == path for link in Path("/dev/fd").iterdir())


@pytest.mark.parametrize("size", [5000, 100_000])  # of which the one is mapped, the other read from the file
def test_the_reader_keeps_one_descriptor_and_samples_outlive_it(tmp_path: Path, size: int) -> None:
    stored, _ = packed_shard([("a", {"x": b"1" * size, "y": b"2"})])
    path = tmp_path / "shard"
    path.write_bytes(stored)
    reader = ShardReader.open(path)
    assert descriptors(path) == 1
    samples = [reader[0], *reader, *reader[:], *reader.samples(["y"])]
    unfinished = reader.samples()
    reader.close()
    reader.close()
    assert descriptors(path) == 0
    assert samples[:3] == [("a", {"x": b"1" * size, "y": b"2"})] * 3
    assert all(type(value) is bytes for _, found in samples for value in found.values())
    with pytest.raises(ValueError, match="closed"):
        next(unfinished)
    forgotten = ShardReader.open(path)
    assert descriptors(path) == 1 and len(forgotten) == 1
    del forgotten
    assert descriptors(path) == 0


def test_a_file_that_has_become_shorter_is_an_error_where_it_is_read(tmp_path: Path) -> None:
    samples = [(f"k{number}", {"x": bytes([number]) * 50_000}) for number in range(4)]
    path = tmp_path / "shard"
    path.write_bytes(packed_shard(samples)[0])
    with ShardReader.open(path) as reader:
        os.truncate(path, 120_000)
        assert reader.read_many([1, 0]) == [samples[1], samples[0]]
        with pytest.raises(IntegrityError, match="ends at byte 120,000, expected 150,000 at least"):
            reader.read_many([2])


def test_a_read_that_gives_less_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of 2 GiB and more are."""
    samples = [("a", {"x": bytes(range(256)) * 1000, "y": b"1" * 30_000})]
    path = tmp_path / "shard"
    path.write_bytes(packed_shard(samples)[0])
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, at: real(descriptor, min(size, 10_000), at))
    with ShardReader.open(path) as reader:
        assert list(reader) == samples and reader[0] == samples[0]


def test_a_damaged_file_leaves_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    for data in (b"", b"short", packed_shard([("a", {"x": b"1"})])[0][:-30] + bytes(30)):
        path.write_bytes(data)
        with pytest.raises(Exception, match=str(path)):
            ShardReader.open(path)
        assert descriptors(path) == 0


def test_a_file_that_takes_little_at_once_gets_everything() -> None:
    class Sluggish(io.BytesIO):
        def write(self, data: object) -> int:
            return super().write(memoryview(data)[:1000])

    file = Sluggish()
    writer = ShardWriter(file)
    samples = [("a", {"x": bytes(700_000), "y": b"1" * 2500}), ("b", {"x": b"2", "y": b""})]
    for key, fields in samples:
        writer.add(key, fields)
    assert writer.finish().digest == hashlib.sha256(file.getvalue()).hexdigest()
    assert list(ShardReader(file.getvalue())) == samples


def test_bytes_like_values_are_copied_when_added() -> None:
    mutable = bytearray(b"abc")
    file = io.BytesIO()
    writer = ShardWriter(file)
    writer.add("k", {"x": mutable, "y": memoryview(mutable)[::-1], "z": memoryview(b"abcd").cast("H")})
    mutable[:] = b"???"
    writer.finish()
    assert ShardReader(file.getvalue())["k"] == {"x": b"abc", "y": b"cba", "z": b"abcd"}


def test_a_refused_sample_leaves_the_shard_as_it_was() -> None:
    file = io.BytesIO()
    writer = ShardWriter(file, codecs={"x": "zstd"})
    writer.add("a", {"x": b"1"})
    with pytest.raises(SampleError):
        writer.add("b", {"x": b"2", "new": "text"})
    with pytest.raises(DuplicateKeyError, match="'a'"):
        writer.add("a", {"x": b"2"})
    writer.add("b", {"x": b"3"})
    assert len(writer) == 2
    assert writer.finish().fields == {"x": (2, 2)}
    assert list(ShardReader(file.getvalue())) == [("a", {"x": b"1"}), ("b", {"x": b"3"})]


def test_a_shard_has_at_most_65535_layouts() -> None:
    writer = ShardWriter(io.BytesIO())
    for number in range(MAX_LAYOUTS):
        writer.add(f"k{number}", {f"f{number}": b""})
    writer.add("one more of a known layout", {"f0": b""})
    with pytest.raises(SampleError, match="more than 65,535 layouts — begin a new shard"):
        writer.add("one too many", {"new": b""})
    assert writer.finish().num_samples == MAX_LAYOUTS + 1


def test_compression_makes_it_smaller_and_is_recorded_only_where_it_is_used() -> None:
    samples = [(f"k{row}", {"text": b"again and " * 500, "n": bytes([row])}) for row in range(3)]
    raw, _ = packed_shard(samples)
    small, packed = packed_shard(samples, {"text": "zstd", "absent": "zstd"})
    assert len(small) < len(raw) / 10
    assert packed.fields == {"text": (3, 15_000), "n": (3, 3)}
    assert ShardReader(small).index.codecs == {"text": "zstd"}
    assert ShardReader(small).index.field_stats()["text"][1] < 1000


def test_an_unknown_codec_is_refused_before_anything_is_written() -> None:
    with pytest.raises(ConfigError, match="unknown codec 'lzma' — the codecs are: zstd"):
        ShardWriter(io.BytesIO(), codecs={"x": "lzma"})


def test_checksums_differ_exactly_where_stored_samples_do() -> None:
    samples = [("a", {"x": b"1", "y": b"2"}), ("b", {"x": b"12", "y": b""}), ("c", {"y": b"1", "x": b"2"}),
               ("d", {"x": b"1", "y": b"2"})]  # fmt: skip
    sums = ShardReader(packed_shard(samples)[0]).index.checksums()
    assert sums is not None
    assert sums[0] == sums[3]
    assert len(set(sums)) == 3
    encoded = ShardReader(packed_shard(samples, {"x": "zstd"})[0]).index.checksums()
    assert encoded is not None
    assert not set(sums) & set(encoded)
