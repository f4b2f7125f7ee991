"""Versions that somebody made to do harm: whatever their keys, fields, links and sizes, nothing is written outside the
folder that was named, and what is refused is named in one line."""

from __future__ import annotations

import hashlib
import struct
import zlib
from pathlib import Path

import msgpack
import pytest

from dload.cache import ShardCache
from dload.manifest import FieldStats, Packing, ShardInfo, new_manifest
from dload.repo import keys
from dload.repo.history import History
from dload.repo.refs import new_record, ref_bytes
from dload.store.local import FolderStore
from tests.cli.conftest import Cli

HOSTILE = [
    ("../evil", "txt"), ("a/../../evil", "txt"), ("/evil", "txt"), ("..", "data"), ("a", "/../../evil"),
    ("a//b", "txt"), ("./evil", "txt"), ("a/.", "data"), ("a/..", "data"), ("evil", "../x"), ("a\0b", "txt"),
]  # fmt: skip


def publish(cli: Cli, key: str, field: str, value: bytes = b"x") -> None:
    """A version that no dload would make, in the store of `cli`."""
    checksums = struct.pack("<2I", zlib.crc32(value), zlib.crc32(b"good"))
    index = msgpack.packb(
        {
            "keys": [key, "good"], "layouts": [[field], ["txt"]], "layout": struct.pack("<2H", 0, 1),
            "lengths": struct.pack("<2I", len(value), 4), "crc": checksums,
        }
    )  # fmt: skip
    data = value + b"good" + index + struct.pack("<QII", len(index), zlib.crc32(index), 0) + b"DLOADPK2"
    shard = ShardInfo(hashlib.sha256(data).hexdigest(), len(data), 2, len(index))
    manifest, text = new_manifest("evil", [shard], {field: FieldStats(1, 1), "txt": FieldStats(1, 4)}, Packing())
    store = FolderStore(cli.store)
    store.put(keys.shard_key(shard.digest), data)
    store.put(keys.manifest_key("evil", manifest.version), text)
    record = new_record(manifest, seq=1, parent=None, op="commit", message=None)
    store.put(keys.latest_key("evil"), ref_bytes(record))
    assert History(store).names() == ["evil"]


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize("verb", ["pull evil --to out/here", "export evil --to out/here --format files"])
@pytest.mark.parametrize(("key", "field"), HOSTILE, ids=repr)
def test_no_key_reaches_out_of_the_folder(cli: Cli, key: str, field: str, verb: str) -> None:
    publish(cli, key, field)
    root = cli.cwd.parent
    before = tree(root)
    result = cli.run(*verb.split())
    assert result.code != 0 and "Traceback" not in result.err, result
    outside = {path for path in tree(root) - before if path.split("/")[0] not in ("cache", "home")}
    inside = {"work/out", "work/out/here", "work/out/here/good.txt", "work/out/here/.dload-export"}
    assert outside <= inside, outside
    assert not Path("/evil.txt").exists()


def test_no_link_in_the_folder_is_followed(cli: Cli) -> None:
    publish(cli, "sub/file", "txt", b"harm")
    outside = cli.cwd.parent / "outside"
    outside.mkdir()
    (outside / "file.txt").write_text("precious")
    (cli.cwd / "out").mkdir()
    (cli.cwd / "out" / "sub").symlink_to(outside)
    assert "a file or a link stands where a folder must be" in cli.fails(1, "pull", "evil", "--to", "out", "--force")
    (cli.cwd / "out" / "sub").unlink()
    (cli.cwd / "out" / "sub").mkdir()
    (cli.cwd / "out" / "sub" / "file.txt").symlink_to(outside / "file.txt")
    cli.ok("pull", "evil", "--to", "out", "--force")
    assert (cli.cwd / "out" / "sub" / "file.txt").read_text() == "harm"
    assert (outside / "file.txt").read_text() == "precious"


def test_a_hostile_name_or_digest_reaches_no_file_of_the_cache(cli: Cli) -> None:
    publish(cli, "a", "txt")
    for name in ("../evil", "..", "evil/../x", "/etc"):
        assert "invalid data set name" in cli.fails(2, "pull", name)
    assert not [path for path in ShardCache(cli.cwd.parent / "cache").root.rglob("*") if "evil" in path.name]
