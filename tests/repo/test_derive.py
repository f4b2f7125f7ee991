"""Deriving: a pipeline's output is made once, by whoever comes first, and is the same for all."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import dload
from dload.api import Pipeline, Repository
from dload.cache import ShardCache
from dload.errors import ConfigError, DloadError, DuplicateKeyError, SampleError
from dload.files.locks import LockFile, try_lock
from dload.manifest import Packing
from dload.pack import Sample, cuts, sample_size
from dload.repo import derived, keys
from dload.repo.parts import Part, pack_part
from dload.store.base import Store
from dload.store.faulty import Faulty
from dload.store.local import FolderStore
from dload.testing import invariants
from dload.testing.waiting import eventually

CALLS: list[str] = []
SAMPLES = [(f"k{i:03}", {"x": f"{i % 10}".encode() * 50}) for i in range(200)]
SIZE = 2_000


def shout(sample: Sample) -> Sample:
    CALLS.append(sample[0])
    return sample[0].upper(), {"X": sample[1]["x"] * 2}


def whisper(sample: Sample) -> Sample:
    CALLS.append(sample[0])
    return sample[0], {"x": sample[1]["x"][:5]}


def low(sample: Sample) -> bool:
    CALLS.append(sample[0])
    return sample[1]["x"] < b"5"


def spoiled(sample: Sample) -> Any:
    return sample if sample[0] < "k150" else sample[0]


SHOUTED = [(key.upper(), {"X": fields["x"] * 2}) for key, fields in SAMPLES]


@pytest.fixture
def speech(repo: Repository) -> dload.Dataset:
    CALLS.clear()
    repo.commit("speech", SAMPLES, target_shard_size=SIZE)
    return repo.dataset("speech")


def again(repo: Repository, folder: Path) -> Repository:
    """The same store from another machine."""
    return Repository(repo.store, ShardCache(folder), folder / "dload.lock")


# ---- once
def test_the_first_makes_it_and_all_others_get_it(repo: Repository, speech: dload.Dataset, tmp_path: Path) -> None:
    made = repo.derive("loud", speech.samples().map(shout), target_shard_size=SIZE, meta={"a": 1, "tag": "mine"})
    assert len(CALLS) == 200
    assert list(made.samples()) == SHOUTED
    assert made.manifest.meta == {
        "a": 1, "derived_from": {"speech": speech.version}, "fingerprint": speech.samples().map(shout).fingerprint()
    }  # fmt: skip
    assert [record.op for record in repo.log("loud")] == ["derive"]
    other = again(repo, tmp_path / "other")
    hit = other.derive("loud", other.dataset("speech").samples().map(shout), meta={"b": 2})
    assert hit.version == made.version
    assert list(hit.samples()) == SHOUTED
    assert len(CALLS) == 200, "whoever gets it computes nothing"
    assert invariants.problems(repo.store, deep=True) == []


def test_what_changes_makes_another(repo: Repository, speech: dload.Dataset) -> None:
    pipe = speech.samples().map(shout)
    made = repo.derive("loud", pipe)
    tagged = repo.derive("loud", pipe, tag={"run": 2})
    assert tagged.version != made.version and tagged.manifest.meta["tag"] == {"run": 2}
    other = repo.derive("loud", speech.samples().map(whisper))
    repo.commit("speech", SAMPLES[:20])
    newer = repo.derive("loud", repo.dataset("speech").samples().map(shout))
    assert [len(ds) for ds in (made, tagged, other, newer)] == [200, 200, 200, 20]
    assert len(CALLS) == 620
    for ds, same in (
        (made, pipe), (newer, repo.dataset("speech").samples().map(shout)), (other, speech.samples().map(whisper))
    ):  # fmt: skip
        assert repo.derive("loud", same).version == ds.version
    assert repo.resolve("loud", "latest") == newer.version
    assert len(CALLS) == 620


def test_a_function_whose_text_changes_makes_another(memory_repo: Repository, tmp_path: Path) -> None:
    repo = memory_repo
    repo.commit("speech", SAMPLES)
    versions = []
    for number, body in enumerate(["return sample", "return sample  # the same", "return sample[0], {'y': b'1'}"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "recipe_of_tests.py").write_text(f"def fn(sample):\n    {body}\n")
        sys.path.insert(0, str(folder))
        try:
            sys.modules.pop("recipe_of_tests", None)
            fn = __import__("recipe_of_tests").fn
            versions.append(repo.derive("out", repo.dataset("speech").samples().map(fn)).version)
        finally:
            sys.path.remove(str(folder))
    assert versions[0] == versions[1] != versions[2]


def test_lineage_goes_both_ways(repo: Repository, speech: dload.Dataset) -> None:
    older = speech
    repo.commit("speech", SAMPLES[:50])
    newer = repo.dataset("speech")
    both = repo.derive("both", dload.concat([newer.samples(), older.samples().skip(50)]))
    assert both.manifest.meta["derived_from"] == {"speech": sorted([older.version, newer.version])}
    once = repo.derive("loud", newer.samples().map(shout))
    twice = repo.derive("loud", newer.samples().map(whisper))
    above = repo.derive("top", once.samples().take(3))
    assert repo.lineage("speech", newer.version).derived_by == sorted(
        [("both", both.version), ("loud", once.version), ("loud", twice.version)]
    )
    assert repo.lineage("speech", older.version).derived_by == [("both", both.version)]
    found = repo.lineage("loud", once.version)
    assert (found.derived_from, found.derived_by) == ([("speech", newer.version)], [("top", above.version)])


def test_looking_for_what_was_derived_asks_little_of_what_was_not(repo: Repository, speech: dload.Dataset) -> None:
    made = repo.derive("loud", speech.samples().map(shout))
    repo.view("few", speech, lambda sample: sample[0] < "k010")
    for number in range(10):
        repo.commit(f"plain-{number}", SAMPLES[:3])
    assert {info.name: info.kind for info in repo.overview() if info.kind != "samples"} == {
        "few": "view", "loud": "derived",
    }  # fmt: skip
    store = Faulty(repo.store)
    elsewhere = Repository(store, ShardCache(Path(repo.cache.root).parent / "elsewhere"), repo.lock_path)
    assert [name for name, _ in elsewhere.lineage("speech", speech.version).derived_by] == ["few", "loud"]
    gets = [call.key for call in store.calls if call.operation == "get" and "/manifests/" in call.key]
    assert sorted({key.split("/")[1] for key in gets}) == ["few", "loud", "speech"]
    assert len(store.calls) <= 2 * 13 + 5 * len(gets), "two for each data set, and some for each of the three"
    for change, kind in (
        (lambda: repo.commit("loud", SAMPLES[:3]), "samples"),
        (lambda: repo.revert("loud", made.version), "derived"),
    ):
        change()
        assert [info.kind for info in repo.overview() if info.name == "loud"] == [kind]


# ---- what can't be
@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda pipe: pipe.map(lambda sample: sample), ValueError, "define it with def"),
        (lambda pipe: pipe.shuffle(10), ValueError, "give it one, seed=0"),
        (lambda pipe: pipe.repeat(), ValueError, "without an end"),
        (lambda pipe: pipe.repeat(2), DuplicateKeyError, "have the key 'k000'"),
        (lambda pipe: pipe.map(spoiled), SampleError, "sample 150 is not a sample"),
        (lambda pipe: pipe.batch(2), SampleError, "sample 0 is not a sample"),
        (lambda _: [], ConfigError, "derive needs a Pipeline, got list"),
    ],
)
def test_what_has_no_identity_or_can_not_be_stored_is_refused(
    memory_repo: Repository, make: Any, error: type[Exception], says: str
) -> None:
    memory_repo.commit("speech", SAMPLES)
    with pytest.raises(error, match=says):
        memory_repo.derive("out", make(memory_repo.dataset("speech").samples()))
    assert memory_repo.list_datasets() == ["speech"]
    assert list(memory_repo.store.list(keys.derived_prefix("out"))) == []


def test_one_that_was_removed_is_made_again(repo: Repository, speech: dload.Dataset) -> None:
    pipe = speech.samples().map(shout)
    made = repo.derive("loud", pipe)
    other = repo.derive("loud", pipe, tag=1)
    repo.delete_dataset("loud", made.version)
    assert repo.derive("loud", pipe).version == made.version
    assert repo.removed("loud") == []
    repo.delete_dataset("loud", other.version)
    repo.gc(grace=0)
    assert repo.derive("loud", pipe, tag=1).version == other.version
    assert len(CALLS) == 800
    repo.delete_dataset("loud")
    repo.gc(grace=0)
    assert list(repo.derive("loud", pipe).samples()) == SHOUTED
    assert invariants.problems(repo.store, deep=True) == []


def test_what_is_derived_lives_by_its_own_refs(repo: Repository, speech: dload.Dataset) -> None:
    made = repo.derive("loud", speech.samples().map(shout))
    repo.delete_dataset("speech")
    repo.gc(grace=0)
    assert list(made.samples()) == SHOUTED
    repo.commit("speech", SAMPLES)
    repo.delete_dataset("loud")
    assert repo.gc(grace=0).deleted_shards == len(made.manifest.shards)
    assert len(list(repo.dataset("speech").samples())) == 200


# ---- others
SCRIPT = """
import json, os, sys, time
from pathlib import Path
from dload.api import Repository
from recipe import slow

