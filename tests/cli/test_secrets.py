"""No credential is ever in what dload prints, logs, raises, pickles or writes: every verb, at every verbosity, with
success and with every kind of failure, against a real server."""

from __future__ import annotations

import logging
import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import botocore.loaders
import pytest

from dload.api import Repository
from dload.cli.main import run
from dload.cli.verbs import VERBS
from dload.config import Config
from dload.errors import DloadError
from dload.testing.s3_server import S3Server

PASSWORD = "hunter2-p4ssw0rd"
TOKEN = "session-t0ken-4711"
_FILES_DIFFER, _DIFFERENT = 3, 4  # codes of pull --to and diff
LEVELS = [["-q"], [], ["-v"], ["-vv"], ["--json", "-vv"]]


class Shell:
    """Runs verbs in this process; keeps all that they say."""

    def __init__(self, capfd: pytest.CaptureFixture[str], secrets: list[str]) -> None:
        self._capfd = capfd
        self.secrets = secrets
        self.ran: set[str] = set()

    def __call__(self, *arguments: str) -> int:
        code = run([*arguments])
        said = "".join(self._capfd.readouterr())
        self.clean(said, f"dload {' '.join(arguments)}")
        self.ran.add(next(word for word in arguments if not word.startswith("-")))
        return code

    def clean(self, text: str | bytes, what: str) -> None:
        data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        found = [secret for secret in self.secrets if secret.encode() in data]
        assert not found, f"{what} shows a secret"


@pytest.fixture
def shell(
    s3_server: S3Server,
    s3_place: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Shell:
    key, secret = s3_server.keys
    for name in ("CONFIG", "CACHE", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "home" / name))
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("DLOAD_STORE", "s3://{}/{}".format(*s3_place))
    monkeypatch.setenv("DLOAD_CACHE_DIR", str(tmp_path / "home" / "cache"))
    with_password = s3_server.endpoint_url.replace("http://", f"http://user:{PASSWORD}@")
    monkeypatch.setenv("DLOAD_ENDPOINT_URL", with_password)
    work = tmp_path / "work"
    (work / "data").mkdir(parents=True)
    for number in range(5):
        (work / "data" / f"{number}.txt").write_text(f"text {number}")
    (work / "made.py").write_text("def pipe(repo):\n    return repo.dataset('birds').samples()\n")
    monkeypatch.chdir(work)
    monkeypatch.setattr(logging.getLogger("dload"), "handlers", [])
    loader = botocore.loaders.create_loader()  # reading its models anew for each client is most of what a verb costs
    monkeypatch.setattr("botocore.session.create_loader", lambda _path=None: loader)
    return Shell(capfd, [key, secret, PASSWORD, TOKEN])


COMMANDS = [
    "init",
    "commit birds --from data --recipe data/0.txt",
    "append birds --from more",
    "ls",
    "info birds",
    "head birds",
    "cat birds 0",
    "recipe birds",
    "log birds",
    "diff birds {first}",
    "tag birds v1",
    "tag birds",
    "untag birds v1",
    "pin birds",
    "status",
    "config",
    "doctor --deep",
    "pull birds",
    "pull birds --to back",
    "copy birds --to other",
    "cache status",
    "verify --all --read-data",
    "derive made:pipe shouted --workers 1",
    "export birds --to out{level} --format jsonl",
    "import out0 again",
    "revert birds {first}",
    "rm birds@{last} --yes",
    "undo birds",
    "rm birds --yes",
    "gc --grace 0s --yes",
    "unpin birds",
    "completion bash",
    "demo",
]


