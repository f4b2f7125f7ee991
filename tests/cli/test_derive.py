"""`dload derive`, and what `info` says of where a version comes from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Cli

MODULE = """
from pathlib import Path

def loud(sample):
    with Path("calls").open("a") as file:
        file.write(sample[0] + "\\n")
    return sample[0], {"txt": sample[1]["txt"].upper()}

def short(sample):
    return len(sample[1]["txt"]) < 6

def fails(sample):
    raise ZeroDivisionError("this one")

def texts(repo):
    return repo.dataset("texts").samples()

def shouted(repo):
    return texts(repo).map(loud)

def few(repo):
    return texts(repo).filter(short)

def broken(repo):
    return texts(repo).map(fails)

def unnamed(repo):
    return texts(repo).map(lambda sample: sample)

def nothing(repo):
    raise KeyError("no such thing")
"""
TEXTS = {f"{number}.txt": "text " + "x" * number for number in range(6)}


@pytest.fixture
def derived(cli: Cli) -> Cli:
    cli.commit(TEXTS, name="texts")
    (cli.cwd / "recipes.py").write_text(MODULE)
    return cli


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_pipeline_runs_once(derived: Cli, workers: str) -> None:
    first = derived.ok("derive", "recipes:shouted", "loud", "--workers", workers, "--json", "--meta", "by=me")
    facts = first.json()
    assert (facts["num_samples"], facts["view"], facts["meta"]["by"]) == (6, False, "me")
    assert "6 samples, 1 shard" in first.err and "next: dload info loud@" in first.err
    assert derived.ok("cat", "loud", "2").out == "TEXT XX"
    assert sorted((derived.cwd / "calls").read_text().split()) == list("012345")
    again = derived.ok("derive", "recipes:shouted", "loud", "--json").json()
    assert again["version"] == facts["version"]
    assert len((derived.cwd / "calls").read_text().split()) == 6
    tagged = derived.ok("derive", "recipes:shouted", "loud", "--tag", "2", "--json", "-m", "again").json()
    assert tagged["version"] != facts["version"] and tagged["meta"]["tag"] == "2"
    assert "derive" in derived.ok("log", "loud").out


def test_info_shows_where_a_version_comes_from_and_what_came_of_it(derived: Cli) -> None:
    made = derived.ok("derive", "recipes:few", "few", "--view", "--json").json()
    assert (made["num_samples"], made["view"]) == (1, True)
    source = derived.ok("info", "texts", "--json").json()
    assert source["derived_by"] == [{"name": "few", "version": made["version"]}]
    assert re.search(r"NAME +KIND +LATEST[^\n]*\nfew +view .*\ntexts +[0-9a-f]{12}", derived.ok("ls").out)
    assert [each["kind"] for each in derived.ok("ls", "--json").json()] == ["view", "samples"]
    told = derived.ok("info", "few").out
    assert re.search(f"derived from: +texts@{source['version'][:12]}", told)
    assert "1 (a view: of the 6 in its shards)" in told
    assert re.search(f"derived by: +few@{made['version'][:12]}", derived.ok("info", "texts").out)
    derived.ok("pull", "few", "--to", "out")
    assert [path.name for path in (derived.cwd / "out").iterdir()] == ["0.txt"]
    assert "all is well" in derived.ok("verify", "few", "--read-data").err
    derived.ok("copy", "few", "--to", "elsewhere")
    assert derived.ok("--store", str(derived.cwd / "elsewhere"), "head", "few", "--json").json()
    assert derived.ok("info", "few", "--json").json()["derived_from"] == [
        {"name": "texts", "version": source["version"]}
    ]


@pytest.mark.parametrize(
    ("code", "arguments", "said"),
    [
        (2, ["recipes"], "is not MODULE:FUNCTION"),
        (2, ["nowhere:shouted"], "no module 'nowhere'"),
        (2, ["recipes:missing"], "has no function 'missing'\n  write one that takes the repository"),
        (2, ["recipes.py:shouted"], "name the module, not the file: recipes:shouted"),
        (2, ["recipes:broken", "--view"], "map makes something else"),
        (1, ["recipes:broken", "--workers", "1"], "recipes:broken failed: this one\n  mend it;"),
        (1, ["recipes:broken", "--workers", "2"], "recipes:broken failed: this one\n  mend it;"),
        (1, ["recipes:unnamed"], "define it with def"),
        (1, ["recipes:nothing"], "no such thing"),
    ],
)
def test_what_goes_wrong_is_told(derived: Cli, code: int, arguments: list[str], said: str) -> None:
    result = derived.run("derive", arguments[0], "made", *arguments[1:])
    assert result.code == code, result
    assert said in result.err
    assert "a bug in dload" not in result.err
    assert derived.run("info", "made").code == 10
