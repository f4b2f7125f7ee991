"""dload.lock: pins that survive parallel writers, git, dload-ml 0.3 and hostile bytes."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError
from dload.repo.lockfile import find_lock, read_pins, write_pin

A, B, C = "a1" * 32, "b2" * 32, "c3" * 32

# As dload-ml 0.3.1 wrote it.
BY_DLOAD_ML = f"""# Pinned dataset versions, managed by `dload pin`.
[datasets]
A = "{A}"
abc = "{B}"
x.y-z_1 = "{C}"
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "dload.lock"


def refused(lock: Path, text: str | bytes, match: str) -> ConfigError:
    """The error that reading and writing give for this content; the file stays as it is."""
    content = text.encode() if isinstance(text, str) else text
    lock.write_bytes(content)
    with pytest.raises(ConfigError, match=match) as caught:
        read_pins(lock)
    assert str(lock) in str(caught.value)
    assert caught.value.remedy
    with pytest.raises(ConfigError, match=match):
        write_pin(lock, "other", A)
    assert lock.read_bytes() == content
    return caught.value


def test_pins_are_written_as_dload_ml_wrote_them(lock: Path) -> None:
    write_pin(lock, "b", B)
    write_pin(lock, "a", A)
    assert lock.read_text() == (
        "# Pinned dataset versions, managed by `dload pin`.\n"
        "[datasets]\n"
        f'a = "{A}"\n'
        f'b = "{B}"\n'
    )  # fmt: skip
    write_pin(lock, "a", C)
    assert read_pins(lock) == {"a": C, "b": B}
    write_pin(lock, "a", None)
    write_pin(lock, "b", None)
    assert lock.read_text() == "# Pinned dataset versions, managed by `dload pin`.\n[datasets]\n"
    assert read_pins(lock) == {}


def test_what_dload_ml_wrote_is_read_also_names_with_dots(lock: Path) -> None:
    lock.write_text(BY_DLOAD_ML)
    assert read_pins(lock) == {"A": A, "abc": B, "x.y-z_1": C}
    write_pin(lock, "abc", A)
    assert f'"x.y-z_1" = "{C}"\n' in lock.read_text()
    assert read_pins(lock) == {"A": A, "abc": A, "x.y-z_1": C}


def test_one_pin_more_is_one_line_more(lock: Path) -> None:
    for name in ("a", "c.d", "e"):
        write_pin(lock, name, A)
    before = lock.read_text().splitlines()
    write_pin(lock, "b", B)
    after = lock.read_text().splitlines()
    assert [line for line in after if line not in before] == [f'b = "{B}"']
    assert [line for line in after if line in before] == before


def test_other_tables_are_kept(lock: Path) -> None:
    lock.write_text(f'top = 1\n[datasets]\nb = "{B}"\n[other]\nz = [1, 2.5]\nwhen = 2025-01-02T03:04:05Z\n')
    before = tomllib.loads(lock.read_text())
    write_pin(lock, "a", A)
    after = tomllib.loads(lock.read_text())
    assert after.pop("datasets") == {"a": A, "b": B}
    assert before.pop("datasets")
    assert after == before


def test_a_file_that_is_not_there_pins_nothing(lock: Path) -> None:
    assert read_pins(lock) == {}
    write_pin(lock, "a", None)
    assert not lock.exists()
    lock.touch()  # a process that was killed right after it made the file
    assert read_pins(lock) == {}
    write_pin(lock, "a", A)
    assert read_pins(lock) == {"a": A}


