"""gather_virtual and rebind: a move batch as the tables see it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .support import SIZED, State, bound, check, ids, row, tables, unbound, words

GATHER = ("v2p", "p2v", "sources", "targets", "virtual_ids", "record")
REBIND = GATHER
CALL_TAG = 77


def batch(move_count: int, seed: int = 0) -> State:
    """A good batch: random live pages into random free ones; room for more owners than moves."""
    state = tables(2 * move_count + 20, 2 * move_count + 9, move_count + 5, seed)
    chance = random.Random(seed)
    state["sources"] = ids(chance.sample(bound(state, "p2v"), move_count))
    state["targets"] = ids(chance.sample(unbound(state, "p2v"), move_count))
    state["virtual_ids"] = words([-7] * (move_count + 3))
    return state


def move(state: State, interpret: bool) -> State:
    gathered = check("gather_virtual", state, *GATHER, CALL_TAG, interpret=interpret)
    return check("rebind", gathered, *REBIND, interpret=interpret)


@pytest.mark.parametrize(("move_count", "interpret"), SIZED)
def test_good_batch(move_count: int, interpret: bool) -> None:
    before = batch(move_count)
    after = move(before, interpret)
    owners = row(after, "virtual_ids")
    assert owners[move_count:] == [-7] * 3
    v2p, p2v = row(after, "v2p"), row(after, "p2v")
    for owner, source, target in zip(
        owners, row(before, "sources"), row(before, "targets"), strict=False
    ):
        assert row(before, "v2p")[owner] == source
        assert (v2p[owner], p2v[target], p2v[source]) == (target, owner, -1)
    assert all(v2p[p2v[page]] == page for page in [0, *bound(after, "p2v")])
    assert row(after, "record") == [0] * 16


@pytest.mark.parametrize(("move_count", "interpret"), SIZED)
@pytest.mark.parametrize("where", ["first", "last"])
def test_bad_pair_anywhere_stops_the_whole_batch(
    move_count: int, interpret: bool, where: str
) -> None:
    if move_count == 0:
        return
    state = batch(move_count)
    sources = row(state, "sources")
    index = 0 if where == "first" else move_count - 1
    sources[index] = unbound(state, "p2v")[0]
    state["sources"] = ids(sources)
    after = move(state, interpret)
    assert row(after, "virtual_ids")[index] == -1
    assert row(after, "record")[8:12] == [1, 4, CALL_TAG, index]
    assert row(after, "v2p") == row(state, "v2p")
    assert row(after, "p2v") == row(state, "p2v")
    assert row(after, "sources") == row(after, "targets") == [0] * move_count


@pytest.mark.parametrize(("move_count", "interpret"), [(4, True), (1, False), (600, False)])
@pytest.mark.parametrize("name", ["sources", "targets"])
@pytest.mark.parametrize("page", [0, -1, -2, "end", "past the end", 2**62, -(2**62), 2**31])
def test_one_bad_page(name: str, page: int | str, move_count: int, interpret: bool) -> None:
    state = batch(move_count)
    end = len(row(state, "p2v"))
    page = {"end": end, "past the end": end + 1}.get(str(page), page)
    pages = row(state, name)
    pages[-1] = int(page)
    state[name] = ids(pages)
    after = check("gather_virtual", state, *GATHER, CALL_TAG, interpret=interpret)
    owners = row(after, "virtual_ids")[:move_count]
    assert [owner for owner in owners if owner == -1] == [-1]
    assert row(after, "record")[8:12] == [1, 3, CALL_TAG, move_count - 1]


@st.composite
def any_batch(draw: st.DrawFn) -> State:
    """Consistent tables with a few words overwritten, and pairs of any kind."""
    state = tables(12, 10, draw(st.integers(0, 9)), draw(st.integers(0, 99)))
    word = st.integers(-2, 13)
    for table in ("v2p", "p2v"):
        values = row(state, table)
        for index in draw(st.sets(st.integers(1, len(values) - 1), max_size=2)):
            values[index] = draw(word)
        state[table] = words(values)
    pairs = draw(st.lists(st.tuples(word, word), max_size=9))
    state["sources"] = ids([source for source, _ in pairs])
    state["targets"] = ids([target for _, target in pairs])
    state["virtual_ids"] = words([-7] * len(pairs))
    return state


@given(any_batch())
@settings(max_examples=150)
def test_any_batch_on_the_host(state: State) -> None:
    check("gather_virtual", state, *GATHER, CALL_TAG, interpret=False)


@given(any_batch())
@settings(max_examples=30)
def test_any_batch_in_the_interpreter(state: State) -> None:
    after = check("gather_virtual", state, *GATHER, CALL_TAG)
    if row(after, "record")[8]:
        check("rebind", after, *REBIND)
