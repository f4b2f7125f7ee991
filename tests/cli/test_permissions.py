"""Which verb needs which permission, on a real server; a permission that is missing is one clear line."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import urllib.error
from collections.abc import Callable
from pathlib import Path

import botocore.loaders
import pytest

from dload.api import Repository
from dload.cli.main import run
from dload.cli.verbs import VERBS
from dload.testing.s3_server import S3Server

NO = 12  # the code of what isn't allowed
DIFFERENT = 4
# The verb, and its code with a key that may: get and list (reader), get alone (getter), all but delete (keeper).
TABLE = {
    "ls": (0, NO, 0),
    "info birds": (0, NO, 0),
    "log birds": (0, NO, 0),
    "head birds": (0, 0, 0),  # as dload.lock pins it
    "cat birds a": (0, 0, 0),
    "recipe birds": (0, 0, 0),
    "head birds@{two}": (0, 0, 0),
    "head birds@v1": (0, 0, 0),
    "head birds@{prefix}": (0, NO, 0),
    "pull birds": (0, 0, 0),
    "pull birds --to {key}": (0, 0, 0),
    "diff birds {one} {two}": (DIFFERENT, DIFFERENT, DIFFERENT),
    "copy birds --to copy-{key}": (0, 0, 0),
    "status": (0, NO, 0),
    "doctor": (0, NO, 0),
    "verify birds": (0, NO, 0),
    "verify --lock": (0, NO, 0),
    "tag birds": (0, NO, 0),
    "commit birds --from data3": (NO, NO, 0),
    "append birds --from more": (NO, NO, 0),
    "tag birds@{one} v9": (NO, NO, 0),
    "untag birds v1": (NO, NO, NO),
    "revert birds {one}": (NO, NO, 0),
    "rm birds@{two} --yes": (NO, NO, 0),
    "undo birds@{gone}": (NO, NO, NO),
    "rm spare --yes": (NO, NO, 0),
    "gc --dry-run --grace 0s": (0, NO, 0),
    "gc --grace 0s --yes": (NO, NO, NO),
    "pin birds": (0, 0, 0),
    "export birds --to export-{key} --format files": (0, 0, 0),
    "import data3 pictures": (NO, NO, 0),
    "derive recipes:upper loud": (NO, NO, 0),
}
# They ask no store.
LOCAL = {"demo", "init", "config", "completion", "cache", "unpin"}
RECIPES = """
def loud(sample):
    return sample[0].upper(), sample[1]

def upper(repo):
    return repo.dataset("birds").samples().map(loud)