def test_nothing_but_the_file_is_left_behind_and_a_link_stays_one(tmp_path: Path, lock: Path) -> None:
    (tmp_path / "real").mkdir()
    lock.symlink_to(tmp_path / "real" / "pins")
    write_pin(lock, "a", A)
    assert lock.is_symlink()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["pins"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dload.lock", "real"]


def test_the_nearest_lock_upward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (tmp_path / "dload.lock").touch()
    assert find_lock(deep) == tmp_path / "dload.lock"
    (tmp_path / "a" / "b" / "dload.lock").mkdir()  # a folder is none
    assert find_lock(deep) == tmp_path / "dload.lock"
    (tmp_path / "a" / "dload.lock").touch()
    monkeypatch.chdir(deep)
    assert find_lock(Path()) == tmp_path / "a" / "dload.lock"
    assert find_lock(Path("/")) is None


def test_bad_names_and_ids_are_not_written(lock: Path) -> None:
    with pytest.raises(ConfigError, match="name"):
        write_pin(lock, "a/b", A)
    for version in ("latest", "a1b2", A.upper(), A + "\n"):
        with pytest.raises(ConfigError, match="can't pin a to"):
            write_pin(lock, "a", version)
    assert not lock.exists()


@pytest.mark.parametrize(
    ("text", "line", "match"),
    [
        (f'[datasets]\na = "{A}"\n"b/c" = "{B}"\n', 3, "'b/c' can't be the name"),
        (f'[datasets]\n"" = "{B}"\n', 2, "'' can't be the name"),
        (f'[datasets]\n".é" = "{B}"\n', 2, "can't be the name"),
        (f'[datasets]\n{"a." * 200}b = "{B}"\n', 2, "is pinned to a dict"),
        ('[other]\na = "b"\n[datasets]\n\na = "latest"\n', 5, "a is pinned to 'latest', expected"),
        ("[datasets]\na = 7\n", 2, "a is pinned to a int"),
        ("[datasets]\na = {}\n", 2, "a is pinned to a dict"),
        ("[datasets]\na = [[]]\n", 2, "a is pinned to a list"),
        ('datasets = { a = "b" }\n', 1, "a is pinned to 'b'"),
        (f'[datasets]\na.b = "{A}"\n"a.b" = "{B}"\n', 3, "a.b is pinned a second time"),
        # What dload-ml 0.3.1 made of a name with dots when it wrote its file again.
        (f"""[datasets]\nx = "{{'y-z_1': '{C}'}}"\n""", 2, "x is pinned to"),
    ],
)
def test_bad_names_and_ids_are_told_by_line(lock: Path, text: str, line: int, match: str) -> None:
    error = refused(lock, text, match)
    assert f"{lock} line {line}: " in str(error)
    assert error.details["line"] == line
    assert len(str(error)) < 600


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[datasets]\n\na =\n", "line 3"),
        (f'[datasets]\na = "{A}"\na = "{B}"\n', r"line 3"),
        ("datasets = 3\n", "datasets in .* is not a table"),
        (b"[datasets]\n\n# \xff\n", "line 3: not UTF-8"),
        ("a = " + "[" * 5000, "not valid TOML"),
        ("\n\na = " + "9" * 9000, "not valid TOML"),
        ("\n" + "a." * 10_000 + "b = 1", "line 2: longer than"),
        ("# " + "x\n" * 3_000_000, "more than 4194304 bytes"),
        ("a = 0x" + "f" * 6000 + "\n", None),
    ],
)
def test_what_cannot_be_read_or_written_again_is_refused(lock: Path, text: str | bytes, match: str | None) -> None:
    if match is not None:
        refused(lock, text, match)
        return
    assert isinstance(text, str)
    lock.write_text(text)  # a number of another table that TOML can be read with, but not written
    with pytest.raises(ConfigError, match="can't be written again"):
        write_pin(lock, "a", A)
    assert lock.read_text() == text


def test_files_that_cannot_be_opened_are_told(tmp_path: Path) -> None:
    (tmp_path / "dload.lock").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "dload.lock", tmp_path / "file" / "dload.lock"):
        with pytest.raises(ConfigError, match=f"{path} can't be"):
            write_pin(path, "a", A)
    with pytest.raises(ConfigError, match="can't be read"):
        read_pins(tmp_path / "dload.lock")


