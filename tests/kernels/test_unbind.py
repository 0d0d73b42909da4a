"""unbind: pages come back, ids of any dtype and stride, refused ones leave voids."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdefrag.kernels.take import Take

from .support import (
    GUARD_WORDS,
    SIZED,
    Region,
    State,
    bound,
    check,
    ids,
    row,
    tables,
    words,
)

UNBIND = ("v2p", "p2v", "virtual_ids", "holes", 3, "free_ids", 2, "record")
CALL_TAG = 9


def request(
    page_count: int, dtype: torch.dtype = torch.int64, stride: int = 1, seed: int = 0
) -> State:
    """Tables with some more live pages than are freed, and lists with room to spare."""
    state = tables(page_count + 30, page_count + 20, page_count + 7, seed)
    freed = random.Random(seed).sample(bound(state, "v2p"), page_count)
    state["virtual_ids"] = ids(freed, dtype, stride)
    state["holes"] = words([-7] * (page_count + 5))
    state["free_ids"] = words([-8] * (page_count + 6))
    return state


@pytest.mark.parametrize(("page_count", "interpret"), SIZED)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_good_request(page_count: int, interpret: bool, dtype: torch.dtype, stride: int) -> None:
    state = request(page_count, dtype, stride)
    after = check("unbind", state, *UNBIND, CALL_TAG, interpret=interpret)
    freed, v2p = row(state, "virtual_ids"), row(state, "v2p")
    assert row(after, "free_ids") == [-8] * 2 + freed + [-8] * 4
    assert row(after, "holes") == [-7] * 3 + [v2p[virtual] for virtual in freed] + [-7] * 2
    assert len(bound(after, "v2p")) == len(bound(after, "p2v")) == 7
    assert row(after, "record") == [0] * 16


@pytest.mark.parametrize(("page_count", "interpret"), SIZED[2:])
def test_double_free_in_one_call(page_count: int, interpret: bool) -> None:
    state = request(page_count)
    freed = row(state, "virtual_ids")
    freed[-1] = freed[0]
    state["virtual_ids"] = ids(freed)
    after = check("unbind", state, *UNBIND, CALL_TAG, interpret=interpret)
    voids = page_count - 1
    assert row(after, "holes")[3 + voids] == row(after, "free_ids")[2 + voids] == -1
    assert row(after, "record")[:8] == [1, 2, CALL_TAG, voids, -1, -1, freed[0], 0]
    assert len(bound(after, "v2p")) == len(bound(after, "p2v")) == 8


@pytest.mark.parametrize(("page_count", "interpret"), SIZED[1:])
def test_double_free_across_calls(page_count: int, interpret: bool) -> None:
    first = check("unbind", request(page_count), *UNBIND, CALL_TAG, interpret=interpret)
    again = check("unbind", first, *UNBIND, CALL_TAG + 1, interpret=interpret)
    freed = row(first, "virtual_ids")
    assert row(again, "holes")[3:-2] == row(again, "free_ids")[2:-4] == [-1] * page_count
    assert row(again, "record")[:8] == [1, 2, CALL_TAG + 1, 0, -1, -1, freed[0], 0]
    assert row(again, "v2p") == row(first, "v2p")
    assert row(again, "p2v") == row(first, "p2v")


def test_one_id_over_and_over() -> None:
    state = request(6)
    virtual = bound(state, "v2p")[2]
    state["virtual_ids"] = Region(torch.full((2 * GUARD_WORDS + 6,), virtual), 6, 1)
    after = check("unbind", state, *UNBIND, CALL_TAG)
    assert row(after, "free_ids")[2:8] == [virtual] + [-1] * 5


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("interpret", [True, False])
def test_refused_ids_leave_voids_and_the_rest_is_freed(dtype: torch.dtype, interpret: bool) -> None:
    state = request(9, dtype, 2)
    freed = row(state, "virtual_ids")
    num_ids = len(row(state, "v2p"))
    huge = 2**31 - 1 if dtype == torch.int32 else 2**62
    bad = [0, -1, num_ids, huge, -huge]
    mixed = [freed[0], *bad[:3], freed[1], *bad[3:], freed[0], freed[2]]
    state["virtual_ids"] = ids(mixed, dtype, 2)
    after = check("unbind", state, *UNBIND, CALL_TAG, interpret=interpret)
    kept = [freed[0], -1, -1, -1, freed[1], -1, -1, -1, freed[2]]
    assert row(after, "free_ids")[2:11] == kept
    assert row(after, "record") == [1, 1, CALL_TAG, 1, -1, -1, 0, 0] + [0] * 8


def test_bind_gives_back_what_unbind_listed() -> None:
    state = request(129)
    after = check("unbind", state, *UNBIND, CALL_TAG)
    take = Take(129, 3, 60, 63, 69, 1, 1, 2, 129, 1)
    names = ("v2p", "p2v", "holes", "free_ids", "record")
    again = check("bind", after, *names, take, CALL_TAG)
    assert row(again, "v2p") == row(state, "v2p")
    assert row(again, "p2v") == row(state, "p2v")


@st.composite
def any_request(draw: st.DrawFn) -> State:
    """Tables with a few words overwritten, and ids of any kind, repeated ones included."""
    state = tables(12, 11, draw(st.integers(0, 9)), draw(st.integers(0, 99)))
    for table in ("v2p", "p2v"):
        values = row(state, table)
        for index in draw(st.sets(st.integers(1, 10), max_size=2)):
            values[index] = draw(st.integers(-2, 13))
        state[table] = words(values)
    asked = draw(st.lists(st.integers(-2, 13), max_size=9))
    state["virtual_ids"] = ids(asked, stride=draw(st.integers(1, 3)))
    state["holes"], state["free_ids"] = words([-7] * 12), words([-7] * 12)
    return state


@given(any_request())
@settings(max_examples=150)
def test_any_request_on_the_host(state: State) -> None:
    check("unbind", state, *UNBIND, CALL_TAG, interpret=False)


@given(any_request())
@settings(max_examples=30)
def test_any_request_in_the_interpreter(state: State) -> None:
    check("unbind", state, *UNBIND, CALL_TAG)
