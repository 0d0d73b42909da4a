"""bind_tokens, decode and extend: fresh pages are handed out as the ids of their tokens."""

import random
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdefrag.kernels.take import Take

from .support import State, bound, check, ids, row, tables, unbound, words
from .test_program_order import shuffled_programs

CALL_TAG = 9
LISTS = ("holes", "free_ids", "record")
DTYPES = [torch.int32, torch.int64]


class Batch(NamedTuple):
    """Sequences by their pages and lengths, and what they need to grow to ``new_lens``."""

    prefix_lens: list[int]
    new_lens: list[int]
    last_tokens: list[int]
    page_count: int
    token_count: int


def pages_of(length: int, page_size: int) -> int:
    return -(-length // page_size)


def grown_batch(live: list[int], page_size: int, size: int, most: int, seed: int = 0) -> Batch:
    """A random batch; every prefix that ends inside a page ends in one of the ``live`` pages."""
    chance = random.Random(seed)
    tails = iter(chance.sample(live, min(size, len(live))))
    prefix, new, last = [], [], []
    for _ in range(size):
        length = chance.choice([0, page_size, chance.randrange(3 * page_size + 1)])
        page = next(tails, None)
        length = length if page is not None else 0
        prefix.append(length)
        new.append(length + chance.choice([0, 1, chance.randrange(most + 1)]))
        at = (length - 1) % page_size
        last.append(-1 if length == 0 else page * page_size + at)
    pages = [
        pages_of(n, page_size) - pages_of(p, page_size) for p, n in zip(prefix, new, strict=True)
    ]
    return Batch(prefix, new, last, sum(pages), sum(new) - sum(prefix))


def take_for(state: State, page_count: int, seed: int = 0) -> tuple[State, Take]:
    """Lists and a take of ``page_count`` pages: from both parts of the list and from a run."""
    chance = random.Random(seed)
    run = page_count // 3
    pages = [page for page in unbound(state, "p2v") if page][: page_count - run]
    first = max([*bound(state, "p2v"), *pages, 0]) + 1
    free_ids = [virtual for virtual in unbound(state, "v2p") if virtual]
    recycled = chance.randrange(page_count + 1)
    used = free_ids[:recycled]
    first_id = max([*bound(state, "v2p"), *used, 0]) + 1
    newer = len(pages) // 2
    state = dict(state)
    state["p2v"] = words(row(state, "p2v") + [-1] * run)
    state["v2p"] = words(row(state, "v2p") + [-1] * (page_count - recycled))
    state["holes"] = words([-7, *pages, -7])
    state["free_ids"] = words([-7, -7, *used])
    head = len(pages) - newer
    return state, Take(
        page_count, 1, head, 1 + head, newer, first, 1, 2, recycled, first_id
    )  # fmt: skip


def room(live: int, fresh: int, seed: int = 0) -> State:
    return tables(live + fresh + 9, live + fresh + 5, live, seed)


@pytest.mark.parametrize(("page_count", "page_size", "spare"), [
    (1, 1, 0), (3, 16, 5), (130, 4, 1), (260, 2, 1),
])  # fmt: skip
def test_bind_tokens(page_count: int, page_size: int, spare: int) -> None:
    state, take = take_for(room(5, page_count), page_count)
    count = page_count * page_size - spare
    call = ("v2p", "p2v", *LISTS, take, count, page_size, CALL_TAG)
    after = check("bind_tokens", state, *call)
    assert len(bound(after, "v2p")) == 5 + page_count
    assert row(after, "record") == [0] * 16


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("size", "page_size"), [(1, 1), (7, 16), (128, 4), (300, 1), (300, 3)])
def test_decode(dtype: torch.dtype, stride: int, size: int, page_size: int) -> None:
    chance = random.Random(size)
    state = room(size, size)
    last = [v * page_size + chance.randrange(page_size) for v in bound(state, "v2p")]
    last[0] = -1
    fresh = sum((token + 1) % page_size == 0 for token in last)
    state, take = take_for(state, fresh)
    state["last"] = ids(last, dtype, stride)
    call = ("v2p", "p2v", "last", page_size, *LISTS, take, CALL_TAG)
    with shuffled_programs(1):
        after = check("decode", state, *call)
    assert row(after, "record") == [0] * 16
    assert len(bound(after, "v2p")) == size + fresh


@pytest.mark.parametrize("passed", [2, 5])
def test_decode_with_another_count(passed: int) -> None:
    state = room(9, 9)
    last = [virtual * 8 + 7 for virtual in bound(state, "v2p")[:4]]
    state, take = take_for(state, passed)
    state["last"] = ids([*last[:2], 3, -2, *last[2:], 8 * 99])
    call = ("v2p", "p2v", "last", 8, *LISTS, take, CALL_TAG)
    after = check("decode", state, *call)
    assert row(after, "record")[:4] == [1, 2, CALL_TAG, 2]
    state["last"] = ids(last)
    after = check("decode", state, *call)
    assert row(after, "record")[:4] == [1, 13, CALL_TAG, 4]
    assert len(bound(after, "v2p")) == 9 + min(passed, 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "page_size", "most"), [
    (1, 1, 3), (1, 16, 3000), (5, 16, 90), (9, 1, 40), (140, 4, 9),
])  # fmt: skip
def test_extend(dtype: torch.dtype, size: int, page_size: int, most: int) -> None:
    state = room(size, 9)
    batch = grown_batch(bound(state, "v2p"), page_size, size, most, seed=most)
    state, take = take_for(room(size, batch.page_count), batch.page_count)
    batch = grown_batch(bound(state, "v2p"), page_size, size, most, seed=most)
    check_extend(state, take, batch, page_size, dtype)