# ---- parallel writers
PIN = """
import sys
from pathlib import Path
from dload.repo.lockfile import write_pin
for number in range(10):
    write_pin(Path(sys.argv[1]), f"{sys.argv[2]}-{number}", "ab" * 32)
write_pin(Path(sys.argv[1]), f"old-{sys.argv[2]}", None)
"""


def test_parallel_pins_lose_nothing(lock: Path) -> None:
    for number in range(4):
        write_pin(lock, f"old-{number}", A)
    root = Path(__file__).parents[2]
    writers = [subprocess.Popen([sys.executable, "-c", PIN, lock, str(number)], cwd=root) for number in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert sorted(read_pins(lock)) == sorted(f"{a}-{b}" for a in range(4) for b in range(10))


def test_parallel_pins_of_threads_that_begin_without_a_file_lose_nothing(lock: Path) -> None:
    threads = [threading.Thread(target=write_pin, args=(lock, f"n{number}", A)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_pins(lock)) == 12


# ---- merges
def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings_ = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *settings_, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def merged(lock: Path, base: dict[str, str], ours: dict[str, str], theirs: dict[str, str], style: str) -> bool:
    """Merge two branches that pinned these from that base; whether git found a conflict."""
    folder = lock.parent
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "merge.conflictStyle", style)

    def commit(pins: dict[str, str], branch: str) -> None:
        git(folder, "checkout", "-q", "-B", branch)
        for name in set(read_pins(lock)) | set(pins):
            write_pin(lock, name, pins.get(name))
        git(folder, "add", "dload.lock")
        assert git(folder, "commit", "-q", "--allow-empty", "-m", branch).returncode == 0

    commit(base, "main")
    commit(theirs, "feature")
    git(folder, "checkout", "-q", "main")
    commit(ours, "main")
    return git(folder, "merge", "-q", "feature").returncode != 0


def fixed(lock: Path, spans: str) -> dict[str, str]:
    """The pins after deleting the lines that a message told, as "3, 5-7"."""
    doomed: set[int] = set()
    for span in spans.split(", "):
        first, _, last = span.partition("-")
        doomed.update(range(int(first), int(last or first) + 1))
    text = lock.read_text()
    lines = text.splitlines(keepends=True)
    lock.write_text("".join(line for number, line in enumerate(lines, 1) if number not in doomed))
    pins = read_pins(lock)
    lock.write_text(text)
    return pins


@pytest.mark.parametrize("style", ["merge", "diff3"])
def test_case_c92_a_merge_conflict_is_told_with_line_both_versions_and_the_fix(lock: Path, style: str) -> None:
    base = {"a": A, "m": A, "z": A}
    assert merged(lock, base, {**base, "m": B}, {**base, "m": C}, style)
    marker = next(n for n, line in enumerate(lock.read_text().splitlines(), 1) if line.startswith("<<<<<<<"))
    error = refused(lock, lock.read_text(), "merge conflict")
    assert f"{lock} line {marker}: a merge conflict; m is {B[:12]} in HEAD, {C[:12]} in feature" in str(error)
    fix = re.search(r"delete lines (.+) to keep those of HEAD, or lines (.+) to keep those of feature", str(error))
    assert fix is not None
    assert "then: git add dload.lock" in str(error)
    assert fixed(lock, fix[1]) == {**base, "m": B}
    assert fixed(lock, fix[2]) == {**base, "m": C}
    assert (error.details["ours"]["m"], error.details["theirs"]["m"]) == (B, C)


@pytest.mark.parametrize("style", ["merge", "diff3"])
def test_two_new_pins_side_by_side_are_both_kept(lock: Path, style: str) -> None:
    assert merged(lock, {"a": A, "z": A}, {"a": A, "z": A, "m": B, "n": B}, {"a": A, "z": A, "n": B, "o": C}, style)
    error = refused(lock, lock.read_text(), "merge conflict")
    fix = re.search(r"delete lines (.+) to keep what both have", str(error))
    assert fix is not None
    assert fixed(lock, fix[1]) == {"a": A, "m": B, "n": B, "o": C, "z": A}


def test_files_that_both_sides_began(lock: Path) -> None:
    assert merged(lock, {}, {"a": A, "m": B}, {"a": A, "m": C, "x.y": C}, "merge")
    error = refused(lock, lock.read_text(), "merge conflict")
    fix = re.search(r"delete lines (.+) to keep those of HEAD, or lines (.+) to keep those of feature", str(error))
    assert fix is not None
    assert fixed(lock, fix[1]) == {"a": A, "m": B, "x.y": C}
    assert fixed(lock, fix[2]) == {"a": A, "m": C, "x.y": C}


def test_a_conflict_at_each_end_is_told_in_one_message(lock: Path) -> None:
    middle = {f"m{number}": A for number in range(8)}
    assert merged(lock, middle, {**middle, "a": B, "z": B}, {**middle, "a": C, "z": C}, "merge")
    assert lock.read_text().count("<<<<<<<") == 2
    error = refused(lock, lock.read_text(), "merge conflict")
    assert f"a is {B[:12]} in HEAD" in str(error)
    assert f"z is {B[:12]} in HEAD" in str(error)
    fix = re.search(r"delete lines (.+) to keep those of HEAD", str(error))
    assert fix is not None
    assert fixed(lock, fix[1]) == {**middle, "a": B, "z": B}


def test_a_conflict_of_crlf_lines_and_of_many_data_sets(lock: Path) -> None:
    ours = "".join(f'd{number} = "{A}"\r\n' for number in range(9))
    theirs = "".join(f'd{number} = "{B}"\r\n' for number in range(9))
    text = f"[datasets]\r\n<<<<<<< HEAD\r\n{ours}=======\r\n{theirs}>>>>>>> other branch\r\n"
    error = refused(lock, text, "and 4 more")
    assert "delete lines 2, 12-22 to keep those of HEAD" in str(error)
    assert "or lines 2-12, 22 to keep those of other branch" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "<<<<<<< HEAD\n",
        f'[datasets]\n=======\na = "{A}"\n>>>>>>> x\n',
        f'[datasets]\n<<<<<<< HEAD\n<<<<<<< x\na = "{A}"\n=======\n>>>>>>> \n',
        "[datasets]\n>>>>>>> x\x1b[31m\n",
    ],
)
def test_stray_markers_are_told_by_line(lock: Path, text: str) -> None:
    error = refused(lock, text, "choose by hand")
    assert f"{lock} line {1 if text[0] == '<' else 2}: " in str(error)
    assert "\x1b" not in str(error)


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,6}", fullmatch=True)
pins = st.dictionaries(names, st.sampled_from([A, B, C]), max_size=6)


