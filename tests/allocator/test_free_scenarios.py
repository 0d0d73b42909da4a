"""Reported faults in free: what it costs, and what a wrong id does."""

import numpy as np
import pytest
import torch

from kvdefrag import UsageError

from .rig import Rig, by_backend


def copies(rig: Rig) -> tuple[int, int]:
    stats = rig.arena.stats()
    return stats.device_to_host_copies, stats.host_to_device_copies


def guard_tables(rig: Rig, guard: int = 77) -> list[torch.Tensor]:
    """Put the tables of the pool into larger memory; returns that memory."""
    table, backend = rig.pool._band.table, rig.arena._shared.backend
    memory = []
    for name, short in (("virtual_to_physical", "v2p"), ("physical_to_virtual", "p2v")):
        rows = getattr(table, name)
        memory.append(torch.full((rows.numel() + 2,), guard))
        memory[-1][1:-1] = rows
        setattr(table, name, memory[-1][1:-1])
        setattr(table, short, backend.operand(memory[-1][1:-1]))
    return memory


def test_free_of_a_run_of_pages(backend):  # fault 15: tokens 32..79 are pages 2, 3 and 4
    rig = Rig.of(backend, 9, page_size=16)
    ids = rig.alloc(8)
    before = rig.arena.stats()
    rig.pool.free(ids[1:4])
    after = rig.arena.stats()
    assert after.launches - before.launches == 1
    assert after.device_to_host_copies == before.device_to_host_copies
    assert after.host_to_device_copies == before.host_to_device_copies
    assert rig.pages(range(9)) == [0, 1, -1, -1, -1, 5, 6, 7, 8]
    assert rig.holes() == 3


def test_free_of_a_set_is_the_free_of_its_distinct_ids(backend):  # fault 15
    rng = np.random.default_rng(15)
    for _ in range(by_backend(backend, 1000, 12)):
        ids = torch.from_numpy(rng.integers(-1, 12, rng.integers(1, 8)))
        rig, reference = Rig.of(backend, 9), Rig.of(backend, 9)
        for side in (rig, reference):
            side.pool.alloc(8)
        good = ids.unique()
        reference.pool.free(good[(good >= 1) & (good <= 8)])
        rig.pool.free(ids)
        if len(good) < len(ids) or good[0] < 1 or good[-1] > 8:
            with pytest.raises(UsageError):
                rig.arena.check()
        rig.arena.check(deep=True)
        for name in ("virtual_to_physical", "physical_to_virtual"):
            assert torch.equal(getattr(rig.pool, name), getattr(reference.pool, name))
        counts = [(side.pool.live_pages, side.span(), side.holes()) for side in (rig, reference)]
        assert counts[0] == counts[1]


def test_large_free_and_idle_flush_in_copies(backend):  # fault 16
    rig = Rig.of(backend, 641, page_size=16)
    ids = rig.pool.alloc(640)
    rig.pool.free(ids[:512])
    assert copies(rig) == (0, 0)
    assert rig.pool.flush(max_moves=64).moves == 64
    assert copies(rig) == (1, 1)


def test_alloc_free_translate_copy_nothing(backend):  # faults 14 and 16
    rig = Rig.of(backend, 9)
    ids = rig.pool.alloc(8)
    rig.pool.free(ids[2:5])
    rig.pool.alloc(2)
    rig.pool.translate(ids)
    rig.pool.translate_tokens(ids)
    assert copies(rig) == (0, 0)


def test_second_free_never_aliases(backend):  # fault 18
    rig = Rig.of(backend, 9)
    rig.alloc(7)
    first = rig.pool.alloc(1)
    rig.pool.free(first)
    rig.pool.free(first)
    pages = rig.pool.translate(torch.cat([rig.pool.alloc(1), rig.pool.alloc(1)])).tolist()
    assert pages[0] == 0 or pages[1] == 0 or pages[0] != pages[1]
    assert not set(pages) & set(range(1, 8))
    with pytest.raises(UsageError, match="virtual id 8"):
        rig.arena.check()
    rig.arena.check(deep=True)
    bound = (rig.pool.virtual_to_physical[1:] > 0).sum()
    assert rig.pool.live_pages == bound


@pytest.mark.parametrize("ids", [[3, 3], [3, -1, 5], [0, 3], [3, 9]])
def test_refused_ids_write_in_no_row(backend, ids):  # fault 18
    rig = Rig.of(backend, 9)
    memory = guard_tables(rig)
    rig.pool.alloc(8)
    rig.pool.free(torch.tensor(ids))
    for words in memory:
        assert words[0] == words[-1] == 77
    # Row -1 from the start of a table is its last one.
    assert rig.pool.physical_to_virtual[8] == rig.pool.virtual_to_physical[8] == 8
    freed = {virtual for virtual in ids if 1 <= virtual <= 8}
    assert rig.pages(range(1, 9)) == [-1 if row in freed else row for row in range(1, 9)]


def test_freed_pages_are_handed_out_again(backend):
    rig = Rig.of(backend, 9)
    rig.alloc(8)
    rig.free([2, 5])
    assert rig.pages(rig.alloc(2)) == [2, 5]
    assert rig.span() == 8


def test_known_holes_go_before_newer_ones(backend):
    rig = Rig.of(backend, 12)
    rig.alloc(9)
    rig.free([6])
    rig.free([3])
    rig.flush(max_moves=0)
    rig.free([1])
    assert rig.pages(rig.alloc(1)) == [3]
    assert rig.pages(rig.alloc(3)) == [6, 1, 10]


@pytest.mark.parametrize(("grows", "pages"), [("up", range(1, 9)), ("down", range(11, 3, -1))])
def test_fresh_pages_come_from_the_frontier_in_order(backend, grows, pages):
    rig = Rig.of(backend, 12, grows)
    ids = rig.alloc(8)
    assert ids.tolist() == list(range(1, 9))
    assert rig.pages(ids) == list(pages)
