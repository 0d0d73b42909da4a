"""Idle flushes: what a budget buys beside forwards, why they end, what doing nothing costs."""

from statistics import median
from time import perf_counter_ns

import pytest

from kvdefrag import Arena, FlushResult, PoolSpec, UsageError
from kvdefrag.allocator.testing import ManualFence, stamp_pages, wrong_pages

from .rig import Rig

MOST_NS_AT_REST = 2000


def holed(backend: str, freed: int = 4) -> Rig:
    """Twelve ids, of which the first ``freed`` are holes."""
    rig = Rig.of(backend, 17)
    rig.alloc(12)
    rig.free(list(range(1, freed + 1)))
    return rig


@pytest.mark.parametrize(
    ("budget", "moves"),
    [
        ({"max_moves": 3}, 3),
        ({"max_moves": 0}, 0),
        ({"max_bytes": 24}, 3),
        ({"max_bytes": 31}, 3),
        ({"max_bytes": 7}, 0),
        ({"max_moves": 3, "max_bytes": 16}, 2),
        ({"max_moves": 1, "max_bytes": 10**9}, 1),
    ],
)
def test_budget_while_a_forward_reads(backend, budget, moves):
    rig = holed(backend)
    fence = ManualFence()
    rig.arena.forward_launched(fence)
    assert rig.flush(**budget) == FlushResult(moves, 8 * moves, 0, moves, "budget")
    assert rig.holes() == 4 - moves
    fence.finish()
    assert rig.flush() == FlushResult(4 - moves, 8 * (4 - moves), moves, 0, "")


def test_budget_holds_for_the_sum_of_the_pools(backend):
    specs = PoolSpec("A", 8), PoolSpec("B", 24, grows="down")
    rig = Rig(backend, *specs, total_bytes=480)
    fence = ManualFence()
    for name in "AB":
        rig.alloc(8, name)
        rig.free([1, 2], name)
    rig.arena.forward_launched(fence, {"A": [8]})
    results = rig.arena.flush(max_moves=1)
    # A's top page must stay: the one move is left for B.
    assert results["A"] == FlushResult(0, 0, 0, 0, "forward")
    assert results["B"] == FlushResult(1, 24, 0, 1, "budget")
    fence.finish()
    results = rig.arena.flush(max_bytes=39)  # two pages of A are 16 bytes, which leaves 23 for B
    assert results["A"] == FlushResult(2, 16, 0, 0, "")
    assert results["B"] == FlushResult(0, 0, 1, 0, "budget")
    rig.verify()
    results = rig.arena.flush(max_bytes=24)
    assert (results["A"], results["B"].moves) == (FlushResult(), 1)
    rig.verify()


@pytest.mark.parametrize(
    ("budget", "moves"),
    [({"max_moves": 3}, [2, 1]), ({"max_bytes": 31}, [2, 1]), ({"max_moves": 2}, [2, 0])],
)
def test_what_the_first_pool_moved_is_gone_for_the_second(backend, budget, moves):
    rig = Rig.pair(backend, 30)
    for name in "AB":
        rig.alloc(8, name)
        rig.free([1, 2], name)
    results = rig.arena.flush(**budget)
    assert [result.moves for result in results.values()] == moves
    assert [result.stopped_by for result in results.values()] == ["", "budget"]


def test_urgent_flush_takes_no_limit(backend):
    rig = holed(backend)
    for limit in ({"max_moves": 1}, {"max_bytes": 0}):
        for owner in (rig.pool, rig.arena):
            with pytest.raises(UsageError, match="urgent"):
                owner.flush(urgent=True, **limit)


def hold(rig: Rig, *holds: str) -> list[object]:
    """Keep things where they are: a forward writes 11, a lease pins 9, moves are blocked."""
    handles: list[object] = []
    for name in holds:
        if name == "forward":
            rig.arena.forward_launched(ManualFence(), {"a": [11]})
        elif name == "lease":
            handles.append(rig.pool.lease([9]))
        elif name == "high lease":
            handles.append(rig.pool.lease([11]))
        elif name == "low lease":
            handles.append(rig.pool.lease([5]))
        else:
            handles.append(rig.arena.block_moves("test"))
    return handles