@settings(max_examples=40, deadline=None)
@given(pins)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, wanted: dict[str, str]) -> None:
    lock = tmp_path_factory.mktemp("round") / "dload.lock"
    for name, version in wanted.items():
        write_pin(lock, name, version)
    assert read_pins(lock) == wanted
    assert list(read_pins(lock)) == sorted(wanted)
    if wanted:
        assert tomllib.loads(lock.read_text()) == {"datasets": wanted}


pieces = st.sampled_from(
    ["[datasets]", "\n", "\n", "a", "b.c", '"', "'", " = ", f'"{A}"', "[", "]", "{", "}", ",", "1", "nan", "1e999",
     "<<<<<<< HEAD\n", "=======\n", ">>>>>>> x\n", "||||||| y\n", "\r", "\\ud800", '"""', "#", "2025-01-02", "é", "\0"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=50) | st.lists(pieces, max_size=30).map(lambda parts: "".join(parts).encode()))
def test_any_bytes_give_pins_or_one_of_our_errors(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    lock = tmp_path_factory.getbasetemp() / "fuzzed.lock"
    lock.write_bytes(data)
    with contextlib.suppress(ConfigError):
        before = read_pins(lock)
        write_pin(lock, "new", A)
        assert read_pins(lock) == {**before, "new": A}
