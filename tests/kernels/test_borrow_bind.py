"""bind_borrowed: ids of another pool get pages, each of them one."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdefrag.kernels.borrow import bind_borrowed
from kvdefrag.kernels.take import Take

from .lending import any_tables
from .support import SIZED, Region, State, bound, check, ids, row, tables, unbound, words
from .test_program_order import shuffled_programs

CALL_TAG = 9
DTYPES = [torch.int32, torch.int64]
BIND = ("v2p", "p2v", "lender_v2p", "marks", "virtual_ids", "holes", "record")


def lent(page_count: int, seed: int = 0) -> State:
    """A lender's v2p with more live ids than are asked for, and a borrower with a few pages."""
    chance = random.Random(seed)
    lender = tables(2 * page_count + 40, page_count + 30, page_count + 12, seed)
    state = tables(2 * page_count + 40, page_count + 30, 0)
    live = bound(lender, "v2p")
    v2p, p2v = row(state, "v2p"), row(state, "p2v")
    for virtual, page in zip(live[:9], chance.sample(range(1, len(p2v)), 9), strict=True):
        v2p[virtual], p2v[page] = page, virtual
    state["v2p"], state["p2v"] = words(v2p), words(p2v)
    return {**state, "lender_v2p": lender["v2p"], "marks": words([0] * (page_count + 30))}


def bind_request(
    page_count: int, dtype: torch.dtype = torch.int64, stride: int = 1, seed: int = 0
) -> tuple[State, Take]:
    """Pages from both parts of the hole list, then from both sides of the band."""
    state = lent(page_count, seed)
    wanted = random.Random(seed).sample(bound(state, "lender_v2p")[9:], page_count)
    state["virtual_ids"] = ids(wanted, dtype, stride)
    free = unbound(state, "p2v")
    head, newer = page_count // 3, page_count // 4
    holes = random.Random(seed).sample(free, head + newer)
    state["holes"] = words([-9, *holes[:head], -9, *holes[head:]])
    fresh = page_count - head - newer
    run = longest_run([page for page in free if page not in holes], fresh)
    back = fresh // 2
    first = run + back
    return state, Take(page_count, 1, head, 2 + head, newer, first, 1, 0, 0, 0, first - 1, back)


def longest_run(pages: list[int], length: int) -> int:
    """The first of ``length`` pages in a row; the table is made longer than that by the caller."""
    starts = [page for page in pages if set(range(page, page + length)) <= set(pages)]
    return starts[0] if starts else 0


def roomy(page_count: int, dtype: torch.dtype, stride: int) -> tuple[State, Take]:
    """``bind_request`` with all fresh pages at the end of a longer p2v."""
    state, take = bind_request(page_count, dtype, stride)
    p2v = row(state, "p2v")
    first = len(p2v) + take.back_count
    state["p2v"] = words(p2v + [-1] * (page_count + 3))
    return state, take._replace(first_page=first, back_page=first - 1)


@pytest.mark.parametrize(("page_count", "interpret"), SIZED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [1, 3])
def test_bind(page_count: int, interpret: bool, dtype: torch.dtype, stride: int) -> None:
    state, take = roomy(page_count, dtype, stride)
    after = check("bind_borrowed", state, *BIND, take, 1, CALL_TAG, interpret=interpret)
    assert len(bound(after, "v2p")) == len(bound(after, "p2v")) == 9 + page_count
    v2p, p2v = row(after, "v2p"), row(after, "p2v")
    assert all(p2v[v2p[virtual]] == virtual for virtual in bound(after, "v2p"))
    assert set(row(state, "virtual_ids")) <= set(bound(after, "v2p"))
    assert row(after, "record") == [0] * 16


def test_bind_in_any_order_of_programs() -> None:
    state, take = roomy(600, torch.int64, 1)
    with shuffled_programs(1) as ran:
        check("bind_borrowed", state, *BIND, take, 1, CALL_TAG)
    assert len(ran) == 5


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_of_equal_ids_one_is_bound_whatever_the_order(seed: int) -> None:
    state, take = roomy(300, torch.int64, 1)
    wanted = row(state, "virtual_ids")
    wanted[150:] = wanted[:150]
    state["virtual_ids"] = ids(wanted)
    with shuffled_programs(seed):
        inner = [state[name].inner for name in BIND]
        bind_borrowed(*inner, take, 7, CALL_TAG)
    assert len(bound(state, "v2p")) == len(bound(state, "p2v")) == 9 + 150
    v2p, p2v = row(state, "v2p"), row(state, "p2v")
    assert all(p2v[v2p[virtual]] == virtual for virtual in bound(state, "v2p"))
    assert row(state, "record")[:3] == [1, 9, CALL_TAG]


