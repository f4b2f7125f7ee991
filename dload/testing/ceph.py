"""A real Ceph RADOS Gateway for as long as a command runs. All tests of S3 against it are one command, of about two
minutes:

    python -m dload.testing.ceph -- python -m pytest -n 2 --s3-endpoint {endpoint}

Where the command says `{endpoint}`, it gets the gateway's URL. It also finds it in its environment (AWS_ENDPOINT_URL),
with credentials that may do everything (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY). Its exit code is this program's.

Needs Linux and Debian's packages radosgw, ceph-mon, ceph-osd and ceph-common, but not root. A monitor, a store in
memory and the gateway run on free ports of the loopback, with their files in a temporary folder. They stop with this
program, however it ends. They ask each other for no keys, so for that time all users of this machine can reach them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

_PROGRAMS = ("monmaptool", "ceph", "ceph-mon", "ceph-osd", "radosgw", "radosgw-admin")
_INSTALL = "apt-get update && apt-get install --no-install-recommends radosgw ceph-mon ceph-osd ceph-common"
_START_SECONDS = 60
_STOP_SECONDS = 10
_REFUSED = 2  # exit code: the gateway didn't start, so the command didn't either

_SETTINGS = """\
[global]
fsid = {cluster}
mon host = [v2:127.0.0.1:{monitor_port}/0]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind msgr1 = false

# No keys between the parts; the gateway has to be told that this excludes encryption.
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc

# One disk, which isn't one.
osd objectstore = memstore
memstore device bytes = 17179869184
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 1000

# The monitor stops when its disk is nearly full, and waits a second before each change. The start makes ten.
mon data avail crit = 1
paxos propose interval = 0.05
paxos min wait = 0.01

run dir = {folder}
crash dir = {folder}
log file = {folder}/$name.log
admin socket =
mon data = {folder}/mon
osd data = {folder}/osd
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{gateway_port}
"""


class CephError(Exception):
    """Ceph isn't installed, or a part of it failed. The message says all."""


@dataclass(frozen=True)
class Gateway:
    """A gateway that runs, and the keys of a user who may do everything."""

    endpoint_url: str
    access_key: str = field(default_factory=lambda: secrets.token_hex(10))
    secret_key: str = field(default_factory=lambda: secrets.token_hex(20), repr=False)

    def environment(self) -> dict[str, str]:
        """The environment variables that lead any S3 client to it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }


@contextlib.contextmanager
def gateway() -> Iterator[Gateway]:
    """Start a Ceph of one node with an empty gateway, in about two seconds; stop it and drop its data in the end.
    Raises CephError. Call it in the main thread: the parts also stop when the thread that started them ends."""
    missing = [program for program in (*_PROGRAMS, "setpriv") if shutil.which(program) is None]
    if missing:
        raise CephError(f"Ceph isn't installed: there is no {', '.join(missing)}. Remedy: {_INSTALL}")
    with tempfile.TemporaryDirectory(prefix="dload-ceph-") as folder, contextlib.ExitStack() as parts:
        yield _start(Path(folder), parts)


def _start(folder: Path, parts: contextlib.ExitStack) -> Gateway:
    """Start all parts, each of which `parts` stops again."""
    cluster, disk = str(uuid.uuid4()), str(uuid.uuid4())
    monitor_port, gateway_port = _free_ports(2)
    for part in ("mon", "osd", "rgw"):
        (folder / part).mkdir()
    settings = _SETTINGS.format(cluster=cluster, folder=folder, monitor_port=monitor_port, gateway_port=gateway_port)
    (folder / "ceph.conf").write_text(settings)
    found = Gateway(f"http://127.0.0.1:{gateway_port}")

    monitors = str(folder / "monmap")
    _run(folder, "monmaptool", "--create", "--fsid", cluster, "--addv", "a", f"[v2:127.0.0.1:{monitor_port}]", monitors)
    _run(folder, "ceph-mon", "-i", "a", "--mkfs", "--monmap", monitors)
    parts.enter_context(_running(folder, "ceph-mon", "-i", "a"))
    _run(folder, "ceph", "osd", "new", disk)  # it gets the number 0
    _run(folder, "ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
    parts.enter_context(_running(folder, "ceph-osd", "-i", "0"))
    keys = (f"--access-key={found.access_key}", f"--secret-key={found.secret_key}")
    _run(folder, "radosgw-admin", "user", "create", "--uid=check", "--display-name=check", *keys)
    process = parts.enter_context(_running(folder, "radosgw", "-n", "client.rgw"))
    _wait_for_reply(found.endpoint_url, process, folder)
    return found


def _run(folder: Path, program: str, *arguments: str) -> None:
    """Run one of Ceph's tools to its end."""
    command = [program, "-c", str(folder / "ceph.conf"), *arguments]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_START_SECONDS)
    except subprocess.CalledProcessError as error:
        text = error.stderr.decode(errors="replace")
        raise CephError(f"{program} failed with exit code {error.returncode}:\n{text[-2000:]}") from error
    except subprocess.TimeoutExpired as error:
        what = f"{program} didn't end within {_START_SECONDS} s"
        raise CephError(f"{what}:\n{_last_words(folder)}") from error


@contextlib.contextmanager
def _running(folder: Path, program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of Ceph's daemons, until the end of the block. It has a session of its own, so that Ctrl-C doesn't end it
    before the command, and dies with this process even if that is killed."""
    command = ["setpriv", "--pdeathsig", "KILL", program, "-c", str(folder / "ceph.conf"), "-f", *arguments]
    with (folder / f"{program}.out").open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for_reply(url: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.05)
    raise CephError(f"the gateway didn't start:\n{_last_words(folder)}")


def _last_words(folder: Path) -> str:
    """The ends of the daemons' logs and outputs."""
    files = sorted([*folder.glob("*.log"), *folder.glob("*.out")])
    return "\n".join(f"{file.name}: {file.read_text(errors='replace')[-1000:]}" for file in files)


def _free_ports(count: int) -> list[int]:
    """All are held until all are found, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _run_command(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run it to its end; its exit code, as a shell says it. Ctrl-C is the command's to handle."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    process = subprocess.Popen(command, env={**inherited, **environment})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = process.wait()
    finally:
        _stop(process)
    return code if code >= 0 else 128 - code


def _exit(number: int, _: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough, the cleaning is under way
    raise SystemExit(128 + number)


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m dload.testing.ceph", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="+", help="what to run, after --")
    command: list[str] = parser.parse_args().command
    signal.signal(signal.SIGTERM, _exit)  # so that a polite end cleans up, too
    try:
        with gateway() as found:
            filled = [word.replace("{endpoint}", found.endpoint_url) for word in command]
            return _run_command(filled, found.environment())
    except (CephError, FileNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        return _REFUSED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
