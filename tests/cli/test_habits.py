"""What holds for all verbs: streams, exit codes, interruption, terminals, secrets, speed of starting."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dload.cli.root import root
from dload.cli.verbs import VERBS

if TYPE_CHECKING:
    from conftest import Cli

    from dload.testing.s3_server import S3Server

SECRET = "hunter2"


# ---- help
def test_every_verb_has_help_and_a_line_in_the_list(cli: Cli) -> None:
    listed = cli.ok("--help").out
    for name in VERBS:
        assert re.search(rf"^  {name} ", listed, re.MULTILINE)
        command = root.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None and command.name == name and command.help
    assert cli.ok("commit", "-h").out.count("last dot") == 1
    assert cli.ok().out == listed
    assert "Missing command" in cli.fails(2, "cache")
    assert cli.ok("--version").out.startswith("dload ")


def test_help_loads_no_room_but_its_own(cli: Cli) -> None:
    loaded = _modules_of(cli, "--help")
    assert "dload.cli.root" in loaded
    assert not {m for m in loaded if m.startswith(("boto", "msgpack", "dload.api", "dload.store", "numpy"))}


def test_a_folder_store_never_loads_the_s3_client(cli: Cli) -> None:
    cli.commit({"a.txt": "1"})
    for arguments in (["ls"], ["pull", "birds"], ["doctor"]):
        assert not {m for m in _modules_of(cli, *arguments) if m.startswith(("boto", "numpy", "torch"))}, arguments


def _modules_of(cli: Cli, *arguments: str) -> set[str]:
    command = [sys.executable, "-X", "importtime", "-m", "dload", *arguments]
    done = subprocess.run(command, cwd=cli.cwd, env=cli.env, capture_output=True, text=True, check=True)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}


# ---- errors
def test_mistakes_end_with_2_and_a_hint(cli: Cli) -> None:
    assert "did you mean 'commit'?" in cli.fails(2, "comit")
    assert "see: dload ls --help" in cli.fails(2, "ls", "--nope")
    assert "is not NAME or NAME@VERSION" in cli.fails(2, "info", "birds@")
    assert "invalid data set name 'a//b'" in cli.fails(2, "info", "a//b")
    assert "no data set 'a b'" in cli.fails(10, "info", "a b")  # such names are read where they exist, not made
    assert "two versions" in cli.fails(2, "info", "birds@abcd", "--version", "ef01")
    assert "takes a name alone" in cli.fails(2, "unpin", "birds@v1")


def test_what_the_system_refuses_has_a_remedy(cli: Cli) -> None:
    cli.commit({"a.txt": "1"})
    (cli.cwd / "file").write_text("")
    assert "file: File exists\n  name another path: a file is where" in cli.fails(1, "pull", "birds", "--to", "file")
    if os.geteuid():  # root may write everywhere
        cli.cwd.chmod(0o500)
        assert "check the owner and mode" in cli.fails(12, "pull", "birds", "--to", "new")
        cli.cwd.chmod(0o700)


def test_what_does_not_fit_is_said_in_lines(cli: Cli) -> None:
    cli.commit({f"{number}.bin": os.urandom(2000) for number in range(9)})
    said = cli.fails(15, "pull", "birds", "--to", "back", "--cache-budget", "9KB")
    assert "error: does not fit: " in said and "\n  set a budget of at least " in said and "\\x0a" not in said


def test_errors_are_json_where_that_was_asked_for(cli: Cli) -> None:
    import json

    error = json.loads(cli.fails(10, "info", "birds", "--json"))["error"]
    assert error["kind"] == "not-found" and error["exit_code"] == 10 and error["remedy"].startswith("list them")
    assert json.loads(cli.fails(2, "--json", "info"))["error"]["kind"] == "usage"


def test_a_bad_settings_file_is_named(cli: Cli) -> None:
    (cli.cwd / "dload.toml").write_text("[remote\n")
    assert f"{cli.cwd}/dload.toml is not valid TOML" in cli.fails(2, "ls")


def test_options_of_dload_stand_before_or_after_the_verb(cli: Cli) -> None:
    cli.commit({"a.txt": "1"})
    del cli.env["DLOAD_STORE"]
    for arguments in (["--store", cli.store, "--json", "ls"], ["ls", "--store", cli.store, "--json"]):
        assert [one["name"] for one in cli.ok(*arguments).json()] == ["birds"]


def test_quiet_and_verbose(cli: Cli) -> None:
    cli.files({"a.txt": "1"})
    assert cli.ok("commit", "birds", "--from", "data", "-q").err == ""
    assert "looking at the files" in cli.ok("commit", "fish", "--from", "data", "-v").err
    assert "error:" in cli.fails(10, "info", "nothing", "-q")


def test_a_program_may_read_a_closed_pipe_or_a_full_disk(cli: Cli) -> None:
    with Path("/dev/full").open("wb") as full, cli.start("--help", stdout=full) as process:
        assert b"No space left on device" in process.communicate(timeout=60)[1]
    assert process.returncode == 1


def test_what_others_wrote_can_not_steer_the_terminal(cli: Cli) -> None:
    cli.commit({"k\x1b[2Jey.txt": "v\x1b]0;title\x07"}, "-m", "m\x1b[31m\nsecond line")
    for arguments in (["ls"], ["log", "birds"], ["head", "birds"], ["info", "birds"]):
        assert "\x1b" not in cli.ok(*arguments).out
    assert "k\\x1b[2Jey" in cli.ok("head", "birds").out
    assert len(cli.ok("ls").out.splitlines()) == 2


# ---- C90: interruption
def _interrupted(process: subprocess.Popen[bytes]) -> str:
    process.send_signal(signal.SIGINT)
    # Whatever it waits for would take far longer than this.
    err = process.communicate(timeout=20)[1].decode()
    assert process.returncode == 130, err
    assert len(err.splitlines()) <= 2 and "interrupted" in err
    return err


def test_case_c90_an_interrupted_commit_leaves_nothing_visible_and_goes_on(cli: Cli) -> None:
    folder = cli.files({f"{number:03}.bin": os.urandom(1_000_000) for number in range(120)})
    arguments = ["commit", "birds", "--from", folder, "--shard-size", "2MB"]
    with cli.start(*arguments) as process:
        while process.poll() is None and len(list(cli.store.glob("shards/*/*"))) < 3:
            time.sleep(0.01)
        _interrupted(process)
    assert cli.ok("ls", "--json").json() == []
    before = len(list(cli.store.glob("shards/*/*")))
    done = cli.ok(*arguments, "--json").json()
    assert done["num_samples"] == 120 and done["shards_sent"] <= done["num_shards"] - before + 2


def test_case_c90_an_interrupted_pull_goes_on(cli: Cli) -> None:
    cli.commit({f"{number:05}.bin": bytes(100) for number in range(4000)}, "--shard-size", "50KB")
    with cli.start("pull", "birds", "--to", "back") as process:
        while process.poll() is None and len(list((cli.cwd / "back").glob("*"))) < 100:
            time.sleep(0.01)
        _interrupted(process)
    assert all(path.stat().st_size == 100 for path in (cli.cwd / "back").glob("*.bin"))
    cli.ok("pull", "birds", "--to", "back")
    assert len(list((cli.cwd / "back").iterdir())) == 4000


def test_case_c90_waiting_for_a_silent_server_is_interrupted(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        cli.env |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_EC2_METADATA_DISABLED": "true"}
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with cli.start("ls", "--store", "s3://bucket", "--endpoint-url", url) as process:
            server.settimeout(60)
            connection, _ = server.accept()  # it has asked, and never gets an answer
            with connection:
                _interrupted(process)


# ---- C91: pipes and terminals
def test_case_c91_a_reader_that_has_enough_is_no_error(cli: Cli) -> None:
    cli.commit({f"{number:04}.txt": "x" for number in range(3000)})
    with cli.start("head", "birds", "-n", "3000") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith(b"KEY")
        process.stdout.close()
        said = process.stderr.read()
        process.wait(timeout=60)
    assert process.returncode == 0
    assert b"error" not in said and b"Traceback" not in said and b"Broken" not in said


def test_a_terminal_gets_colours_unless_told_not_to(cli: Cli) -> None:
    cli.commit({"a.txt": "1"})
    assert "\x1b[1mNAME" in cli.on_terminal("ls").out
    assert "\x1b[31merror" in cli.on_terminal("info", "nothing").out
    cli.env["NO_COLOR"] = "1"
    assert "\x1b" not in cli.on_terminal("ls").out
    assert "\x1b" not in cli.on_terminal("info", "nothing").out
    assert "\x1b" not in cli.ok("ls").out


# ---- C92, C93
def test_case_c92_conflict_markers_in_the_lock_file_are_explained(cli: Cli) -> None:
    old, new = cli.commit({"a.txt": "1"}), cli.commit({"a.txt": "2"})
    lines = ["[datasets]", "<<<<<<< HEAD", f'birds = "{old}"', "=======", f'birds = "{new}"', ">>>>>>> theirs", ""]
    (cli.cwd / "dload.lock").write_text("\n".join(lines))
    said = cli.fails(2, "pull", "birds")
    assert f"{cli.cwd}/dload.lock line 2: a merge conflict" in said and "delete lines 2, 4-6" in said
    assert old[:12] in said and new[:12] in said


def test_case_c93_a_missing_shard_is_named(cli: Cli) -> None:
    cli.commit({"a.txt": "1"})
    cli.ok("cache", "clear")
    shard = next(cli.store.glob("shards/*/*"))
    shard.unlink()
    result = cli.run("pull", "birds")
    assert result.code not in (0, 1) and shard.name[:12] in result.err


# ---- C36: secrets
@pytest.mark.parametrize("verb", ["status", "doctor", "config", "ls"])
@pytest.mark.parametrize("level", ["-q", "-vv"])
def test_case_c36_no_secret_in_any_output(verb: str, level: str, cli: Cli, refusing_server: str) -> None:
    cli.env |= {
        "DLOAD_STORE": "s3://bucket/p", "DLOAD_ENDPOINT_URL": f"http://user:{SECRET}@{refusing_server}",
        "AWS_ACCESS_KEY_ID": f"{SECRET}-id", "AWS_SECRET_ACCESS_KEY": f"{SECRET}-key",
        "AWS_SESSION_TOKEN": f"{SECRET}-token",
    }  # fmt: skip
    result = cli.run(verb, level)
    assert SECRET not in result.out + result.err
    assert result.code == (0 if verb == "config" else 12), result
    if verb != "config":
        assert refusing_server in result.out + result.err, "the endpoint is named, without what must not be seen"


@pytest.fixture
def refusing_server() -> Iterator[str]:
    """A server that answers every request with 403."""

    class Refuse(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            self.send_response(403)
            body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


# ---- completion
def test_shells_complete_verbs_options_and_data_sets(cli: Cli) -> None:
    cli.commit({"a.txt": "1"})
    cli.commit({"a.txt": "1"}, name="beetles")

    def completed(words: str) -> set[str]:
        cli.env |= {"_DLOAD_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return {line.partition(",")[2] for line in cli.ok().out.split()}

    assert completed("dload un") == {"undo", "unpin", "untag"}
    assert completed("dload pull b") == {"birds", "beetles"}
    assert "--workers" in completed("dload pull birds --w")
    del cli.env["_DLOAD_COMPLETE"]
    for shell in ("bash", "zsh", "fish"):
        assert "_DLOAD_COMPLETE" in cli.ok("completion", shell).out


# ---- programs written for dload-ml
def test_the_options_of_dload_ml_keep_working(cli: Cli) -> None:
    version = cli.commit({"a.txt": "1"}, "--meta", "k=v", "--shard-size", "1MB")
    for verb in ("info", "pull"):
        cli.ok(verb, "birds", "--version", version[:8])
    cli.ok("pin", "birds", version[:8])
    cli.ok("unpin", "birds")
    cli.ok("rm", "birds", "--yes")
    cli.ok("gc", "--yes")
    cli.ok("cache", "clear")


# ---- S3
@pytest.fixture
def s3(s3_bucket: str, s3_server: S3Server, cli: Cli) -> Cli:
    """A command line whose store is a bucket."""
    cli.env |= {"DLOAD_STORE": f"s3://{s3_bucket}/lab", "DLOAD_ENDPOINT_URL": s3_server.endpoint_url}
    cli.env |= s3_server.environment()
    return cli


def test_the_main_job_on_s3(s3: Cli) -> None:
    version = s3.commit({"a.txt": "hello", "b/c.bin": bytes(5000)}, "-m", "first")
    assert s3.ok("ls", "--json").json()[0]["version"] == version
    s3.ok("pin", "birds")
    s3.ok("cache", "clear")
    assert s3.ok("cat", "birds", "a").out == "hello"
    assert "1 shard downloaded" in s3.ok("pull", "birds").err
    assert "2 files written" in s3.ok("pull", "birds", "--to", "back").err
    assert "all is well" in s3.ok("doctor").err
    s3.ok("rm", "birds", "--yes")
    assert "deleted 1 shard" in s3.ok("gc", "--grace", "0s", "--yes").err


def test_case_c90_an_interrupted_commit_to_s3_goes_on(s3: Cli) -> None:
    folder = s3.files({f"{number:03}.bin": os.urandom(1_000_000) for number in range(60)})
    arguments = ["commit", "birds", "--from", folder, "--shard-size", "1MB", "-v"]
    with s3.start(*arguments) as process:
        assert process.stderr is not None
        while b"sent" not in process.stderr.readline():
            assert process.poll() is None
        _interrupted(process)
    assert s3.ok("ls", "--json").json() == []
    assert s3.ok(*arguments, "--json").json()["num_samples"] == 60
