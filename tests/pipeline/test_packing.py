"""Blocks of tokens: as a plain reference makes them, in both tiers, on any lanes, and from any state."""

from __future__ import annotations

import pickle
import random
import warnings
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError
from dload.pipeline.combine import Concat
from dload.pipeline.dealing import Deal
from dload.pipeline.elementwise import FilterHoles, Map, SelectFields
from dload.pipeline.group import Expand, Filter, Windows
from dload.pipeline.lanes import Grid, Lane
from dload.pipeline.node import Node
from dload.pipeline.pack_bins import WINDOW
from dload.pipeline.packing import Pack
from dload.pipeline.reorder import Repeat, Shuffle, Skip, Take
from dload.pipeline.sources import Factory, Samples, Sequenced
from dload.randomness import hash64, random_order
from dload.testing.pipelines import (
    LARGE,
    Streamed,
    elements,
    made_source,
    make_run,
    places_hold,
    restores_everywhere,
)

EOS, PAD = 0, -1
MODES = ("concat", "first_fit", "best_fit")
Docs = list[list[int]]

COMMON = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


def plain(block: dict[str, Any]) -> dict[str, Any]:
    """A block that can be compared."""
    return {name: value if isinstance(value, int) else [int(item) for item in value] for name, value in block.items()}


def pack(parent: Node, length: int, **more: Any) -> Node:
    return Map(Pack(parent, length, **{"eos_id": EOS, "pad_id": PAD, **more}), plain)


def made(docs: Docs, shards: Sequence[int] | None = None, large: bool = False) -> Samples:
    """Documents as the samples of a source, raw 32-bit numbers."""
    sizes = [len(docs)] if shards is None else shards
    return made_source(
        sizes, f"docs{hash64(docs) % 10**6}", LARGE if large else 100,
        lambda ordinal: {"tokens": array("i", docs[ordinal]).tobytes()},
    )  # fmt: skip


def known(docs: Docs) -> Callable[[Samples], list[int]]:
    return lambda _: [len(doc) for doc in docs]


def planned(docs: Docs, length: int, shards: Sequence[int] | None = None, **more: Any) -> Node:
    node = pack(made(docs, shards), length, dtype="int32", lengths=known(docs), **more)
    assert node.indexed
    return node


# ---------------------------------------------------------------- the reference
def reference(docs: Docs, length: int, mode: str = "concat", eos: int | None = EOS, **more: Any) -> list[Any]:
    """The blocks of documents, as slowly as can be."""
    ended = [doc + ([] if eos is None else [eos]) for doc in docs if doc]
    if mode == "concat":
        return joined(ended, length)
    found: list[Any] = []
    window: Docs = []
    number = 0
    for doc in [*ended, None]:
        if doc is not None:
            window.append(doc)
        if window and (doc is None or sum(map(len, window)) >= WINDOW * length):
            bins = binned(window, length, mode, more.get("most"))
            if more.get("seed") is not None:
                order = random_order(len(bins), hash64(more["seed"], "bins", (0,), more.get("lane", 0), number))
                bins = [bins[at] for at in order]
            found += [block_of([(piece, number) for number, piece in enumerate(members)], length) for members in bins]
            window, number = [], number + 1
    return found


def joined(ended: Docs, length: int) -> list[Any]:
    stream = [(token, number) for number, doc in enumerate(ended) for token in doc]
    found = []
    for start in range(0, len(stream), length):
        part = stream[start : start + length]
        numbers = sorted({number for _, number in part})
        found.append(block_of([([t for t, n in part if n == number], number) for number in numbers], length))
    return found


def binned(ended: Docs, length: int, mode: str, most: int | None) -> list[Docs]:
    bins: list[Docs] = []
    for piece in (doc[at : at + length] for doc in ended for at in range(0, len(doc), length)):
        room = [length - sum(map(len, members)) for members in bins]
        fits = [
            at for at in range(len(bins))
            if room[at] >= len(piece) and (most is None or len(bins[at]) < most)
        ]  # fmt: skip
        if not fits:
            bins.append([piece])
        else:
            bins[fits[0] if mode == "first_fit" else min(fits, key=lambda at: (room[at], at))].append(piece)
    return bins


