"""translate and translate_tokens: ids of any dtype and stride; whatever is no place is the sink."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdefrag.kernels.translate import translate, translate_host

from .support import SIZED, State, bound, check, ids, row, tables, words

HUGE = {torch.int32: 2**31 - 1, torch.int64: 2**62}
DTYPES = [torch.int32, torch.int64]
PAGE_SIZES = (1, 7, 16)


def page_tables(seed: int = 0) -> State:
    """60 live of 99 ids; two rows of v2p hold what is no page."""
    state = tables(90, 100, 60, seed)
    v2p = row(state, "v2p")
    first, second = bound(state, "v2p")[:2]
    v2p[first], v2p[second] = 90, -5
    state["v2p"] = words(v2p)
    return state


def asked(count: int, limit: int, dtype: torch.dtype, seed: int = 0) -> list[int]:
    """Mostly ids below ``limit``, among them ids that are negative, huge or just past the end."""
    chance = random.Random(seed)
    odd = [0, -1, limit, min(limit + 1, HUGE[dtype]), limit - 1, HUGE[dtype], -HUGE[dtype]]
    return [
        chance.choice(odd) if chance.random() < 0.3 else chance.randrange(limit)
        for _ in range(count)
    ]


@pytest.mark.parametrize(("count", "interpret"), SIZED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_translate(count: int, interpret: bool, dtype: torch.dtype, stride: int) -> None:
    state = page_tables()
    state["virtual_ids"] = ids(asked(count, 100, dtype), dtype, stride)
    check("translate", state, "v2p", "virtual_ids", 90, interpret=interpret)


@pytest.mark.parametrize(("count", "interpret"), SIZED)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_translate_tokens(
    count: int, interpret: bool, page_size: int, dtype: torch.dtype, out_dtype: torch.dtype
) -> None:
    state = page_tables()
    state["token_ids"] = ids(asked(count, 100 * page_size, dtype), dtype, 1 + page_size % 3)
    state["out"] = ids([-7] * count, out_dtype, 1 + page_size % 2)
    check("translate_tokens", state, "v2p", "token_ids", "out", 90, page_size, interpret=interpret)


@pytest.mark.parametrize("page_size", [2**25, 2**31 - 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_token_ids_past_32_bits(page_size: int, dtype: torch.dtype) -> None:
    state = page_tables()
    limit = min(100 * page_size, HUGE[dtype])
    state["token_ids"] = ids(asked(100, limit, dtype), dtype)
    state["out"] = ids([-7] * 100)
    after = check("translate_tokens", state, "v2p", "token_ids", "out", 90, page_size)
    assert dtype == torch.int32 or max(row(after, "out")) > 2**31


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_both_divisions_meet_at_the_limit(offset: int) -> None:
    """2**31 - 1 token ids are the last that 32-bit division serves."""
    state = tables(8, 7, 6)
    page_size = (2**31 - 1) // 7 + offset
    last = 7 * page_size - 1
    edges = [page_size - 1, page_size, 6 * page_size, last, last + 1, 2**31 - 1, 2**31, -1]
    state["token_ids"] = ids(edges)
    state["out"] = ids([-7] * len(edges))
    check("translate_tokens", state, "v2p", "token_ids", "out", 8, page_size)


def test_whole_page_keeps_the_order_of_its_tokens() -> None:
    state = tables(9, 9, 8)
    virtual = bound(state, "v2p")[3]
    state["token_ids"] = ids(range(16 * virtual, 16 * virtual + 16), torch.int32)
    state["out"] = ids([-7] * 16, torch.int32)
    after = check("translate_tokens", state, "v2p", "token_ids", "out", 9, 16)
    page = row(state, "v2p")[virtual]
    assert row(after, "out") == list(range(16 * page, 16 * page + 16))


@pytest.mark.parametrize("stride", [0, 4])
def test_expanded_ids(stride: int) -> None:
    v2p = page_tables()["v2p"].inner
    virtual_ids = torch.arange(40)[7:].as_strided((5,), (stride,))
    wanted = translate_host(v2p.numpy(), virtual_ids.numpy(), 90)
    assert translate(v2p, virtual_ids, 90).tolist() == wanted.tolist()


def test_result_is_not_scratch() -> None:
    v2p = page_tables()["v2p"].inner.numpy()
    first = translate_host(v2p, np.arange(600) % 100, 2**40)
    kept = first.copy()
    translate_host(v2p, np.arange(600)[::-1] % 100, 2**40)
    assert np.array_equal(first, kept)


@given(
    st.lists(st.integers(-3, 13) | st.sampled_from([2**62, -(2**62)]), max_size=9),
    st.lists(st.integers(-3, 13), min_size=1, max_size=9),
    st.integers(1, 5),
)
@settings(max_examples=150)
def test_anything_on_the_host(asked_ids: list[int], v2p: list[int], page_size: int) -> None:
    state = {"v2p": words([0, *v2p]), "ids": ids(asked_ids), "out": ids([-7] * len(asked_ids))}
    check("translate", state, "v2p", "ids", 11, interpret=False)
    check("translate_tokens", state, "v2p", "ids", "out", 11, page_size, interpret=False)
