"""What the documents show runs: the fragments of a document in turn, in one folder. Those that stand there as a file's
contents (title="...") are written, and run only where the document runs them; so isn't what other tools' code was."""

from __future__ import annotations

import getpass
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import dload
from dload.testing.s3_server import S3Server

ROOT = Path(__file__).parent.parent
FOREIGN = ROOT / "tests/importers/foreign"
pytestmark = pytest.mark.timeout(900)  # programs in turn, on a machine that may be busy

FOLDERS = ("dload", "tests", "benchmarks", "examples", "docs")
FRAGMENT = re.compile(r'^```(bash|python)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def fragments(text: str) -> list[tuple[str, str | None, str]]:
    """Language, the file that it is to be saved as, text."""
    return [found.groups() for found in FRAGMENT.finditer(text)]


def environment(home: Path) -> dict[str, str]:
    """As on a machine where dload was just installed: no settings, its programs on the path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DLOAD_", "AWS_", "R2_"))}
    folders = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("DATA", "CACHE", "CONFIG", "STATE")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**clean, **folders, "HOME": str(home), "PATH": path, "NO_COLOR": "1"}


def run(text: str, work: Path, **more: str) -> None:
    """Every fragment of a text in `work`, with further environment variables."""
    program = ""  # all that Python has been shown so far: later fragments use what earlier ones define
    found = []
    for language, title, fragment in fragments(text):
        if title is None:
            found.append((language, fragment))
        else:
            (work / title).write_text(fragment)
    for place, (language, fragment) in enumerate(found):
        if language == "bash":
            command = ["bash", "-euo", "pipefail", "-c", fragment]
        else:
            program += fragment
            if place + 1 < len(found) and found[place + 1][0] == "python":
                continue  # these are run together
            command = [sys.executable, "-c", program]
        known = {**environment(work.parent), **more}
        done = subprocess.run(command, cwd=work, env=known, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"{fragment}\n{done.stdout}\n{done.stderr}"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def test_every_fragment_of_the_tutorial_runs(work: Path) -> None:
    run((ROOT / "TUTORIAL.md").read_text(), work)


def test_the_five_minutes_of_the_readme_run(work: Path, s3_server: S3Server) -> None:
    ((_, section),) = re.findall(r"^## (Five minutes)\n(.*?)^## ", (ROOT / "README.md").read_text(), re.M | re.S)
    for number in range(40):
        path = work / "photos/2024" / f"robin-{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
        path.with_suffix(".json").write_text('{"species": "robin"}')
    bucket = f"readme-{os.urandom(6).hex()}"
    s3_server.make_bucket(bucket)
    section = section.replace("https://ACCOUNT.r2.cloudflarestorage.com", s3_server.endpoint_url)
    run(section.replace("my-data", bucket), work, **s3_server.environment())
    s3_server.drop_bucket(bucket)


@pytest.mark.parametrize("document", ["DESIGN.md", "CONTRIBUTING.md"])
def test_files_that_a_document_names_are_there(document: str) -> None:
    """By their path, or the end of it."""
    named = re.findall(r"`([\w/-]+\.(?:py|sh|md))\b[^`\n]*`", (ROOT / document).read_text())
    there = [f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    missing = [name for name in named if not any(path.endswith(f"/{name}") for path in there)]
    assert named
    assert not missing


def steps(picture: str) -> list[str]:
    """What is typed in it, but for what hangs on the Python whose library is committed."""
    typed = re.findall(r"<tspan style=\"fill:[^\"]+\">((?:#|\$|&gt;&gt;&gt;) [^<]*)</tspan>", picture)
    return [re.sub(r"\b[0-9a-f]{12}\b|\b\d+\b", "N", line) for line in typed]


def test_the_picture_of_the_terminal_is_what_the_demo_prints_and_shows_nothing_of_this_machine(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "docs/picture.py", tmp_path / "demo.svg"]
    subprocess.run(command, check=True, env={**environment(tmp_path), "TMPDIR": str(tmp_path)})
    made, shown = ((folder / "demo.svg").read_text() for folder in (tmp_path, ROOT / "docs"))
    assert len(steps(made)) > 15
    assert steps(made) == steps(shown)
    for private in (f"{tmp_path}", f"{Path.home()}/", f"{getpass.getuser()}@{socket.gethostname()}"):
        assert private not in made + shown


# ---- migrating: the data as the other tool left it
def jpeg(number: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (8, 8), (number * 5, 100, 50)).save(data, "JPEG")
    return data.getvalue()


def old_bucket(work: Path) -> None:
    """A store that dload-ml 0.3 wrote, and a project that names it."""
    shutil.copytree(ROOT / "tests/golden/format1", work / "old")
    (work / "dload.toml").write_text('[remote]\nstore = "old"\n')


def mds(work: Path) -> None:
    """Byte for byte what MDSWriter writes: tests of the exporter see to that."""
    repo = dload.Repository.open(work.parent / "made", cache_dir=work.parent / "made-cache")
    samples = [(str(number), {"image": jpeg(number), "label": str(number).encode()}) for number in range(64)]
    columns = {"image": {"codec": "bytes"}, "label": {"codec": "json", "type": {"int": 64}}}
    repo.commit("images", samples, meta={"columns": columns})
    command = ["export", "images", "--to", str(work / "my-mds-dataset"), "--format", "mds"]
    store = ["--store", str(work.parent / "made"), "--cache-dir", str(work.parent / "made-cache")]
    subprocess.run([sys.executable, "-m", "dload", *store, *command], check=True, capture_output=True, cwd=work)


def litdata(work: Path) -> None:
    shutil.copytree(FOREIGN / "litdata-plain", work / "my-optimized-dataset")


def webdataset(work: Path) -> None:
    (work / "shards").mkdir()
    for name in (*(f"train-{number:06}" for number in range(4)), "val-000000"):
        with tarfile.open(work / f"shards/{name}.tar", "w") as tar:
            for number in range(8):
                for suffix, data in (("jpg", jpeg(number)), ("cls", str(number).encode())):
                    member = tarfile.TarInfo(f"{name}/{number}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def dvc(work: Path) -> None:
    (work / "data/photos").mkdir(parents=True)
    for number in range(8):
        (work / f"data/photos/{number}.jpg").write_bytes(jpeg(number))
    subprocess.run(["git", "init", "--quiet"], cwd=work, check=True)


@pytest.mark.parametrize(
    ("page", "given"),
    [
        ("dload-ml", old_bucket), ("mosaicml-streaming", mds), ("litdata", litdata), ("webdataset", webdataset),
        ("dvc", dvc),
    ],
)  # fmt: skip
def test_what_a_page_about_migrating_shows_runs(page: str, given: Callable[[Path], None], work: Path) -> None:
    given(work)
    text = (ROOT / f"docs/migrating/from-{page}.md").read_text()
    if page == "litdata":  # the names of the leaves in the data that LitData wrote for the importer's tests
        text = text.replace('fields["image"]', 'fields["jpeg"]').replace('fields["label"]', 'fields["int"]')
    run(text, work)
