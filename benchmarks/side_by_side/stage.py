"""Where a run happens: folders, the S3 server and its distant front, one child for each system, the data sets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dload.testing.s3_server import S3Server
from dload.testing.shaping_proxy import ShapingProxy

from .children import Child, FailedError
from .environments import interpreter
from .peers.base import Place
from .peers.samples import Spec, expected

BUCKET = "open-to-all"  # the server lets anyone read it: WebDataset comes by plain HTTP
TIMEOUT = 180.0  # of one question
_MANY = {"dload_now", "dload_ml"}  # systems in whose stores there are many data sets


class Stage:
    """One run's. `distant` shapes the line of distant rows: latency one way in seconds, bytes a second of one
    connection and of all."""

    def __init__(
        self, folder: Path, environments: Path, systems: list[str], distant: tuple[float, float, float]
    ) -> None:
        self.folder = folder
        self.children: dict[str, Child] = {}
        self.missing: list[str] = []
        self._environments = environments
        self._systems = systems
        self._distant = distant
        self._written: set[tuple[str, str]] = set()
        self._fresh = 0

    @contextmanager
    def opened(self) -> Iterator[Stage]:
        """With server, proxy and children, until its end."""
        server = S3Server(self.folder / "server")
        server.start()
        latency, connection, total = self._distant
        try:
            server.make_bucket(BUCKET)
            self.server = server
            with ShapingProxy(
                server.endpoint_url, latency=latency, connection_rate=connection, total_rate=total
            ) as self.proxy:
                try:
                    self._hire()
                    yield self
                finally:
                    for child in self.children.values():
                        child.kill()
        finally:
            server.stop()

    def _hire(self) -> None:
        access, secret = self.server.keys
        keys = {"SIDE_BY_SIDE_ACCESS_KEY": access, "SIDE_BY_SIDE_SECRET_KEY": secret}
        environment = {**self.server.environment(), **keys}
        for system in self._systems:
            python = interpreter(self._environments, system)
            if python is None:
                self.missing.append(system)
                continue
            self.children[system] = Child(system, python, environment, self.folder / "of" / system)

    # ---- places
    def place(self, system: str, data: str, shard: int, window: int, *, remote: bool = False, number: int = 0) -> Place:
        """Where a system has a data set; dload-ml has all in the bucket. `number`: of one of many sources, which are
        data sets of one store where a store has many."""
        name = data if system in _MANY else f"{data}-{number}"
        folder, cache = (self.folder / "of" / system / kind / name for kind in ("data", "cache"))
        for each in (folder, cache):
            each.mkdir(parents=True, exist_ok=True)
        place = Place(str(folder), str(cache), name=f"source{number}", shard=shard, window=window)
        if not remote and system != "dload_ml":
            return place
        endpoint = self.server.endpoint_url
        return replace(place, endpoint=endpoint, bucket=BUCKET, prefix=f"{system}/{name}")

    def fresh(self, place: Place, *, also_prefix: bool = False) -> Place:
        """The same with an empty cache of its own; and for something new to be written, a place of its own."""
        self._fresh += 1
        cache = Path(f"{place.cache}-fresh-{self._fresh}")
        cache.mkdir()
        if not also_prefix:
            return replace(place, cache=str(cache))
        folder = Path(f"{place.folder}-fresh-{self._fresh}")
        folder.mkdir()
        return replace(place, cache=str(cache), folder=str(folder), prefix=f"{place.prefix}-fresh-{self._fresh}")

    def drop(self, place: Place, *, also_folder: bool = False) -> None:
        """Delete what `fresh` has made on disk."""
        shutil.rmtree(place.cache, ignore_errors=True)
        if also_folder:
            shutil.rmtree(place.folder, ignore_errors=True)

    # ---- data
    def write(self, child: Child, data: str, place: Place, spec: Spec, tries: int = 1) -> None:
        """Have the data set written, once."""
        key = (child.system, f"{data} {place.prefix} {place.folder} {place.name}")
        if key not in self._written:
            child.ask("write", TIMEOUT * tries, place=asdict(place), spec=asdict(spec))
            self._written.add(key)

    def clear(self) -> None:
        """Have all data sets forgotten and deleted, in the bucket, too."""
        for child in self.children.values():
            child.forget()
            for kind in ("data", "cache"):
                shutil.rmtree(self.folder / "of" / child.system / kind, ignore_errors=True)
        self._written.clear()
        self.empty_bucket()

    def empty_bucket(self) -> None:
        self.server.drop_bucket(BUCKET)
        self.server.make_bucket(BUCKET)


def check(child: Child, seen: dict[str, Any], spec: Spec, *, whole: bool) -> None:
    """Raises FailedError unless all samples came, once each and right; loaders may leave 2 % out (the last batches)."""
    wanted = expected(spec)
    if seen["count"] != seen["distinct"] or seen["count"] > wanted.count:
        raise FailedError(f"{child.system} gave {seen['count']} samples, of which {seen['distinct']} are different")
    if seen["count"] == wanted.count and seen["digest"] != wanted.digest:
        raise FailedError(f"{child.system} gave other bytes than were written")
    if seen["count"] < wanted.count * (1.0 if whole else 0.98):
        raise FailedError(f"{child.system} gave {seen['count']} samples of {wanted.count}")
