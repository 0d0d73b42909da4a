"""Every fault that a kernel can record, word by word, and what a corrupt state stops."""

from typing import Any, NamedTuple

import pytest
import torch

from kvdefrag.kernels import record as kernel_record
from kvdefrag.kernels.copy import copy_pages, copy_pages_host
from kvdefrag.kernels.take import Take

from . import model, token_model
from .support import State, check, ids, row, words

HUGE = 2**62
CALL_TAG = 2**31 - 1
GATHER = ("v2p", "p2v", "sources", "targets", "virtual_ids", "record")
BIND = ("v2p", "p2v", "holes", "free_ids", "record")
UNBIND = ("v2p", "p2v", "virtual_ids", "holes", 0, "free_ids", 0, "record")

# Ids 1, 2 and 4 live on pages 3, 1 and 5.
V2P = [0, 3, 1, -1, 5, -1, -1, -1]
P2V = [0, 2, -1, 1, -1, 4, -1, -1, -1]


class Case(NamedTuple):
    """One bad lane: ``code`` and the recorded source, target and virtual id."""

    code: int
    source: int
    target: int
    virtual: int
    tables: dict[str, dict[int, int]] = {}  # noqa: RUF012


BAD_PAGES = (0, -1, 9, 10, HUGE, -HUGE, 2**31, 2**32 + 3)

GATHER_CASES = [
    *(Case(3, page, 4, -1) for page in BAD_PAGES),
    *(Case(3, 3, page, 1) for page in BAD_PAGES),
    Case(3, HUGE, -HUGE, -1),
    Case(4, 2, 4, -1),
    Case(4, 2, 5, -1),
    Case(5, 3, 5, 1),
    Case(5, 3, 3, 1),
    *(Case(7, 3, 4, owner, {"p2v": {3: owner}}) for owner in (0, -2, 2, 8, HUGE, -HUGE)),
    *(Case(7, 3, 4, 1, {"v2p": {1: page}}) for page in (-1, 0, 4, 9, HUGE)),
    Case(5, 3, 5, 2, {"p2v": {3: 2}}),
]

BIND_CASES = [
    *(Case(3, -1, page, 3) for page in (0, -2, 9, HUGE, -HUGE, 2**31, 2**32 + 2)),
    *(Case(1, -1, 4, virtual) for virtual in (0, -2, 8, HUGE, -HUGE, 2**31, 2**32 + 3)),
    Case(3, -1, 9, 8),
    Case(5, -1, 3, 5),
    Case(5, -1, 3, 1),
    Case(6, -1, 4, 1),
    Case(5, -1, 6, 5, {"p2v": {6: 0}}),
    Case(6, -1, 6, 5, {"v2p": {5: HUGE}}),
]

USAGE_CASES = [
    *(Case(1, -1, -1, virtual) for virtual in (0, -1, -2, 8, 9, HUGE, -HUGE, 2**32 + 1)),
    *(Case(2, -1, -1, virtual) for virtual in (3, 5, 7)),
]

DISAGREE_CASES = [
    *(Case(7, page, -1, 4, {"v2p": {4: page}}) for page in (0, -2, 2, 3, 9, HUGE, -HUGE)),
    *(Case(7, 5, -1, 4, {"p2v": {5: owner}}) for owner in (-1, 0, 2, HUGE)),
]


def base(case: Case, **lists: Any) -> State:
    v2p, p2v = dict(enumerate(V2P)), dict(enumerate(P2V))
    v2p.update(case.tables.get("v2p", {}))
    p2v.update(case.tables.get("p2v", {}))
    state = {"v2p": words(list(v2p.values())), "p2v": words(list(p2v.values()))}
    state["record"] = words([0] * 16)
    state.update({name: ids(values) for name, values in lists.items()})
    return state


def gather_state(case: Case) -> State:
    """Bad pairs second and third, after a good one."""
    state = base(case, sources=[1, case.source, HUGE], targets=[6, case.target, 7])
    return {**state, "virtual_ids": words([-7] * 3)}


def bind_state(case: Case) -> State:
    return base(case, holes=[7, case.target, 6], free_ids=[6, case.virtual, 7])


def unbind_state(case: Case) -> State:
    state = base(case, virtual_ids=[1, case.virtual, 2])
    return {**state, "holes": words([-7] * 4), "free_ids": words([-7] * 4)}


TAKE = Take(2, 0, 2, 0, 0, 1, 1, 0, 2, 1)


def wanted(case: Case, index: int = 1) -> list[int]:
    return [1, case.code, CALL_TAG, index, case.source, case.target, case.virtual, 0]


