"""dload import and dload export, as their users run them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dload.api import Repository
from dload.cache import ShardCache
from dload.errors import ConfigError
from dload.importers import open_source
from dload.store.local import FolderStore

if TYPE_CHECKING:
    from conftest import Cli

LINES = "".join(json.dumps({"id": n, "text": f"é {n}", "score": n / 3}) + "\n" for n in range(100))


def lines(cli: Cli, text: str = LINES) -> Path:
    return cli.files({"a.jsonl": text}) / "a.jsonl"


def tar(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return path


# ---- import
def test_importing_again_sends_nothing(cli: Cli) -> None:
    path = lines(cli)
    first = cli.ok("import", path, "rows", "-m", "first", "--meta", "license=CC0", "--json").json()
    assert (first["num_samples"], first["shards_sent"], first["changed"]) == (100, 1, True)
    assert {"name": "text", "codec": "text", "type": "string"} in first["meta"]["columns"]
    assert first["meta"]["license"] == "CC0"
    again = cli.ok("import", path, "rows", "--meta", "license=CC0")
    assert "nothing to commit" in again.err and again.out == ""
    assert cli.ok("cat", "rows", "00000003", "text").out == "é 3"
    assert "first" in cli.ok("log", "rows").out
    said = cli.ok("import", lines(cli, LINES + '{"id": 100}\n'), "rows").err
    assert "committed rows@" in said and "next: dload diff rows" in said


def test_a_pattern_is_for_dload_to_read(cli: Cli) -> None:
    cli.files({f"s-{n:03d}.csv": f"a\n{n}\n" for n in range(4)})
    assert cli.ok("import", "data/s-{001..002}.csv", "rows", "--json").json()["num_samples"] == 2
    assert [row["key"] for row in cli.ok("head", "rows", "--json").json()] == [
        "s-001/00000000",
        "s-002/00000000",
    ]


def test_a_dry_run_shows_what_it_is_and_writes_nothing(cli: Cli) -> None:
    facts = cli.ok("import", lines(cli), "rows", "--dry-run", "--json", "--key", "id", "--columns", "text,id").json()
    assert (facts["kind"], facts["num_samples"], facts["columns"]["id"]) == (
        "jsonl",
        None,
        {"codec": "json", "type": "any"},
    )
    assert facts["first"][0] == {"key": "0", "fields": {"id": 1, "text": 4}} and len(facts["first"]) == 3
    shown = cli.ok("import", lines(cli), "rows", "--dry-run")
    assert "kind:" in shown.out and "jsonl" in shown.out and "nothing was written" in shown.err
    cli.fails(10, "info", "rows")


def test_what_can_not_be_imported_says_why_and_what_to_do(cli: Cli) -> None:
    bad = cli.fails(1, "import", lines(cli, LINES + "oops\n"), "rows")
    assert "a.jsonl, line 101: Expecting value" in bad and "mend the row" in bad
    cli.fails(10, "info", "rows")
    unknown = cli.fails(2, "import", cli.files({"x.bin": "?"}) / "x.bin", "rows")
    assert "can't tell what kind of data this is" in unknown and "looked for a folder of files" in unknown
    assert "there is no file or folder 'nowhere'" in cli.fails(10, "import", "nowhere", "rows")
    assert "no kind of source 'zip'" in cli.fails(2, "import", "data", "rows", "--format", "zip")
    assert "--split makes no sense for a source of the kind jsonl" in cli.fails(
        2, "import", lines(cli), "rows", "--split", "train"
    )
    assert "takes a name alone" in cli.fails(2, "import", lines(cli), "rows@latest")
    facts = json.loads(cli.fails(1, "import", lines(cli, "1\n"), "rows", "--json"))["error"]
    assert (facts["kind"], facts["row"]) == ("sample", "line 1")


def test_a_key_that_is_there_twice_says_what_to_do(cli: Cli) -> None:
    path = lines(cli, '{"id": 1}\n{"id": 2}\n{"id": 1}\n')
    said = cli.fails(1, "import", path, "rows", "--key", "id")
    assert "the key '1'" in said and "no value is there twice" in said
    cli.fails(10, "info", "rows")
    assert "is read as jsonl" in cli.ok("import", path, "rows").err


def test_cells_are_cut_where_it_says(cli: Cli) -> None:
    path = cli.files({"a.csv": "a;b\n1;2\n"}) / "a.csv"
    assert "--delimiter ';'" in cli.fails(2, "import", path, "rows")
    cli.ok("import", path, "rows", "--delimiter", ";")
    assert cli.ok("cat", "rows", "00000000", "b").out == "2"


def test_python_and_the_command_make_the_same_version(cli: Cli) -> None:
    """Also what is known of the columns, by which an export gives them their types back."""
    path = lines(cli)
    version = cli.ok("import", path, "rows", "--json", "--meta", "license=CC0").json()["version"]
    repo = Repository(FolderStore(cli.cwd / "other"), ShardCache(cli.cwd / "other-cache", 1 << 30))
    made = repo.commit("rows", open_source(path), meta={"license": "CC0"})
    assert made.version == version and {"name": "id", "codec": "json", "type": "any"} in made.meta["columns"]
    own = repo.commit("rows", open_source(path), meta={"columns": "my own"})
    assert own.meta == {"columns": "my own"}
    assert "columns" not in repo.commit("rows", iter(open_source(path))).meta


def test_shards_that_each_count_from_zero(cli: Cli) -> None:
    folder = cli.files({"README": ""})
    for name in ("a", "b"):
        tar(folder / f"{name}.tar", "0.txt", "1.txt")
    said = cli.fails(1, "import", "data/*.tar", "rows")
    assert "'0'" in said and "put its name before each key: --shard-keys" in said
    cli.ok("import", "data/*.tar", "rows", "--shard-keys")
    assert [row["key"] for row in cli.ok("head", "rows", "--json").json()] == ["a/0", "a/1", "b/0", "b/1"]
    tar(folder / "c.tar", "0.txt", "1.txt", "0.json")
    assert "must stand side by side" in cli.fails(1, "import", "data/c.tar", "rows")


def test_labels_from_folders(cli: Cli) -> None:
    cli.files({"cat/1.jpg": "c", "dog/1.jpg": "d", "notes.md": ""})
    cli.ok("import", "data", "pets", "--label-from-folder", "--exclude", "*.md")
    assert cli.ok("cat", "pets", "dog/1", "label").out == "dog"


def test_text_needs_no_library_and_a_missing_one_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lines(cli)
    code = (
        "import sys; from dload.cli.main import run; run(['import', sys.argv[1], 'rows']);"
        "print({'numpy', 'pyarrow', 'datasets'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], env=cli.env, cwd=cli.cwd, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
    for module in ("dload.importers.parquet", "dload.importers.arrow_types"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    pq_file = cli.files({"a.parquet": b""}) / "a.parquet"
    with pytest.raises(ConfigError, match=r"parquet needs the package pyarrow — pip install 'dload-ml\[parquet\]'"):
        open_source(pq_file)


# ---- export
def exported(cli: Cli, form: str, *options: str) -> dict[str, Any]:
    facts: dict[str, Any] = cli.ok("export", "rows", "--to", f"out-{form}", "--format", form, "--json", *options).json()
    return facts


@pytest.mark.parametrize("form", ["jsonl", "parquet", "mds", "webdataset", "files"])
def test_each_format_is_imported_back(cli: Cli, form: str) -> None:
    rows = range(5)
    lists = pa.array([[n, n] for n in rows], pa.list_(pa.float32()))
    table = pa.table(
        {"id": pa.array(rows, pa.int16()), "text": [f"é{n}" for n in rows], "list": lists, "raw": [b"\xff"] * 5}
    )
    pq.write_table(table, cli.cwd / "a.parquet")
    before = cli.ok("import", "a.parquet", "rows", "--json").json()
    facts = exported(cli, form)
    assert (facts["num_samples"], facts["version"], facts["format"]) == (5, before["version"], form)
    assert facts["columns"]["id"] == {"codec": "json", "type": "int16"} and facts["num_files"] >= 1
    after = cli.ok("import", f"out-{form}", "rows", "--json").json()
    assert after["num_samples"] == 5
    if form in ("parquet", "webdataset"):
        assert cli.run("diff", "rows", before["version"], after["version"]).code == 0
        assert after["shards_sent"] == 0, "the same samples are the same shards"
    if form == "parquet":
        assert after["version"] == before["version"] and after["changed"] is False
        back = pq.read_table(cli.cwd / "out-parquet").drop_columns(["__key__"])
        assert back.equals(table)


def test_a_folder_with_something_in_it_is_refused(cli: Cli) -> None:
    cli.ok("import", lines(cli), "rows")
    exported(cli, "jsonl")
    said = cli.fails(2, "export", "rows", "--to", "out-jsonl", "--format", "jsonl")
    assert "out-jsonl is not empty" in said and "--force" in said
    said = cli.ok("export", "rows", "--to", "out-jsonl", "--format", "jsonl", "--force").err
    assert "100 samples in 1 file" in said and "next: dload import out-jsonl NAME --dry-run" in said
    assert "is not empty" in cli.fails(2, "export", "rows", "--to", "out-jsonl", "--format", "files")


def test_fields_and_codecs_are_what_is_asked_for(cli: Cli) -> None:
    cli.commit({"1.txt": "é", "1.cls": "7", "1.jpg": b"\xff", "2.txt": "b", "2.cls": "8", "2.jpg": b""}, name="rows")
    exported(cli, "jsonl", "--fields", "txt,cls", "--codec", "cls=json")
    rows = [json.loads(line) for line in (cli.cwd / "out-jsonl" / "rows.jsonl").read_text().splitlines()]
    assert rows == [{"__key__": "1", "txt": "é", "cls": 7}, {"__key__": "2", "txt": "b", "cls": 8}]
    for options, message in [
        (["--fields", "nope"], "rows has no field nope"), (["--codec", "cls"], "is not FIELD=CODEC"),
        (["--codec", "nope=text"], "has no field 'nope'"), (["--shard-size", "x"], "invalid size 'x'"),
    ]:  # fmt: skip
        assert message in cli.fails(2, "export", "rows", "--to", "other", "--format", "jsonl", *options)
    said = cli.fails(1, "export", "rows", "--to", "other", "--format", "jsonl", "--codec", "jpg=text")
    assert "sample '1': field 'jpg' is not text" in said and "--codec" in said
    exported(cli, "webdataset", "--shard-size", "1KB")
    assert sorted(path.name for path in (cli.cwd / "out-webdataset").iterdir()) == [
        "rows-000000.tar",
        "rows-000001.tar",
    ]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux")
def test_memory_stays_at_the_shards_under_way(cli: Cli) -> None:
    """A tar of 200 MB comes in with a peak far below that."""
    (cli.cwd / "data").mkdir()
    with tarfile.open(cli.cwd / "data" / "large.tar", "w") as archive:
        for number in range(200):
            info = tarfile.TarInfo(f"{number:04d}.bin")
            info.size = 1_000_000
            archive.addfile(info, io.BytesIO(number.to_bytes(2, "big") * 500_000))
    # Its own peak: what the system says of a child that has ended counts the parent's memory that it was forked with.
    program = (
        "import sys; from dload.cli.main import main\n"
        "try: main()\n"
        "finally: print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')), file=sys.stderr)"
    )
    arguments = ["import", "data/large.tar", "rows", "--shard-size", "8MiB", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cli.cwd,
        env=cli.env,
        capture_output=True,
        text=True,
        check=True,
    )
    peak = int(done.stderr.split("VmHWM:")[1].split()[0]) * 1024
    assert peak < 120_000_000, f"{peak:,} bytes at most"
    assert cli.ok("info", "rows", "--json").json()["num_samples"] == 200


@pytest.mark.parametrize("form", ["webdataset", "mds", "files"])
def test_an_export_that_is_killed_is_none_and_the_same_command_makes_it(cli: Cli, form: str) -> None:
    """At each file that is made: what an earlier export wrote is whole until the new one takes its place."""
    cli.commit({f"{n}.bin": bytes(2000) for n in range(30)}, name="rows")
    arguments = ["export", "rows", "--to", "out", "--format", form, "--shard-size", "10KB"]
    program = (
        "import os, sys\nfrom dload.cli.main import main\nfrom dload.importers import restore, target\n"
        "made, left, files = target.Target.file, [3], restore._write_whole\n"
        "def dying(what):\n"
        "    def call(*arguments):\n"
        "        left[0] -= 1\n"
        "        if left[0] < 0: os._exit(9)\n"
        "        return what(*arguments)\n"
        "    return call\n"
        "target.Target.file, restore._write_whole = dying(made), dying(files)\n"
        "main()\n"
    )
    out = cli.cwd / "out"

    def killed(*more: str) -> None:
        done = subprocess.run([sys.executable, "-c", program, *arguments, *more], cwd=cli.cwd, env=cli.env, check=False)
        assert done.returncode == 9

    def shown() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}

    killed()
    assert len(shown()) == (3 if form == "files" else 0)
    cli.fails(1, "import", "out", "again") if form != "files" else None
    assert "30 samples" in cli.ok(*arguments).err
    whole = shown()
    assert len(whole) >= 5 and not (out / ".dload-export").exists()
    assert "is not empty" in cli.fails(2, *arguments)
    if form != "files":
        killed("--force")
        assert shown() == whole
        cli.ok(*arguments)
        assert shown() == whole and not (out / ".dload-export").exists()
        return
    (out / "1.bin").write_bytes(b"mine")
    (out / ".dload-export").mkdir()
    assert "1 files in out have other contents, the first is 1.bin" in cli.fails(2, *arguments)
    cli.ok(*arguments, "--force")
    assert shown() == whole