def test_case_c36_no_verb_shows_a_secret(shell: Shell, tmp_path: Path) -> None:
    for level in LEVELS:
        versions: list[str] = []
        for number, line in enumerate(COMMANDS):
            more = Path("more")
            more.mkdir(exist_ok=True)
            (more / f"m{LEVELS.index(level)}{number}.txt").write_text(line)
            if "{first}" in line or "{last}" in line:
                versions = [m.version for m in Repository.open().versions("birds")]
            ids = {"first": versions[-1][:12], "last": versions[0][:12]} if versions else {}
            words = line.format(level=LEVELS.index(level), **ids).split()
            code = shell(*words, *level)
            assert code in (0, _FILES_DIFFER, _DIFFERENT) or words == ["init"], words  # there already
            if level == ["-vv"]:
                shell(*words[:1], *level, "--no-such-option")
    assert shell.ran == set(VERBS)
    for path in (tmp_path / "home").rglob("*"), (tmp_path / "work").rglob("*"):
        for each in path:
            if each.is_file():
                shell.clean(each.read_bytes(), str(each))


FAILURES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "a wrong secret": lambda env: env.setenv("AWS_SECRET_ACCESS_KEY", "wrong-" + PASSWORD),
    "an unknown key": lambda env: env.setenv("AWS_ACCESS_KEY_ID", "AKIA" + TOKEN.upper()),
    "a session token": lambda env: env.setenv("AWS_SESSION_TOKEN", TOKEN),
    "a missing bucket": lambda env: env.setenv("DLOAD_STORE", "s3://no-such-bucket-here/x"),
    "nobody there": lambda env: env.setenv("DLOAD_ENDPOINT_URL", f"http://user:{PASSWORD}@127.0.0.1:9"),
    "no URL": lambda env: env.setenv("DLOAD_ENDPOINT_URL", f"user:{PASSWORD}@127.0.0.1"),
    "another scheme": lambda env: env.setenv("DLOAD_ENDPOINT_URL", f"ftp://user:{PASSWORD}@127.0.0.1"),
    "keys in the store's URL": lambda env: env.setenv("DLOAD_STORE", f"s3://user:{PASSWORD}@bucket/x"),
    "a store of another kind": lambda env: env.setenv("DLOAD_STORE", f"https://user:{PASSWORD}@host/x"),
}


def _give_up(_tries: object, error: Exception) -> None:
    raise error


@pytest.mark.parametrize("failure", FAILURES)
def test_no_failure_shows_a_secret(shell: Shell, failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dload.store.retrying.Tries.wait", _give_up)
    FAILURES[failure](monkeypatch)
    shell.secrets.append("AKIA" + TOKEN.upper())
    for level in ([], ["-vv"], ["--json", "-vv"]):
        for line in ("ls", "status", "doctor", "config", "commit birds --from data", "gc --yes"):
            shell(*line.split()[:1], *level, *line.split()[1:])
    for attempt in (lambda: Repository.open().list_datasets(), lambda: Config.load().store_url()):
        try:
            attempt()
        except (DloadError, ValueError) as error:
            shell.clean("".join(traceback.format_exception(error)), "a traceback")
            shell.clean(repr(error), "repr of an error")
            shell.clean(pickle.dumps(error), "a pickled error")


def test_nothing_that_is_pickled_or_shown_holds_a_secret(shell: Shell) -> None:
    assert shell("commit", "birds", "--from", "data") == 0
    repo = Repository.open()
    dataset = repo.dataset("birds")
    assert next(iter(dataset))[0] == "0"
    config = Config.load()
    for each in (repo, repo.store, dataset, dataset.samples(), config, repo.cache):
        shell.clean(repr(each), f"repr of {type(each).__name__}")
        if each is not config:
            shell.clean(pickle.dumps(each), f"a pickled {type(each).__name__}")
    shell.clean(repr(config.endpoint_url), "the endpoint of the settings")


def test_a_secret_would_be_noticed(shell: Shell) -> None:
    for secret in shell.secrets:
        with pytest.raises(AssertionError, match="shows a secret"):
            shell("info", secret)


def test_init_writes_no_password_into_a_file(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DLOAD_ENDPOINT_URL")
    shell("init", "--endpoint-url", f"https://user:{PASSWORD}@s3.example.org", "--store", "s3://bucket/x")
    for folder, _, files in os.walk(".."):
        for name in files:
            shell.clean((Path(folder) / name).read_bytes(), name)