def check_extend(
    state: State, take: Take, batch: Batch, page_size: int,
    dtype: torch.dtype = torch.int64, **options: Any,
) -> State:  # fmt: skip
    state = {
        **state,
        "prefix": ids(batch.prefix_lens, dtype, 2),
        "new": ids(batch.new_lens, dtype),
        "last": ids(batch.last_tokens, dtype, 3),
    }
    call = ("prefix", "new", "last", batch.token_count, page_size, *LISTS, take, CALL_TAG)
    with shuffled_programs(2):
        after = check("extend", state, "v2p", "p2v", *call, **options)
    assert row(after, "record") == [0] * 16
    assert len(bound(after, "v2p")) == len(bound(state, "v2p")) + batch.page_count
    return after


@given(st.integers(0, 999), st.integers(1, 9), st.integers(1, 20), st.integers(0, 50))
@settings(max_examples=60)
def test_any_batch_on_the_host(seed: int, page_size: int, size: int, most: int) -> None:
    live = bound(room(size, 0, seed), "v2p")
    pages = grown_batch(live, page_size, size, most, seed).page_count
    state, take = take_for(room(size, pages, seed), pages, seed)
    batch = grown_batch(bound(state, "v2p"), page_size, size, most, seed)
    check_extend(state, take, batch, page_size, interpret=False)


BAD = [  # prefix, new length and last token of sequence 1, and the code recorded
    (9, 12, 3, 11), (9, 12, -5, 11), (9, 12, 2**40, 11), (9, 12, "other place", 12),
    (9, 12, "unbound", 2), (5, 4, -1, 14), (-1, 4, -1, 14), (4, 2**31, -1, 14), (4, 2**40, -1, 14),
]  # fmt: skip


@pytest.mark.parametrize(("prefix", "new", "last", "code"), BAD)
def test_sequence_that_is_refused(prefix: int, new: int, last: Any, code: int) -> None:
    state = room(6, 12)
    live = bound(state, "v2p")
    state, take = take_for(state, 4)
    free = max(virtual for virtual in unbound(state, "v2p"))
    token = {"other place": live[0] * 8 + 1, "unbound": free * 8}.get(last, last)
    state["prefix"], state["new"] = ids([4, prefix, 8]), ids([17, new, 24])
    state["last"] = ids([live[1] * 8 + 3, token, live[2] * 8 + 7])
    count = 13 + 16 + (3 if code != 14 else 0)
    call = ("prefix", "new", "last", count, 8, *LISTS, take, CALL_TAG)
    after = check("extend", state, "v2p", "p2v", *call)
    assert row(after, "record")[:4] == [1, code, CALL_TAG, 1]
    assert len(bound(after, "v2p")) == 10


@pytest.mark.parametrize(
    ("page_count", "token_count"), [(2, 29), (6, 29), (4, 20), (4, 40), (0, 0)]
)
def test_counts_that_differ(page_count: int, token_count: int) -> None:
    state = room(6, 12)
    live = bound(state, "v2p")
    state, take = take_for(state, page_count)
    state["prefix"], state["new"] = ids([4, 8]), ids([17, 24])
    state["last"] = ids([live[1] * 8 + 3, live[2] * 8 + 7])
    call = ("prefix", "new", "last", token_count, 8, *LISTS, take, CALL_TAG)
    after = check("extend", state, "v2p", "p2v", *call)
    assert row(after, "record")[:4] == [1, 13, CALL_TAG, 4]


@pytest.mark.parametrize("name", ["bind_tokens", "decode", "extend"])
def test_nothing_is_bound_once_a_corrupt_state_is_recorded(name: str) -> None:
    state = room(6, 12)
    live = bound(state, "v2p")
    state, take = take_for(state, 2)
    state["record"] = words([0] * 8 + [1, 7, 5, 0, 3, -1, 1, 0])
    state["prefix"], state["new"], state["last"] = ids([8]), ids([24]), ids([live[0] * 8 + 7])
    call = {
        "bind_tokens": ("v2p", "p2v", *LISTS, take, 16, 8, CALL_TAG),
        "decode": ("v2p", "p2v", "last", 8, *LISTS, take, CALL_TAG),
        "extend": ("v2p", "p2v", "prefix", "new", "last", 16, 8, *LISTS, take, CALL_TAG),
    }[name]
    after = check(name, state, *call)
    assert row(after, "v2p") == row(state, "v2p")
    assert row(after, "record") == row(state, "record")


@pytest.mark.parametrize("name", ["bind_tokens", "decode", "extend"])
@pytest.mark.parametrize("kind", ["void", "taken"])
def test_pair_that_is_skipped_gives_the_sink(name: str, kind: str) -> None:
    state = room(6, 12)
    live = bound(state, "v2p")
    state, take = take_for(state, 3)
    state["holes"] = words([-7, row(state, "holes")[1], -1 if kind == "void" else 0, -7])
    state["prefix"], state["new"] = ids([8, 8, 8]), ids([16, 16, 16])
    state["last"] = ids([virtual * 8 + 7 for virtual in live[:3]])
    call = {
        "bind_tokens": ("v2p", "p2v", *LISTS, take, 24, 8, CALL_TAG),
        "decode": ("v2p", "p2v", "last", 8, *LISTS, take, CALL_TAG),
        "extend": ("v2p", "p2v", "prefix", "new", "last", 24, 8, *LISTS, take, CALL_TAG),
    }[name]
    if name == "extend" and kind == "taken":
        return  # what programs of one launch do after a corrupt state is a matter of timing
    after = check(name, state, *call)
    assert len(bound(after, "v2p")) == 8
    assert (row(after, "record")[8] == 1) == (kind == "taken")