"""
REFUSED = re.compile(
    r"error: can't (?P<what>[a-z ]+) s3://\S* at http://\S+ \(profile \w+\): forbidden \(403 AccessDenied\)\n"
    r"  check the name, and that these credentials have the permission s3:(?P<permission>\w+)\n$"
)
FORBIDDEN = re.compile(
    r"error: can't [a-z ]+ s3://\S* at http://\S+ \(profile \w+\): (absent or )?forbidden \(403 \w+\).*\n"
    r"  check the name, and that these credentials have the permission s3:\w+\n$"
)


@pytest.fixture
def as_profile(
    s3_server: S3Server, s3_place: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Work from now on with a profile's keys, in a folder of this test, on an empty store."""
    for name in ("CONFIG", "CACHE", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("DLOAD_STORE", "s3://{}/{}".format(*s3_place))
    monkeypatch.setenv("DLOAD_ENDPOINT_URL", s3_server.endpoint_url)
    loader = botocore.loaders.create_loader()
    monkeypatch.setattr("botocore.session.create_loader", lambda _path=None: loader)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def become(profile: str) -> None:
        monkeypatch.setenv("DLOAD_CACHE_DIR", str(tmp_path / f"cache-{profile}"))
        for name, value in s3_server.environment(profile).items():
            monkeypatch.setenv(name, value)

    return become


def fill() -> dict[str, str]:
    """birds with two versions and a removed one, pinned; spare with one."""
    for number in range(4):
        folder = Path(f"data{number}")
        folder.mkdir()
        for name in "abc"[: number + 1]:
            (folder / f"{name}.txt").write_text(f"{name} of {number}")
    Path("recipes.py").write_text(RECIPES)
    Path("more").mkdir()
    Path("more", "z.txt").write_text("z")
    for number in range(3):
        assert run(["commit", "birds", "--from", f"data{number}", "--recipe", "data0/a.txt"]) == 0
    assert run(["commit", "spare", "--from", "data1"]) == 0
    two, one, gone = (manifest.version for manifest in Repository.open().versions("birds"))
    for line in (f"tag birds@{one} v1", f"rm birds@{gone} --yes", "pin birds"):
        assert run(line.split()) == 0
    return {"one": one, "two": two, "gone": gone, "prefix": one[:10]}


@pytest.mark.seaweedfs
@pytest.mark.parametrize(("column", "key"), [(0, "reader"), (1, "getter"), (2, "keeper")])
def test_what_each_key_can_do(
    column: int, key: str, as_profile: Callable[[str], None], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    as_profile("admin")
    versions = fill()
    as_profile(key)
    capfdbinary.readouterr()
    found = {}
    for line in TABLE:
        words = line.format(key=key, **versions).split()
        found[line] = run(words)
        said = capfdbinary.readouterr().err.decode()
        if found[line] == NO and words[0] not in ("status", "doctor"):  # these go on
            assert REFUSED.search(said), (line, said)
    assert found == {line: codes[column] for line, codes in TABLE.items()}


def test_the_table_has_every_verb() -> None:
    assert {line.split()[0] for line in TABLE} | LOCAL == set(VERBS)


@pytest.mark.seaweedfs
def test_a_key_for_one_prefix_does_all_there_and_nothing_elsewhere(
    as_profile: Callable[[str], None],
    s3_common_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    theirs, own = (f"s3://{s3_common_bucket}/{prefix}/{secrets.token_hex(6)}" for prefix in ("test", "team"))
    monkeypatch.setenv("DLOAD_STORE", theirs)
    as_profile("admin")
    fill()
    as_profile("teamster")
    for line in ("ls", "head birds@latest", "commit new --from data1", "rm spare --yes", "pull spare", "gc --yes"):
        capfdbinary.readouterr()
        assert run(line.split()) == NO, line
        said = capfdbinary.readouterr().err.decode()
        assert FORBIDDEN.search(said) and "Traceback" not in said, (line, said)
    monkeypatch.setenv("DLOAD_STORE", own)
    for line in (
        "commit new --from data1", "ls", "append new --from more", "tag new v1", "untag new v1", "pull new",
        "rm new --yes", "undo new", "verify new --read-data", "doctor",
    ):  # fmt: skip
        assert run(line.split()) == 0, line
    capfdbinary.readouterr()
    assert run(["gc", "--yes", "--grace", "0s"]) == NO, "it may not look for unfinished uploads"
    assert "s3:ListBucketMultipartUploads" in capfdbinary.readouterr().err.decode()


@pytest.mark.seaweedfs
def test_a_bucket_that_is_open_to_all_is_read_without_credentials(
    as_profile: Callable[[str], None],
    s3_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    private = os.environ["DLOAD_STORE"]
    as_profile("admin")
    fill()
    with contextlib.suppress(urllib.error.HTTPError):  # another test's process has made it
        s3_server.make_bucket("open-to-all")
    assert run(["copy", "birds", "--to", f"s3://open-to-all/{tmp_path.name}"]) == 0
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("DLOAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DLOAD_STORE", f"s3://open-to-all/{tmp_path.name}")
    for line in ("ls", "head birds", "pull birds", "log birds", "verify birds --read-data"):
        assert run(line.split()) == 0, line
    capfdbinary.readouterr()
    for store, line in (("", "commit birds --from data3"), ("", "gc --yes"), (private, "ls"), (private, "pull birds")):
        monkeypatch.setenv("DLOAD_STORE", store or os.environ["DLOAD_STORE"])
        assert run(line.split()) == NO, line
        said = capfdbinary.readouterr().err.decode()
        assert "(without credentials): no credentials were found, and the store asks for some" in said, (line, said)
        assert "  run aws configure, or set AWS_ACCESS_KEY_ID" in said
