"""Pages of borrowed ids come back, with gaps; and no free of an id while others hold it."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdefrag.kernels.bind import unbind
from kvdefrag.kernels.token_group import Segment, unbind_group, unbind_group_host

from . import token_model
from .lending import any_tables
from .support import SIZED, Rows, State, bound, check, ids, row, tables, unbound, words

CALL_TAG = 9
DTYPES = [torch.int32, torch.int64]
LISTS = ("holes", 3, None, 0, "record")


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


@given(any_free(), st.integers(0, 14), st.booleans(), st.tuples(st.booleans(), st.booleans()))
@settings(max_examples=40)
def test_any_group(
    asked: tuple[State, int, int], cut: int, borrowed: bool, strict: tuple[bool, bool]
) -> None:
    state, page_size, page_count = asked
    tokens = row(state, "tokens")
    sizes = (page_size, 1)
    pairs = [
        (token, sizes[index >= cut], strict[index >= cut]) for index, token in enumerate(tokens)
    ]
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
        segments = list(map(Segment, parts, sizes, strict))
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
