"""A bucket of dload-ml 0.3 at the command line, under names that are no longer allowed, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from dload.store.local import FolderStore
from tests.cli.conftest import Cli
from tests.repo.format1_bucket import write_bucket, write_version


@pytest.mark.parametrize("form", ["files", "webdataset", "jsonl"])
def test_an_old_version_is_exported_with_all_of_its_fields(cli: Cli, form: str, tmp_path: Path) -> None:
    write_bucket(FolderStore(cli.store).put)
    done = cli.ok("export", "speech", "--to", "out", "--format", form, "--json").json()
    assert sorted(done["columns"]) == ["json", "wav"] and done["num_samples"] == 5 and done["written_bytes"] > 200
    if form == "files":
        assert len(list((cli.cwd / "out").iterdir())) == 10


def test_an_old_name_is_read_and_goes_on_under_a_new_one(cli: Cli) -> None:
    put = FolderStore(cli.store).put
    version = write_version(put, "my birds", [[("a", {"txt": b"one"})]], "2026-01-29T13:18:11Z")
    put("datasets/my birds/refs/latest", version.version.encode())
    assert [one["name"] for one in cli.ok("ls", "--json").json()] == ["my birds"]
    cli.files({"b.txt": "two"})
    said = cli.fails(2, "append", "my birds", "--from", "data")
    assert "dload pull 'my birds' --to DIR, then dload commit NEW --from DIR" in said
    cli.ok("pull", "my birds", "--to", "out")
    cli.ok("commit", "birds", "--from", "out")
    assert cli.ok("cat", "birds", "a").out == "one"
    cli.ok("pin", "my birds")
    assert cli.ok("head", "my birds", "--json").json()
    cli.ok("verify", "--lock", "--read-data")
    cli.ok("rm", "my birds", "--yes")
    assert "deleted 0 shards" not in cli.ok("gc", "--yes", "--grace", "0s").err
    assert cli.ok("cat", "birds", "a").out == "one"
