"""Ids of another pool: pages for them, pages back with gaps, and no free while they are held."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdefrag.kernels.bind import unbind
from kvdefrag.kernels.borrow import bind_borrowed
from kvdefrag.kernels.take import Take
from kvdefrag.kernels.token_group import Segment, unbind_group, unbind_group_host

from . import token_model
from .support import SIZED, Region, Rows, State, bound, check, ids, row, tables, unbound, words
from .test_program_order import shuffled_programs

CALL_TAG = 9
DTYPES = [torch.int32, torch.int64]
BIND = ("v2p", "p2v", "lender_v2p", "marks", "virtual_ids", "holes", "record")
LISTS = ("holes", 3, None, 0, "record")


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
def any_tables(draw: st.DrawFn) -> State:
    """A lender, its borrower, and a second borrower's v2p, with a few words overwritten."""
    state = tables(12, 11, draw(st.integers(0, 9)), draw(st.integers(0, 99)))
    state["lender_v2p"] = tables(12, 11, draw(st.integers(0, 9)), draw(st.integers(0, 99)))["v2p"]
    other = tables(12, 11, draw(st.integers(0, 4)), draw(st.integers(0, 99)))["v2p"]
    for table in ("v2p", "p2v"):
        values = row(state, table)
        for index in draw(st.sets(st.integers(1, 10), max_size=2)):
            values[index] = draw(st.integers(-2, 13))
        state[table] = words(values)
    state["holders"] = words(row(state, "lender_v2p") + other.inner.tolist())
    return {**state, "marks": words([0] * 11)}


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


def release_request(pages: int, seed: int = 0) -> tuple[State, list[int]]:
    state = tables(pages + 30, pages + 20, pages + 7, seed)
    state["marks"], state["holes"] = words([0] * (pages + 20)), words([-7] * (pages + 5))
    return state, random.Random(seed).sample(bound(state, "v2p"), pages)


