"""Forwards in flight: the pages that they will write stay out of an idle flush's way."""

import numpy as np
import pytest
import torch

from kvdefrag import FlushResult, UsageError
from kvdefrag.allocator.testing import ManualFence

from .recording import NotedFence
from .rig import Rig, state_of
from .watching import watching

PAGE_SIZE = 4
FORMS = {
    "int64": lambda ids: torch.tensor(ids, dtype=torch.int64),
    "int32": lambda ids: torch.tensor(ids, dtype=torch.int32),
    "strided": lambda ids: torch.tensor(ids, dtype=torch.int64).repeat_interleave(3)[::3],
    "column": lambda ids: torch.tensor([ids, ids], dtype=torch.int32).t().contiguous()[:, 1],
    "list": list,
    "array": np.array,
}


def twelve(backend: str, grows: str = "up", **options: object) -> Rig:
    """Twelve live pages of sixteen; id ``v`` is at depth ``v - 1``."""
    rig = Rig.of(backend, 17, grows, page_size=PAGE_SIZE, **options)
    rig.alloc(12)
    return rig


def depths(rig: Rig, ids: list[int]) -> list[int]:
    return [rig.pool._band.geometry.depth(page) for page in rig.pages(ids)]


@pytest.mark.parametrize("as_tokens", [False, True])
@pytest.mark.parametrize(("form", "grows"), [*((form, "up") for form in FORMS), ("int64", "down")])
def test_written_page_stops_an_idle_flush(backend, form, grows, as_tokens):
    rig, form = twelve(backend, grows), FORMS[form]
    rig.free([2, 3])
    fence = ManualFence()
    if as_tokens:
        tokens = [11 * PAGE_SIZE + 3, 11 * PAGE_SIZE, 4 * PAGE_SIZE + 1]
        rig.arena.forward_launched(fence, token_writes={"a": form(tokens)})
    else:
        rig.arena.forward_launched(fence, {"a": form([11, 4])})
    assert rig.flush() == FlushResult(1, 8, 0, 1, "forward")
    assert depths(rig, [12, 11, 4]) == [1, 10, 3]
    fence.finish()
    assert rig.flush() == FlushResult(1, 8, 1, 0, "")
    assert depths(rig, [11, 4]) == [2, 3]
    assert (rig.span(), rig.holes(), fence.waits) == (10, 0, 0)


@pytest.mark.parametrize("written", [[4, 9], [9, 4, 9], [9]])
def test_stops_at_the_highest_live_written_page(backend, written):
    rig = twelve(backend)
    rig.free([1, 2, 3, 5, 6])
    rig.arena.forward_launched(ManualFence(), {"a": written})
    result = rig.flush()
    assert (result.moves, result.stopped_by) == (3, "forward")
    assert rig.pages([12, 11, 10, 9, 4]) == [1, 2, 3, 9, 4]


@pytest.mark.parametrize("as_tokens", [False, True])
@pytest.mark.parametrize("form", ["int64", "list"])
def test_padding_is_ignored(backend, form, as_tokens):
    rig = twelve(backend)
    rig.free([2, 3])
    unbound = [0, -1, 2, 13, 16, 17]
    if as_tokens:
        unbound = [page * PAGE_SIZE + 1 for page in unbound]
    padding = [*unbound, 10**6, -(2**40), 2**62, 2**63 - 1, -(2**63)]
    kind = "token_writes" if as_tokens else "writes"
    fence = ManualFence()
    rig.arena.forward_launched(fence, **{kind: {"a": FORMS[form](padding)}})
    assert rig.flush() == FlushResult(2, 16, 0, 2, "")
    fence.finish()
    assert rig.flush() == FlushResult(0, 0, 2, 0, "")


@pytest.mark.parametrize(
    "writes", [None, {}, {"a": []}, {"a": torch.empty(0, dtype=torch.int32)}], ids=str
)
def test_forward_that_only_reads(backend, writes):
    rig = twelve(backend)
    rig.free([2])
    fence = ManualFence()
    before = rig.arena.stats().launches
    rig.arena.forward_launched(fence, writes)
    rig.arena.forward_launched(fence, token_writes=writes)
    assert rig.arena.stats().launches == before
    assert rig.flush() == FlushResult(1, 8, 0, 1, "")
    fence.finish()
    assert rig.flush() == FlushResult(0, 0, 1, 0, "")


