"""bind: pages out of two list slices and a run, ids out of a list slice and a run."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdefrag.kernels.bind import bind_host
from kvdefrag.kernels.take import Take

from .support import SIZED, TWIN_SIZES, State, check, row, tables, words

BIND = ("v2p", "p2v", "holes", "free_ids", "record")
CALL_TAG = 1234
FORMS = ("run up", "run down", "listed", "mixed")
HEAD, NEWER_GAP, RECYCLED = 3, 2, 5


def request(form: str, page_count: int, seed: int = 0) -> tuple[State, Take]:
    """Empty tables and a take of ``page_count`` of the named form; the rest of the lists is bad."""
    head_count, newer_count, recycled_count = {
        "listed": (page_count // 2, page_count - page_count // 2, page_count),
        "mixed": (page_count // 4, page_count // 3, page_count // 2),
    }.get(form, (0, 0, 0))
    listed = head_count + newer_count
    fresh = page_count - listed
    step = -1 if form == "run down" else 1
    state = tables(page_count + 1, page_count + 1, 0)
    places, numbers = list(range(1, page_count + 1)), list(range(1, page_count + 1))
    run_pages = places[:fresh] if step == 1 else places[::-1][:fresh]
    hole_pages = [page for page in places if page not in set(run_pages)]
    run_ids, list_ids = (
        numbers[: page_count - recycled_count],
        numbers[page_count - recycled_count :],
    )
    random.Random(seed).shuffle(hole_pages)
    random.Random(seed + 1).shuffle(list_ids)
    bad = [2**62, -1]
    holes = (bad * 2)[:HEAD] + hole_pages[:head_count] + bad[:NEWER_GAP] + hole_pages[head_count:]
    state["holes"] = words(holes + bad)
    state["free_ids"] = words((bad * 3)[:RECYCLED] + list_ids + bad)
    first_page = run_pages[0] if run_pages else 1
    take = Take(
        page_count, HEAD, head_count, HEAD + head_count + NEWER_GAP, newer_count,
        first_page, step, RECYCLED, recycled_count, run_ids[0] if run_ids else 1,
    )  # fmt: skip
    return state, take


def with_word(state: State, name: str, index: int, value: int) -> State:
    values = row(state, name)
    values[index] = value
    return {**state, name: words(values)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("page_count", "interpret"), SIZED)
def test_good_request_fills_the_tables(form: str, page_count: int, interpret: bool) -> None:
    state, take = request(form, page_count)
    after = check("bind", state, *BIND, take, CALL_TAG, interpret=interpret)
    v2p, p2v = row(after, "v2p"), row(after, "p2v")
    assert sorted(v2p) == list(range(page_count + 1))
    assert all(p2v[page] == virtual for virtual, page in enumerate(v2p))
    assert row(after, "record") == [0] * 16


def test_order_is_head_newer_run() -> None:
    state = tables(40, 40, 0)
    state["holes"] = words([20, 21, 22, -9, 30, 31, -9])
    state["free_ids"] = words([-9, 12, 11])
    take = Take(7, 1, 2, 4, 2, 9, -1, 1, 2, 5)
    after = check("bind", state, *BIND, take, CALL_TAG)
    places = [row(after, "v2p")[virtual] for virtual in (12, 11, 5, 6, 7, 8, 9)]
    assert places == [21, 22, 30, 31, 9, 8, 7]


@pytest.mark.parametrize("page_count", [4, 129, *TWIN_SIZES])
@pytest.mark.parametrize("name", ["holes", "free_ids"])
def test_voids_are_skipped(name: str, page_count: int) -> None:
    state, take = request("listed", page_count)
    start = HEAD if name == "holes" else RECYCLED
    for index in {0, page_count // 3, page_count // 2 - 1}:
        state = with_word(state, name, start + index, -1)
    after = check("bind", state, *BIND, take, CALL_TAG, interpret=page_count < 200)
    assert row(after, "record") == [0] * 16
    assert row(after, "v2p").count(-1) == row(after, "p2v").count(-1)


def test_a_pair_with_a_void_is_the_sink() -> None:
    state = tables(9, 9, 0)
    state["holes"], state["free_ids"] = words([4, -1, 6, -1]), words([2, 3, -1, -1])
    after = check("bind", state, *BIND, Take(4, 0, 4, 0, 0, 1, 1, 0, 4, 1), CALL_TAG)
    assert row(after, "v2p") == [0, -1, 4, -1, -1, -1, -1, -1, -1]
    out = bind_host(
        *(state[name].inner.numpy() for name in BIND), Take(4, 0, 4, 0, 0, 1, 1, 0, 4, 1), 1
    )
    assert out.tolist() == [2, 0, 0, 0]


@pytest.mark.parametrize("form", ["run up", "run down"])
@pytest.mark.parametrize("page_count", [100, *TWIN_SIZES])
@pytest.mark.parametrize(
    "bad", ["bound page", "bound id", "past the end", "page 0", "below page 0", "id"]
)
def test_bad_run(form: str, page_count: int, bad: str) -> None:
    state, take = request(form, page_count)
    middle = page_count // 2
    if bad == "bound page":
        state = with_word(state, "p2v", middle, 1)
    elif bad == "bound id":
        state = with_word(state, "v2p", middle, 1)
    elif bad == "past the end":
        take = take._replace(first_page=take.first_page + 1)
    elif bad == "page 0":
        take = take._replace(first_page=take.first_page - 1)
    elif bad == "below page 0":
        take = take._replace(first_page=take.first_page - 3)
    else:
        take = take._replace(first_id=2)
    after = check("bind", state, *BIND, take, CALL_TAG, interpret=page_count == 100)
    assert row(after, "record")[8] == 1


def test_result_is_not_scratch() -> None:
    state, take = request("run up", 600)
    arrays = [state[name].inner.numpy() for name in BIND]
    first = bind_host(*arrays, take._replace(page_count=512), 1)
    kept = first.copy()
    bind_host(*arrays, take._replace(page_count=88, first_page=513, first_id=513), 2)
    other, other_take = request("run down", 600)
    bind_host(*(other[name].inner.numpy() for name in BIND), other_take, 3)
    assert np.array_equal(first, kept)


@st.composite
def any_request(draw: st.DrawFn) -> tuple[State, Take]:
    """Tables with bound rows and overwritten words, lists of distinct ids of any kind, voids."""
    state = tables(12, 11, draw(st.integers(0, 9)), draw(st.integers(0, 99)))
    for table in ("v2p", "p2v"):
        for index in draw(st.sets(st.integers(1, 10), max_size=2)):
            state = with_word(state, table, index, draw(st.integers(-2, 13)))
    distinct = st.lists(st.sampled_from([*range(15), -2, 2**62, -(2**62)]), max_size=6, unique=True)
    pages, numbers = draw(distinct), draw(distinct)
    voids = st.sets(st.integers(0, 5))
    for values in (pages, numbers):
        for index in draw(voids) & set(range(len(values))):
            values[index] = -1
    state["holes"], state["free_ids"] = words(pages), words(numbers)
    head_count = draw(st.integers(0, len(pages)))
    page_count = max(len(pages), len(numbers)) + draw(st.integers(0, 3))
    take = Take(
        page_count, 0, head_count, head_count, len(pages) - head_count,
        draw(st.integers(15, 20)), 1, 0, len(numbers), draw(st.integers(15, 20)),
    )  # fmt: skip
    return state, take


@given(any_request())
@settings(max_examples=150)
def test_any_request_on_the_host(case: tuple[State, Take]) -> None:
    state, take = case
    check("bind", state, *BIND, take, CALL_TAG, interpret=False)


@given(any_request())
@settings(max_examples=25)
def test_any_request_in_the_interpreter(case: tuple[State, Take]) -> None:
    state, take = case
    check("bind", state, *BIND, take, CALL_TAG)