if __name__ == "__main__":
    url, folder, start, workers, meta = sys.argv[1:]
    repo = Repository.open(url, cache_dir=folder + "/cache")
    while not Path(start).exists():
        time.sleep(0.01)
    pipe = repo.dataset("speech").samples().map(slow)
    lines = []
    made = repo.derive(
        "loud", pipe, target_shard_size=2_000, workers=int(workers), meta=json.loads(meta), progress=lines.append
    )
    print(json.dumps({"version": made.version, "count": len(made), "lines": lines}))
"""
RECIPE = """
import os, time

def slow(sample):
    time.sleep(float(os.environ.get("SLOW", "0")))
    with open(os.environ["CALLS"], "a") as file:
        file.write(sample[0] + "\\n")
    return sample[0].upper(), {"X": sample[1]["x"] * 2}
"""


class Machines:
    """Processes that derive the same from a store."""

    def __init__(self, folder: Path, url: str, environment: dict[str, str]) -> None:
        self.folder, self.url, self.environment = folder, url, environment
        self.calls = folder / "calls"
        (folder / "recipe.py").write_text(RECIPE)
        (folder / "script.py").write_text(SCRIPT)

    def start(self, machine: str, *, workers: int = 1, slow: float = 0, meta: Any = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(self.folder / "script.py"), self.url, str(self.folder / machine)]
        command += [str(self.folder / "start"), str(workers), json.dumps(meta or {})]
        environment = {
            **os.environ, **self.environment, "XDG_STATE_HOME": str(self.folder / machine), "CALLS": str(self.calls),
            "SLOW": str(slow), "PYTHONPATH": f"{Path(dload.__file__).parents[1]}:{self.folder}",
        }  # fmt: skip
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def go(self) -> None:
        (self.folder / "start").touch()

    def called(self) -> list[str]:
        return self.calls.read_text().split() if self.calls.exists() else []


def ended(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    return dict(json.loads(out.splitlines()[-1]))


def alive(folder: Path) -> list[str]:
    """The processes of machines in this folder, and of their workers."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"CALLS={folder}/".encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


