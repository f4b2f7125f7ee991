"""WebDataset shards: as the webdataset library groups them, both ways; and archives that nobody should trust."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset import tariterators

from dload.errors import ConfigError, DuplicateKeyError, NotFoundError, SampleError
from dload.importers import open_source, source
from dload.importers.columns import Column
from dload.importers.target import Request
from dload.importers.to_webdataset import write
from dload.pack import Sample
from dload.store.s3 import S3Store
from dload.testing.s3_server import S3Server

Members = Iterable[tuple[str, bytes]]


def tar(path: Path, members: Members, form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def with_library(*paths: Path) -> list[Sample]:
    """The samples as webdataset reads and groups them, from files that we open, since it leaves its own open."""
    found = []
    for path in paths:
        with gzip.open(path) if path.name.endswith("gz") else path.open("rb") as stream:
            members = tariterators.tar_file_expander([{"url": str(path), "stream": stream}])
            for row in tariterators.group_by_keys(members):
                found.append((row.pop("__key__"), {name: row[name] for name in row if not name.startswith("__")}))
    return found


def of(*paths: Path | str, **options: Any) -> list[Sample]:
    return [sample for path in paths for sample in open_source(path, "webdataset", **options)]  # type: ignore[misc]


# ---- as the library groups
LONG = "/".join(["d" * 90] * 3) + "/" + "ü" * 60
GROUPS = [
    [("a.jpg", b"1"), ("a.json", b"{}"), ("b.jpg", b"2")],
    [("x/a.left.jpg", b"1"), ("x/a.right.JPG", b"2"), ("v1.0/b.txt", b""), ("y/a.txt", b"3")],
    [
        ("__meta__.txt", b"not a sample"),
        ("__index__/x.txt", b"neither"),
        ("__a.txt", b"is one"),
        ("é 1.Txt", b"\0\xff"),
    ],
    [(LONG + ".bin", b"z" * 5000), (LONG + ".txt", b"s")],
    [("1.a", bytes(511)), ("1.b", bytes(512)), ("1.c", bytes(513)), ("2.a", bytes(100_000))],
]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("members", GROUPS)
def test_members_are_grouped_as_webdataset_does(members: list[tuple[str, bytes]], form: int, tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", members, form)
    assert of(path) == with_library(path) != []


def test_shards_of_the_library_s_own_writer_plain_and_gzip(tmp_path: Path) -> None:
    rows = [{"__key__": f"{n:04d}", "txt": f"é{n}", "json": {"n": n}, "cls": n % 3, "bin": bytes(n)} for n in range(40)]
    with webdataset.ShardWriter(str(tmp_path / "s-%03d.tar"), maxcount=15, verbose=0) as writer:
        for row in rows:
            writer.write(row)
    with webdataset.TarWriter(str(tmp_path / "g.tar.gz"), compress=True) as writer:
        for row in rows:
            writer.write(row)
    shards = sorted(tmp_path.glob("*.tar"))
    assert len(shards) == 3
    expected = with_library(*shards)
    assert of(str(tmp_path / "s-{000..002}.tar")) == expected == of(str(tmp_path / "s-*.tar"))
    assert of(tmp_path / "g.tar.gz") == expected
    assert expected[5][1]["txt"] == "é5".encode() and json.loads(expected[5][1]["json"]) == {"n": 5}


def test_an_empty_archive_and_shards_in_a_folder(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", [])
    assert of(tmp_path / "a.tar") == []
    tar(tmp_path / "b.tar", [("0.txt", b"b")])
    tar(tmp_path / "c.tar", [("0.txt", b"c")])
    assert [key for key, _ in of(tmp_path, shard_keys=True)] == ["b/0", "c/0"]


# ---- what the library passes over in silence
@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ([("a.x", b""), ("b.x", b""), ("a.y", b"")], DuplicateKeyError, r"'a.y' belongs to sample 'a', which ended"),
        ([("a.x", b"1"), ("a.x", b"2")], DuplicateKeyError, r"sample 'a' has 'x' twice"),
        ([("a.x", b"1"), ("a.X", b"2")], DuplicateKeyError, r"sample 'a' has 'x' twice, the second time as 'a.X'"),
        ([("README", b"")], SampleError, r"'README' has no name, dot and suffix.*--exclude 'README'"),
        ([("x/.hidden", b"")], SampleError, r"'x/.hidden' has no name, dot and suffix"),
    ],
)
def test_what_is_no_sample_is_named(members: Members, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message) as caught:
        of(tar(tmp_path / "shard.tar", members))
    assert "shard.tar" in str(caught.value)


def test_members_can_be_left_out(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", [("README", b""), ("a.x", b"1"), ("drafts/b.x", b"2")])
    assert of(path, exclude=["README", "drafts"]) == [("a", {"x": b"1"})]


# ---- hostile archives
def member(name: str, **more: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for field, value in more.items():
        setattr(info, field, value)
    return info


HOSTILE = [
    (member("/etc/passwd.txt"), "'/etc/passwd.txt' leads out of the archive"),
    (member("../up.txt"), "'../up.txt' leads out of the archive"),
    (member("a/../../up.txt"), "leads out of the archive"),
    (member("a//b.txt"), "leads out of the archive or is none"),
    (member("link.txt", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "'link.txt' is a symbolic link"),
    (member("hard.txt", type=tarfile.LNKTYPE, linkname="x.txt"), "'hard.txt' is a hard link"),
    (member("dev.txt", type=tarfile.CHRTYPE), "'dev.txt' is a device"),
    (member("pipe.txt", type=tarfile.FIFOTYPE), "'pipe.txt' is a named pipe"),
    (member("sparse.txt", type=tarfile.GNUTYPE_SPARSE), "'sparse.txt' is a sparse file"),
    (member("s.txt", pax_headers={"GNU.sparse.realsize": "9"}), "'s.txt' is a sparse file"),
]  # fmt: skip


@pytest.mark.parametrize(("info", "message"), HOSTILE)
def test_hostile_members_are_refused_by_name(info: tarfile.TarInfo, message: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        archive.addfile(info)
    with pytest.raises(SampleError, match=message) as caught:
        of(tmp_path / "evil.tar")
    assert "evil.tar" in str(caught.value)


def test_dots_that_lead_nowhere_are_no_danger(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:  # as `tar cf a.tar .` makes it
        archive.addfile(member(".", type=tarfile.DIRTYPE))
        archive.addfile(member("./x", type=tarfile.DIRTYPE))
        archive.addfile(member("./x/a.txt"))
    assert of(tmp_path / "a.tar") == [("x/a", {"txt": b""})]


def whole(tmp_path: Path) -> bytes:
    return tar(tmp_path / "whole.tar", [("a.txt", b"x" * 700), ("b.txt", b"y")]).read_bytes()


DAMAGED: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda _: b"", "is empty"),
    (lambda data: data[:100], "cut off at byte 100, in a header"),
    (lambda data: data[:900], "cut off at byte 900, in 'a.txt'"),
    (lambda data: data[: 512 * 5], r"cut off at byte 2,560, in a header"),
    (lambda data: data[:3] + b"?" + data[4:], "a header whose checksum is wrong before byte 512"),
    (lambda _: b"not a tar" * 200, "damaged or no tar archive"),
    (lambda data: data + data, "goes on behind its end: archives put together by cat"),
    (lambda _: gzip.compress(random.Random(0).randbytes(5000)), r"is compressed, .*\.tar\.gz"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGED)
def test_a_damaged_archive_never_ends_early_in_silence(
    damage: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.tar").write_bytes(damage(whole(tmp_path)))
    with pytest.raises(SampleError, match=message):
        of(tmp_path / "bad.tar")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=2000), st.integers(0, 2000), st.integers(0, 255))
def test_no_bytes_are_a_crash(tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int, value: int) -> None:
    folder = tmp_path_factory.mktemp("tar")
    mutated = bytearray(whole(folder))
    mutated[at] = value
    for number, one in enumerate((bytes(mutated), data)):
        (folder / f"{number}.tar").write_bytes(one)
        with suppress(SampleError):
            of(folder / f"{number}.tar")


def test_a_gzip_bomb_is_refused_and_a_cut_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "ALWAYS_ALLOWED", 1 << 20)
    path = tar(tmp_path / "a.tar", [("a.bin", bytes(1 << 22))])
    packed = gzip.compress(path.read_bytes())
    (tmp_path / "bomb.tar.gz").write_bytes(packed)
    with pytest.raises(SampleError, match=r"bomb.tar.gz grows to more than 200 times its size, like a bomb"):
        of(tmp_path / "bomb.tar.gz")
    (tmp_path / "cut.tgz").write_bytes(packed[:-20])
    with pytest.raises(SampleError, match=r"cut.tgz is damaged or cut off"):
        monkeypatch.setattr(source, "ALWAYS_ALLOWED", 1 << 30)
        of(tmp_path / "cut.tgz")


def test_a_member_of_4_gib_is_refused_before_it_is_read(tmp_path: Path) -> None:
    header = member("big.bin", size=1 << 33).tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "big.tar").write_bytes(header)
    with pytest.raises(SampleError, match=r"'big.bin' has 8,589,934,592 bytes"):
        of(tmp_path / "big.tar")
    long = member("x", size=1 << 30, type=tarfile.GNUTYPE_LONGNAME).tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "long.tar").write_bytes(long)
    with pytest.raises(SampleError, match=r"an extended header has 1,073,741,824 bytes"):
        of(tmp_path / "long.tar")


# ---- in a bucket
def test_shards_in_a_bucket(s3_server: S3Server, s3_place: tuple[str, str], tmp_path: Path) -> None:
    bucket, prefix = s3_place
    endpoint = s3_server.endpoint_url
    store = S3Store(bucket, prefix, endpoint_url=endpoint)
    shards = [
        tar(tmp_path / f"s-{n}.tar", [(f"{n}{m}.bin", bytes([n, m]) * 1000) for m in range(20)]) for n in range(3)
    ]
    for shard in shards:
        store.put(f"deep/{shard.name}", shard.read_bytes())
    store.put("deep/g.tar.gz", gzip.compress(shards[0].read_bytes()))
    expected = with_library(*shards)
    url = f"s3://{bucket}/{prefix}/deep"
    assert of(f"{url}/s-{{0..2}}.tar", endpoint_url=endpoint) == expected
    assert of(f"{url}/s-*.tar", endpoint_url=endpoint) == expected
    assert of(f"{url}/g.tar.gz", endpoint_url=endpoint) == with_library(shards[0])
    importer = open_source(f"{url}/s-1.tar", endpoint_url=endpoint)
    assert importer.kind == "webdataset" and list(importer) == with_library(shards[1])
    with pytest.raises(NotFoundError, match=r"there is no s-3.tar"):
        of(f"{url}/s-{{0..3}}.tar", endpoint_url=endpoint)
    with pytest.raises(NotFoundError, match=r"there is nothing at s3://"):
        of(f"{url}/nope", endpoint_url=endpoint)


# ---- the way back
ROWS: list[Sample] = [
    ("a", {"txt": b"1", "left.jpg": b""}), ("x/é 2", {"json": b"{}" * 5000}), ("v1.0/c", {"data": bytes(1024)}),
    ("/".join(["d" * 90] * 5) + "/last", {"x": b"1"}), ("__a", {"x": b"2"}),
]  # fmt: skip
NO_COLUMNS: dict[str, Column] = {}


def test_the_library_reads_what_was_exported(tmp_path: Path) -> None:
    done = write(Request(ROWS, NO_COLUMNS, "birds", 5000), tmp_path / "out")
    shards = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in shards] == [f"birds-{n:06d}.tar" for n in range(2)] and done.files == 2
    assert with_library(*shards) == ROWS == of(tmp_path / "out")
    for shard in shards:
        with tarfile.open(shard) as archive:
            archive.getmembers()
    write(Request(ROWS, NO_COLUMNS, "birds", 5000), tmp_path / "again")
    assert [path.read_bytes() for path in shards] == [
        path.read_bytes() for path in sorted((tmp_path / "again").iterdir())
    ]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (("a.b", {"x": b""}), "would split its key at the dot"),
        (("../a", {"x": b""}), "its key is no path below a folder"),
        (("/a", {"x": b""}), "its key is no path below a folder"),
        (("a/", {"x": b""}), "its key is no path below a folder"),
        (("__a__", {"x": b""}), "WebDataset passes over '__a__'"),
        (("__a__/b", {"x": b""}), "WebDataset passes over '__a__'"),
        (("a", {"JPG": b""}), "would not read back the field 'JPG'"),
        (("a", {"x/y": b""}), "would not read back the field 'x/y'"),
        (("a", {}), "it has no field"),
    ],
)
def test_what_webdataset_would_not_read_back_is_refused(sample: Sample, message: str, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=message):
        write(Request([ROWS[0], sample], NO_COLUMNS, "n"), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


names = st.text(st.sampled_from("aé /_ 1"), min_size=1, max_size=6).filter(
    lambda text: all(part not in ("", ".", "..") for part in text.split("/")) and not text.startswith("__")
)
suffixes = st.text(st.sampled_from("ab.é"), min_size=1, max_size=5).filter(lambda text: text == text.lower())


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, st.dictionaries(suffixes, st.binary(max_size=20), min_size=1, max_size=3), max_size=4))
def test_any_samples_come_back(tmp_path_factory: pytest.TempPathFactory, rows: dict[str, dict[str, bytes]]) -> None:
    out = tmp_path_factory.mktemp("out")
    write(Request(rows.items(), NO_COLUMNS, "n"), out)
    shards = sorted(out.iterdir())
    if rows:
        assert with_library(*shards) == list(rows.items()) == of(out)
    else:
        assert shards == []


def test_a_folder_with_something_in_it_is_refused_unless_told(tmp_path: Path) -> None:
    write(Request(ROWS, NO_COLUMNS, "n", 1), tmp_path)
    assert len(list(tmp_path.iterdir())) == 5
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "n-000001.tar").unlink()
    (tmp_path / "n-000001.tar").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(ConfigError, match=r"is not empty — .*--force"):
        write(Request(ROWS, NO_COLUMNS, "n"), tmp_path)
    write(Request(ROWS, NO_COLUMNS, "n", 5000), tmp_path, replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", *(f"n-{n:06d}.tar" for n in range(2))]
    assert (tmp_path / "mine.txt").read_text() == "mine" and not (tmp_path / "n-000001.tar").is_symlink()
