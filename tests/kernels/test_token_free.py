"""unbind_tokens and unbind_run: pages come back by the ids of their tokens."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdefrag.kernels.token_free import unbind_tokens
from kvdefrag.kernels.token_group import Segment, unbind_group, unbind_group_host

from . import token_model
from .interpreter import checked_memory
from .support import State, bound, check, differences, ids, row, tables, words
from .test_program_order import shuffled_programs

CALL_TAG = 9
LISTS = ("holes", 3, "free_ids", 2, "record")
DTYPES = [torch.int32, torch.int64]


def request(pages: int, page_size: int, seed: int = 0) -> tuple[State, list[int]]:
    """Tables with some more live pages than are freed; the ids of those, in any order."""
    state = tables(pages + 30, pages + 20, pages + 7, seed)
    state["marks"] = words([0] * (pages + 20))
    state["holes"], state["free_ids"] = words([-7] * (pages + 5)), words([-8] * (pages + 6))
    return state, random.Random(seed).sample(bound(state, "v2p"), pages)


def some_tokens(freed: list[int], page_size: int, count: int, seed: int = 0) -> list[int]:
    """At least one token of every page, ``count`` in all, in any order."""
    chance = random.Random(seed)
    pages = freed + chance.choices(freed, k=count - len(freed))
    tokens = [virtual * page_size + chance.randrange(page_size) for virtual in pages]
    chance.shuffle(tokens)
    return tokens


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize(("pages", "page_size", "count"), [
    (1, 1, 1), (1, 16, 40), (9, 1, 9), (130, 16, 700), (300, 4, 5000), (60, 2**25, 70),
])  # fmt: skip
def test_set(dtype: torch.dtype, stride: int, pages: int, page_size: int, count: int) -> None:
    if dtype == torch.int32 and page_size > 2**20:
        return
    state, freed = request(pages, page_size)
    tokens = some_tokens(freed, page_size, count)
    state["tokens"] = ids(tokens, dtype, stride)
    call = ("v2p", "p2v", "marks", "tokens", page_size, pages, *LISTS, 1, CALL_TAG)
    after = check("unbind_tokens", state, *call)
    in_order = list(dict.fromkeys(token // page_size for token in tokens))
    assert row(after, "free_ids")[2:-4] == in_order
    assert row(after, "holes")[3:-2] == [row(state, "v2p")[virtual] for virtual in in_order]
    assert len(bound(after, "v2p")) == len(bound(after, "p2v")) == 7
    assert row(after, "record") == [0] * 16


def test_tokens_of_two_pages() -> None:
    """Reported: {33, 34, 47, 48, 33} of 16 tokens a page are pages 2 and 3, once each."""
    state, _ = request(6, 16)
    state["v2p"] = words([0, 5, 6, 7, *[-1] * 22])
    state["p2v"] = words([0, -1, -1, -1, -1, 1, 2, 3, *[-1] * 28])
    state["tokens"] = ids([33, 34, 47, 48, 33])
    call = ("v2p", "p2v", "marks", "tokens", 16, 2, *LISTS, 1, CALL_TAG)
    after = check("unbind_tokens", state, *call)
    assert row(after, "free_ids")[2:4] == [2, 3]
    assert row(after, "record") == [0] * 16


@pytest.mark.parametrize(("passed", "wanted"), [(5, 4), (9, 4), (3, 4), (0, 4)])
def test_count_that_differs(passed: int, wanted: int) -> None:
    state, freed = request(9, 8)
    state["tokens"] = ids(some_tokens(freed[:wanted], 8, 30))
    call = ("v2p", "p2v", "marks", "tokens", 8, passed, *LISTS, 1, CALL_TAG)
    after = check("unbind_tokens", state, *call)
    assert row(after, "record")[:7] == [1, 13, CALL_TAG, wanted, -1, -1, -1]
    gone = min(passed, wanted)
    assert row(after, "free_ids")[2 + gone : 2 + passed] == [-1] * (passed - gone)
    assert len(bound(after, "v2p")) == 16 - gone


def test_marks_of_earlier_calls_do_not_count() -> None:
    state, freed = request(5, 4)
    v2p, p2v, lists = state["v2p"].inner, state["p2v"].inner, torch.full((9,), -7)
    marks, record = torch.zeros(25, dtype=torch.int64), torch.zeros(16, dtype=torch.int64)
    tokens = torch.tensor(some_tokens(freed, 4, 12))
    for serial in (1, 2, 2**31 - 1):
        now, back = v2p.clone(), p2v.clone()
        call = (now, back, marks, tokens, 4, 5, lists, 0, lists.clone(), 0, record)
        unbind_tokens(*call, serial, CALL_TAG)
        assert int((now > 0).sum()) == 7
    assert record.tolist() == [0] * 16
    # The same serial again: every token counts as seen, which is why it may not be.
    unbind_tokens(v2p, p2v, marks, tokens.flip(0), 4, 5, *call[6:], 1, CALL_TAG)
    assert record.tolist()[:4] == [1, 13, CALL_TAG, 0]


@st.composite
def any_request(draw: st.DrawFn, page_sizes: st.SearchStrategy[int]) -> tuple[State, int, int]:
    """Tables with a few words overwritten, tokens of any kind, and any count."""
    state = tables(12, 11, draw(st.integers(0, 9)), draw(st.integers(0, 99)))
    for table in ("v2p", "p2v"):
        values = row(state, table)
        for index in draw(st.sets(st.integers(1, 10), max_size=2)):
            values[index] = draw(st.integers(-2, 13))
        state[table] = words(values)
    page_size = draw(page_sizes)
    asked = draw(st.lists(st.integers(-3, 12 * page_size), max_size=14))
    state["tokens"] = ids(asked, stride=draw(st.integers(1, 3)))
    state["marks"] = words([0] * 11)
    state["holes"], state["free_ids"] = words([-7] * 19), words([-7] * 19)
    return state, page_size, draw(st.integers(0, 12))


def check_any(asked: tuple[State, int, int], interpret: bool) -> None:
    state, page_size, page_count = asked
    call = ("v2p", "p2v", "marks", "tokens", page_size, page_count, *LISTS, 1, CALL_TAG)
    check("unbind_tokens", state, *call, interpret=interpret)
    check("unbind_run", state, "v2p", "p2v", "tokens", page_size, *LISTS, CALL_TAG,
          interpret=interpret)  # fmt: skip


@given(any_request(st.integers(1, 4)))
@settings(max_examples=100)
def test_any_request_on_the_host(asked: tuple[State, int, int]) -> None:
    check_any(asked, interpret=False)


@given(any_request(st.sampled_from([1, 3])))
@settings(max_examples=15)
def test_any_request_in_the_interpreter(asked: tuple[State, int, int]) -> None:
    check_any(asked, interpret=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("pages", "page_size", "cut"), [
    (1, 1, 0), (1, 16, 0), (3, 16, 5), (130, 1, 0), (140, 4, 3), (600, 2, 1),
])  # fmt: skip
def test_run(dtype: torch.dtype, stride: int, pages: int, page_size: int, cut: int) -> None:
    state, freed = request(pages, page_size)
    tokens = [virtual * page_size + at for virtual in freed for at in range(page_size)]
    state["tokens"] = ids(tokens[: len(tokens) - cut], dtype, stride)
    interpret = pages < 200
    with shuffled_programs(3):
        after = check("unbind_run", state, "v2p", "p2v", "tokens", page_size, *LISTS, CALL_TAG,
                      interpret=interpret)  # fmt: skip
    assert row(after, "free_ids")[2:-4] == freed
    assert row(after, "record") == [0] * 16


def test_run_that_starts_inside_a_page() -> None:
    state, freed = request(4, 8)
    tokens = [virtual * 8 + at for virtual in freed for at in range(8)][3:]
    state["tokens"] = ids(tokens)
    after = check("unbind_run", state, "v2p", "p2v", "tokens", 8, *LISTS, CALL_TAG)
    assert row(after, "record")[:7] == [1, 12, CALL_TAG, 0, -1, -1, tokens[0]]
    assert row(after, "v2p") == row(state, "v2p")


def check_group(state: State, segments: list[Segment], page_count: int) -> State:
    """``segments`` of regions: kernel, twin and model on copies of ``state``."""
    pairs = [
        (token, each.page_size, False)
        for each in segments
        for token in each.token_ids.inner.tolist()
    ]
    rows = {key: row(state, key) for key in state}
    lists = (rows["holes"], 3, rows["free_ids"], 2, rows["record"])
    if pairs and not rows["record"][8]:
        token_model.unbind_pairs(rows["v2p"], rows["p2v"], pairs, page_count, *lists, CALL_TAG, [])
    after = {key: state[key].holding(rows[key]) for key in state}
    for way in (unbind_group_host, unbind_group):
        copy = {key: region.clone() for key, region in state.items()}
        inner = {key: region.inner for key, region in copy.items()}
        asked = [Segment(each.token_ids.inner, each.page_size) for each in segments]
        if way is unbind_group_host:
            inner = {key: each.numpy() for key, each in inner.items()}
            asked = [Segment(each.token_ids.numpy(), each.page_size) for each in asked]
        extents = [region.extent for region in copy.values()]
        with checked_memory(*extents):
            way(
                inner["v2p"], inner["p2v"], inner["marks"], asked, page_count,
                inner["holes"], 3, inner["free_ids"], 2, inner["record"], 1, CALL_TAG,
            )  # fmt: skip
        copy["marks"].inner[:] = 0
        for key in state:
            assert not differences(copy[key].whole, after[key].whole), f"{way.__name__}: {key}"
    return after


def test_group_of_every_form() -> None:
    state, freed = request(200, 8)
    segments = [
        Segment(ids(some_tokens(freed[:90], 8, 300), torch.int32, 3), 8),
        Segment(ids(freed[100:], torch.int64, 2), 1),
        Segment(ids([], torch.int32), 8),
        Segment(ids(some_tokens(freed[70:100], 8, 90), torch.int64), 8),
        Segment(ids(freed[:1], torch.int32), 1),
    ]
    after = check_group(state, segments, 200)
    assert row(after, "record") == [0] * 16
    assert len(bound(after, "v2p")) == 7


@given(any_request(st.integers(1, 4)), st.integers(0, 14))
@settings(max_examples=15)
def test_any_group(asked: tuple[State, int, int], cut: int) -> None:
    state, page_size, page_count = asked
    tokens = row(state, "tokens")
    segments = [Segment(ids(tokens[:cut], torch.int32), page_size), Segment(ids(tokens[cut:]), 1)]
    check_group(state, segments, page_count)