@pytest.fixture(params=["folder", "s3"])
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Machines, Repository]:
    environment = {}
    if request.param == "folder":
        url = str(tmp_path / "store")
        store: Store = FolderStore(tmp_path / "store")
    else:
        from dload.store.s3 import S3Store

        server = request.getfixturevalue("s3_server")
        place = request.getfixturevalue("s3_place")
        url, store = "s3://{}/{}".format(*place), S3Store(*place, endpoint_url=server.endpoint_url)
        environment = {"DLOAD_ENDPOINT_URL": server.endpoint_url}
    repo = Repository(store, ShardCache(tmp_path / "here"), tmp_path / "dload.lock")
    repo.commit("speech", SAMPLES, target_shard_size=SIZE)
    return Machines(tmp_path, url, environment), repo


@pytest.mark.parametrize("meta", [False, True])
def test_two_machines_that_race_get_one_version(machines: tuple[Machines, Repository], meta: bool) -> None:
    """Also where their meta would make two of it."""
    many, repo = machines
    racing = [many.start(name, meta={"by": name} if meta else None, slow=0.001) for name in ("one", "two")]
    many.go()
    found = [ended(process) for process in racing]
    assert len({each["version"] for each in found}) == 1
    [ref] = repo.store.list(keys.derived_prefix("loud"))
    assert repo.store.get(ref.key).data.decode() == found[0]["version"]
    assert list(repo.dataset("loud", found[0]["version"]).samples()) == SHOUTED
    assert invariants.problems(repo.store, deep=True) == []
    assert len(repo.versions("loud")) <= (2 if meta else 1)
    count = len(many.called())
    assert ended(many.start("three"))["version"] == found[0]["version"]
    assert len(many.called()) == count