@pytest.mark.parametrize(
    ("holds", "budget", "moves", "stopped_by"),
    [
        ([], None, 4, ""),
        ([], 4, 4, ""),
        ([], 3, 3, "budget"),
        (["forward"], None, 1, "forward"),
        (["forward"], 1, 1, "forward"),  # more budget would not have helped
        (["forward"], 0, 0, "budget"),
        (["lease"], None, 3, "lease"),
        (["lease"], 2, 2, "budget"),
        (["low lease"], None, 4, ""),
        (["low lease"], 4, 4, ""),
        (["forward", "lease"], None, 1, "forward"),  # the higher one is met first
        (["forward", "high lease"], None, 1, "lease"),  # nobody can wait for it
        (["block"], None, 0, "blocked"),
        (["block"], 0, 0, "blocked"),
        (["block", "forward", "lease"], 0, 0, "blocked"),
    ],
)
def test_why_it_ended(backend, holds, budget, moves, stopped_by):
    rig = holed(backend)
    handles = hold(rig, *holds)
    result = rig.flush(max_moves=budget)
    assert (result.moves, result.stopped_by) == (moves, stopped_by)
    del handles


@pytest.mark.parametrize(
    ("holds", "moves", "stopped_by"),
    [
        (["forward"], 4, ""),
        (["lease"], 3, "lease"),
        (["forward", "lease"], 3, "lease"),
        (["block"], 0, "blocked"),
        (["block", "lease"], 0, "blocked"),
    ],
)
def test_why_an_urgent_flush_ended(backend, holds, moves, stopped_by):
    rig = holed(backend)
    handles = hold(rig, *holds)
    result = rig.flush(urgent=True)
    assert (result.moves, result.pending, result.stopped_by) == (moves, 0, stopped_by)
    del handles


def test_block_with_nothing_to_move_stops_nothing(backend):
    rig = Rig.of(backend, 17)
    rig.alloc(12)
    with rig.arena.block_moves("test"):
        assert rig.flush() == FlushResult()
        rig.free([11, 12])
        assert rig.flush() == FlushResult(0, 0, 2, 0, "")


def test_written_hole_under_a_block(backend):
    rig = Rig.of(backend, 17)
    rig.alloc(12)
    rig.arena.forward_launched(ManualFence(), {"a": [12]})
    rig.free([12])
    with rig.arena.block_moves("test"):
        assert rig.flush() == FlushResult(0, 0, 0, 0, "forward")
        rig.free([3])
        assert rig.flush() == FlushResult(0, 0, 0, 0, "blocked")


def test_nothing_to_do_touches_nothing(backend):
    fence = ManualFence()
    rig = holed(backend)
    rig.arena.forward_launched(fence)
    rig.flush()
    before = rig.arena.stats()
    for _ in range(3):
        assert rig.pool.flush() == FlushResult(pending=4)
        assert rig.arena.flush(max_moves=5) == {"a": FlushResult(pending=4)}
    fence.finish()
    rig.pool.flush()
    middle = rig.arena.stats()
    for urgent in (False, True):
        assert rig.pool.flush(urgent=urgent) == FlushResult()
        assert rig.arena.flush(urgent=urgent) == {"a": FlushResult()}
    after = rig.arena.stats()
    for one, other, flushes in ((before, middle, 1), (middle, after, 0)):
        assert other.flush_calls - one.flush_calls == flushes
        assert other.device_to_host_copies - one.device_to_host_copies == flushes
        assert other.launches - one.launches == flushes


@pytest.mark.parametrize("whole_arena", [False, True])
def test_flush_at_rest_takes_no_time(whole_arena):
    arena = Arena(160, [PoolSpec("a", 8), PoolSpec("b", 8, grows="down")], "cpu", "host")
    for pool in arena.pools.values():
        stamp_pages(pool, pool.alloc(5))
    fence = ManualFence()
    arena.forward_launched(fence, {"a": [1]})
    flush = arena.flush if whole_arena else arena["a"].flush

    def once() -> int:
        started = perf_counter_ns()
        flush()
        return perf_counter_ns() - started

    # The best of several rounds: a busy machine slows whole rounds.
    rounds = [median(once() for _ in range(500)) for _ in range(20)]
    assert min(rounds) < MOST_NS_AT_REST
    assert wrong_pages(arena["a"], arena["a"].virtual_to_physical[1:6]) == []