@pytest.mark.parametrize("grows", ["up", "down"])
def test_written_holes_are_passed_over(backend, grows):
    """Freed after the launch: neither a target nor absorbed, and in the hole list all the same."""
    rig = twelve(backend, grows)
    fence = ManualFence()
    rig.arena.forward_launched(fence, {"a": [5, 12]})
    rig.free([3, 5, 12])
    assert rig.flush() == FlushResult(1, 8, 0, 1, "forward")
    assert depths(rig, [11]) == [2]
    assert (rig.span(), rig.holes(), rig.pending()) == (12, 2, 1)
    for _ in range(3):
        assert rig.flush() == FlushResult(0, 0, 0, 1, "forward")
    fence.finish()
    assert rig.flush() == FlushResult(1, 8, 2, 0, "")
    assert depths(rig, [10]) == [4]
    assert rig.span() == 9


def test_all_written_and_all_freed(backend):
    rig = twelve(backend)
    fence = ManualFence()
    rig.arena.forward_launched(fence, {"a": torch.arange(1, 13)})
    rig.free(list(range(1, 13)))
    assert rig.flush() == FlushResult(0, 0, 0, 0, "forward")
    assert (rig.span(), rig.holes()) == (12, 12)
    rig.alloc(5)  # the ladder's first step needs no flush
    assert rig.flush() == FlushResult(0, 0, 0, 0, "forward")
    fence.finish()
    rig.flush()
    assert rig.span() == 5


@pytest.mark.parametrize("owner", ["the same id", "another id"])
def test_page_freed_and_handed_out_again_still_stops(backend, owner):
    rig = twelve(backend)
    fence = ManualFence()
    rig.arena.forward_launched(fence, {"a": [12]})
    rig.free([12] if owner == "the same id" else [2, 12])
    if owner == "another id":
        rig.flush(max_moves=0)  # now the hole list starts with page 2 and id 12 is used first
        rig.alloc(1)
    again = rig.alloc(1)
    assert rig.pages(again) == [12]
    assert (again.tolist() == [12]) == (owner == "the same id")
    rig.free([3])
    assert rig.flush() == FlushResult(0, 0, 0, 0, "forward")
    fence.finish()
    assert rig.flush().moves == 1
    assert rig.pages(again) == [3]


def test_several_forwards_each_stop_until_done(backend):
    rig = twelve(backend)
    first, second = ManualFence(), ManualFence()
    rig.arena.forward_launched(first, {"a": [12]})
    rig.arena.forward_launched(second, {"a": [9]})
    assert rig.arena.stats().forwards_in_flight == 2
    rig.free([1, 2, 3, 4])
    assert rig.flush() == FlushResult(0, 0, 0, 0, "forward")
    first.finish()
    assert rig.flush() == FlushResult(3, 24, 0, 3, "forward")
    assert rig.arena.stats().forwards_in_flight == 1
    second.finish()
    assert rig.flush() == FlushResult(1, 8, 3, 0, "")
    assert rig.pages(range(5, 13)) == [5, 6, 7, 8, 4, 3, 2, 1]


def test_one_fence_of_forwards_on_different_pools(backend):
    rig = Rig.pair(backend, 30)
    log: list[str] = []
    fence = NotedFence(log)
    for name in "AB":
        rig.alloc(8, name)
        rig.arena.forward_launched(fence, {name: [8]})
        rig.free([2], name)
    log.clear()
    results = rig.arena.flush()
    assert log == ["query"]  # once a flush, however many forwards share it
    assert results == {name: FlushResult(0, 0, 0, 0, "forward") for name in "AB"}
    fence.finish()
    assert [result.moves for result in rig.arena.flush().values()] == [1, 1]
    assert rig.arena.stats().forwards_in_flight == 0


def test_one_fence_launched_twice_for_one_pool(backend):
    rig = twelve(backend)
    fence = ManualFence()
    rig.arena.forward_launched(fence, {"a": [12]})
    rig.arena.forward_launched(fence, {"a": [11]}, {"a": [10 * PAGE_SIZE]})
    rig.free([1, 2, 3])
    assert rig.flush().moves == 0
    fence.finish()
    assert rig.flush() == FlushResult(3, 24, 0, 0, "")


