"""Which verb needs which permission, on a real server; a permission that is missing is one clear line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import botocore.loaders
import pytest

from dload.api import Repository
from dload.cli.main import run
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
}
REFUSED = re.compile(
    r"error: can't (?P<what>[a-z ]+) s3://\S* at http://\S+ \(profile \w+\): forbidden \(403 AccessDenied\)\n"
    r"  check the name, and that these credentials have the permission s3:(?P<permission>\w+)\n$"
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