def block_of(pieces: list[tuple[list[int], int]], length: int) -> dict[str, Any]:
    ids = [token for piece, _ in pieces for token in piece]
    documents = [number for number, (piece, _) in enumerate(pieces) for _ in piece]
    positions = [at for piece, _ in pieces for at in range(len(piece))]
    valid, rest = len(ids), length - len(ids)
    return {
        "input_ids": ids + [PAD] * rest,
        "doc_ids": documents + [documents[-1] if documents else 0] * rest,
        "positions": positions + [0] * rest,
        "loss_mask": [1] * valid + [0] * rest,
        "valid": valid,
    }


def numbered(sizes: Sequence[int]) -> Docs:
    """Documents of these sizes, of tokens that say where they are from."""
    return [[1000 * number + at + 1 for at in range(size)] for number, size in enumerate(sizes)]


DOCS = st.lists(st.integers(0, 23), max_size=10).map(numbered)
# of so many tokens that there are several windows
MANY = st.builds(
    lambda seed, count, most: numbered([random.Random(seed).randrange(most) for _ in range(count)]),
    st.integers(0, 99), st.integers(30, 150), st.sampled_from([4, 9, 30]),
)  # fmt: skip
MODE = st.sampled_from(MODES)
GRIDS = st.builds(lambda C, c, m: Grid(C * c, C, m), st.sampled_from([1, 2, 3]), st.integers(1, 2), st.integers(1, 2))


# ---------------------------------------------------------------- it packs as the reference does
@COMMON
@given(st.one_of(DOCS, MANY), st.integers(1, 12), MODE, st.sampled_from([None, 0, 5]), st.booleans())
def test_blocks_are_those_of_the_reference(docs: Docs, length: int, mode: str, seed: int | None, own: bool) -> None:
    eos = None if own else EOS
    expected = reference(docs, length, mode, eos, seed=seed)
    for parent in (Sequenced(docs), Streamed(Sequenced(docs))):
        assert elements(pack(parent, length, mode=mode, seed=seed, eos_id=eos)) == expected
    assert elements(planned(docs, length, mode=mode, seed=seed, eos_id=eos)) == expected


@COMMON
@given(DOCS, st.integers(2, 12), st.sampled_from(["first_fit", "best_fit"]), st.integers(1, 4))
def test_at_most_so_many_documents_a_block(docs: Docs, length: int, mode: str, most: int) -> None:
    found = elements(pack(Sequenced(docs), length, mode=mode, max_documents=most))
    assert found == reference(docs, length, mode, most=most)
    assert all(block["doc_ids"][-1] < most for block in found)


def test_with_and_without_numpy_alike(numpy: bool) -> None:
    docs = numbered([5, 0, 1, 17, 3, 8])
    for mode in MODES:
        assert elements(pack(Sequenced(docs), 6, mode=mode, seed=2)) == reference(docs, 6, mode, seed=2)
        assert elements(planned(docs, 6, [2, 4], mode=mode, seed=2)) == reference(docs, 6, mode, seed=2)
    block = elements(Pack(Sequenced(docs), 6, eos_id=EOS, pad_id=PAD))[0]
    kinds = {name: getattr(value, "dtype", None) or value.typecode for name, value in block.items() if name != "valid"}
    of = ("int64", "bool") if numpy else ("q", "b")
    assert kinds == {"input_ids": of[0], "doc_ids": of[0], "positions": of[0], "loss_mask": of[1]}


# ---------------------------------------------------------------- states
@COMMON
@given(DOCS, st.integers(1, 12), MODE, GRIDS, st.sampled_from([None, 3]), st.sampled_from([None, 1, 2]), st.data())
def test_each_lane_restores_everywhere(
    docs: Docs, length: int, mode: str, grid: Grid, seed: int | None, share: int | None, data: st.DataObject
) -> None:
    lane = Lane(grid, data.draw(st.integers(0, grid.lanes - 1)), data.draw(st.integers(0, 9)))
    blocks = None if share is None else share * grid.lanes

    def make() -> Node:
        return pack(Sequenced(docs), length, mode=mode, seed=seed, blocks=blocks)

    restores_everywhere(make, lane=lane, most=25)


