"""What is measured: each row prepares a system once and measures it once a round."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from .children import Child, FailedError, MemoryWatch, RefusedError
from .peers.base import Place
from .peers.samples import Spec
from .stage import TIMEOUT, Stage, check


@dataclass(frozen=True)
class Figure:
    """One number of a row. `note`: what a reader must know to read it."""

    name: str
    unit: str
    more_is_better: bool = True
    note: str = ""


@dataclass(frozen=True)
class Row:
    """`data` names the samples that it needs; rows with the same go together, and their data are deleted behind."""

    name: str
    title: str
    data: str
    spec: Spec
    shard: int
    figures: tuple[Figure, ...] = ()
    rounds: int = 0  # 0: as many as the run has

    def prepare(self, stage: Stage, child: Child) -> dict[str, float]:
        """Once, before the first round: the figures that are measured only once. What it raises is what the row says
        of the system."""
        return {}

    def measure(self, stage: Stage, child: Child) -> dict[str, float]:
        """One round: figure -> value."""
        raise NotImplementedError

    def finish(self, child: Child) -> None:
        """Behind the last round."""
        child.forget()

    @property
    def window(self) -> int:
        """Samples within which they are shuffled: a tenth of them."""
        return min(4096, max(16, self.spec.count // 10))

    def _place(self, stage: Stage, child: Child, *, remote: bool = False) -> Place:
        return stage.place(child.system, self.data, self.shard, self.window, remote=remote)

    def _written(self, stage: Stage, child: Child, *, remote: bool = False) -> dict[str, Any]:
        place = self._place(stage, child, remote=remote)
        stage.write(child, self.data, place, self.spec)
        return asdict(place)

    def _rates(self, child: Child, done: dict[str, Any], least: float) -> dict[str, float]:
        """Samples a second, and processor seconds; after a look that a pass gave as many as it should."""
        if not least * self.spec.count <= done["count"] <= self.spec.count:
            raise FailedError(f"{child.system} gave {done['count']:.0f} samples of {self.spec.count} a pass")
        return {"samples": done["count"] / done["seconds"], "cpu": done["cpu"] / done["count"] * 1e6}


@dataclass(frozen=True)
class Read(Row):
    """Warm: all samples, in order or shuffled, from local disk or a filled cache, in one process."""

    shuffled: bool = False
    least: float = 0.3

    def prepare(self, stage: Stage, child: Child) -> dict[str, float]:
        place = self._written(stage, child)
        seen = child.ask("verify", TIMEOUT, place=place, shuffled=self.shuffled)
        check(child, seen, self.spec, whole=True)
        return {"displaced": seen["displaced"]}

    def measure(self, stage: Stage, child: Child) -> dict[str, float]:
        place = asdict(self._place(stage, child))
        done = child.ask("read", TIMEOUT, place=place, shuffled=self.shuffled, least=self.least)
        return self._rates(child, done, 1.0)


@dataclass(frozen=True)
class Load(Row):
    """Batches of 64 shuffled samples out of worker processes, with or without work on them."""

    workers: int = 0
    work: str = ""
    least: float = 0.5

    def prepare(self, stage: Stage, child: Child) -> dict[str, float]:
        place = self._written(stage, child)
        if not self.work:
            check(child, child.ask("verify_loader", TIMEOUT, place=place, workers=self.workers), self.spec, whole=False)
        else:
            done = child.ask("load", TIMEOUT, place=place, workers=self.workers, work=self.work, least=0.0)
            self._rates(child, done, 0.98)
        return {}

    def measure(self, stage: Stage, child: Child) -> dict[str, float]:
        place = asdict(self._place(stage, child))
        done = child.ask("load", TIMEOUT, place=place, workers=self.workers, work=self.work, least=self.least)
        return self._rates(child, done, 0.98)


@dataclass(frozen=True)
class Cold(Row):
    """From S3 through an empty cache, shuffled, a new one each round."""

    distant: bool = False

    def prepare(self, stage: Stage, child: Child) -> dict[str, float]:
        if child.system in {"bare", "ideal"}:
            self._written(stage, child, remote=True)
            return {}
        place = self._written(stage, child, remote=True)
        fresh = stage.fresh(Place(**place))
        check(child, child.ask("verify", TIMEOUT, place=asdict(fresh), shuffled=True), self.spec, whole=True)
        child.ask("forget", TIMEOUT)
        stage.drop(fresh)
        return {}

    def measure(self, stage: Stage, child: Child) -> dict[str, float]:
        place = stage.fresh(self._place(stage, child, remote=True))
        if self.distant:
            place = replace(place, endpoint=stage.proxy.url)
        before = stage.proxy.traffic()
        done = child.ask("cold", TIMEOUT, place=asdict(place))
        after = stage.proxy.traffic()
        stage.drop(place)
        bound = child.system in {"bare", "ideal"}
        if not bound and done["count"] != self.spec.count:
            raise FailedError(f"{child.system} gave {done['count']} samples of {self.spec.count}")
        found = {
            "megabytes": self.spec.bytes / 1e6 / done["seconds"], "first": done["first"],
            "cpu": done["cpu"] / self.spec.bytes * 1e9,
        }  # fmt: skip
        if self.distant:
            found["requests"] = after.requests - before.requests
            found["bytes"] = (after.down - before.down) / self.spec.bytes
        if bound:
            del found["first"]
        return found


@dataclass(frozen=True)
class Again(Row):
    """The second epoch from a distant store, with a cache that holds 60 % of the data."""

    share: float = 0.6

    @property
    def window(self) -> int:
        """Narrow, so that what must be at hand at once is far less than what the cache holds."""
        return max(4, self.spec.count // 40)

    def prepare(self, stage: Stage, child: Child) -> dict[str, float]:
        if child.system in {"bare", "ideal"}:
            raise RefusedError("has no cache")
        self._written(stage, child, remote=True)
        return {}

    def measure(self, stage: Stage, child: Child) -> dict[str, float]:
        place = stage.fresh(self._place(stage, child, remote=True))
        place = replace(place, endpoint=stage.proxy.url, budget=int(self.spec.bytes * self.share))
        asked = {"place": asdict(place), "shuffled": True, "least": 0.0}
        child.ask("read", TIMEOUT, **asked)
        before = stage.proxy.traffic().down
        done = child.ask("read", TIMEOUT, **asked)
        child.ask("forget", TIMEOUT)
        found = {
            "megabytes": self.spec.bytes / 1e6 / done["seconds"],
            "bytes": (stage.proxy.traffic().down - before) / self.spec.bytes,
        }  # fmt: skip
        stage.drop(place)
        return found


@dataclass(frozen=True)
class Access(Row):
    """Single samples in random order, warm."""

    by: str = "index"
    reads: int = 300

    def prepare(self, stage: Stage, child: Child) -> dict[str, float]:
        place = self._written(stage, child)
        if child.system == "dload_ml":
            return {}
        child.ask("verify", TIMEOUT, place=place, shuffled=False)  # what has a cache fills it
        return {}

    def measure(self, stage: Stage, child: Child) -> dict[str, float]:
        place = asdict(self._place(stage, child))
        asked = {"spec": asdict(self.spec), "by": self.by, "reads": min(self.reads, self.spec.count), "seed": 1}
        done = child.ask("access", TIMEOUT, place=place, **asked)
        if done["right"] != 1.0:
            raise FailedError(f"{child.system} gave other samples than were asked for: {done['right']:.0%} are right")
        return {"samples": done["count"] / done["seconds"]}


@dataclass(frozen=True)
class Resume(Row):
    """From a state to the first batch behind it, in one process."""

    shares: tuple[float, ...] = (0.1, 0.5, 0.9)

    def prepare(self, stage: Stage, child: Child) -> dict[str, float]:
        place = self._written(stage, child)
        child.ask("prepare_resume", TIMEOUT, place=place, spec=asdict(self.spec), shares=self.shares)
        return {}

    def measure(self, stage: Stage, child: Child) -> dict[str, float]:
        place, found, exact = asdict(self._place(stage, child)), {}, True
        for share in self.shares:
            done = child.ask("resume", TIMEOUT, place=place, share=share)
            found[f"first at {share:.0%}"] = done["first"] * 1000
            exact &= done["exact"]
        return {**found, "exact": float(exact)}


@dataclass(frozen=True)
class Mix(Row):
    """Samples of many data sets, shuffled each, in equal shares."""

    sources: int = 2

    def _places(self, stage: Stage, child: Child) -> list[Place]:
        window = max(16, self.window // self.sources)
        return [
            stage.place(child.system, self.data, self.shard, window, number=number) for number in range(self.sources)
        ]

    def prepare(self, stage: Stage, child: Child) -> dict[str, float]:
        for number, place in enumerate(self._places(stage, child)):
            spec = replace(self.spec, count=self.spec.count // self.sources, source=f"source{number}")
            stage.write(child, self.data, place, spec)
        self.measure(stage, child)
        return {}

    def measure(self, stage: Stage, child: Child) -> dict[str, float]:
        take = self.spec.count // 2
        places = [asdict(place) for place in self._places(stage, child)]
        done = child.ask("mix", TIMEOUT, places=places, take=take, least=0.2)
        if done["count"] != take or (done["sources"] != self.sources and take >= 20 * self.sources):
            raise FailedError(f"{child.system} gave {done['count']} of {take} samples from {done['sources']} sources")
        return {
            "samples": done["count"] / done["seconds"], "cpu": done["cpu"] / done["count"] * 1e6, "off": done["off"],
        }  # fmt: skip


@dataclass(frozen=True)
class Write(Row):
    """Samples in memory to a data set; a new one each round, until all of it is on the disk or in the bucket."""

    remote: bool = False

    def prepare(self, stage: Stage, child: Child) -> dict[str, float]:
        """A small one, so that what is imported late is there."""
        self._write(stage, child, Spec(16, 1000))
        return {}

    def measure(self, stage: Stage, child: Child) -> dict[str, float]:
        done = self._write(stage, child, self.spec)
        if self.remote:
            stage.empty_bucket()
        return {"megabytes": self.spec.bytes / 1e6 / done["seconds"], "cpu": done["cpu"] / self.spec.bytes * 1e9}

    def _write(self, stage: Stage, child: Child, spec: Spec) -> dict[str, Any]:
        if not self.remote and child.system == "dload_ml":
            raise RefusedError("keeps data sets in a bucket alone")
        if child.system == "ideal":
            raise RefusedError("the same as bare")
        place = stage.fresh(self._place(stage, child, remote=self.remote), also_prefix=True)
        done = child.ask("write", TIMEOUT, place=asdict(place), spec=asdict(spec))
        stage.drop(place, also_folder=True)
        return done


@dataclass(frozen=True)
class Insert(Row):
    """The same data set once more with one sample in front of all others: what is sent?"""

    def prepare(self, stage: Stage, child: Child) -> dict[str, float]:
        self._written(stage, child, remote=True)
        return {}

    def measure(self, stage: Stage, child: Child) -> dict[str, float]:
        place = replace(self._place(stage, child, remote=True), endpoint=stage.proxy.url)
        before = stage.proxy.traffic().up
        done = child.ask("insert_first", TIMEOUT, place=asdict(place), spec=asdict(self.spec))
        return {"bytes": (stage.proxy.traffic().up - before) / self.spec.bytes, "seconds": done["seconds"]}


@dataclass(frozen=True)
class Pack(Row):
    """Documents of tokens, joined and cut into blocks of 2,048."""

    documents: int = 20_000
    length: int = 2048

    @property
    def _sizes(self) -> list[int]:
        return [50 + number * 7919 % 1451 for number in range(self.documents)]

    def prepare(self, stage: Stage, child: Child) -> dict[str, float]:
        place = asdict(self._place(stage, child))
        child.ask("write_tokens", TIMEOUT, place=place, sizes=self._sizes)
        self.measure(stage, child)
        return {}

    def measure(self, stage: Stage, child: Child) -> dict[str, float]:
        place = asdict(self._place(stage, child))
        done = child.ask("pack", TIMEOUT, place=place, sizes=self._sizes, length=self.length)
        wanted = sum(self._sizes) + len(self._sizes)
        if abs(done["tokens"] - wanted) > 2 * self.length:
            raise FailedError(f"{child.system} gave {done['tokens']:.0f} tokens of {wanted}")
        return {"tokens": done["tokens"] / done["seconds"] / 1e6, "cpu": done["cpu"] / done["tokens"] * 1e9}


@dataclass(frozen=True)
class Memory(Row):
    """What a pass takes beyond what the process had with its imports done."""

    def prepare(self, stage: Stage, child: Child) -> dict[str, float]:
        self._written(stage, child)
        return {}

    def measure(self, stage: Stage, child: Child) -> dict[str, float]:
        child.kill()
        child.ask("forget", TIMEOUT)
        with MemoryWatch(child.group) as watch:
            child.ask("read", TIMEOUT, place=asdict(self._place(stage, child)), shuffled=True, least=0.0)
        peak = child.ask("memory", TIMEOUT)["peak RSS"]
        return {"own": (watch.peak - watch.base) / 1e6, "process": watch.peak / 1e6, "rss": peak / 1e6}
