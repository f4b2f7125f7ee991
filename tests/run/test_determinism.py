"""The same seeds give the same rows in every process: whatever its hash seed, its Python, and with or without NumPy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import dload

# What a pipeline of every kind of draw gives, as a digest of the rows. Another digest is another order for everybody:
# runs that are going on would not resume.
ROWS = "7226db111ae58d71"

PROGRAM = """
import sys
if sys.argv[2] == "plain":
    sys.modules["numpy"] = None
from hashlib import sha256
import dload

def drawn(sample, rng):
    return sample[0], rng.random(), rng.randrange(1000)
def again(row):
    return row
def odd(row):
    return row[2] % 2 == 1
def pair(row):
    return [row, row]
def weights(number):
    return [0.25, 0.75] if number < 0.5 else [0.5, 0.5]

repo = dload.Repository.open(sys.argv[1], cache_dir=sys.argv[1] + "-cache", cache_budget="unlimited")
if "speech" not in repo.list_datasets():
    for name, count in (("speech", 3000), ("noise", 200)):
        repo.commit(name, ((f"{name}-{i:05d}", {"x": b"%d" % i}) for i in range(count)), target_shard_size=5000)
speech, noise = repo.dataset("speech").samples(), repo.dataset("noise").samples()
mixed = dload.mix([speech.shuffle(500, seed=3), noise.shuffle(50, seed=4).repeat()], [0.8, 0.2], seed=5)
indexed = mixed.map(drawn, rng=True).maybe(again, 0.3, seed=6).batch(7)
chosen = dload.choice([speech.shuffle(full=True, seed=7), noise.repeat()], dload.random_stream(8).map(weights), seed=9)
stream = chosen.map(drawn, rng=True).filter(odd).flat_map(pair).shuffle(100, seed=10).take(2000)
digest = sha256()
for pipe in (indexed, stream):
    for epoch in (0, 1):
        for item in pipe.iter(epoch=epoch):
            digest.update(repr(item).encode())
print(digest.hexdigest()[:16])
"""


def pythons() -> list[str]:
    """Other versions of Python on this machine that run dload: on the path, or installed beside this one."""
    found = {}
    for minor in range(11, 16):
        name = f"python3.{minor}"
        beside = sorted(Path(sys.base_prefix).parent.glob(f"3.{minor}.*/bin/{name}"))
        for path in filter(None, [shutil.which(name), *map(str, beside)]):
            if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
                found[minor] = path
    found.pop(sys.version_info.minor, None)
    return list(found.values())


def rows(python: str, store: Path, numpy: str, hash_seed: str) -> str:
    ours = os.pathsep.join([str(Path(dload.__file__).parent.parent), sysconfig.get_path("purelib")])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": ours}
    done = subprocess.run(
        [python, "-W", "ignore", "-c", PROGRAM, str(store), numpy],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("determinism") / "store"


@pytest.mark.parametrize(("numpy", "hash_seed"), [("numpy", "0"), ("numpy", "12345"), ("plain", "1")])
def test_the_same_rows_in_each_process(store: Path, numpy: str, hash_seed: str) -> None:
    assert rows(sys.executable, store, numpy, hash_seed) == ROWS


def test_the_same_rows_in_each_python(store: Path) -> None:
    others = pythons()
    if not others:
        pytest.skip("this machine has no other Python from 3.11 on")
    # Compiled extensions of this Python's packages can't be loaded there: all of the order is plain Python.
    assert {other: rows(other, store, "plain", "7") for other in others} == dict.fromkeys(others, ROWS)