def test_processes_of_one_machine_wait_for_the_first(machines: tuple[Machines, Repository]) -> None:
    many, repo = machines
    both = [many.start("one", slow=0.002) for _ in range(2)]
    many.go()
    found = [ended(process) for process in both]
    assert found[0]["version"] == found[1]["version"]
    assert len(many.called()) == 200
    assert repo.dataset("loud").version == found[0]["version"]


def test_the_output_is_published_before_the_next_process_looks(
    memory_repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[bool] = []
    publish = derived.publish

    def looked_at(*arguments: Any) -> str:
        [lock] = (tmp_path / "state" / "dload" / "derived").glob("*.lock")
        with LockFile(lock) as file:
            free.append(try_lock(file.descriptor))
        return publish(*arguments)

    monkeypatch.setattr(derived, "publish", looked_at)
    memory_repo.commit("speech", SAMPLES)
    memory_repo.derive("loud", memory_repo.dataset("speech").samples().map(shout))
    assert free == [False]


@pytest.mark.parametrize("workers", [1, 2])
def test_one_that_was_killed_goes_on(machines: tuple[Machines, Repository], workers: int) -> None:
    many, repo = machines
    many.go()
    process = many.start("one", workers=workers, slow=0.02)
    eventually(lambda: len(many.called()) >= 120)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    eventually(lambda: not alive(many.folder))  # its workers end with it
    before = many.called()
    assert 100 <= len(before) < 200
    assert list(repo.store.list(keys.derived_prefix("loud"))) == []
    many.calls.unlink()
    end = ended(many.start("one", workers=workers))
    assert list(repo.dataset("loud").samples()) == SHOUTED
    assert sum("there already" in line for line in end["lines"]) >= 2
    assert sorted({*before, *many.called()}) == [key for key, _ in SAMPLES]
    assert len(many.called()) < 160, "it goes on, and doesn't begin anew"
    whole = repo.derive("whole", repo.dataset("speech").samples().map(shout), target_shard_size=SIZE)
    assert whole.manifest.shards == repo.dataset("loud").manifest.shards
    assert invariants.problems(repo.store, deep=True) == []
    assert list((many.folder / "one" / "dload" / "derived").glob("*[!k]")) == [], "nothing is left to remember"


# ---- cut off, and going on
FAIL_AT: list[str] = []


def touchy(sample: Sample) -> Sample:
    if sample[0] in FAIL_AT:
        raise OSError("cut off")
    return shout(sample)


def odd(sample: Sample) -> bool:
    return int(sample[0][1:]) % 2 == 1


CUT: dict[str, Any] = {
    "places": lambda pipe: pipe.map(touchy),
    "shuffled": lambda pipe: pipe.shuffle(30, seed=4).map(touchy),
    "holes": lambda pipe: pipe.filter(odd, holes=True).map(touchy),
    "filtered": lambda pipe: pipe.filter(odd).map(touchy),
    "mixed": lambda pipe: dload.mix([pipe.take(100), pipe.skip(100)], [2, 1], seed=1, until="all").map(touchy),
    "filtered late": lambda pipe: pipe.map(touchy).filter(bool),
}


@pytest.mark.parametrize("boundaries", ["content", "size"])
@pytest.mark.parametrize("kind", CUT)
def test_what_was_packed_is_taken_over_in_both_tiers(memory_repo: Repository, kind: str, boundaries: str) -> None:
    repo = memory_repo
    repo.commit("speech", SAMPLES, target_shard_size=SIZE)
    pipe = CUT[kind](repo.dataset("speech").samples())
    options: dict[str, Any] = {"target_shard_size": SIZE, "boundaries": boundaries}
    FAIL_AT[:] = []
    whole = repo.derive("whole", pipe, **options)
    order = [key.lower() for key, _ in whole.samples()]
    for step, key in enumerate((order[len(order) // 2], order[-1], None)):
        CALLS.clear()
        FAIL_AT[:] = [key] if key else []
        if key is not None:
            with pytest.raises(OSError, match="cut off"):
                repo.derive("out", pipe, **options)
            assert repo.list_datasets() == ["speech", "whole"]
        else:
            made = repo.derive("out", pipe, **options)
        if step:
            assert not {*CALLS} & {*order[: len(order) // 10]}, "it goes on behind what was packed"
        if key is None:
            assert len({*CALLS}) < len(order) / 2
    assert made.manifest.shards == whole.manifest.shards
    assert list(made.samples()) == list(whole.samples())


def test_what_is_remembered_is_dropped_where_it_does_not_fit(memory_repo: Repository) -> None:
    repo = memory_repo
    repo.commit("speech", SAMPLES, target_shard_size=SIZE)
    pipe = repo.dataset("speech").samples().map(touchy)

    def cut_off(**options: Any) -> None:
        FAIL_AT[:] = ["k180"]
        with pytest.raises(OSError, match="cut off"):
            repo.derive("out", pipe, **options)
        FAIL_AT[:] = []
        CALLS.clear()

    cut_off(target_shard_size=SIZE)
    made = repo.derive("out", pipe, target_shard_size=3 * SIZE)
    assert len(CALLS) == 200, "other shards were asked for"
    assert made.manifest.packing.target == 3 * SIZE
    repo.delete_dataset("out")
    cut_off(target_shard_size=SIZE)
    repo.gc(grace=0)
    assert list(repo.derive("out", pipe, target_shard_size=SIZE).samples()) == SHOUTED
    assert len(CALLS) == 200, "a gc took what was packed"


def test_a_line_that_was_cut_off_counts_as_not_written(memory_repo: Repository, tmp_path: Path) -> None:
    repo = memory_repo
    repo.commit("speech", SAMPLES, target_shard_size=SIZE)
    pipe = repo.dataset("speech").samples().map(touchy)
    FAIL_AT[:] = ["k180"]
    with pytest.raises(OSError, match="cut off"):
        repo.derive("out", pipe, target_shard_size=SIZE)
    FAIL_AT[:] = []
    [file] = (tmp_path / "state" / "dload" / "derived").glob("*[!k]")
    text = file.read_text()
    file.write_text(text[: text.rindex("\n", 0, -1) + 20])
    assert list(repo.derive("out", pipe, target_shard_size=SIZE).samples()) == SHOUTED
    assert not file.exists()


@pytest.mark.parametrize("middle", [False, True])
def test_a_file_with_anything_in_it_does_no_harm(memory_repo: Repository, tmp_path: Path, middle: bool) -> None:
    memory_repo.commit("speech", SAMPLES, target_shard_size=SIZE)
    pipe = memory_repo.dataset("speech").samples().map(touchy)
    FAIL_AT[:] = ["k180"]
    with pytest.raises(OSError, match="cut off"):
        memory_repo.derive("out", pipe, target_shard_size=SIZE)
    FAIL_AT[:] = []
    [file] = (tmp_path / "state" / "dload" / "derived").glob("*[!k]")
    data = file.read_bytes()
    at = len(data) // 2 if middle else 0
    file.write_bytes(data[:at] + bytes(range(256)) + b"\n[1, {}]\nnull\n" + data[at:])
    assert list(memory_repo.derive("out", pipe, target_shard_size=SIZE).samples()) == SHOUTED


def test_where_nothing_can_be_remembered_it_works_all_the_same(memory_repo: Repository, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    memory_repo.commit("speech", SAMPLES)
    assert list(memory_repo.derive("out", memory_repo.dataset("speech").samples().map(shout)).samples()) == SHOUTED


# ---- side by side
@pytest.mark.parametrize("workers", [3])
def test_workers_do_not_change_the_result(memory_repo: Repository, tmp_path: Path, workers: int) -> None:
    repo = Repository(FolderStore(tmp_path / "store"), ShardCache(tmp_path / "cache"))
    repo.commit("speech", SAMPLES, target_shard_size=SIZE)
    pipe = repo.dataset("speech").samples().shuffle(20, seed=1).filter(low, holes=True)
    one = repo.derive("one", pipe, target_shard_size=SIZE)
    many = repo.derive("many", pipe, target_shard_size=SIZE, workers=workers)
    assert many.manifest.shards == one.manifest.shards
    ahead = repo.derive("ahead", repo.dataset("speech").samples().map(shout, workers=2), workers=workers)
    assert list(ahead.samples()) == SHOUTED
    with pytest.raises(SampleError, match="sample 150 is not a sample"):
        repo.derive("none", repo.dataset("speech").samples().map(spoiled), workers=workers)


def deadly(sample: Sample) -> Sample:
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def test_a_worker_that_is_killed_is_told(tmp_path: Path) -> None:
    repo = Repository(FolderStore(tmp_path / "store"), ShardCache(tmp_path / "cache"))
    repo.commit("speech", SAMPLES)
    with pytest.raises(DloadError, match=r"was killed, or couldn't start — .*fewer workers need less"):
        repo.derive("out", repo.dataset("speech").samples().map(deadly), workers=2)
    assert repo.list_datasets() == ["speech"]


class Parts:
    """An engine: each part is packed by itself, one after another."""

    def __init__(self, counts: Iterable[int] | None = None) -> None:
        self.counts = counts
        self.done = 0

    def parts(self, repo: Repository, name: str, pipe: Pipeline, packing: Packing) -> Iterable[Part]:
        every = list(pipe.iter(epoch=0))
        sizes = ((key, sample_size(key, fields), tuple(fields)) for key, fields in every)
        start = 0
        for count in self.counts or cuts(sizes, packing.target, packing.boundaries):
            assert any(repo.store.list(keys.LEASES)), "the commit has its lease by now"
            yield pack_part(repo.store, name, every[start : start + count], packing)
            start += count
            self.done += 1


def test_an_engine_computes_in_place_of_this_machine(repo: Repository, speech: dload.Dataset) -> None:
    here = repo.derive("here", speech.samples().map(shout), target_shard_size=SIZE)
    engine = Parts()
    there = repo.derive("there", speech.samples().map(shout), target_shard_size=SIZE, engine=engine)
    assert engine.done > 5
    assert there.manifest.shards == here.manifest.shards
    assert repo.derive("there", speech.samples().map(shout), engine=engine).version == there.version
    with pytest.raises(ConfigError, match="leave out engine=, or view="):
        repo.derive("there", speech.samples().filter(low), view=True, engine=engine)
    assert engine.done == len(here.manifest.shards)
    assert invariants.problems(repo.store, deep=True) == []


# ---- a real corpus
def tokens(sample: Sample) -> Sample:
    CALLS.append(sample[0])
    words = sample[1]["py"].split()
    return sample[0], {"tokens": b"".join(len(word).to_bytes(2, "little") for word in words)}


def test_a_corpus_is_tokenized_once_and_streamed_from_another_cache(tmp_path: Path, repo: Repository) -> None:
    """The standard library's own sources."""
    folder = Path(os.__file__).parent
    paths = sorted(folder.glob("*.py"))[:150]
    assert len(paths) > 100
    repo.commit("sources", [(path.name, {"py": path.read_bytes()}) for path in paths], target_shard_size=200_000)
    CALLS.clear()
    made = repo.derive("tokens", repo.dataset("sources").samples().map(tokens), target_shard_size=50_000)
    assert sorted(CALLS) == [path.name for path in paths]
    other = again(repo, tmp_path / "second")
    streamed = other.derive("tokens", other.dataset("sources").samples().map(tokens))
    found = dict(streamed.samples().shuffle(20, seed=1))
    assert len(CALLS) == len(paths)
    assert found == {path.name: tokens((path.name, {"py": path.read_bytes()}))[1] for path in paths}
    cached = {digest for digest, _, _ in other.cache.entries()}
    assert cached == set(made.manifest.shards.digests), "no source was read"
