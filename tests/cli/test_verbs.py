"""Each verb on a folder store: what it does, prints and ends with."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Cli

TREE = {"a.txt": "hello\n", "a.json": '{"x": 1}', "train/b.bin": bytes(range(256)) * 20, "README": ""}


def read(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# ---- write
def test_commit_says_what_it_did_and_what_comes_next(cli: Cli) -> None:
    cli.files(TREE)
    first = cli.ok("commit", "birds", "--from", "data", "-m", "first")
    assert first.out == ""
    assert "committed birds@" in first.err and "3 samples, 1 shard" in first.err
    assert "next: dload pin birds" in first.err
    again = cli.ok("commit", "birds", "--from", "data")
    assert "nothing to commit: birds@" in again.err
    (cli.cwd / "data" / "a.txt").write_text("changed")
    assert "next: dload diff birds" in cli.ok("commit", "birds", "--from", "data").err


def test_commit_stores_recipe_meta_message_and_shard_size(cli: Cli) -> None:
    cli.files({"make.py": "print('birds')\n"}, "scripts")
    options = ["--recipe", "scripts/make.py", "--shard-size", "1KiB", "-m", "first try"]
    options += ["--meta", "license=CC0", "--meta", "url=http://x/?a=b"]
    version = cli.commit({f"{n:03}.bin": bytes(300) for n in range(30)}, *options)
    info = cli.ok("info", "birds", "--json").json()
    assert info["meta"] == {"license": "CC0", "url": "http://x/?a=b"}
    assert info["packing"]["target"] == 1024 and info["num_shards"] > 5
    assert cli.ok("recipe", f"birds@{version[:6]}").out == "print('birds')\n"
    assert cli.ok("recipe", "birds", "--json").json()["recipe"] == "print('birds')\n"
    assert cli.ok("log", "birds", "--json").json()[0]["message"] == "first try"


def test_a_recipe_and_meta_that_are_left_behind_are_spoken_of(cli: Cli) -> None:
    """A commit is the whole of a version; who forgets them hears of it."""
    cli.files({"make.py": "print()"}, "scripts")
    options = ["--recipe", "scripts/make.py", "--meta", "room=B12"]
    first = cli.commit({"a.txt": "a"}, *options)
    note = f"note: birds@{first[:12]} had recipe and meta, this version has none: give --recipe and --meta each time"
    cli.files({"b.txt": "b"})
    assert note in cli.ok("commit", "birds", "--from", "data").err
    assert "note:" not in cli.ok("commit", "birds", "--from", "data", *options).err
    cli.files({"c.txt": "c"}, "more")
    assert "note:" not in cli.ok("append", "birds", "--from", "more").err


def test_commit_dry_run_reads_and_writes_nothing(cli: Cli) -> None:
    cli.files(TREE)
    plan = cli.ok("commit", "birds", "--from", "data", "--dry-run", "--json").json()
    assert (plan["num_samples"], plan["num_files"], plan["num_shards"]) == (3, 4, 1)
    assert plan["fields"]["bin"] == {"count": 1, "bytes": 5120}
    assert "samples:" in cli.ok("commit", "birds", "--from", "data", "--dry-run").out
    assert cli.ok("ls", "--json").json() == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--from", "missing"], 2, "missing: No such file or directory"),
        (["--from", "data", "--meta", "novalue"], 2, "is not KEY=VALUE"),
        (["--from", "data", "--shard-size", "many"], 2, "invalid size 'many'"),
        (["--from", "data", "--recipe", "nothing.py"], 1, "nothing.py: No such file or directory\n  check the path"),
        (["--from", "data", "--recipe", "data/train/b.bin"], 2, "is not text in UTF-8"),
        (["--from", "data", "--include", "*.gif"], 2, "no file matches --include '*.gif'"),
        (["--from", "data", "--expect", "abcdef123456"], 13, "latest of birds is nothing, expected abcdef123456"),
        ([], 2, "Missing option '--from'"),
    ],
)
def test_commit_refuses(arguments: list[str], code: int, said: str, cli: Cli) -> None:
    cli.files(TREE)
    assert said in cli.fails(code, "commit", "birds", *arguments)
    assert cli.ok("ls", "--json").json() == []


def test_the_store_and_the_cache_are_no_data(cli: Cli) -> None:
    cli.files({"x.txt": "1"}, "photos")
    here = ("--store", "store", "--cache-dir", "cache")
    cli.ok("commit", "birds", "--from", "photos", *here)
    for way in (("commit", "birds", "--from", "."), ("import", ".", "birds")):
        said = cli.fails(2, *way, *here)
        assert "store is in the folder . itself" in said and "--exclude /store" in said
        said = cli.fails(2, *way, "--exclude", "/store", *here)
        assert "cache is in the folder . itself" in said
        cli.ok(*way, "--exclude", "/store", "--exclude", "/cache", *here)
    assert [sample["key"] for sample in cli.ok("head", "birds", "--json", *here).json()] == ["photos/x"]


def test_commit_from_two_folders_with_patterns(cli: Cli) -> None:
    cli.files({"x.jpg": "1", "x.txt": "no"}, "one")
    cli.files({"y.jpg": "2", "drafts/z.jpg": "no"}, "two")
    cli.ok("commit", "birds", "--from", "one", "--from", "two", "--include", "*.jpg", "--exclude", "drafts")
    assert [sample["key"] for sample in cli.ok("head", "birds", "--json").json()] == ["x", "y"]


def test_case_c15_one_key_from_two_folders_publishes_nothing(cli: Cli) -> None:
    cli.files({"x.jpg": "1"}, "one")
    cli.files({"x.jpg": "2"}, "two")
    said = cli.fails(1, "commit", "birds", "--from", "one", "--from", "two")
    assert "'one/x.jpg' and 'two/x.jpg'" in said
    assert cli.ok("ls", "--json").json() == []


def test_append_goes_behind_and_refuses_keys_that_are_there(cli: Cli) -> None:
    cli.commit(TREE)
    cli.files({"c.txt": "more"}, "more")
    assert "committed birds@" in cli.ok("append", "birds", "--from", "more").err
    assert [s["key"] for s in cli.ok("head", "birds", "--json").json()] == ["README", "a", "train/b", "c"]
    again = cli.fails(1, "append", "birds", "--from", "more")
    assert "samples 3 and 4 have the same key 'c'" in again and "the first of them is in the latest version" in again
    assert "no data set 'fish'" in cli.fails(10, "append", "fish", "--from", "more")


def test_copy_keeps_the_id(cli: Cli) -> None:
    version = cli.commit(TREE)
    other = cli.cwd / "other"
    plan = cli.ok("copy", "birds", "--to", "other", "--dry-run", "--json").json()
    assert plan["missing_shards"] == 1 and not other.exists()
    assert "copied birds@" in cli.ok("copy", "birds", "--to", "other").err
    assert "the other store is this one" in cli.fails(2, "copy", "birds", "--to", cli.store)
    assert cli.ok("--store", other, "info", "birds", "--json").json()["version"] == version
    assert cli.ok("copy", "birds", "--to", "other", "--dry-run", "--json").json()["missing_shards"] == 0


# ---- read
def test_ls_and_what_it_says_of_nothing(cli: Cli) -> None:
    empty = cli.ok("ls")
    assert empty.out == "" and "no data sets in file://" in empty.err and "next: dload commit" in empty.err
    assert "default" not in empty.err
    store = cli.env.pop("DLOAD_STORE")
    assert "the default: no store is set in this folder or for this user" in cli.ok("ls").err
    cli.env["DLOAD_STORE"] = store
    version = cli.commit(TREE, "-m", "first")
    cli.ok("pin", "birds")
    lines = cli.ok("ls").out.splitlines()
    assert lines[0].split()[:4] == ["NAME", "LATEST", "SAMPLES", "SIZE"]
    assert lines[1].startswith(f"birds  {version[:12]}") and lines[1].endswith(f"{version[:12]}  first")
    assert cli.ok("ls", "--json").json()[0]["pinned"] == version


def test_info_shows_the_version_and_its_history(cli: Cli) -> None:
    old = cli.commit(TREE)
    new = cli.commit({"b.txt": "2"})
    cli.ok("tag", f"birds@{old[:8]}", "v1")
    cli.ok("pin", "birds@v1")
    text = cli.ok("info", "birds").out
    assert f"version:      {old}" in text and "also called:  v1, pinned" in text and "field txt" in text
    assert cli.ok("info", "birds@latest", "--json").json()["version"] == new
    facts = cli.ok("info", "birds", "--version", new[:10], "--json").json()
    assert [one["version"] for one in facts["versions"]] == [new, old]
    assert facts["fields"] == {"txt": {"count": 1, "bytes": 1}}


def test_head_and_cat(cli: Cli) -> None:
    version = cli.commit(TREE)
    text = cli.ok("head", "birds", "-n", "2").out
    assert "hello" in text and '{"x": 1}' in text and "train/b" not in text
    samples = cli.ok("head", "birds", "--json").json()
    fields = {"json": {"bytes": 8, "text": '{"x": 1}'}, "txt": {"bytes": 6, "text": "hello\n"}}
    assert samples[1] == {"key": "a", "fields": fields}
    with cli.start("cat", f"birds@{version[:12]}", "train/b") as process:
        assert process.communicate(timeout=60)[0] == TREE["train/b.bin"]
    assert cli.ok("cat", "birds", "a", "txt").out == "hello\n"
    fields = cli.ok("cat", "birds", "a", "--json").json()["fields"]
    assert base64.b64decode(fields["txt"]) == b"hello\n"
    assert "next: dload cat birds 'README' data\n" in cli.ok("head", "birds").err
    assert "has the fields json, txt" in cli.fails(2, "cat", "birds", "a")
    assert "has no sample 'zz'" in cli.fails(10, "cat", "birds", "zz")
    assert "has no field 'jpg'" in cli.fails(10, "cat", "birds", "a", "jpg")


def test_what_is_no_text_goes_into_a_file_not_on_a_terminal(cli: Cli) -> None:
    cli.commit({"a.png": b"\x89PNG\0\xff", "b.txt": "letters"})
    assert "next: dload cat birds 'a' png > FILE.png" in cli.ok("head", "birds").err
    shown = cli.on_terminal("cat", "birds", "a")
    assert shown.code == 2 and "the field png of sample 'a' is no text" in shown.out and "> FILE" in shown.out
    assert "letters" in cli.on_terminal("cat", "birds", "b").out
    with cli.start("cat", "birds", "a") as process:
        assert process.communicate(timeout=60)[0] == b"\x89PNG\0\xff"


def test_pull_into_the_cache(cli: Cli) -> None:
    cli.commit(TREE)
    cli.ok("cache", "clear")
    assert cli.ok("pull", "birds", "--dry-run", "--json").json()["missing_shards"] == 1
    assert "1 shard downloaded" in cli.ok("pull", "birds").err
    assert "it was there already" in cli.ok("pull", "birds").err
    assert cli.ok("cache", "status", "--json").json()["shards"] == 1


def test_pull_to_a_folder_gives_the_files_back(cli: Cli) -> None:
    cli.commit(TREE)
    assert "4 files written" in cli.ok("pull", "birds", "--to", "back").err
    expected = {name: data.encode() if isinstance(data, str) else data for name, data in TREE.items()}
    assert read(cli.cwd / "back") == expected
    assert "0 files written" in cli.ok("pull", "birds", "--to", "back").err
    (cli.cwd / "back" / "a.txt").write_text("mine")
    said = cli.fails(3, "pull", "birds", "--to", "back")
    assert "1 file with other contents left as they are: a.txt" in said and "--to back --force" in said
    assert (cli.cwd / "back" / "a.txt").read_text() == "mine"
    assert cli.ok("pull", "birds", "--to", "back", "--force", "--json").json()["written"] == 1
    assert read(cli.cwd / "back") == expected


def test_cache_verbs(cli: Cli) -> None:
    cli.commit(TREE)
    cli.ok("pull", "birds")
    folder = Path(cli.ok("cache", "dir").out.strip())
    assert "1 shard checked, 0 damaged" in cli.ok("cache", "verify").err
    shard = next(folder.glob("shards/*/*"))
    shard.write_bytes(shard.read_bytes().replace(b"hello", b"hullo"))
    assert "was damaged and is dropped" in cli.fails(14, "cache", "verify")
    cli.ok("pull", "birds")
    assert "would free" in cli.ok("cache", "clear", "--dry-run").err
    status = cli.ok("cache", "status", "--json").json()
    assert status["shards"] == 1
    shares = [(share["name"], share["shards"], share["shard_bytes"]) for share in status["datasets"]]
    assert shares == [("birds", 1, status["shard_bytes"])]
    assert "birds" in cli.ok("cache", "status").out
    cli.ok("cache", "clear")
    assert cli.ok("cache", "status", "--json").json()["shards"] == 0
    assert "cache_dir:" in cli.ok("cache", "status").out


# ---- history
def test_log_diff_and_revert(cli: Cli) -> None:
    old = cli.commit(TREE, "-m", "one")
    new = cli.commit({"a.txt": "changed", "n.txt": "new", "README": ""}, "-m", "two")
    log = cli.ok("log", "birds", "--json").json()
    assert [(r["seq"], r["version"], r["message"]) for r in log] == [(2, new, "two"), (1, old, "one")]
    assert len(cli.ok("log", "birds", "-n", "1").out.splitlines()) == 2
    diff = cli.run("diff", "birds", old[:8])
    assert diff.code == 4 and diff.out == "+ n\n- train/b\n~ a\n" and "1 added, 1 removed, 1 changed" in diff.err
    facts = json.loads(cli.run("diff", "birds", old, new, "--json").out)
    assert (facts["added"], facts["removed"], facts["changed"]) == (["n"], ["train/b"], ["a"])
    same = cli.ok("diff", "birds", "latest", new)
    assert same.out == "" and "no sample differs" in same.err
    assert f"latest of birds is {old[:12]} again" in cli.ok("revert", "birds", old[:8], "-m", "better").err
    assert cli.ok("ls", "--json").json()[0]["version"] == old
    assert "which version?" in cli.fails(2, "revert", "birds")


def test_tags_name_versions_everywhere(cli: Cli) -> None:
    old = cli.commit(TREE)
    cli.commit({"b.txt": "2"})
    assert "tagged birds@" in cli.ok("tag", f"birds@{old[:8]}", "paper").err
    assert cli.ok("tag", "birds", "--json").json() == {"paper": old}
    assert f"paper  {old[:12]}" in cli.ok("tag", "birds").out
    assert cli.ok("info", "birds@paper", "--json").json()["version"] == old
    assert "tags don't move" in cli.fails(13, "tag", "birds@latest", "paper")
    cli.ok("untag", "birds", "paper")
    assert "has no tag 'paper'" in cli.fails(10, "untag", "birds", "paper")
    assert "has no tags" in cli.ok("tag", "birds").err


def test_pins_are_used_by_all_who_name_no_version(cli: Cli) -> None:
    old = cli.commit(TREE)
    new = cli.commit({"b.txt": "2"})
    cli.ok("pin", "birds", old[:8])
    assert f'birds = "{old}"' in (cli.cwd / "dload.lock").read_text()
    assert cli.ok("info", "birds", "--json").json()["version"] == old
    assert cli.ok("pin", "birds", "--json").json()["version"] == new
    cli.ok("unpin", "birds")
    assert "is not pinned" in cli.fails(10, "unpin", "birds")


# ---- removing
def test_rm_asks_refuses_without_a_terminal_and_undo_takes_it_back(cli: Cli) -> None:
    cli.commit(TREE)
    assert "add --yes" in cli.fails(2, "rm", "birds")
    assert "would remove data set birds" in cli.ok("rm", "birds", "--dry-run").err
    assert "nothing was changed" in cli.on_terminal("rm", "birds", typed="n\n").out
    assert len(cli.ok("ls", "--json").json()) == 1
    assert "take it back with: dload undo birds" in cli.on_terminal("rm", "birds", typed="y\n").out
    assert cli.ok("ls", "--json").json() == []
    assert "undo with: dload undo birds" in cli.fails(10, "info", "birds")
    cli.ok("undo", "birds")
    assert len(cli.ok("ls", "--json").json()) == 1


def test_rm_of_versions(cli: Cli) -> None:
    versions = [cli.commit({"a.txt": str(number)}) for number in range(4)]
    cli.ok("tag", f"birds@{versions[0]}", "v1")
    assert "v1" in cli.fails(13, "rm", "birds@v1", "--yes")
    cli.ok("rm", "birds", "--version", versions[1][:8], "--yes")
    assert "was removed by" in cli.fails(10, "info", f"birds@{versions[1][:12]}")
    plan = cli.ok("rm", "birds", "--keep-last", "1", "--dry-run", "--json").json()
    assert [(one["version"], one["kept"]) for one in plan] == [
        (versions[3], True), (versions[2], False), (versions[0], True)
    ]  # fmt: skip
    assert "goes" in cli.ok("rm", "birds", "--keep-last", "1", "--yes").out
    left = cli.ok("info", "birds", "--json").json()["versions"]
    assert [one["version"] for one in left] == [versions[3], versions[0]]
    assert "nothing to remove" in cli.ok("rm", "birds", "--keep-within", "30d", "--dry-run").err
    newest = cli.commit({"a.txt": "5"})
    cli.ok("rm", "birds", "--keep-tag", "--yes")
    left = cli.ok("info", "birds", "--json").json()["versions"]
    assert [one["version"] for one in left] == [newest, versions[0]]
    assert "not both" in cli.fails(2, "rm", f"birds@{newest}", "--keep-tag")
    cli.ok("undo", f"birds@{versions[1][:8]}")
    assert cli.ok("info", f"birds@{versions[1]}", "--json").json()["version"] == versions[1]


def test_gc_shows_asks_and_deletes(cli: Cli) -> None:
    cli.commit({"a.txt": "old"})
    cli.commit({"a.txt": "new"}, name="fish")
    cli.ok("rm", "fish", "--yes")
    plan = cli.ok("gc", "--dry-run", "--grace", "0s", "--json").json()
    assert plan["deleted_shards"] == 1 and plan["freed_bytes"] > 0
    assert "goes" in cli.ok("gc", "--dry-run", "--grace", "0s").out
    assert "add --yes" in cli.fails(2, "gc", "--grace", "0s")
    assert "deleted 1 shard" in cli.ok("gc", "--grace", "0s", "--yes").err
    assert "deleted 0 shards" in cli.ok("gc", "--yes").err
    assert cli.ok("cat", "birds", "a").out == "old"


# ---- settings
def test_init_writes_settings_and_shows_what_is_in_effect(cli: Cli) -> None:
    for name in ("DLOAD_STORE", "DLOAD_CACHE_DIR", "DLOAD_CACHE_BUDGET"):
        del cli.env[name]
    assert "no settings were given" in cli.fails(2, "init")
    remote = ["--bucket", "b", "--endpoint-url", "http://host", "--prefix", "p/"]
    done = cli.ok("init", "--project", *remote, "--cache-budget", "5GB")
    assert "bucket:        b" in done.out and f"wrote {cli.cwd}/dload.toml" in done.err
    cli.ok("init", "--cache-dir", "here", "--store", "data")
    user = Path(cli.env["HOME"]) / ".config" / "dload" / "config.toml"
    assert f'dir = "{cli.cwd}/here"' in user.read_text() and f'store = "{cli.cwd}/data"' in user.read_text()
    shown = {name: fact["value"] for name, fact in cli.ok("config", "show", "--json").json().items()}
    assert shown == {
        "store": None, "bucket": "b", "prefix": "p/", "endpoint_url": "http://host", "cache_dir": f"{cli.cwd}/here",
        "cache_budget": "5GB", "cache_jobs": None, "cache_rate": None,
    }  # fmt: skip
    assert f"{cli.cwd}/dload.toml [remote] bucket" in cli.ok("config", "show").out


def test_config_shows_and_says_what_changes(cli: Cli) -> None:
    assert f"{cli.store}" in cli.ok("config").out
    assert cli.ok("config", "show").out == cli.ok("config").out
    said = cli.fails(2, "config", "set", "cache_budget", "1GB")
    assert "config can only show settings, got 'set cache_budget 1GB'" in said and "dload init --help" in said


def test_status_and_doctor(cli: Cli) -> None:
    version = cli.commit(TREE)
    cli.ok("pin", "birds")
    text = cli.ok("status").out
    assert f"store:      {cli.store}" in text and "1 data set" in text and "1 pin" in text
    assert cli.ok("status", "--json").json()["pins"] == {"birds": version}
    doctor = cli.ok("doctor")
    assert "conditional writes are honoured" in doctor.out and "all is well" in doctor.err
    facts = cli.ok("doctor", "--json").json()
    looked = {finding["what"] for finding in facts["findings"]}
    assert looked == {"store", "clock", "writing", "left-overs", "cache", "lock file"}
    assert facts["settings"]["store"] == {"value": str(cli.store), "from": "environment DLOAD_STORE"}
    assert not [path for path in cli.store.rglob("*") if "probe" in path.name], "nothing is left in the store"


def test_doctor_finds_a_variable_that_is_misspelt(cli: Cli) -> None:
    cli.env |= {"DLOAD_CACHE_BUGDET": "1GB", "DLOAD_ZZZ": "1"}
    doctor = cli.ok("doctor")
    assert "DLOAD_CACHE_BUGDET is not a setting, and does nothing" in doctor.out
    assert "         did you mean DLOAD_CACHE_BUDGET?\n" in doctor.out
    assert "known are DLOAD_STORE, DLOAD_BUCKET" in doctor.out and "all is well but for 2 warnings" in doctor.err


def test_with_nothing_set_status_says_that_the_store_is_local(cli: Cli) -> None:
    del cli.env["DLOAD_STORE"]
    status = cli.ok("status")
    assert "a local folder, since nothing is set" in status.out and "next: dload commit NAME --from DIR" in status.err


def test_demo_shows_the_main_job_and_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    cli.env["TMPDIR"] = str(tmp_path / "temporary")
    (tmp_path / "temporary").mkdir()
    shown = cli.ok("demo")
    assert "nothing to commit" in shown.err and "compared byte for byte: all the same" in shown.out
    assert "(1 shard sent" in shown.err
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not cli.store.exists() and not (cli.cwd / "dload.lock").exists()


def test_demo_in_a_chosen_folder(cli: Cli) -> None:
    cli.files({"x": ""}, "full")
    assert "is not empty" in cli.fails(2, "demo", "--dir", "full")
    cli.ok("demo", "--dir", "here")
    assert (cli.cwd / "here" / "dload.lock").exists()


def test_doctor_finds_what_was_left(cli: Cli) -> None:
    cli.commit({"a.txt": "hello"})
    assert "left-overs: none" in cli.ok("doctor", "--deep").out
    lease = cli.store / "leases" / ("ab" * 16) / "lease"
    lease.parent.mkdir(parents=True)
    lease.write_text('{"dataset": "birds", "parent": null, "ttl": 3600}')
    os.utime(lease, (1, 1))
    (cli.store / "notes").mkdir()
    (cli.store / "notes" / "mine.txt").write_text("x")
    out = cli.ok("doctor", "--deep").out
    assert "1 lease of writers that were killed" in out
    assert "left alone: notes/mine.txt" in out
    cli.ok("gc", "--yes")
    assert "left-overs: none" in cli.ok("doctor").out