@pytest.mark.parametrize("case", GATHER_CASES)
def test_gather_virtual_records(case: Case) -> None:
    after = check("gather_virtual", gather_state(case), *GATHER, CALL_TAG)
    assert row(after, "record") == [0] * 8 + wanted(case)
    assert row(after, "virtual_ids") == [2, -1, -1]
    check("rebind", after, *GATHER)


@pytest.mark.parametrize("case", BIND_CASES)
def test_bind_records(case: Case) -> None:
    after = check("bind", bind_state(case), *BIND, TAKE, CALL_TAG)
    assert row(after, "record") == [0] * 8 + wanted(case)
    assert row(after, "v2p")[6] == 7


@pytest.mark.parametrize("case", USAGE_CASES)
def test_unbind_refuses(case: Case) -> None:
    after = check("unbind", unbind_state(case), *UNBIND, CALL_TAG)
    assert row(after, "record") == wanted(case) + [0] * 8
    assert row(after, "free_ids") == [1, -1, 2, -7]


@pytest.mark.parametrize("case", DISAGREE_CASES)
def test_unbind_finds_tables_that_disagree(case: Case) -> None:
    state = unbind_state(case)
    after = check("unbind", state, *UNBIND, CALL_TAG)
    assert row(after, "record") == [0] * 8 + wanted(case)
    assert row(after, "v2p")[4] == row(state, "v2p")[4]


def test_every_code_is_provoked() -> None:
    cases = [*GATHER_CASES, *BIND_CASES, *USAGE_CASES, *DISAGREE_CASES]
    codes = {case.code for case in cases}
    names = [name for name in vars(model) if name.isupper()]
    # Provoked where ids are borrowed.
    codes |= {model.ID_NOT_LENT, model.ID_BOUND_HERE, model.ID_HELD}
    # Provoked where tokens are taken and given.
    more = [name for name in vars(token_model) if name.isupper() and name not in names]
    more.remove("MAX_LENGTH")
    codes |= {getattr(token_model, name) for name in more}
    assert codes == set(kernel_record.FAULT_TEXT)
    for module, name in [(model, name) for name in names] + [(token_model, name) for name in more]:
        assert getattr(kernel_record, name).value == getattr(module, name)


def test_first_fault_wins_and_slots_are_independent() -> None:
    state = unbind_state(Case(2, -1, -1, 5))
    usage = check("unbind", state, *UNBIND, 11)
    again = check("unbind", usage, *UNBIND, 12)
    assert row(again, "record") == [1, 2, 11, 1, -1, -1, 5, 0] + [0] * 8
    again.update(sources=ids([2, 6]), targets=ids([4, 4]))
    both = check("gather_virtual", again, *GATHER, 13)
    corrupt = [1, 4, 13, 0, 2, 4, -1, 0]
    assert row(both, "record") == [1, 2, 11, 1, -1, -1, 5, 0, *corrupt]
    both.update(sources=ids([HUGE, 6]))
    last = check("gather_virtual", both, *GATHER, 14)
    assert row(last, "record") == row(both, "record")


def stopped(state: State) -> State:
    return {**state, "record": words([0] * 8 + [1, 7, 5, 0, 3, -1, 1, 0])}


def test_corrupt_state_stops_bind_and_unbind() -> None:
    for page in (4, -1):
        state = stopped(bind_state(Case(0, -1, page, 5)))
        after = check("bind", state, *BIND, TAKE, CALL_TAG)
        assert row(after, "v2p") == V2P
    state = stopped(unbind_state(Case(0, -1, -1, HUGE)))
    after = check("unbind", state, *UNBIND, CALL_TAG)
    for name, region in after.items():
        assert torch.equal(region.whole, state[name].whole), name


def test_corrupt_state_turns_pairs_into_the_sink() -> None:
    state = stopped(gather_state(Case(0, 3, 4, 1)))
    after = check("rebind", state, *GATHER)
    assert row(after, "sources") == row(after, "targets") == [0, 0, 0]
    assert row(after, "v2p") == V2P


@pytest.mark.parametrize("page_bytes", [24, 16384])
def test_corrupt_state_stops_the_copy(page_bytes: int) -> None:
    pages = torch.arange(9 * page_bytes).to(torch.uint8)
    sources, targets = torch.tensor([3, HUGE]), torch.tensor([1, -HUGE])
    record = stopped({})["record"].inner
    before = pages.clone()
    copy_pages(pages, sources, targets, page_bytes, record)
    copy_pages_host(pages.numpy(), sources.numpy(), targets.numpy(), page_bytes, record.numpy())
    assert torch.equal(pages, before)
