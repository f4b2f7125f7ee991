"""Files of every format, written once, are read as they were meant; what is newer is refused with what is needed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest

from dload.api import Repository
from dload.cache import ShardCache
from dload.errors import PackFormatError, RemovedError
from dload.manifest import decode
from dload.pack import Sample, ShardReader
from dload.repo import keys
from dload.repo.gc import _leases_now
from dload.repo.lockfile import read_pins
from dload.repo.refs import Record
from dload.run.key_index import KeyIndex
from dload.store.local import FolderStore
from dload.store.memory import MemoryStore
from dload.testing import invariants

GOLDEN = Path(__file__).parent / "golden"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
EXPECTED["format3"] = json.loads((GOLDEN / "expected3.json").read_text())


def samples(raw: list[Any]) -> list[Sample]:
    return [(key, {name: bytes.fromhex(value) for name, value in fields.items()}) for key, fields in raw]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Repository:
    """A copy of a golden store."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shutil.copytree(GOLDEN / request.param, tmp_path / "store")
    return Repository(FolderStore(tmp_path / "store"), ShardCache(tmp_path / "cache"), GOLDEN / "dload.lock")


def test_the_files_are_those_that_were_written() -> None:
    lines = (line.split(maxsplit=1) for line in (GOLDEN / "SHA256SUMS").read_text().splitlines())
    sums = {name: digest for digest, name in lines}
    assert {name: hashlib.sha256((GOLDEN / name).read_bytes()).hexdigest() for name in sums} == sums
    there = {str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*") if path.is_file()}
    assert there - sums.keys() == {"README.md", "SHA256SUMS", ".gitattributes"}


@pytest.mark.parametrize(
    ("opened", "form"), [(form, form) for form in ("format1", "format2", "format3")], indirect=["opened"], ids="123"
)
def test_every_version_is_read(opened: Repository, form: str) -> None:
    assert invariants.problems(opened.store, deep=True) == []
    assert opened.verify(read_data=True).sound
    for name, versions in EXPECTED[form].items():
        for version, raw in versions.items():
            assert invariants.content(opened.store, name, version) == samples(raw)
            if version == EXPECTED["removed"]:
                with pytest.raises(RemovedError, match="removed by somebody@machine on 2026-03-06T12:00:00Z"):
                    opened.dataset(name, version)
                continue
            dataset = opened.dataset(name, version)
            assert list(dataset.samples()) == samples(raw)
            assert [dataset[number] for number in range(len(dataset))] == samples(raw)
            for key, fields in samples(raw):
                assert dataset[key] == fields


@pytest.mark.parametrize("opened", ["format2"], indirect=True)
def test_refs_log_and_removals_of_format_2(opened: Repository) -> None:
    assert opened.list_datasets() == ["speech", "texts"]
    assert opened.manifest("speech", "latest").version == EXPECTED["latest"]
    assert opened.tags("speech") == {"v1.0": EXPECTED["tagged"]}
    log = opened.log("speech")
    assert [(record.seq, record.op) for record in log] == [(4, "revert"), (3, "commit"), (2, "append"), (1, "commit")]
    assert (log[3].message, log[3].author, log[3].time) == (
        "first, with an é", "somebody@machine", "2026-03-01T12:00:00Z",
    )  # fmt: skip
    manifest = opened.manifest("speech", EXPECTED["tagged"])
    assert manifest.meta == {"license": "CC0", "n": [1, 2.5, None, True], "ü": "ß"}
    assert manifest.recipe == "print('é')\n"
    assert (manifest.packing.target, opened.manifest("texts", "latest").packing.codecs) == (120, {"txt": "zstd"})
    with pytest.raises(RemovedError, match="data set 'empty' was removed by somebody@machine"):
        opened.dataset("empty", "latest")
    assert opened.undelete("empty") == opened.resolve("empty", "latest")
    assert [removal.version for removal in opened.removed("speech")] == [EXPECTED["removed"]]


@pytest.mark.parametrize("opened", ["format3"], indirect=True)
def test_views_and_what_they_were_derived_from(opened: Repository) -> None:
    versions = {name: next(iter(found)) for name, found in EXPECTED["format3"].items()}
    assert opened.lineage("few").derived_from == [("odd", versions["odd"])]
    assert opened.lineage("texts", versions["texts"]).derived_by == [
        ("odd", versions["odd"]),
        ("whole", versions["whole"]),
    ]
    assert {name: opened.manifest(name, "latest").format for name in versions} == {
        "texts": 2,
        "odd": 3,
        "few": 3,
        "whole": 3,
    }
    [derived] = opened.store.list(keys.derived_prefix("odd"))
    assert opened.store.get(derived.key).data.decode() == versions["odd"]
    again = opened.view("few", opened.dataset("odd"), lambda sample: sample[0] in ("train/03", "train/17"),
                        meta={"why": "deux é"})  # fmt: skip
    assert again.version == versions["few"], "the same view has the same id as ever"
    assert opened.gc(dry_run=True, grace=0).shards == []


@pytest.mark.parametrize("opened", ["format1"], indirect=True)
def test_a_view_of_what_dload_ml_wrote(opened: Repository) -> None:
    speech = opened.dataset("speech", "latest")
    half = opened.view("half", speech, lambda sample: sample[0] in {key for key, _ in list(speech)[::2]})
    assert list(half.samples()) == list(speech)[::2]
    assert half[list(speech)[2][0]] == list(speech)[2][1]
    assert opened.verify(read_data=True).sound


@pytest.mark.parametrize("opened", ["format2"], indirect=True)
def test_a_lease_of_format_2_protects_what_it_names(opened: Repository) -> None:
    [lease] = [info.key for info in opened.store.list("leases/") if info.key.endswith("/lease")]
    assert opened.store.staging is not None
    os.utime(opened.store.staging.parent / lease)
    leases = _leases_now(opened.store, drop=False)
    shards = decode(
        opened.store.get(keys.manifest_key("speech", EXPECTED["latest"])).data, version=EXPECTED["latest"], where="it"
    ).shards
    assert leases.ids == {*EXPECTED["lease"], EXPECTED["latest"], *shards.digests}
    assert leases.holders == ["somebody@machine"]


def test_the_same_samples_give_the_same_ids_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    repo = Repository(MemoryStore(), ShardCache(tmp_path / "cache"))
    raw = EXPECTED["format2"]["speech"]
    meta = {"license": "CC0", "n": [1, 2.5, None, True], "ü": "ß"}
    first = repo.commit(
        "speech", samples(raw[EXPECTED["tagged"]]), meta=meta, recipe="print('é')\n", target_shard_size=120
    )
    assert first.version == EXPECTED["tagged"]
    more = repo.append("speech", samples(raw[EXPECTED["latest"]])[3:])
    assert more.version == EXPECTED["latest"]


def test_lock_file_and_key_index() -> None:
    [texts] = EXPECTED["format2"]["texts"]
    assert read_pins(GOLDEN / "dload.lock") == {"speech": EXPECTED["latest"], "texts": texts}
    index = KeyIndex((GOLDEN / "key_index").read_bytes())
    assert index.sound()
    keys_ = [key for key, _ in samples(EXPECTED["format2"]["speech"][EXPECTED["key_index"]])]
    assert [index.ordinals(key) for key in keys_] == [[number] for number in range(len(keys_))]
    assert index.ordinals("another") == []


# ---- what is newer
def test_a_newer_manifest_names_the_dload_that_is_needed() -> None:
    data = json.dumps({"format": 4, "name": "speech"}).encode()
    with pytest.raises(PackFormatError, match=r"format 4.*upgrade dload"):
        decode(data, version=hashlib.sha256(data).hexdigest(), where="here")


def test_a_newer_shard_names_the_dload_that_is_needed() -> None:
    index = msgpack.packb({"keys": []})
    data = index + struct.pack("<QII8s", len(index), 0, 0, b"DLOADPK3")
    with pytest.raises(PackFormatError, match=r"(?s)format 3.*upgrade dload"):
        ShardReader(data, name="it")


def test_a_record_of_a_newer_dload_may_say_more() -> None:
    line = (GOLDEN / "format2" / "datasets" / "speech" / "log" / "0000000001.json").read_bytes()
    record = Record.decode(line, "here")
    assert Record.decode(json.dumps({**json.loads(line), "mood": "good"}).encode(), "here") == record
    assert record.encode() == line
