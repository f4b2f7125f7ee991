"""A folder of real files: which samples it gives, what is refused, and the way back."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError, DuplicateKeyError, LockTimeoutError, SampleError
from dload.importers import restore
from dload.importers.folder import Folder
from dload.importers.names import Patterns, join_path, split_path
from dload.importers.restore import write_files

Tree = dict[str, bytes]


def write(root: Path, tree: Tree) -> Path:
    for name, data in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def read(root: Path) -> Tree:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def samples(folder: Folder) -> list[tuple[str, dict[str, bytes]]]:
    return [(lazy.key, dict(lazy.load())) for lazy in folder]


def keys(root: Path, **options: list[str]) -> list[str]:
    return [lazy.key for lazy in Folder(root, **options)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


# ---- files <-> samples
RULE = [
    ("x.wav", "x", "wav"), ("a/x.wav", "a/x", "wav"), ("v1.0/a.b.jpg", "v1.0/a.b", "jpg"),
    ("22.05.png", "22.05", "png"),
    ("v1.0/README", "v1.0/README", "data"), (".bashrc", ".bashrc", "data"), ("a/.hidden.txt", "a/.hidden", "txt"),
    ("ends.", "ends.", "data"), ("x.data", "x", ".data"), ("x..data", "x.", ".data"), ("..x", ".", "x"),
    ("...", "...", "data"), ("a/...x", "a/..", "x"), ("a. b c", "a", " b c"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "key", "field"), RULE)
def test_case_c14_the_split_is_at_the_last_dot_of_the_files_own_name(path: str, key: str, field: str) -> None:
    assert split_path(path) == (key, field)
    assert join_path(key, field) == path


names = st.text(st.sampled_from("a.é/ d"), min_size=1).map(lambda text: text + "data" * text.count("d"))
paths = names.filter(lambda path: not any(part in ("", ".", "..") for part in path.split("/")))


@settings(max_examples=300, deadline=None)
@given(paths, paths)
def test_names_are_one_to_one(one: str, other: str) -> None:
    assert join_path(*split_path(one)) == one
    assert (split_path(one) == split_path(other)) == (one == other)


def test_files_of_one_name_are_one_sample_in_the_order_of_the_keys_bytes(source: Path) -> None:
    tree = {"b/x.wav": b"1", "b/x.json": b"2", "é": b"3", "z.txt": b"4", "B.txt": b"5", "b.txt": b"", "x.data": b"7"}
    folder = Folder(write(source, tree))
    assert samples(folder) == [
        ("B", {"txt": b"5"}), ("b", {"txt": b""}), ("b/x", {"json": b"2", "wav": b"1"}),
        ("x", {".data": b"7"}), ("z", {"txt": b"4"}), ("é", {"data": b"3"}),
    ]  # fmt: skip
    assert (len(folder), folder.num_files, folder.total_bytes) == (6, 7, 6)
    assert [dict(lazy.sizes) for lazy in folder][2] == {"json": 1, "wav": 1}
    assert samples(folder) == samples(folder)


# ---- C13: names
NAMES: Tree = {
    "a b/c d.txt": b"1", "%2F.txt": b"2", "a;b&c'd\"e.txt": b"3", "..x": b"4", "...": b"5", "n" * 251 + ".txt": b"6",
    "caf\u00e9.txt": b"7", "cafe\u0301.txt": b"8", "A.txt": b"9", "a.txt": b"10", "back\\slash": b"11",
    "new\nline": b"12", "-rf": b"13", "~": b"14", "*.?": b"15", "CON": b"16", "aux.c": b"17", "\U0001f9ea.bin": b"18",
    "/".join(["d" * 200] * 5) + "/x.txt": b"19",
}  # fmt: skip


def test_case_c13_odd_names_come_back_as_they_were(source: Path, tmp_path: Path) -> None:
    before = read(write(source, NAMES))
    assert before == NAMES
    done = write_files(samples(Folder(source)), tmp_path / "back")
    assert read(tmp_path / "back") == NAMES and done.written == len(NAMES)
    assert read(source) == NAMES


def test_case_c13_what_can_not_be_committed_is_refused_up_front_by_name(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source, {"fine.txt": b"", "x." + "s" * 101: b"", "/".join(["d" * 250] * 5) + "/x.txt": b""})
    (source / os.fsdecode(b"bad\xff.txt")).write_bytes(b"")
    listener = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(source)  # the path of a socket must be short
    listener.bind("socket")
    os.mkfifo(source / "pipe")
    with pytest.raises(SampleError, match="5 files can't be committed") as caught:
        Folder(source)
    listener.close()
    said = str(caught.value)
    assert "bad\\udcff.txt': its name is not UTF-8" in said and "its key would have 1,256 bytes" in said
    assert "socket': neither a file" in said and "pipe': neither a file" in said and "its last dot has" in said
    assert "fine" not in said and "--exclude" in said
    assert keys(source, exclude=["bad*", "socket", "pipe", "*." + "s" * 101, "d" * 250]) == ["fine"]


def test_a_long_list_of_refusals_is_cut(source: Path) -> None:
    for number in range(25):
        (source / f"link{number:02}").symlink_to("nowhere")
    with pytest.raises(SampleError, match=r"25 files.*link09.*and 15 more") as caught:
        Folder(source)
    assert "link10" not in str(caught.value)


def test_names_are_read_as_utf8_whatever_the_locale(source: Path) -> None:
    write(source, {"é.txt": b""})
    code = "import sys; from dload.importers.folder import Folder; print(ascii([s.key for s in Folder(sys.argv[1])]))"
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code, source], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == r"['\xe9']"


# ---- C15: the same key twice
def test_case_c15_the_same_key_from_two_folders_names_both_places(tmp_path: Path) -> None:
    write(tmp_path, {"one/x.jpg": b"1", "two/x.jpg": b"2", "one/y.jpg": b"", "two/z.txt": b""})
    with pytest.raises(DuplicateKeyError, match=r"'x'") as caught:
        Folder(tmp_path / "one", tmp_path / "two")
    assert str(tmp_path / "one" / "x.jpg") in str(caught.value) and str(tmp_path / "two" / "x.jpg") in str(caught.value)
    write(tmp_path, {"three/y.txt": b""})  # another field of the same key is the same key, too
    with pytest.raises(DuplicateKeyError, match=r"'y'"):
        Folder(tmp_path / "one", tmp_path / "three")
    (tmp_path / "two" / "x.jpg").unlink()
    assert [lazy.key for lazy in Folder(tmp_path / "two", tmp_path / "one")] == ["x", "y", "z"]


# ---- C16: empty, dangling, loops, hidden
def test_case_c16_a_folder_without_files_is_refused(source: Path) -> None:
    (source / "empty").mkdir()
    with pytest.raises(SampleError, match=f"no files in {source}"):
        Folder(source)


def test_case_c16_links_loops_hidden_files_and_empty_ones(source: Path, tmp_path: Path) -> None:
    write(source, {"zero": b"", ".hidden": b"h", ".git/config": b"", "a/.DS_Store": b"", "a/x.txt": b"x", "a/y": b"y"})
    (source / "a" / "empty").mkdir()
    write(tmp_path, {"elsewhere/f.txt": b"f", "elsewhere/deep/g.txt": b"g"})
    (source / "loop").symlink_to(".")
    (source / "a" / "up").symlink_to("..")
    (source / "file-link.txt").symlink_to("a/x.txt")
    (source / "one").symlink_to(tmp_path / "elsewhere")
    (source / "two").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "deep" / "back").symlink_to(tmp_path / "elsewhere")
    got = dict(samples(Folder(source)))
    assert got == {
        "zero": {"data": b""}, ".hidden": {"data": b"h"}, "a/x": {"txt": b"x"}, "a/y": {"data": b"y"},
        "file-link": {"txt": b"x"}, "one/f": {"txt": b"f"}, "one/deep/g": {"txt": b"g"}, "two/f": {"txt": b"f"},
        "two/deep/g": {"txt": b"g"},
    }  # fmt: skip


def test_case_c16_a_dangling_link_is_refused_by_name(source: Path) -> None:
    write(source, {"x.txt": b""})
    (source / "dangling").symlink_to("nowhere")
    (source / "self").symlink_to("self")
    with pytest.raises(SampleError, match=r"2 files.*dangling': a link to nothing.*self': a link to nothing"):
        Folder(source)
    assert keys(source, exclude=["dangling", "self"]) == keys(source, include=["*.txt"]) == ["x"]


def test_a_folder_deeper_than_pythons_stack(source: Path) -> None:
    here = os.open(source, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)
    try:
        with pytest.raises(SampleError, match=r"its key would have 2,404 bytes"):
            Folder(source)
    finally:  # pytest's own clean-up is a recursive function
        subprocess.run(["rm", "-rf", source / "d"], check=True)


def test_roots_that_are_none(source: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Folder(source / "missing")
    write(source, {"file": b""})
    with pytest.raises(ConfigError, match="is not a folder"):
        Folder(source / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_refused_by_name(source: Path) -> None:
    write(source, {"x.txt": b"", "shut/y": b""})
    (source / "x.txt").chmod(0)
    (source / "shut").chmod(0)
    try:
        with pytest.raises(SampleError, match=r"2 files.*shut/'.*x.txt': it may not be read"):
            Folder(source)
    finally:
        (source / "shut").chmod(0o700)


# ---- patterns
TREE = dict.fromkeys(("a.jpg", "b.png", "train/c.jpg", "train/deep/d.jpg", "val/e.jpg", "val/train/f.jpg"), b"")


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (["*.jpg"], [], ["a", "train/c", "train/deep/d", "val/e", "val/train/f"]),
        (["train/*.jpg"], [], ["train/c"]),
        (["train/**/*.jpg"], [], ["train/c", "train/deep/d"]),
        (["/train"], [], ["train/c", "train/deep/d"]),
        (["train"], [], ["train/c", "train/deep/d", "val/train/f"]),
        (["train/"], [], ["train/c", "train/deep/d", "val/train/f"]),
        (["**/train"], ["deep"], ["train/c", "val/train/f"]),
        (["[ab].*", "?.jpg"], ["val/**"], ["a", "b", "train/c", "train/deep/d"]),
        ([], ["*.jpg"], ["b"]),
    ],
)
def test_patterns(include: list[str], exclude: list[str], expected: list[str], source: Path) -> None:
    assert keys(write(source, TREE), include=include, exclude=exclude) == expected


def test_case_c93_a_pattern_that_matches_nothing_is_an_error(source: Path) -> None:
    write(source, TREE)
    with pytest.raises(ConfigError, match=re.escape("no file matches --include '*.gif', 'tran/*'")):
        Folder(source, include=["*.jpg", "*.gif", "a.*", "tran/*"])
    for empty in ("", "/"):
        with pytest.raises(ConfigError, match="is no pattern"):
            Patterns([empty])


# ---- C12: files that change
def test_case_c12_a_file_that_grew_is_named(source: Path) -> None:
    write(source, {"log.txt": b"one", "other.txt": b"1"})
    lazy = next(iter(Folder(source)))
    with (source / "log.txt").open("ab") as file:
        file.write(b" two")
    with pytest.raises(SampleError, match=r"log.txt' changed while it was committed: 3 bytes, then 7"):
        lazy.load()
    assert next(iter(Folder(source))).load() == {"txt": b"one two"}


def test_case_c12_a_file_written_once_more_at_the_same_size_is_read_once_more(source: Path) -> None:
    write(source, {"x.txt": b"one"})
    lazy = next(iter(Folder(source)))
    (source / "x.txt").write_bytes(b"two")
    os.utime(source / "x.txt", (1, 1))
    assert lazy.load() == {"txt": b"two"}


def test_case_c12_a_file_under_constant_change_ends(source: Path) -> None:
    write(source, {"log": bytes(30_000_000)})
    grow = "import sys, time\nwith open(sys.argv[1], 'ab', 0) as f:\n while f.write(bytes(4096)): time.sleep(0.0002)"
    with subprocess.Popen([sys.executable, "-c", grow, source / "log"]) as writer:
        try:
            while (source / "log").stat().st_size == 30_000_000:
                threading.Event().wait(0.01)
            with pytest.raises(SampleError, match=r"log' changed"):
                for _ in range(100):
                    next(iter(Folder(source))).load()
            data = next(iter(Folder(source, allow_changed=True))).load()["data"]
            assert len(data) > 30_000_000 and not any(data)
        finally:
            writer.kill()


def test_case_c12_a_file_that_is_gone_is_named(source: Path) -> None:
    write(source, {"x.txt": b"one"})
    folder = Folder(source, allow_changed=True)
    lazy = next(iter(folder))
    (source / "x.txt").unlink()
    with pytest.raises(SampleError, match=r"can't read '.*x.txt': No such file"):
        lazy.load()


# ---- stamps: what need not be read again
def age(root: Path) -> None:
    """Wait until no file is so new that it could change without a trace."""
    newest = max(path.stat().st_ctime for path in root.rglob("*"))
    while any(lazy.stamp is None for lazy in Folder(root)):
        assert newest > 0
        threading.Event().wait(0.1)


def test_stamps_change_with_the_file_and_only_then(source: Path) -> None:
    write(source, {"x.txt": b"one", "x.json": b"{}", "y.txt": b"y", "z.txt": b"z"})
    assert all(lazy.stamp is None for lazy in Folder(source)), "what was written this moment has no stamp"
    age(source)
    first = {lazy.key: lazy.stamp for lazy in Folder(source)}
    assert first == {lazy.key: lazy.stamp for lazy in Folder(source)}
    assert len(set(first.values())) == 3
    assert all(lazy.stamp is None for lazy in Folder(source, force=True))

    old = (source / "y.txt").stat()
    (source / "y.txt").write_bytes(b"Y")
    os.utime(source / "y.txt", ns=(old.st_atime_ns, old.st_mtime_ns))  # the size and mtime are the same again
    (source / "z.txt").replace(source / "zz")
    write(source, {"z.txt": b"z"})
    age(source)
    second = {lazy.key: lazy.stamp for lazy in Folder(source)}
    assert second["x"] == first["x"]
    assert second["y"] != first["y"]
    assert second["z"] != first["z"]


# ---- the way back
def test_restoring_twice_writes_nothing_and_touches_nothing(source: Path, tmp_path: Path) -> None:
    write(source, {"a/x.txt": b"1", "a/y": b"", "big": bytes(3_000_000)})
    first = write_files(samples(Folder(source)), tmp_path / "back")
    assert (first.written, first.same, first.written_bytes) == (3, 0, 3_000_001)
    before = {path: path.stat().st_ctime_ns for path in (tmp_path / "back").rglob("*") if path.is_file()}
    again = write_files(samples(Folder(source)), tmp_path / "back")
    assert (again.written, again.same, again.differing) == (0, 3, [])
    assert before == {path: path.stat().st_ctime_ns for path in before}


def test_files_with_other_bytes_are_left_unless_told(tmp_path: Path) -> None:
    write(tmp_path / "back", {"x.txt": b"mine", "big": bytes(2_000_000) + b"a", "same": b"s"})
    theirs = [("x", {"txt": b"their"}), ("big", {"data": bytes(2_000_000) + b"b"}), ("same", {"data": b"s"})]
    theirs.append(("new", {"txt": b""}))
    done = write_files(theirs, tmp_path / "back")
    assert (done.written, done.same, done.differing) == (1, 1, ["x.txt", "big"])
    assert (tmp_path / "back" / "x.txt").read_bytes() == b"mine"
    done = write_files(theirs, tmp_path / "back", replace=True)
    assert (done.written, done.same, done.differing) == (2, 2, [])
    assert (tmp_path / "back" / "x.txt").read_bytes() == b"their"


HOSTILE = [
    ("../out", "data"), ("a/../../out", "txt"), ("/etc/out", "data"), ("a//b", "txt"), ("a/./b", "txt"),
    ("nul\0", "txt"), ("a", "b/c"), ("a", "/../../out"), ("..", "data"), (".", "data"), ("", "data"), ("a/", "data"),
    ("a", "x\0"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "field"), HOSTILE)
def test_a_sample_can_not_be_written_outside_the_folder(key: str, field: str, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="can't be a file below a folder"):
        write_files([(key, {field: b"evil"})], tmp_path / "back")
    assert read(tmp_path) == {}


def test_links_in_the_folder_are_never_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"x.txt": b"precious"})
    back = tmp_path / "back"
    back.mkdir()
    (back / "dir").symlink_to(outside)
    (back / "x.txt").symlink_to(outside / "x.txt")
    with pytest.raises(SampleError, match=r"can't write 'dir/x.txt'.*a file or a link stands where a folder must be"):
        write_files([("dir/x", {"txt": b"evil"})], back, replace=True)
    assert write_files([("x", {"txt": b"evil"})], back).differing == ["x.txt"]
    assert write_files([("x", {"txt": b"evil"})], back, replace=True).written == 1
    assert (back / "x.txt").read_bytes() == b"evil" and not (back / "x.txt").is_symlink()
    assert read(outside) == {"x.txt": b"precious"}


def test_devices_in_the_folder_are_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    os.mkfifo(tmp_path / "back" / "pipe")  # opening it would hang
    assert write_files([("pipe", {"data": b"x"})], tmp_path / "back").differing == ["pipe"]
    assert write_files([("pipe", {"data": b"x"})], tmp_path / "back", replace=True).written == 1


def test_folders_and_files_in_each_others_place_are_named(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"'a/b.txt'.*a file or a link stands"):
        write_files([("a", {"data": b""}), ("a/b", {"txt": b""})], tmp_path)
    with pytest.raises(SampleError, match=r"'d'.*a folder stands in its place"):
        write_files([("d/e", {"txt": b""}), ("d", {"data": b""})], tmp_path, replace=True)
    with pytest.raises(SampleError, match="file name too long"):
        write_files([("n" * 300, {"data": b""})], tmp_path)


def test_two_samples_that_are_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"two samples would be the same file 'a\.b'"):
        write_files([("a.b", {"data": b"1"}), ("a", {"b": b"2"})], tmp_path, replace=True)


@pytest.mark.parametrize("pair", [("A.txt", "a.txt"), ("caf\u00e9", "cafe\u0301"), ("A/x", "a/y"), ("\u00df", "SS")])
def test_names_that_the_file_system_takes_for_one_are_refused(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [(split_path(name)[0], {split_path(name)[1]: b""}) for name in pair]
    write_files(both, tmp_path / "exact")
    monkeypatch.setattr(restore, "ignores_case", lambda _: True)
    with pytest.raises(SampleError, match="two samples would be the same file"):
        write_files(both, tmp_path / "folding")


def test_this_file_system_tells_case_apart(tmp_path: Path) -> None:
    write(tmp_path, {"A": b"1"})
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert restore.ignores_case(descriptor) == (tmp_path / "a").exists()
    os.close(descriptor)


def test_what_a_killed_run_left_is_written_over_and_never_committed(source: Path, tmp_path: Path) -> None:
    back = write(tmp_path / "back", {"a/" + restore.PARTIAL: b"half"})
    write_files([("a/x", {"txt": b"whole"})], back)
    assert read(back) == {"a/x.txt": b"whole"}
    write(back, {restore.PARTIAL: b"half"})
    assert keys(back) == ["a/x"]


def test_an_error_in_the_middle_leaves_whole_files_only(tmp_path: Path) -> None:
    def stream() -> Iterator[tuple[str, dict[str, bytes]]]:
        yield "a", {"txt": b"1"}
        raise RuntimeError("the stream broke")

    with pytest.raises(RuntimeError, match="the stream broke"):
        write_files(stream(), tmp_path / "back")
    assert read(tmp_path / "back") == {"a.txt": b"1"}


def test_two_processes_do_not_write_into_one_folder(tmp_path: Path) -> None:
    def stream() -> Iterator[tuple[str, dict[str, bytes]]]:
        with pytest.raises(LockTimeoutError, match="another process is writing"):
            write_files([], tmp_path / "back")
        yield "a", {"txt": b"1"}

    assert write_files(stream(), tmp_path / "back").written == 1


trees = st.dictionaries(paths, st.binary(max_size=20), max_size=8)


def _consistent(tree: Tree) -> bool:
    return not any(other.startswith(name + "/") for name in tree for other in tree)


@settings(max_examples=40, deadline=None)
@given(tree=trees.filter(_consistent))
def test_any_tree_comes_back(tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("tree")
    write(root / "source", tree | {"always": b""})
    write_files(samples(Folder(root / "source")), root / "back")
    assert read(root / "back") == tree | {"always": b""}
