"""Steps of a run: put together from ranks and workers they are those of one, and those that a plain reading gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dload.errors import ConfigError
from dload.pipeline.combine import Concat, Zip
from dload.pipeline.dealing import Deal
from dload.pipeline.elementwise import Enumerate, FilterHoles, Map
from dload.pipeline.group import Expand, Filter, Windows
from dload.pipeline.lanes import Grid, Lane
from dload.pipeline.mix import Mix
from dload.pipeline.node import Node
from dload.pipeline.order import left_out
from dload.pipeline.places import LanePlaces
from dload.pipeline.reorder import Repeat, Shuffle, Skip, Take
from dload.pipeline.sources import RandomStream, Sequenced
from dload.testing.pipelines import elements, made_source, make_run
from tests.pipeline.test_random_pipelines import Recipe, build, buildable, recipes

COMMON = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
MOST = 40  # elements of an endless pipeline that are looked at
FURTHER = 400  # so many behind them hold the ends of their parts


@st.composite
def grids(draw: st.DrawFn, turns: bool = False) -> Grid:
    C = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    return Grid(C * draw(st.integers(1, 3)), C, draw(st.integers(1, 3)) if turns else 1)


def divisors(number: int) -> st.SearchStrategy[int]:
    return st.sampled_from([d for d in range(1, number + 1) if number % d == 0])


# ---------------------------------------------------------------- a plain reading of the rules
def pieces(rows: Iterable[int], of: Callable[[int], Any], items: list[Any]) -> dict[int, Any]:
    """Rows with their elements: to each lane, in the order of lanes, one piece of the items."""
    rows = list(rows)
    left, found = list(items), {}
    for lane in sorted({of(row) for row in rows}):
        for row in rows:
            if of(row) == lane:
                found[row] = left.pop(0)
    assert not left
    return found


def borders(node: Node, stop: int) -> list[int]:
    """Where parts begin, up to `stop`. A part is the same seen from each of its places."""
    found, at = [0], 0
    while at < stop:
        low, high = node.part(at)
        assert low == at
        if high is None:
            break
        assert high > at
        assert all(node.part(place) == (low, high) for place in range(low, min(high, stop)))
        found.append(min(high, stop))
        at = high
    return found


def mix_below(node: Node) -> Mix | None:
    woven = node.woven((0,), 0)
    return None if woven is None else woven.mix


def dealt(node: Node, epoch: int, base: int, kept: int, grid: Grid) -> dict[int, Any]:
    """Row -> element for an epoch that begins at a row."""
    items = elements(node, epoch, kept)

    def lane(row: int) -> int:
        return grid.where(*divmod(row, grid.B))[0]

    mix = mix_below(node) if kept else None
    found: dict[int, Any] = {}
    if mix is None:
        edges = borders(node, kept)
        for low, high in pairwise(edges):
            found |= pieces(range(base + low, base + high), lane, items[low:high])
        return found | {base + row: item for row, item in enumerate(items) if base + row not in found}
    rows = mix.weave.rows(0, kept)
    parts: dict[tuple[int, int], list[int]] = {}
    for row, (child, taken) in enumerate(rows):
        parts.setdefault((child, mix.part_of(child, taken)[0]), []).append(row)
    for (child, first), members in parts.items():
        if mix.part_of(child, first)[1] is None:
            found |= {base + row: items[row] for row in members}
        else:
            found |= pieces([base + row for row in members], lane, [items[row] for row in members])
    return found


def expected(make: Callable[[], Node], grid: Grid, ends: str, epoch: int, steps: int) -> list[list[Any]]:
    """The steps of an epoch, of an endless run at most so many."""
    node = make()
    length, B = node.length, grid.B
    if ends in ("endless", "steps"):
        found: dict[int, Any] = {}
        number = 0
        first = epoch * steps * B if ends == "steps" else 0
        while len(found) < first + steps * B:
            kept = steps * (epoch + 1) * B + FURTHER if length is None else length
            found |= dealt(node, number, len(found), kept, grid)
            number += 1
        return [[found[first + step * B + row] for row in range(B)] for step in range(steps)]
    assert length is not None
    if ends == "drop" and shuffled(node) is not None:
        run, _ = make_run(node)
        items = elements(node, epoch)
        for place, count in left_out(run.seed_of(shuffled(node)), (epoch,), length, B, 1):  # type: ignore[arg-type]
            assert count == length % B
            items = items[:place] + items[place + count :]
        found = pieces(range(len(items)), lambda row: grid.where(*divmod(row, B))[0], items)
    else:
        found = dealt(node, epoch, 0, length - length % B if ends == "drop" else length, grid)
    if ends == "pad":
        for row in range(length, -(-length // B) * B):
            found[row] = found[row - B] if length >= B else found[row % length]
    count = -(-length // B) if ends == "pad" else length // B
    return [[found[step * B + row] for row in range(B)] for step in range(count)]


def shuffled(node: Node) -> Node | None:
    while node.kind in ("map", "enumerate", "filter_holes", "tap", "star_map", "maybe", "prefetch", "select_fields"):
        node = node.parents[0]
    return node if node.kind == "shuffle" else None


# ---------------------------------------------------------------- a run by ranks and workers
def run_of(
    make: Callable[[], Node],
    grid: Grid,
    ends: str,
    epoch: int,
    steps: int,
    world: int = 1,
    workers: int = 1,
    begin: int = 0,
) -> list[list[Any]]:
    """Steps `begin` to the end of an epoch, each put together from all ranks, in each of which each worker builds its
    share of the steps."""
    total = None
    found: list[list[Any]] = []
    for rank in range(world):
        of_rank: dict[int, list[Any]] = {}
        for worker in range(workers):
            node = make()
            deal = Deal(node, grid, ends, steps if ends == "steps" else None)
            known = deal.steps(epoch)
            total = steps if known is None else known
            mine = range(begin + worker, total, workers)
            for column, rows in deal.columns(deal.rows(rank, world)):
                assert deal.lane(column, begin) == column
                run, feeds = make_run(node)
                cursor = deal.lane_cursor(run, epoch, column, rows, begin + worker, workers)
                cursor.reset(0)
                assert len(rows) > 0
                for step in mine:
                    of_rank.setdefault(step, []).extend(islice(cursor, len(rows)))
                if known is not None and ends not in ("agree", "ragged"):
                    assert list(cursor) == []
                cursor.close()
                assert not feeds.feeds
        for step in range(begin, total or 0):
            if rank == 0:
                found.append([])
            assert len(of_rank[step]) == grid.B // world
            found[step - begin] += of_rank[step]
    return found


@COMMON
@given(
    recipes(streams=False).filter(buildable), grids(), st.sampled_from(["drop", "pad", "endless", "steps"]), st.data()
)
def test_batches_are_one_for_any_ranks_and_workers(recipe: Recipe, grid: Grid, ends: str, data: st.DataObject) -> None:
    node = build(recipe)
    assume(node.indexed)
    assume(node.length is None or node.length < 200)
    if ends in ("drop", "pad"):
        assume(node.length is not None)
    else:
        assume(node.length != 0)
    steps, epoch = data.draw(st.integers(1, 1 + MOST // grid.B)), data.draw(st.integers(0, 2))
    world, workers = data.draw(divisors(grid.B)), data.draw(st.integers(1, 3))
    epoch = 0 if ends == "endless" else epoch

    def make() -> Node:
        return build(recipe)

    whole = expected(make, grid, ends, epoch, steps)
    assert run_of(make, grid, ends, epoch, steps) == whole
    assert run_of(make, grid, ends, epoch, steps, world, workers) == whole
    begin = data.draw(st.integers(0, len(whole)))
    world, workers = data.draw(divisors(grid.B)), data.draw(st.integers(1, 3))
    assert run_of(make, grid, ends, epoch, steps, world, workers, begin) == whole[begin:]


# ---------------------------------------------------------------- mixes
def label(item: Any) -> Any:
    return "label", item


def some(item: Any) -> bool:
    return len(repr(item)) % 3 != 0


@st.composite
def mixes(draw: st.DrawFn) -> Callable[[], Node]:
    def child(number: int) -> Callable[[], Node]:
        sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
        kind = draw(st.sampled_from(["source", "source", "parts", "shuffle", "passes", "endless", "random"]))
        source = made_source([*sizes, 1], f"child{number}")
        return {
            "source": lambda: source,
            "parts": lambda: Concat(source, Sequenced("abc")),
            "shuffle": lambda: Shuffle(source, 5),
            "passes": lambda: Repeat(source, 2),
            "endless": lambda: Repeat(Shuffle(source, 5)),
            "random": lambda: RandomStream(number),
        }[kind]

    children = [child(number) for number in range(draw(st.integers(1, 4)))]
    weights = st.lists(st.sampled_from([1, 1, 2, 5, 30, 0]), min_size=len(children), max_size=len(children)).filter(any)
    given: Any = draw(weights)
    if draw(st.booleans()):
        firsts = sorted(draw(st.sets(st.integers(1, 40), max_size=3)))
        given = [(0, given), *((first, draw(weights)) for first in firsts)]
    seed, until = draw(st.integers(0, 9)), draw(st.sampled_from(["first", "cycle", "all"]))
    above = draw(st.lists(st.sampled_from(["map", "enumerate", "holes"]), max_size=2))

    def make() -> Node:
        node: Node = Mix([make() for make in children], given, seed, until)
        for kind in above:
            node = {"map": lambda p: Map(p, label), "enumerate": Enumerate, "holes": lambda p: FilterHoles(p, some)}[
                kind
            ](node)
        return node

    return make


@COMMON
@given(mixes(), grids(), st.sampled_from(["drop", "pad", "endless", "steps"]), st.data())
def test_a_mix_at_the_top_gives_lanes_pieces_of_its_children(
    make: Callable[[], Node], grid: Grid, ends: str, data: st.DataObject
) -> None:
    length = make().length
    assume(length is None or 0 < length < 300)
    assume(length is not None or ends in ("endless", "steps"))
    steps, world = data.draw(st.integers(1, 1 + MOST // grid.B)), data.draw(divisors(grid.B))
    epoch = 0 if ends == "endless" else data.draw(st.integers(0, 2))
    whole = expected(make, grid, ends, epoch, steps)
    begin = data.draw(st.integers(0, len(whole)))
    assert run_of(make, grid, ends, epoch, steps, world, 2, begin) == whole[begin:]
    if ends in ("drop", "steps") or length is None:
        return
    if ends == "endless":  # an epoch is exactly its elements, whatever the lanes
        plain, count = elements(make(), 0), min(length or 0, steps * grid.B)
        found = [item for step in whole for item in step][:count]
        if count == length:
            assert sorted(map(repr, found)) == sorted(map(repr, plain))


def test_epochs_of_a_mix_follow_each_other_in_a_rank_that_shares_a_column() -> None:
    """Several steps are fetched at once there, of two epochs among them."""

    def make() -> Node:
        return Mix([Shuffle(line(20), 6, 1), Shuffle(line(14), 6, 2)], until="cycle")

    grid = Grid(4, 2)
    assert run_of(make, grid, "endless", 0, 60, 4) == expected(make, grid, "endless", 0, 60)


@COMMON
@given(mixes(), grids(), st.integers(0, 3))
def test_each_row_of_a_mix_is_of_the_child_that_it_is_of_anyhow(
    make: Callable[[], Node], grid: Grid, skipped: int
) -> None:
    mix = mix_below(make())
    assert mix is not None
    assume(mix.length is None or mix.length > 0)
    rows = range(min(60, mix.length or 60))
    plain = mix.weave.rows(0, len(rows))
    for column in range(grid.lanes):
        places = LanePlaces(mix, Lane(grid, column))
        own = [row for row in rows if grid.where(*divmod(row, grid.B))[0] == column]
        at = min(skipped, len(own))
        while at < len(own):
            part = places.at((0,), at, len(own))
            found = [mix.weave.child(place) for place in part]
            assert found == [plain[row][0] for row in own[at : at + len(found)]]
            at += len(found)


# ---------------------------------------------------------------- parts
def twice(item: Any) -> list[Any]:
    return [item, item]


def line(length: int) -> Node:
    return Sequenced(range(length))


PARTS: dict[str, tuple[Callable[[], Node], list[int]]] = {
    "one": (lambda: line(7), [0, 7]),
    "none": (lambda: line(0), [0]),
    "concat": (lambda: Concat(line(3), line(0), line(4)), [0, 3, 7]),
    "concat in concat": (lambda: Concat(Concat(line(3), line(1)), line(4)), [0, 3, 4, 8]),
    "passes": (lambda: Repeat(line(4), 3), [0, 4, 8, 12]),
    "passes of parts": (lambda: Repeat(Concat(line(1), line(3)), 2), [0, 1, 4, 5, 8]),
    "element by element": (lambda: Enumerate(FilterHoles(Map(Repeat(line(2), 2), label), some)), [0, 2, 4]),
    "shuffled": (lambda: Shuffle(Repeat(line(4), 3), 2), [0, 12]),
    "batches": (lambda: Windows(Repeat(line(5), 3), 2), [0, 3, 5, 8]),
    "batches, the last dropped": (lambda: Windows(Repeat(line(5), 3), 2, drop_last=True), [0, 3, 5, 7]),
    "batches of whole parts": (lambda: Windows(Concat(line(1), line(1), line(6)), 4), [0, 1, 2]),
    "children": (lambda: Expand(Concat(line(1), line(3)), twice, 2), [0, 2, 8]),
    "take": (lambda: Take(Repeat(line(4), 3), 6), [0, 4, 6]),
    "take of what has no end": (lambda: Take(Repeat(line(4)), 6), [0, 4, 6]),
    "skip": (lambda: Skip(Repeat(line(4), 3), 5), [0, 3, 7]),
    "zip": (lambda: Zip(Repeat(line(4), 3), line(7)), [0, 4, 7]),
    "zip with what has no parts": (lambda: Zip(RandomStream(), line(7)), [0, 7]),
    "stages": (lambda: Mix([Repeat(line(2)), line(99)], [(0, [1, 0]), (3, [0, 1]), (9, [1, 1])]), [0, 3, 9, 30]),
    "without end": (RandomStream, [0]),
    "passes without end": (lambda: Repeat(line(11)), [0, 11, 22, 30]),
    "shuffled without end": (lambda: Shuffle(Repeat(line(11)), 4), [0]),
}


@pytest.mark.parametrize("kind", PARTS)
def test_parts(kind: str) -> None:
    make, expected = PARTS[kind]
    node = make()
    assert borders(node, 30 if node.length is None else min(node.length, 30)) == expected


def test_parts_are_read_one_after_the_other_in_time() -> None:
    """A curriculum stays one: no row of a part comes before a row of the part before it."""
    node = Concat(*(Sequenced([part] * 13) for part in range(4)))
    found = [item for step in run_of(lambda: node, Grid(12, 4), "pad", 0, 0) for item in step]
    assert found[:52] == sorted(found[:52])


def test_stages_of_weights_that_are_a_function() -> None:
    node = Mix([Repeat(line(5)), Repeat(line(7))], weights_by_block)
    assert [node.part(place) for place in (0, 65_535, 65_536, 131_072)] == [
        (0, 65_536),
        (0, 65_536),
        (65_536, 131_072),
        (131_072, 196_608),
    ]


def weights_by_block(block: int) -> list[int]:
    return [1, 1 + block // 2]


# ---------------------------------------------------------------- the policies
def test_drop_leaves_out_another_stretch_of_a_shuffle_each_epoch() -> None:
    def left_out(make: Callable[[], Node], epoch: int) -> list[int]:
        whole = elements(make(), epoch)
        kept = {item for step in run_of(make, Grid(8, 4), "drop", epoch, 0, 2) for item in step}
        return [place for place, item in enumerate(whole) if item not in kept]

    def shuffled_line() -> Node:
        return Shuffle(line(27), 9, 1)

    stretches = [left_out(shuffled_line, epoch) for epoch in range(6)]
    assert all(stretch == list(range(stretch[0], stretch[0] + 3)) for stretch in stretches)
    assert len({stretch[0] for stretch in stretches}) > 3
    assert left_out(lambda: line(27), 1) == [24, 25, 26]
    assert left_out(lambda: Concat(shuffled_line()), 1) == [24, 25, 26]


@COMMON
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), grids(), st.integers(0, 5), st.data())
def test_drop_goes_around_what_it_leaves_out(sizes: list[int], grid: Grid, epoch: int, data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 99))

    def make() -> Node:
        return Enumerate(Shuffle(made_source(sizes), 6, seed))

    whole = expected(make, grid, "drop", epoch, 0)
    world = data.draw(divisors(grid.B))
    assert run_of(make, grid, "drop", epoch, 0, world) == whole
    node = Deal(make(), grid, "drop")._node
    count = node.length
    assert count is not None
    run, feeds = make_run(node)
    feeds.checking = False
    items = [node.fetch(run, (epoch,), [place])[0] for place in range(count)]
    start, stop = sorted((data.draw(st.integers(0, count)), data.draw(st.integers(0, count))))
    assert node.fetch(run, (epoch,), range(start, stop)) == items[start:stop]
    assert node.fetch(run, (epoch,), range(count)[::-1]) == items[::-1]
    assert node.identities(run, (epoch,), range(start, stop)) == [
        node.identities(run, (epoch,), [place])[0] for place in range(start, stop)
    ]


@pytest.mark.parametrize("length", [0, 1, 5, 7, 8, 9, 16, 20])
def test_pad_flags_what_it_repeats(length: int) -> None:
    deal = Deal(line(length), Grid(8, 4), "pad")
    steps = run_of(lambda: line(length), Grid(8, 4), "pad", 0, 0)
    assert deal.steps(0) == len(steps) == -(-length // 8)
    valid = [
        item for number, step in enumerate(steps) for row, item in enumerate(step) if row not in deal.padding(number)
    ]
    assert sorted(valid) == list(range(length))
    assert all(not deal.padding(number) for number in range(len(steps) - 1))


@settings(deadline=None)
@given(st.integers(1, 50), grids(), st.integers(1, 8))
def test_endless_epochs_are_exactly_themselves(length: int, grid: Grid, epochs: int) -> None:
    """Also with fewer rows than lanes: nothing is left out, nothing comes twice."""

    def make() -> Node:
        return Map(Shuffle(line(length), 4), label)

    steps = run_of(make, grid, "endless", 0, -(-epochs * length // grid.B))
    rows = [item for step in steps for item in step]
    for epoch in range(epochs):
        assert sorted(rows[epoch * length : (epoch + 1) * length]) == [("label", item) for item in range(length)]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 30), grids(), st.integers(1, 4))
def test_epochs_of_steps_are_the_endless_run(length: int, grid: Grid, steps: int) -> None:
    def make() -> Node:
        return Shuffle(line(length), 4)

    whole = run_of(make, grid, "endless", 0, 3 * steps)
    assert [step for epoch in range(3) for step in run_of(make, grid, "steps", epoch, steps)] == whole


@pytest.mark.parametrize("ends", ["agree", "ragged"])
def test_where_ranks_see_for_themselves_the_last_part_of_a_step_comes_too(ends: str) -> None:
    grid = Grid(8, 4)
    deal = Deal(line(21), grid, ends)
    assert deal.steps(0) == 2
    found = []
    for column in range(4):
        cursor = deal.lane_cursor(make_run(deal.top)[0], 0, column)
        cursor.reset(None)
        found.append(list(cursor))
    assert list(map(len, found)) == [6, 6, 5, 4]
    assert sorted(item for of in found for item in of) == list(range(21))


def test_one_column_is_the_order_itself() -> None:
    for make in (lambda: Shuffle(line(30), 7, 1), lambda: Mix([line(30), Repeat(line(3))]), lambda: Repeat(line(6), 5)):
        found = [item for step in run_of(make, Grid(6), "pad", 1, 0, 3, 2) for item in step]
        assert found[: make().length] == elements(make(), 1)


def test_draws_hang_on_the_element_and_not_on_who_reads_it() -> None:
    def rolled(item: Any, rng: Any) -> Any:
        return item, rng.random()

    def make() -> Node:
        return Map(Shuffle(line(40), 7, 1), rolled, rng=True)

    plain = set(elements(make(), 2))
    for ends, epoch, steps in (("drop", 2, 0), ("pad", 2, 0), ("ragged", 2, 0)):
        assert {row for step in run_of(make, Grid(6, 3), ends, epoch, steps, 2) for row in step} <= plain
    assert {row for step in run_of(make, Grid(8, 4), "steps", 2, 5, 2) for row in step} == plain


def test_what_does_not_go_together_is_refused() -> None:
    grid = Grid(4)
    with pytest.raises(ConfigError, match=r"ends='drop' needs a length.*has no end"):
        Deal(Repeat(line(3)), grid, "drop")
    with pytest.raises(ConfigError, match=r"ends='pad' needs a length.*nobody knows when(.|\n)*steps="):
        Deal(Filter(line(3), bool), grid, "pad")
    with pytest.raises(ConfigError, match="must be one of drop, pad, endless, steps, agree, ragged"):
        Deal(line(3), grid, "never")
    with pytest.raises(ConfigError, match="a number of steps goes with"):
        Deal(line(3), grid, "steps")
    with pytest.raises(ConfigError, match="a number of steps goes with"):
        Deal(line(3), grid, "drop", 3)
    with pytest.raises(ConfigError, match="an empty pipeline has no steps"):
        Deal(line(0), grid, "endless")
    assert Deal(line(0), grid, "drop").steps(0) == 0
    assert Deal(Filter(line(3), bool), grid, "agree").steps(0) is None
    assert Deal(Filter(line(3), bool), grid, "steps", 9).steps(0) == 9


# ---------------------------------------------------------------- what lanes fetch
def test_a_lane_asks_only_for_shards_of_its_own_slices() -> None:
    def needed(node: Node, column: int, ends: str = "drop") -> list[int]:
        deal = Deal(node, Grid(8, 4), ends)
        run, rows = make_run(node)
        cursor = deal.lane_cursor(run, 0, column)
        cursor.reset(0)
        feed = rows.feeds[0]
        while feed.look(1 << 30):
            pass
        needs = sorted({need.shard for need in feed._needs})
        cursor.close()
        return needs

    plain = made_source([10] * 16)
    assert [needed(plain, column) for column in range(4)] == [[*range(4 * j, 4 * j + 4)] for j in range(4)]
    parts = Concat(made_source([10] * 8, "a"), made_source([10] * 8, "b"))
    assert [needed(parts, column) for column in range(4)] == [[2 * j, 2 * j + 1] for j in range(4)]
    mixed = Mix([plain, Sequenced(range(160))])
    for column in range(4):
        shards = needed(mixed, column)
        assert len(shards) <= 5
        assert shards == list(range(shards[0], shards[-1] + 1))
    homes = [needed(plain, column, "pad") for column in range(4)]
    assert sorted(shard for home in homes for shard in home) == list(range(16))
