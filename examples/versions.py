"""Versions: committed, named, pinned, compared, gone back to, removed and brought back.

    pip install dload-ml
    python examples/versions.py

The data set is Python's json package, each module a sample. What a version holds never changes, and its id is made of
that; what moves is which one is the latest, and of this there is a log.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import chdir
from pathlib import Path

import dload
from dload.errors import ConflictError, NotFoundError


def modules() -> dict[str, dict[str, bytes]]:
    return {path.stem: {"py": path.read_bytes()} for path in sorted(Path(json.__file__).parent.glob("*.py"))}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name, chdir(name):  # where dload.lock will be
        folder = Path(name)
        repo = dload.Repository.open(folder / "store", cache_dir=folder / "cache", cache_budget="100MB")

        data = modules()
        first = repo.commit("json", data.items(), message="as installed")
        assert repo.commit("json", data.items()).version == first.version  # the same data are the same version
        assert len(repo.log("json")) == 1  # and nothing has happened

        # Change one sample, leave one out, add one.
        data["decoder"]["py"] += b"# mended\n"
        del data["tool"]
        data["extra"] = {"py": b"pass\n"}
        second = repo.commit("json", data.items(), message="mended")
        difference = repo.diff("json", first.version, second.version)
        print(f"from {first.version[:12]} to {second.version[:12]}: {difference}")
        assert (difference.added, difference.removed, difference.changed) == (["extra"], ["tool"], ["decoder"])

        # A name for people, and a pin for programs: this project uses the first version, whatever others commit.
        repo.tag("json", "paper", first.version)
        repo.pin("json", "paper")
        print((folder / "dload.lock").read_text())
        assert repo.dataset("json").version == first.version
        assert repo.dataset("json", "latest").version == second.version
        assert "tool" in dict(repo.dataset("json", first.version[:6]))  # the beginning of an id does, too

        # Two who don't know of one another lose nothing: whoever expects an older latest version is told.
        try:
            repo.commit("json", {}.items(), expect=first.version)
        except ConflictError as error:
            print(f"a conflict: {error}")
        else:
            raise AssertionError("the second version came between")

        # Back: the old version is the latest again. The log has all three moves.
        repo.revert("json", first.version, message="the mend was wrong")
        moves = [(record.message, record.version[:12]) for record in repo.log("json")]
        print(f"newest first: {moves}")
        assert [version for _, version in moves] == [first.version[:12], second.version[:12], first.version[:12]]

        # Removed, it is out of sight; until gc has taken the bytes, days later, it comes back with one word.
        repo.delete_dataset("json", second.version)
        try:
            repo.dataset("json", second.version[:12])
        except NotFoundError as error:
            print(f"removed: {error}")
        else:
            raise AssertionError("it was removed")
        repo.undelete("json", second.version)
        assert dict(repo.dataset("json", second.version)).keys() == data.keys()

        # What has a name isn't removed by mistake.
        try:
            repo.delete_dataset("json")
        except ConflictError as error:
            print(f"kept: {error}")
        else:
            raise AssertionError("it has a tag")
        repo.untag("json", "paper")
        repo.delete_dataset("json")
        assert repo.list_datasets() == []
        repo.undelete("json")
        assert repo.dataset("json", "latest").version == first.version


if __name__ == "__main__":
    main()
