"""dload verify, as its users run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Cli


def shards(cli: Cli) -> list[Path]:
    return sorted(path for path in (cli.store / "shards").rglob("*") if path.is_file())


def test_a_check_of_pins_that_are_nowhere_is_an_error(cli: Cli) -> None:
    """In the wrong folder of a CI job, it would else be a success for ever."""
    said = cli.fails(10, "verify", "--lock")
    assert "there is no dload.lock in this folder or one above it" in said and "dload pin NAME" in said
    cli.commit({"a.txt": "1"})
    cli.ok("pin", "birds")
    assert "all is well: 1 version" in cli.ok("verify", "--lock").err


def test_what_is_wrong_is_told_and_mended(cli: Cli) -> None:
    cli.commit({f"{number}.txt": f"text {number}" for number in range(10)})
    assert "all is well: 1 version, 1 shard" in cli.ok("verify", "birds").err
    assert cli.ok("verify", "--all", "--read-data", "--json").json()["bytes_read"] > 0
    assert "(1 read" in cli.ok("verify", "birds", "--subset", "5%").err
    [shard] = shards(cli)
    data = shard.read_bytes()
    shard.unlink()
    missing = cli.run("verify", "birds")
    assert missing.code == 14
    assert "it is missing" in missing.out
    assert "lost: 10 samples" in missing.out
    assert "1 fault" in missing.err
    shard.write_bytes(data[:3] + b"?" + data[4:])
    assert cli.run("verify", "birds").code == 0
    damaged = cli.run("verify", "birds", "--read-data")
    assert damaged.code == 14
    assert "lost: 1 sample of shard" in damaged.out
    assert damaged.out.splitlines()[-1] == "  0"
    facts = cli.run("verify", "birds", "--read-data", "--json")
    assert facts.code == 14
    assert facts.json()["faults"][0]["lost"] == ["0"]

    other = cli.store.with_name("other")
    shard.write_bytes(data)
    cli.ok("copy", "birds", "--to", str(other))
    shard.unlink()
    mended = cli.ok("verify", "birds", "--from", str(other))
    assert "mended" in mended.out
    assert shard.read_bytes() == data
    assert cli.ok("verify", "birds", "--read-data").out == ""


def test_from_the_cache_and_by_lock(cli: Cli) -> None:
    cli.commit({"a.txt": "hello"})
    cli.ok("pin", "birds")
    cli.ok("pull", "birds")
    shards(cli)[0].unlink()
    assert cli.run("verify", "--lock").code == 14
    cli.ok("verify", "--lock", "--repair")
    cli.ok("verify", "--lock", "--read-data")


def test_wrong_uses_are_told(cli: Cli) -> None:
    assert cli.run("verify").code == 2
    assert cli.run("verify", "birds", "--all").code == 2
    assert "0% and 100%" in cli.run("verify", "--all", "--subset", "0").err
    assert cli.run("verify", "birds").code == 10