@pytest.mark.parametrize("in_other_pool", [False, True])
def test_cost_of_a_launch(in_other_pool):
    rig = Rig.pair("triton", 30)
    for name in "AB":
        rig.alloc(8, name)
    named = {name: torch.tensor([3, 4, 4, 0]) for name in ("AB" if in_other_pool else "A")}
    with watching(rig.arena) as watch:
        for kinds in (1, 2):
            watch.reset()
            rig.arena.forward_launched(ManualFence(), named, named if kinds == 2 else None)
            assert watch.counts() == (kinds * len(named), 0, 0)
            assert rig.arena.stats().host_to_device_copies == 0


def test_host_list_costs_its_upload(backend):
    rig = twelve(backend)
    rig.arena.forward_launched(ManualFence(), {"a": [1, 2]})
    rig.arena.forward_launched(ManualFence(), {"a": torch.tensor([1, 2])})
    assert rig.arena.stats().host_to_device_copies == 1


@pytest.mark.parametrize("forwards", [1, 40])
def test_written_pages_travel_in_the_one_read_back(forwards):
    rig = Rig.of("triton", 200)
    rig.alloc(12)
    for virtual in range(forwards):
        rig.arena.forward_launched(ManualFence(), {"a": torch.tensor([4 + virtual % 2])})
    rig.free([2, 3])
    with watching(rig.arena) as watch:
        result = rig.pool.flush()
        # Read-back, validation, copy with rebind, and the sources that become pending.
        assert watch.counts() == (4, 1, 1)
        assert (result.moves, result.pending) == (2, 2)
        watch.reset()
        assert rig.pool.flush().pending == 2  # no hole is left, no fence is done
        assert watch.counts() == (0, 0, 0)
    rig.verify()


def test_more_written_tokens_than_the_staging_buffer_holds(backend):
    rig = twelve(backend)
    rig.free([2, 3])
    tokens = torch.arange(11 * PAGE_SIZE, 12 * PAGE_SIZE).repeat(100)
    fence = ManualFence()
    rig.arena.forward_launched(fence, token_writes={"a": tokens})
    before = rig.arena.stats()
    assert rig.pool.flush() == FlushResult(1, 8, 0, 1, "forward")
    after = rig.arena.stats()
    assert after.device_to_host_copies - before.device_to_host_copies == 1
    rig.verify()


class NoWait:
    def query(self) -> bool:
        return True


class NoQuery:
    def wait(self) -> None: ...


class WordsForCalls:
    query = wait = True


BAD = {
    "no wait": (NoWait(), {}, "fence: expected query"),
    "no query": (NoQuery(), {}, "fence: expected query"),
    "no calls": (WordsForCalls(), {}, "fence: expected query"),
    "no fence": (None, {}, "fence: expected query"),
    "unknown pool": (ManualFence(), {"writes": {"a": [1], "b": [1]}}, "writes: no pool 'b'"),
    "unknown token pool": (ManualFence(), {"token_writes": {1: [1]}}, "token_writes: no pool 1"),
    "dtype": (ManualFence(), {"writes": {"a": torch.ones(2)}}, r"writes\['a'\]: expected int64"),
    "second dtype": (
        ManualFence(),
        {"writes": {"a": torch.tensor([1])}, "token_writes": {"a": torch.ones(2).bool()}},
        r"token_writes\['a'\]: expected int64",
    ),
    "shape": (ManualFence(), {"writes": {"a": torch.ones(2, 2).long()}}, r"expected shape \[ids\]"),
    "words": (ManualFence(), {"writes": {"a": [1, "2"]}}, r"writes\['a'\]\[1\]: expected an int"),
    "no dict": (ManualFence(), {"writes": [1, 2]}, "writes: expected a dict"),
    "no token dict": (ManualFence(), {"token_writes": torch.ones(1)}, "token_writes: expected a d"),
}


@pytest.mark.parametrize(("fence", "arguments", "why"), BAD.values(), ids=BAD)
def test_bad_argument_leaves_nothing_noted(backend, fence, arguments, why):
    rig = twelve(backend)
    rig.arena.forward_launched(ManualFence(), {"a": [3]})
    before, launches = state_of(rig.arena), rig.arena.stats().launches
    with pytest.raises(UsageError, match=why):
        rig.arena.forward_launched(fence, **arguments)
    assert state_of(rig.arena) == before
    assert rig.arena.stats().launches == launches
    assert rig.arena.stats().forwards_in_flight == 1