def with_gaps(state: State, kept: list[int], page_size: int = 1, seed: int = 0) -> list[int]:
    """Tokens of ``kept``, some twice, among gaps of every kind."""
    chance = random.Random(seed)
    gaps = [-1, 0, page_size - 1, *(gap * page_size for gap in unbound(state, "v2p"))]
    tokens = [virtual * page_size + chance.randrange(page_size) for virtual in kept]
    tokens += chance.choices(tokens, k=len(tokens) // 2) + chance.choices(gaps, k=len(tokens) + 3)
    chance.shuffle(tokens)
    return tokens


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize(("pages", "page_size"), [(0, 1), (1, 1), (40, 1), (9, 16), (900, 4)])
def test_release_with_gaps(dtype: torch.dtype, stride: int, pages: int, page_size: int) -> None:
    state, kept = release_request(pages)
    tokens = with_gaps(state, kept, page_size)
    state["tokens"] = ids(tokens, dtype, stride)
    call = ("v2p", "p2v", "marks", "tokens", page_size, pages, *LISTS, 1, CALL_TAG)
    after = check("unbind_tokens", state, *call)
    in_order = [v for v in dict.fromkeys(token // page_size for token in tokens) if v in kept]
    assert row(after, "holes")[3:-2] == [row(state, "v2p")[virtual] for virtual in in_order]
    assert len(bound(after, "v2p")) == len(bound(after, "p2v")) == 7
    assert row(after, "record") == [0] * 16


def test_release_of_a_list_with_two_gaps() -> None:
    """Reported: of [5, gap, gap, 9] both 5 and 9 come back."""
    state = {"v2p": words([0, *[-1] * 4, 3, -1, -1, -1, 2, 1]), "record": words([0] * 16)}
    state["p2v"] = words([0, 10, 9, 5])
    state["marks"], state["holes"] = words([0] * 11), words([-7] * 8)
    state["tokens"] = ids([5, 0, -1, 9])
    after = check(
        "unbind_tokens", state, "v2p", "p2v", "marks", "tokens", 1, 2, *LISTS, 1, CALL_TAG
    )
    assert row(after, "holes") == [-7] * 3 + [3, 2] + [-7] * 3
    assert bound(after, "v2p") == [10]
    assert row(after, "record") == [0] * 16


@pytest.mark.parametrize(("passed", "found"), [(4, 6), (8, 6), (0, 6)])
def test_release_of_another_count(passed: int, found: int) -> None:
    state, kept = release_request(9)
    state["tokens"] = ids(with_gaps(state, kept[:found]))
    call = ("v2p", "p2v", "marks", "tokens", 1, passed, *LISTS, 1, CALL_TAG)
    after = check("unbind_tokens", state, *call)
    assert row(after, "record")[:7] == [1, 13, CALL_TAG, found, -1, -1, -1]
    assert len(bound(after, "v2p")) == 16 - min(passed, found)


@pytest.mark.parametrize(("page_size", "code"), [(1, 1), (4, 11)])
@pytest.mark.parametrize("token", [-2, 2**62, -(2**62), 2**32 + 1, "size"])
def test_release_out_of_range(page_size: int, code: int, token: int | str) -> None:
    state, kept = release_request(9)
    bad = 29 * page_size if isinstance(token, str) else token
    state["tokens"] = ids([kept[0] * page_size, bad, kept[1] * page_size])
    call = ("v2p", "p2v", "marks", "tokens", page_size, 2, *LISTS, 1, CALL_TAG)
    after = check("unbind_tokens", state, *call)
    assert row(after, "record")[:7] == [1, code, CALL_TAG, 1, -1, -1, bad]
    assert len(bound(after, "v2p")) == 14


@pytest.mark.parametrize(("page_count", "interpret"), SIZED)
def test_dense_release(page_count: int, interpret: bool) -> None:
    state, kept = release_request(page_count)
    state["virtual_ids"] = ids(kept, torch.int32, 2)
    after = check("unbind", state, "v2p", "p2v", "virtual_ids", *LISTS, CALL_TAG,
                  interpret=interpret)  # fmt: skip
    assert row(after, "holes")[3:-2] == [row(state, "v2p")[virtual] for virtual in kept]
    assert len(bound(after, "v2p")) == 7


def holding(state: State, held: list[list[int]]) -> State:
    """``state`` with the v2p rows of as many borrowers, which have pages for the ids ``held``."""
    rows = []
    for each in held:
        values = [0] + [-1] * (len(row(state, "v2p")) - 1)
        for virtual in each:
            values[virtual] = 1 + virtual
        rows += values
    return {**state, "holders": words(rows)}


OWNED = ("holes", 3, "free_ids", 2, "record")


@pytest.mark.parametrize(("page_count", "interpret"), SIZED[2:])
def test_no_free_of_a_held_id(page_count: int, interpret: bool) -> None:
    state, asked = release_request(page_count)
    state["free_ids"] = words([-8] * (page_count + 6))
    state["virtual_ids"] = ids(asked)
    state = holding(state, [asked[:1], [], asked[1:2]])
    rows = Rows("holders", len(row(state, "v2p")))
    after = check("unbind", state, "v2p", "p2v", "virtual_ids", *OWNED, CALL_TAG, rows,
                  interpret=interpret)  # fmt: skip
    assert row(after, "record")[:7] == [1, 10, CALL_TAG, 0, -1, -1, asked[0]]
    assert row(after, "free_ids")[2:-4] == [-1, -1, *asked[2:]]
    assert len(bound(after, "v2p")) == len(bound(after, "p2v")) == 9


@pytest.mark.parametrize("operation", ["unbind_tokens", "unbind_run"])
@pytest.mark.parametrize("page_size", [1, 4])
def test_no_free_of_a_held_page_by_tokens(operation: str, page_size: int) -> None:
    state, asked = release_request(9)
    state["free_ids"] = words([-8] * 15)
    tokens = [virtual * page_size + at for virtual in asked for at in range(page_size)]
    state = holding({**state, "tokens": ids(tokens)}, [[], asked[3:5]])
    rows = Rows("holders", len(row(state, "v2p")))
    call: tuple[object, ...] = ("v2p", "p2v", "tokens", page_size, *OWNED, CALL_TAG, rows)
    if operation == "unbind_tokens":
        call = ("v2p", "p2v", "marks", "tokens", page_size, 9, *OWNED, 1, CALL_TAG, rows)
    after = check(operation, state, *call)
    index = 3 if operation == "unbind_run" else 3 * page_size
    assert row(after, "record")[:7] == [1, 10, CALL_TAG, index, -1, -1, asked[3]]
    assert len(bound(after, "v2p")) == 7 + 2


@st.composite
def any_free(draw: st.DrawFn) -> tuple[State, int, int]:
    state = draw(any_tables())
    page_size = draw(st.sampled_from([1, 3]))
    state["tokens"] = ids(draw(st.lists(st.integers(-3, 12 * page_size), max_size=14)))
    state["holes"], state["free_ids"] = words([-7] * 19), words([-7] * 19)
    return state, page_size, draw(st.integers(0, 12))


def check_any_free(asked: tuple[State, int, int], interpret: bool) -> None:
    state, page_size, count = asked
    rows, head = Rows("holders", 11), ("v2p", "p2v", "marks", "tokens", page_size, count)
    check("unbind_tokens", state, *head, *OWNED, 1, CALL_TAG, rows, interpret=interpret)
    check("unbind_tokens", state, *head, *LISTS, 1, CALL_TAG, interpret=interpret)
    check("unbind_run", state, "v2p", "p2v", "tokens", page_size, *OWNED, CALL_TAG, rows,
          interpret=interpret)  # fmt: skip
    check("unbind", state, "v2p", "p2v", "tokens", *OWNED, CALL_TAG, rows, interpret=interpret)
    check("unbind", state, "v2p", "p2v", "tokens", *LISTS, CALL_TAG, interpret=interpret)


@given(any_free())
@settings(max_examples=150)
def test_any_free_on_the_host(asked: tuple[State, int, int]) -> None:
    check_any_free(asked, interpret=False)


@given(any_free())
@settings(max_examples=15)
def test_any_free_in_the_interpreter(asked: tuple[State, int, int]) -> None:
    check_any_free(asked, interpret=True)


@given(any_free(), st.integers(0, 14), st.booleans())
@settings(max_examples=40)
def test_any_group(asked: tuple[State, int, int], cut: int, borrowed: bool) -> None:
    state, page_size, page_count = asked
    tokens = row(state, "tokens")
    pairs = [(token, page_size) for token in tokens[:cut]] + [(token, 1) for token in tokens[cut:]]
    wanted = {name: row(state, name) for name in state}
    free_ids = None if borrowed else wanted["free_ids"]
    holders = [] if borrowed else Rows("holders", 11).of_list(wanted)
    if pairs:
        token_model.unbind_pairs(
            wanted["v2p"], wanted["p2v"], pairs, page_count,
            wanted["holes"], 3, free_ids, 2, wanted["record"], CALL_TAG, holders,
        )  # fmt: skip
    for way in (unbind_group_host, unbind_group):
        copy = {name: region.clone().inner for name, region in state.items()}
        parts = [torch.tensor(tokens, dtype=torch.int32)[:cut], torch.tensor(tokens).long()[cut:]]
        rows = copy["holders"].view(-1, 11)
        if way is unbind_group_host:
            copy = {name: tensor.numpy() for name, tensor in copy.items()}
            parts, rows = [part.numpy() for part in parts], rows.numpy()
        segments = [Segment(part, size) for part, size in zip(parts, (page_size, 1), strict=True)]
        way(
            copy["v2p"], copy["p2v"], copy["marks"], segments, page_count, copy["holes"], 3,
            None if borrowed else copy["free_ids"], 2, copy["record"], 1, CALL_TAG,
            None if borrowed else rows,
        )  # fmt: skip
        for name in ("v2p", "p2v", "holes", "free_ids", "record"):
            assert copy[name].tolist() == wanted[name], f"{way.__name__}: {name}"


@pytest.mark.parametrize(("holders", "part"), [
    (torch.zeros(2, 9, dtype=torch.int64), "expected 10 words a row, got 9"),
    (torch.zeros(2, 10, dtype=torch.int32), "2-D int64"),
    (torch.zeros(10, dtype=torch.int64), "2-D int64"),
    (torch.zeros(2, 20, dtype=torch.int64)[:, ::2], "contiguous"),
    (torch.zeros(2, 10, dtype=torch.int64, device="meta"), "device cpu, got meta"),
])  # fmt: skip
def test_holders_are_rows_like_v2p(holders: torch.Tensor, part: str) -> None:
    table = torch.full((10,), -1)
    with pytest.raises(ValueError, match=f"^holders: .*{part}"):
        unbind(table, table.clone(), table[:4], table.clone(), 0, table.clone(), 0,
               torch.zeros(16, dtype=torch.int64), 1, holders)  # fmt: skip


def test_as_many_ids_as_pages() -> None:
    state, take = roomy(5, torch.int64, 1)
    state["virtual_ids"] = Region(state["virtual_ids"].whole, 4, 1)
    with pytest.raises(ValueError, match=r"^virtual_ids: expected 5, got 4"):
        bind_borrowed(*(state[name].inner for name in BIND), take, 1, CALL_TAG)
