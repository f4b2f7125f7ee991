"""A system's process: started in its environment, asked in JSON lines, killed with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START_SECONDS = 180.0  # until a system is imported
SETTLE_SECONDS = 5.0

_HOME = Path(__file__).resolve().parent
_START = "import sys; sys.path.append({home!r}); from peers import serving; serving.main({system!r})"


class RefusedError(Exception):
    """The system can't do it: its own words."""


class FailedError(Exception):
    """It failed, stood still for too long, or gave what wasn't asked for."""


class Child:
    """One system in a process group of its own. Started with the first question; anew after a failure."""

    def __init__(self, system: str, python: Path, environment: dict[str, str], folder: Path) -> None:
        self.system = system
        self.versions: dict[str, str] = {}
        self._command = [str(python), "-P", "-W", "ignore", "-c", _START.format(home=str(_HOME), system=system)]
        clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
        if system == "dload_now":  # where it isn't installed, the tree that this file is in
            clean["PYTHONPATH"] = str(_HOME.parents[1])
        homes = {name: str(folder / "home") for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HF_HOME")}
        self._environment = {**clean, **environment, **homes, "TMPDIR": str(folder)}
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, operation: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        """The figures that it answers with. Raises RefusedError and FailedError."""
        if self._process is None:
            self._start()
            self.versions = self._exchange({"do": "start"}, START_SECONDS)
        return self._exchange({"do": operation, **arguments}, timeout)

    def forget(self) -> None:
        """Have it close what it has opened, if it runs; starting it anew would take it seconds of imports."""
        if self._process is not None:
            with contextlib.suppress(FailedError):  # then it was killed
                self._exchange({"do": "forget"}, START_SECONDS)

    def settle(self) -> None:
        """Wait until its processes stand still, for seconds at most: what works ahead when it isn't asked would take
        from who is measured next."""
        if self._process is None:
            return
        before, until = _processor_seconds(self.group), time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < until:
            time.sleep(0.1)
            now = _processor_seconds(self.group)
            if now - before < 0.02:
                return
            before = now

    def _start(self) -> None:
        (self._folder / "home").mkdir(parents=True, exist_ok=True)
        self._errors = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  (lives as long as the process)
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=self._folder,
            env=self._environment, start_new_session=True,
        )  # fmt: skip

    def _exchange(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = self._line(timeout)
        except OSError as error:
            line = None
            trouble = str(error)
        else:
            trouble = "ended" if line == b"" else f"no answer within {timeout:.0f} s"
        if not line:
            said = self._said()
            self.kill()
            raise FailedError(f"{self.system}, {request['do']}: {trouble}\n{said}")
        answer = json.loads(line)
        if "unable" in answer:
            raise RefusedError(answer["unable"])
        if "failed" in answer:
            self.kill()
            raise FailedError(f"{self.system}, {request['do']}: {answer['failed']}")
        done: dict[str, Any] = answer["done"]
        return done

    def _line(self, timeout: float) -> bytes | None:
        assert self._process is not None and self._process.stdout is not None
        line, deadline = b"", time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    return b""
                line += piece
        return line

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-2000:]

    def kill(self) -> None:
        """End the whole process group."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self._errors.close()

    @property
    def group(self) -> int:
        """The id of its process group."""
        assert self._process is not None
        return self._process.pid


class MemoryWatch:
    """Looks at a process group's memory again and again: what is its own or shared with its kin, not pages of files,
    each page once (Pss). `peak` and `base` are bytes."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._over = threading.Event()
        self.base = self.peak = self._now()

    def __enter__(self) -> MemoryWatch:
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.peak = max(self.peak, self._now())

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self.peak = max(self.peak, self._now())

    def _now(self) -> int:
        total = 0
        for process in _members(self._group):
            with contextlib.suppress(OSError):
                lines = (process / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem")))
        return total * 1024


def _members(group: int) -> Iterator[Path]:
    """The folders of a process group's processes in /proc."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                yield entry


def _processor_seconds(group: int) -> float:
    """What a process group's processes have used so far."""
    ticks = 0
    for process in _members(group):
        with contextlib.suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # in user mode, in the kernel
    return ticks / os.sysconf("SC_CLK_TCK")
