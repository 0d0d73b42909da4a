"""What each call costs in launches, copies and reads, watched from outside and by the counters."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kvdefrag import ArenaStats
from kvdefrag.allocator.testing import stamp_pages, wrong_pages

from .rig import Rig
from .watching import Watch, watching

FLUSH_LAUNCHES = 3
"""Read-back, validation, copy with rebind; one more where holes remain."""


def counted(stats: ArenaStats) -> tuple[int, int, int]:
    return stats.launches, stats.device_to_host_copies, stats.host_to_device_copies


def cost(rig: Rig, watch: Watch, call: Callable[[], object]) -> tuple[int, int, int]:
    """Launches, device-to-host and host-to-device copies: as seen, which the counters must say."""
    before = counted(rig.arena.stats())
    watch.reset()
    call()
    after = counted(rig.arena.stats())
    assert watch.counts() == tuple(now - then for now, then in zip(after, before, strict=True))
    assert all(len(grid) == 1 for grid in watch.grids)  # only x takes more than 65,535 programs
    return watch.counts()


def test_regression_case_of_the_field():
    rig = Rig.of("triton", 17)
    pool = rig.pool
    with watching(rig.arena):
        ids = pool.alloc(12)
        stamp_pages(pool, ids)
        pool.free(ids[1:5])
        result = pool.flush(urgent=True)
    assert result.moves == 4
    kept = torch.cat([ids[:1], ids[5:]])
    assert wrong_pages(pool, kept) == []
    places = pool.virtual_to_physical[kept]
    assert torch.equal(pool.physical_to_virtual[places], kept)
    assert sorted(places.tolist()) == list(range(1, 9))
    rig.arena.check(deep=True)


@pytest.mark.parametrize("urgent", [True, False])
@pytest.mark.parametrize("moves", [16, 1600])  # fault 1
def test_flush_costs_the_same_whatever_moves(moves, urgent):
    rig = Rig.of("triton", 4 * moves + 1)
    ids = rig.pool.alloc(4 * moves)
    with watching(rig.arena) as watch:
        rig.pool.free(ids[::2])
        assert cost(rig, watch, lambda: rig.pool.flush(urgent=urgent)) == (FLUSH_LAUNCHES, 1, 1)
    assert rig.arena.stats().moves == moves


def test_flush_in_a_budget_writes_the_remaining_holes():
    rig = Rig.of("triton", 65)
    ids = rig.pool.alloc(64)
    with watching(rig.arena) as watch:
        rig.pool.free(ids[::2])
        flush = cost(rig, watch, lambda: rig.pool.flush(max_moves=3))
    assert flush == (FLUSH_LAUNCHES + 1, 1, 1)


def test_absorbing_flush_sends_nothing_up():
    rig = Rig.of("triton", 9)
    ids = rig.pool.alloc(8)
    with watching(rig.arena) as watch:
        rig.pool.free(ids[6:])
        assert cost(rig, watch, rig.pool.flush) == (1, 1, 0)


def test_flush_with_nothing_to_do_does_nothing():
    rig = Rig.of("triton", 9)
    rig.pool.alloc(8)
    with watching(rig.arena) as watch:
        assert cost(rig, watch, lambda: rig.pool.flush(urgent=True)) == (0, 0, 0)
        assert cost(rig, watch, rig.arena.flush) == (0, 0, 0)
        assert watch.allocations == 0


def test_one_read_back_and_one_upload_for_two_pools():
    rig = Rig.pair("triton", 40)
    ids = {name: rig.arena[name].alloc(16) for name in "AB"}
    with watching(rig.arena) as watch:
        for name in "AB":
            rig.arena[name].free(ids[name][::2])
        flush = cost(rig, watch, lambda: rig.arena.flush(urgent=True))
    assert flush == (2 * FLUSH_LAUNCHES - 1, 1, 1)


@pytest.mark.parametrize("page_count", [1, 700])
def test_alloc_free_translate_take_one_launch(page_count):
    rig = Rig.of("triton", 801, page_size=16)
    pool = rig.pool
    granted = []
    with watching(rig.arena) as watch:
        for _ in range(2):  # from the frontier, then from the hole list
            assert cost(rig, watch, lambda: granted.append(pool.alloc(page_count))) == (1, 0, 0)
            ids = granted.pop()
            assert cost(rig, watch, lambda ids=ids: pool.translate(ids)) == (1, 0, 0)
            assert cost(rig, watch, lambda ids=ids: pool.translate_tokens(ids)) == (1, 0, 0)
            assert cost(rig, watch, lambda ids=ids: pool.free(ids)) == (1, 0, 0)


def test_alloc_from_holes_and_frontier_takes_one_launch():
    rig = Rig.of("triton", 17)
    ids = rig.pool.alloc(8)
    rig.pool.free(ids[:2])
    rig.pool.flush(max_moves=0)
    rig.pool.free(ids[4:6])
    with watching(rig.arena) as watch:
        assert cost(rig, watch, lambda: rig.pool.alloc(7)) == (1, 0, 0)


def test_alloc_in_need_flushes_once():
    rig = Rig.pair("triton", 12)
    rig.arena["A"].alloc(6)
    ids = rig.arena["B"].alloc(4)
    with watching(rig.arena) as watch:
        rig.arena["B"].free(ids[:2])
        alloc = cost(rig, watch, lambda: rig.arena["A"].alloc(2))
    assert alloc == (FLUSH_LAUNCHES + 1 + 1, 1, 1)


@pytest.mark.parametrize("question", ["available", "fits", "stats", "live_pages"])
def test_questions_touch_no_tensor(question):
    rig = Rig.pair("triton", 12)
    ids = rig.arena["B"].alloc(4)
    rig.arena["B"].free(ids[1:3])
    questions = {
        "available": rig.arena["A"].available,
        "fits": lambda: rig.arena.fits({"A": 3, "B": 1}),
        "stats": rig.arena.stats,
        "live_pages": lambda: rig.arena["B"].live_pages,
    }
    with watching(rig.arena) as watch:
        assert cost(rig, watch, questions[question]) == (0, 0, 0)
        assert watch.allocations == 0


def script(backend: str) -> ArenaStats:
    """A bit of everything."""
    rig = Rig.pair(backend, 40, page_size=4)
    low, high = rig.arena["A"], rig.arena["B"]
    ids, others = low.alloc(20), high.alloc(15)
    low.free(ids[2:9:2])
    low.flush(max_moves=1)
    high.free([1, 2, 3])
    low.alloc(7)
    rig.arena.alloc_many({"A": 1, "B": 2})
    assert low.try_alloc(30) is None
    low.translate(ids)
    low.translate_tokens([5, 6, 7])
    high.free(others[5:].to(torch.int32))
    rig.arena.flush(max_bytes=30)
    high.flush(urgent=True)
    low.free(ids[:1])
    rig.arena.prewarm()
    rig.arena.flush(urgent=True)
    rig.arena.check()
    return replace(rig.arena.stats(), flush_host_ns=0)


def test_counters_agree_between_backends():
    assert script("host") == script("triton")