@COMMON
@given(DOCS.filter(any), st.integers(1, 12), MODE, st.sampled_from([None, 3]), st.booleans(), st.data())
def test_places_hold_where_lengths_are_known(
    docs: Docs, length: int, mode: str, seed: int | None, fixed: bool, data: st.DataObject
) -> None:
    border = data.draw(st.integers(0, len(docs)))
    blocks = data.draw(st.integers(1, 12)) if fixed else None

    shards = [border, 0, len(docs) - border]

    def make() -> Node:
        return planned(docs, length, shards, mode=mode, seed=seed, blocks=blocks)

    assert places_hold(make) == restores_everywhere(make)
    run, _ = make_run(make())
    streamed = pack(Streamed(made(docs, shards)), length, dtype="int32", mode=mode, seed=seed, blocks=blocks)
    cursor = streamed.cursor(make_run(streamed)[0], (0,))
    cursor.keep_identities()
    cursor.reset(None)
    names = [cursor.identity() for _ in cursor]
    assert make().identities(run, (0,), range(len(names))) == names  # draws above are the same in both tiers


@pytest.mark.parametrize("mode", MODES)
def test_going_on_reads_little_again(mode: str) -> None:
    docs = numbered([7, 3, 25, 1, 4, 11, 2, 9, 6, 5])

    def make() -> Node:
        return pack(Streamed(Filter(made(docs, [4, 6], large=True), bool)), 5, mode=mode, dtype="int32")

    restores_everywhere(make, again=1 if mode == "concat" else len(docs))


def test_a_window_and_a_document_are_read_again_and_no_more() -> None:
    docs = numbered([7] * 48)  # a window: 64 blocks of 2 tokens are 16 documents of 8
    restores_everywhere(
        lambda: pack(Streamed(made(docs, [20, 28], large=True)), 2, mode="best_fit", dtype="int32", seed=1),
        again=WINDOW * 2 // 8, most=100,
    )  # fmt: skip


def test_a_packed_filtered_shuffled_stream_reads_the_window_and_a_document_again() -> None:
    docs = numbered([7] * 150)
    restores_everywhere(
        lambda: pack(Filter(Shuffle(Streamed(made(docs, large=True)), 8, 3), bool), 20, dtype="int32"),
        again=64 + 8 + 1, most=100,  # a shuffle without places remembers every 64th element
    )  # fmt: skip


def test_states_hold_no_tokens() -> None:
    docs = numbered([1000] * 3)
    for mode in MODES:
        restores_everywhere(lambda mode=mode: pack(Sequenced(docs), 300, mode=mode), state_size=40)


# ---------------------------------------------------------------- lanes
@COMMON
@given(st.one_of(DOCS, MANY), st.integers(1, 12), MODE, GRIDS, st.sampled_from([None, 4]))
def test_each_lane_packs_the_documents_it_gets(
    docs: Docs, length: int, mode: str, grid: Grid, seed: int | None
) -> None:
    for lane in (Lane(grid, number) for number in range(grid.lanes)):
        own = elements(Sequenced(docs), lane=lane)
        found = elements(pack(Sequenced(docs), length, mode=mode, seed=seed), lane=lane)
        assert found == reference(own, length, mode, seed=seed, lane=lane.number)


@COMMON
@given(DOCS, st.integers(1, 8), MODE, GRIDS, st.integers(1, 5))
def test_lanes_give_exactly_their_share(docs: Docs, length: int, mode: str, grid: Grid, each: int) -> None:
    blocks, found = each * grid.lanes, 0
    for lane in (Lane(grid, number) for number in range(grid.lanes)):
        own = reference(elements(Sequenced(docs), lane=lane), length, mode)
        given = elements(pack(Sequenced(docs), length, mode=mode, blocks=blocks), lane=lane)
        dry = [block_of([], length)] * max(0, len(given) - len(own))
        assert given == own[: len(given)] + dry
        assert len(given) == lane.count(blocks)
        found += len(given)
    assert found == blocks


def test_shares_are_alike_where_steps_are_whole() -> None:
    grid = Grid(6, 3, 2)
    counts = [
        len(elements(pack(Sequenced(numbered([4] * 9)), 3, blocks=24), lane=Lane(grid, number)))
        for number in range(grid.lanes)
    ]
    assert counts == [4] * 6