def test_marks_of_earlier_calls_do_not_count() -> None:
    state, take = roomy(5, torch.int64, 1)
    for serial in (1, 2, 2**31 - 1):
        copy = {name: region.clone() for name, region in state.items()}
        copy["marks"] = state["marks"]
        bind_borrowed(*(copy[name].inner for name in BIND), take, serial, CALL_TAG)
        assert len(bound(copy, "v2p")) == 14
        assert row(copy, "record") == [0] * 16


@pytest.mark.parametrize(("value", "code"), [
    (0, 1), (-1, 1), (2**62, 1), (-(2**62), 1), (2**32 + 1, 1), ("size", 1),
    ("not lent", 8), ("bound here", 9), ("twice", 9),
])  # fmt: skip
def test_bind_refuses(value: int | str, code: int) -> None:
    state, take = roomy(5, torch.int64, 1)
    wanted = row(state, "virtual_ids")
    named = {
        "size": len(row(state, "v2p")),
        "not lent": unbound(state, "lender_v2p")[0],
        "bound here": bound(state, "v2p")[0],
        "twice": wanted[1],
    }
    wanted[3] = named[value] if isinstance(value, str) else value
    state["virtual_ids"] = ids(wanted)
    after = check("bind_borrowed", state, *BIND, take, 1, CALL_TAG)
    assert row(after, "record") == [1, code, CALL_TAG, 3, -1, -1, wanted[3], 0] + [0] * 8
    assert len(bound(after, "v2p")) == 9 + 4


@pytest.mark.parametrize("page", [0, -2, 99999, 2**62, 2**32 + 1, "taken"])
def test_bind_finds_a_bad_page(page: int | str) -> None:
    state, take = roomy(6, torch.int64, 1)
    holes = row(state, "holes")
    holes[1] = bound(state, "p2v")[0] if page == "taken" else page
    state["holes"] = words(holes)
    after = check("bind_borrowed", state, *BIND, take, 1, CALL_TAG)
    wanted = [1, 5 if page == "taken" else 3, CALL_TAG, 0, -1, holes[1]]
    assert row(after, "record")[8:14] == wanted
    assert len(bound(after, "v2p")) == 9 + 5
    again = check("bind_borrowed", after, *BIND, take, 2, CALL_TAG)
    assert row(again, "v2p") == row(after, "v2p")


def test_bind_skips_a_void_page() -> None:
    state, take = roomy(6, torch.int64, 1)
    holes = row(state, "holes")
    holes[1] = -1
    state["holes"] = words(holes)
    after = check("bind_borrowed", state, *BIND, take, 1, CALL_TAG)
    assert row(after, "record") == [0] * 16
    assert len(bound(after, "v2p")) == 9 + 5


@st.composite
def any_bind(draw: st.DrawFn) -> tuple[State, Take]:
    state = draw(any_tables())
    count = draw(st.integers(0, 9))
    asked = draw(st.lists(st.integers(-2, 12), min_size=count, max_size=count))
    state["virtual_ids"] = ids(asked, stride=draw(st.integers(1, 3)))
    free = unbound(state, "p2v")
    most = min(count, len(free))
    listed = draw(st.permutations(free))[:most]
    bad = draw(st.lists(st.integers(-2, 13), max_size=1))
    pages = (listed[: most - len(bad)] + bad)[:most]
    # Equal pages meet one another in no order that all three would share.
    if len(set(pages)) < len(pages):
        pages = listed
    state["holes"] = words(pages)
    state["virtual_ids"] = ids(asked[: len(pages)], stride=2)
    return state, Take(len(pages), 0, len(pages), len(pages), 0, 1, 1, 0, 0, 0)


@given(any_bind())
@settings(max_examples=150)
def test_any_bind_on_the_host(asked: tuple[State, Take]) -> None:
    state, take = asked
    check("bind_borrowed", state, *BIND, take, 1, CALL_TAG, interpret=False)


@given(any_bind())
@settings(max_examples=20)
def test_any_bind_in_the_interpreter(asked: tuple[State, Take]) -> None:
    state, take = asked
    check("bind_borrowed", state, *BIND, take, 1, CALL_TAG)


def test_as_many_ids_as_pages() -> None:
    state, take = roomy(5, torch.int64, 1)
    state["virtual_ids"] = Region(state["virtual_ids"].whole, 4, 1)
    with pytest.raises(ValueError, match=r"^virtual_ids: expected 5, got 4"):
        bind_borrowed(*(state[name].inner for name in BIND), take, 1, CALL_TAG)
