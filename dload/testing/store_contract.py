"""What every store must do, as a suite to inherit from: a subclass gives the fixture `store`, an empty Store."""

from __future__ import annotations

import pickle
import secrets
import threading
from pathlib import Path

import pytest

from dload.errors import ConfigError, IntegrityError, NotFoundError, PreconditionFailedError, UnavailableError
from dload.store.base import Store

_LARGE = 3 * (1 << 20) + 17  # several chunks of a stream


class StoreContract:
    """The contract, one sentence a test."""

    # ---- whole objects
    @pytest.mark.parametrize("data", [b"", b"x", b"line\r\nline\n\0\xff"], ids=["empty", "byte", "binary"])
    def test_what_is_put_is_got(self, store: Store, data: bytes) -> None:
        etag = store.put("a/b/c", data)
        body = store.get("a/b/c")
        assert (body.data, body.etag) == (data, etag)

    def test_put_replaces_and_changes_the_etag(self, store: Store) -> None:
        first = store.put("a", b"one")
        second = store.put("a", b"two")
        assert store.get("a").data == b"two"
        assert first != second

    def test_a_missing_object_is_named(self, store: Store) -> None:
        for read in (store.get, lambda key: store.get_range(key, 0, 1), lambda key: list(store.stream(key))):
            with pytest.raises(NotFoundError, match="no/such"):
                read("no/such")
        assert store.head("no/such") is None
        assert store.head("no") is None

    def test_a_folder_is_no_object(self, store: Store) -> None:
        store.put("a/b", b"x")
        assert store.head("a") is None
        with pytest.raises(NotFoundError):
            store.get("a")

    @pytest.mark.parametrize(
        "key",
        ["", "/a", "a//b", "a/", "../a", "a/../b", "a/./b", ".hidden", "tmp/a", "a\0b", "k" * 1025, "\ud800"],
    )
    def test_what_cannot_be_a_key_is_refused(self, store: Store, key: str) -> None:
        with pytest.raises(ConfigError):
            store.put(key, b"x")
        with pytest.raises(ConfigError):
            store.get(key)

    @pytest.mark.parametrize("key", ["a b/c%2Fd", "ä/日本", "a+b=c&d?e#f", "a;b:c@d", "'quoted\"", "x" * 200])
    def test_odd_keys(self, store: Store, key: str) -> None:
        store.put(f"odd/{key}", b"x")
        assert store.get(f"odd/{key}").data == b"x"
        assert [found.key for found in store.list("odd/")] == [f"odd/{key}"]
        store.delete_many([f"odd/{key}"])
        assert store.head(f"odd/{key}") is None

    def test_head_says_what_get_and_list_say(self, store: Store) -> None:
        before = store.clock()
        etag = store.put("a/b", b"12345")
        head = store.head("a/b")
        assert head is not None
        assert (head.key, head.size, head.etag) == ("a/b", 5, etag)
        assert before - 2 <= head.modified <= store.clock() + 2  # clocks of stores tick in seconds
        assert [(found.key, found.size, found.etag) for found in store.list("a/")] == [("a/b", 5, etag)]
        assert store.get("a/b").modified == pytest.approx(head.modified, abs=1)

    def test_nothing_is_newer_than_the_clock(self, store: Store) -> None:
        for n in range(3):
            store.put(f"a/{n}", b"x")
            assert max(found.modified for found in store.list("a/")) <= store.clock()

    # ---- files
    def test_a_file_is_put_and_stays(self, store: Store, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(secrets.token_bytes(_LARGE))
        etag = store.put_file("files/one", path)
        assert b"".join(store.stream("files/one")) == path.read_bytes()
        head = store.head("files/one")
        assert head is not None
        assert (head.size, head.etag) == (_LARGE, etag)

    def test_an_empty_file(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "empty").write_bytes(b"")
        store.put_file("files/empty", tmp_path / "empty")
        assert store.get("files/empty").data == b""
        assert list(store.stream("files/empty")) == []

    def test_a_staged_file_may_be_moved_in(self, store: Store, tmp_path: Path) -> None:
        path = (store.staging or tmp_path) / "made-here"
        path.write_bytes(b"bytes")
        store.put_file("files/moved", path, move=True)
        assert store.get("files/moved").data == b"bytes"
        assert path.exists() == (store.staging is None)

    def test_a_file_elsewhere_is_never_moved(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "input").write_bytes(b"mine")
        store.put_file("files/copied", tmp_path / "input", move=True)
        assert (tmp_path / "input").read_bytes() == b"mine"

    def test_a_missing_file_leaves_no_object(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            store.put_file("files/none", tmp_path / "none")
        assert store.head("files/none") is None

    # ---- parts of objects
    def test_ranges(self, store: Store) -> None:
        store.put("r", b"0123456789")
        assert store.get_range("r", 0, 1) == b"0"
        assert store.get_range("r", 3, 4) == b"3456"
        assert store.get_range("r", 0, 10) == b"0123456789"

    @pytest.mark.parametrize(("start", "length"), [(0, 11), (9, 2), (10, 1), (50, 1)])
    def test_a_range_past_the_end_is_an_error(self, store: Store, start: int, length: int) -> None:
        store.put("r", b"0123456789")
        with pytest.raises(IntegrityError, match="10"):
            store.get_range("r", start, length)

    def test_streams_start_anywhere(self, store: Store) -> None:
        data = secrets.token_bytes(_LARGE)
        store.put("s", data)
        for start in (0, 1, 1 << 20, _LARGE - 1, _LARGE):
            assert b"".join(store.stream("s", start)) == data[start:]
        with pytest.raises(IntegrityError):
            list(store.stream("s", _LARGE + 1))

    def test_a_stream_may_be_left(self, store: Store) -> None:
        store.put("s", secrets.token_bytes(_LARGE))
        for _ in range(5):
            chunks = store.stream("s")
            assert next(chunks)
            chunks.close()
        assert store.get_range("s", 0, 1)

    # ---- conditions
    def test_conditions_are_honoured(self, store: Store) -> None:
        assert store.conditional()
        assert store.conditional(refresh=True)

    def test_create_once(self, store: Store) -> None:
        etag = store.put_if("ref", b"one", etag=None)
        assert store.get("ref").etag == etag
        with pytest.raises(PreconditionFailedError, match="ref"):
            store.put_if("ref", b"two", etag=None)
        assert store.get("ref").data == b"one"

    def test_compare_and_swap(self, store: Store) -> None:
        first = store.put_if("ref", b"one", etag=None)
        second = store.put_if("ref", b"two", etag=first)
        with pytest.raises(PreconditionFailedError):
            store.put_if("ref", b"three", etag=first)
        assert (store.get("ref").data, store.get("ref").etag) == (b"two", second)

    def test_swapping_what_is_gone_fails(self, store: Store) -> None:
        etag = store.put_if("ref", b"one", etag=None)
        store.delete("ref")
        with pytest.raises(PreconditionFailedError):
            store.put_if("ref", b"two", etag=etag)
        assert store.head("ref") is None

    def test_of_several_writers_one_wins(self, store: Store) -> None:
        etag = store.put_if("ref", b"start", etag=None)
        barrier = threading.Barrier(3)
        won: list[bytes] = []
        lost: list[bytes] = []
        unclear: list[bytes] = []

        def write(data: bytes) -> None:
            barrier.wait()
            try:
                store.put_if("ref", data, etag=etag)
                won.append(data)
            except PreconditionFailedError:
                lost.append(data)
            except UnavailableError:  # some servers answer so to writes that met
                unclear.append(data)

        threads = [threading.Thread(target=write, args=(b"writer %d" % n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) + len(lost) + len(unclear) == 3
        assert len(won) <= 1
        assert store.get("ref").data in (won or unclear)

    # ---- listing
    def test_listing_by_prefix(self, store: Store) -> None:
        keys = {"a/1", "a/2", "a/b/3", "ab/4", "c"}
        for key in keys:
            store.put(key, key.encode())
        assert {found.key for found in store.list("")} == keys
        assert {found.key for found in store.list("a/")} == {"a/1", "a/2", "a/b/3"}
        assert {found.key for found in store.list("a")} == {"a/1", "a/2", "a/b/3", "ab/4"}
        assert {found.key for found in store.list("a/b/")} == {"a/b/3"}
        assert list(store.list("nothing/here/")) == []

    def test_folders(self, store: Store) -> None:
        for key in ("d/one/x", "d/one/y", "d/two/z/deep", "d/file", "e/other/x"):
            store.put(key, b"x")
        assert sorted(store.list_folders("d/")) == ["one", "two"]
        assert sorted(store.list_folders("d/two/")) == ["z"]
        assert list(store.list_folders("nothing/")) == []

    # ---- deleting
    def test_delete(self, store: Store) -> None:
        store.put("x", b"x")
        store.delete("x")
        store.delete("x")
        assert store.head("x") is None

    def test_deleting_many(self, store: Store) -> None:
        keys = [f"many/{n}" for n in range(12)]
        for key in keys[:10]:
            store.put(key, b"x")
        store.put("stays", b"x")
        store.delete_many(iter(keys))  # the last two were never there
        store.delete_many([])
        assert [found.key for found in store.list("")] == ["stays"]

    # ---- the rest
    def test_nothing_unfinished_is_an_object(self, store: Store) -> None:
        if store.staging is not None:
            (store.staging / "half").write_bytes(b"x")
        assert list(store.list("")) == []
        assert list(store.list_folders("")) == []
        assert store.abort_unfinished(store.clock() + 60) == (store.staging is not None)
        assert store.abort_unfinished(store.clock() + 60) == 0

    def test_its_clock_goes_forward(self, store: Store) -> None:
        assert abs(store.clock() - store.clock()) <= 2

    def test_its_pickle_works_and_is_small(self, store: Store) -> None:
        etag = store.put("p", b"x")
        store.get("p")
        data = pickle.dumps(store)
        assert len(data) < 2000
        copy = pickle.loads(data)
        assert copy.url == store.url
        assert (copy.get("p").data, copy.get("p").etag) == (b"x", etag)

    def test_many_threads(self, store: Store) -> None:
        failures: list[BaseException] = []

        def work(n: int) -> None:
            try:
                for i in range(5):
                    store.put(f"t/{n}/{i}", b"%d" % i)
                    assert store.get(f"t/{n}/{i}").data == b"%d" % i
                    store.delete(f"t/{n}/{i}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert list(store.list("t/")) == []