def test_a_share_that_is_not_even_names_both() -> None:
    with pytest.raises(ConfigError, match=r"blocks_per_epoch=7 .* 2 lanes.*as 6"):
        elements(pack(Sequenced([[1]]), 3, blocks=7), lane=Lane(Grid(2, 2), 0))


def test_a_known_number_of_blocks_makes_whole_steps() -> None:
    node = pack(Sequenced(numbered([3] * 50)), 5, blocks=12)
    assert node.total == 12 and not node.indexed
    assert Deal(node, Grid(4, 2), "drop").steps(0) == 3
    assert Deal(node, Grid(4, 2), "pad").steps(0) == 3
    with pytest.raises(ConfigError, match=r"12 rows are no multiple of 8"):
        Deal(node, Grid(8, 2), "pad")
    with pytest.raises(ConfigError, match="needs a length"):
        Deal(pack(Sequenced([[1]]), 5), Grid(4, 2), "drop")


@COMMON
@given(DOCS, st.integers(1, 8), MODE, st.integers(1, 20))
def test_a_planned_number_of_blocks_is_kept_too(docs: Docs, length: int, mode: str, blocks: int) -> None:
    own = reference(docs, length, mode)
    found = elements(planned(docs, length, mode=mode, blocks=blocks))
    assert found == (own + [block_of([], length)] * blocks)[:blocks]


def test_passes_of_a_repeat_pack_anew() -> None:
    docs = numbered([4, 7, 2])
    own = reference(docs, 5)
    assert elements(Repeat(pack(Sequenced(docs), 5), 2)) == own * 2
    assert elements(pack(Repeat(Sequenced(docs), 2), 5)) == reference(docs * 2, 5)
    assert elements(pack(Repeat(Sequenced(docs)), 5), most=30) == reference(docs * 20, 5)[:30]
    restores_everywhere(lambda: Repeat(pack(Sequenced(docs), 5, blocks=6), 3), lane=Lane(Grid(2, 2), 1))


def test_passes_go_on_where_the_lanes_are() -> None:
    grid, docs = Grid(6, 3), numbered([4] * 40)
    for lane in (Lane(grid, number) for number in range(grid.lanes)):
        for passes in range(1, 5):
            node = Repeat(pack(Sequenced(docs), 3, blocks=3), passes)
            assert len(elements(node, lane=lane)) == lane.count(3 * passes)


# ---------------------------------------------------------------- an estimate
def test_auto_estimates_and_says_so() -> None:
    docs = numbered([random.Random(1).randrange(1, 40) for _ in range(2000)])
    node = pack(Shuffle(Sequenced(docs), 50, 3), 16, blocks="auto")
    with pytest.warns(UserWarning, match=r"about [\d,]+ blocks of 16 tokens, estimated from 256 of 2,000 documents"):
        found = elements(node)
    exact = len(reference(docs, 16))
    assert abs(len(found) - exact) < 0.15 * exact
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once
        counts = [len(elements(node, lane=Lane(Grid(4, 4), number))) for number in range(4)]
    assert len(set(counts)) == 1 and abs(sum(counts) - len(found)) < 4


def test_auto_is_exact_where_lengths_are_known_or_all_are_looked_at() -> None:
    docs = numbered([9, 4, 30, 2])
    assert elements(planned(docs, 5, blocks="auto")) == reference(docs, 5)
    with pytest.warns(UserWarning, match="estimated from 4 of 4"):
        assert len(elements(pack(FilterHoles(Sequenced(docs), lambda doc: len(doc) < 20), 6, blocks="auto"))) == 3


def test_auto_needs_places() -> None:
    with pytest.raises(ConfigError, match=r"can only be streamed.*filter\(holes=True\)"):
        pack(Filter(Sequenced([[1]]), bool), 4, blocks="auto")


# ---------------------------------------------------------------- what is in the index tier
def test_what_can_be_planned() -> None:
    docs = numbered([3, 5, 2, 8])
    source = made(docs)
    lengths = known(docs)

    def tier(parent: Node, **more: Any) -> bool:
        return Pack(parent, 4, eos_id=EOS, pad_id=PAD, lengths=lengths, **{"dtype": "int32", **more}).indexed

    ordered = [source, SelectFields(source, ["tokens"]), Take(source, 2), Skip(source, 1), Concat(source, source)]
    for mode in MODES:
        assert all(tier(parent, mode=mode) for parent in [*ordered, Repeat(source, 2)])
        assert not tier(source, mode=mode, dtype=None)
        assert not tier(Map(source, str), mode=mode)
        assert not tier(Take(Shuffle(source, 2), 3), mode=mode)  # another three each epoch
        assert not tier(Repeat(source), mode=mode)
        assert tier(Shuffle(source, 2), mode=mode) == (mode == "concat")
    assert not Pack(source, 4, eos_id=EOS, pad_id=PAD, dtype="int32").indexed
    unknown = Pack(source, 4, eos_id=EOS, pad_id=PAD, dtype="int32", lengths=lambda _: None)
    assert not unknown.indexed


@COMMON
@given(DOCS.filter(any), st.integers(3, 9), st.integers(1, 9), st.booleans())
def test_a_shuffle_below_stays_seekable(docs: Docs, length: int, size: int, halves: bool) -> None:
    def make() -> Node:
        parent = Shuffle(made(docs, [len(docs) // 2, len(docs) - len(docs) // 2]), size, seed=4)
        return pack(parent, length, dtype="int32", lengths=known(docs))

    assert make().indexed
    found = places_hold(make, most=100, homes=2 if halves else 1)
    if not halves:
        order = elements(Shuffle(made(docs, [len(docs) // 2, len(docs) - len(docs) // 2]), size, seed=4))
        own = [array("i", fields["tokens"]).tolist() for _, fields in order]
        assert found == reference(own, length)
    restores_everywhere(make, most=20)


@COMMON
@given(DOCS.filter(any), DOCS.filter(any), st.integers(4, 9), MODE)
def test_several_sources_are_planned_as_one(one: Docs, two: Docs, length: int, mode: str) -> None:
    sources = made(one), made(two)
    sizes = {id(sources[0]): [len(doc) for doc in one], id(sources[1]): [len(doc) for doc in two]}
    node = pack(
        Concat(Skip(sources[0], 1), sources[1]), length, dtype="int32", mode=mode,
        lengths=lambda source: sizes[id(source)],
    )  # fmt: skip
    assert node.indexed
    assert places_hold(lambda: node, most=300) == reference(one[1:] + two, length, mode)


def test_blocks_are_shuffled_above() -> None:
    docs = numbered([9] * 40)
    node = Shuffle(planned(docs, 6, [10, 10, 10, 10]), 7, seed=1)
    own = reference(docs, 6)
    found = places_hold(lambda: node, most=100)
    assert found != own and sorted(map(repr, found)) == sorted(map(repr, own))
    assert sum(node.parents[0].units()) == len(own) and len(node.parents[0].units()) == 4


def test_a_planned_pipeline_pickles_without_its_plans() -> None:
    node = Pack(made_source([3], "s"), 4, eos_id=EOS, pad_id=PAD, dtype="int32", lengths=three)
    assert node.length == 3 and node._plan(make_run(node)[0], (0,)).count == 3
    again = pickle.loads(pickle.dumps(node))
    assert not again._plans
    again.lengths = None  # how many blocks there are isn't looked up again
    assert again.length == 3


def three(source: Samples) -> list[int]:
    return [3, 4, 1]


# ---------------------------------------------------------------- windows of a stream of tokens
def test_windows_over_a_stream_of_tokens_overlap_by_one() -> None:
    docs = numbered([4, 7, 1])

    def make() -> Node:
        return Windows(Expand(Sequenced(docs), iter), 5, 4)

    stream = [token for doc in docs for token in doc]
    found = restores_everywhere(make)
    assert found == [stream[at : at + 5] for at in (0, 4)]
    assert all(one[-1] == two[0] for one, two in pairwise(found))


def test_epochs_are_alike_and_different_where_they_should_be() -> None:
    docs = numbered([9] * 60)

    def make() -> Node:
        return pack(Factory(lambda: iter(docs)), 20, mode="first_fit", seed=7)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = elements(make(), 0), elements(make(), 1)
    assert first != second and sorted(map(repr, first)) == sorted(map(repr, second))
    assert first == elements(make(), 0)
