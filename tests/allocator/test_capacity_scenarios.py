"""Reported faults in capacity: what is promised, what is granted, and what a refusal leaves."""

import pytest

from kvdefrag import FlushResult, OutOfPages, PoolSpec

from .rig import Rig, by_backend, state_of


def units_of_ten(backend: str, **b_options: int) -> Rig:
    """70 units of 8 bytes. A: one unit a page, pages 10..50 live. B: ten a page, page 6 live."""
    specs = PoolSpec("A", 8), PoolSpec("B", 80, grows="down", **b_options)
    rig = Rig(backend, *specs, total_bytes=70 * 8)
    rig.alloc(41, "A")
    rig.alloc(1, "B")
    return rig


def test_a_pool_too_small_for_one_request(backend):  # fault 13
    rig = Rig.of(backend, 5)
    before = state_of(rig.arena)
    assert rig.pool.available() == 4
    with pytest.raises(OutOfPages) as raised:
        rig.pool.alloc(5)
    assert (raised.value.asked, raised.value.available) == (5, 4)
    assert state_of(rig.arena) == before
    assert rig.pages(rig.alloc(4)) == [1, 2, 3, 4]


def test_refusal_takes_nothing(backend):  # fault 23
    rig = Rig.pair(backend, 10, virtual_pages=6)
    rig.alloc(3, "A")
    rig.alloc(1, "B")
    rig.free([2], "A")
    rig.free([1], "B")
    before = state_of(rig.arena)
    for _ in range(by_backend(backend, 1000, 50)):
        # Too few ids, too few bytes, and a second pool that finds the first one's pages taken.
        assert rig.arena["A"].try_alloc(5) is None
        assert rig.arena["B"].try_alloc(8) is None
        with pytest.raises(OutOfPages):
            rig.arena.alloc_many({"A": 1, "B": 7})
        assert state_of(rig.arena) == before
    rig.alloc(4, "A")
    rig.alloc(3, "B")


def test_shortfall_goes_to_the_neighbour(backend):  # fault 25
    rig = units_of_ten(backend)
    assert rig.pages([1, 41], "A") == [10, 50]
    assert rig.pages([1], "B") == [6]
    assert rig.arena["B"].available() == 0
    rig.free([1], "A")
    assert rig.arena["B"].available() == 1
    assert rig.pages(rig.alloc(1, "B"), "B") == [5]
    assert rig.pages([41], "A") == [10]
    assert rig.span("A") == 40


def test_no_bytes_make_up_for_ids(backend):  # fault 25
    rig = units_of_ten(backend, virtual_pages=1)
    before = rig.arena.stats()
    rig.free(rig.arena["A"].virtual_to_physical.new_tensor(range(1, 42)), "A")
    assert rig.arena["B"].available() == 0
    assert not rig.arena.fits({"B": 1})
    assert rig.arena["B"].try_alloc(1) is None
    assert rig.arena.stats().flush_calls == before.flush_calls


def test_eviction_stops_when_it_fits(backend):  # fault 26
    rig = Rig.pair(backend, 12)
    rig.alloc(6, "A")
    rig.alloc(4, "B")
    before = state_of(rig.arena)
    evicted = 0
    for name, victim in (("A", 2), ("B", 3), ("A", 4), ("B", 1)):
        if rig.arena.fits({"A": 3}):
            break
        rig.free([victim], name)
        evicted += 1
    assert evicted == 2
    assert state_of(rig.arena) != before
    rig.alloc(3, "A")


def test_asking_changes_nothing(backend):  # fault 26
    rig = Rig.pair(backend, 12)
    rig.alloc(6, "A")
    rig.alloc(4, "B")
    rig.free([2, 3], "A")
    before, statistics = state_of(rig.arena), rig.arena.stats()
    for asked in ({}, {"A": 1}, {"A": 3}, {"A": 4}, {"A": 2, "B": 2}, {"B": 1}):
        rig.arena.fits(asked)
    rig.arena["A"].available()
    assert state_of(rig.arena) == before
    assert rig.arena.stats() == statistics


def test_neighbour_is_packed_to_the_need_only(backend):  # fault 4, moves allowed
    rig = Rig.pair(backend, 16)
    rig.alloc(6, "A")
    rig.alloc(8, "B")  # pages 15 down to 8
    rig.free([2, 4, 6], "B")  # pages 14, 12 and 10
    assert rig.arena["A"].available() == 4
    rig.alloc(4, "A")
    assert rig.pages([8, 7], "B") == [14, 12]
    assert rig.arena.stats().moves == 2
    assert rig.span("B") == 5


def test_need_leaves_the_other_holes(backend):
    rig = Rig.pair(backend, 16)
    rig.alloc(6, "A")
    rig.alloc(8, "B")
    rig.free([2, 4, 6], "B")
    rig.alloc(2, "A")
    assert rig.arena.stats().moves == 1
    assert (rig.span("B"), rig.holes("B")) == (7, 2)


def test_own_holes_are_used_before_anything_moves(backend):
    rig = Rig.pair(backend, 12)
    rig.alloc(6, "A")
    rig.alloc(4, "B")
    rig.free([2, 3], "A")
    rig.free([1, 2], "B")
    rig.alloc(3, "A")
    assert rig.arena.stats().flush_calls == 0


def test_joint_allocation_packs_both(backend):
    rig = Rig.pair(backend, 12)
    rig.alloc(6, "A")
    rig.alloc(5, "B")
    rig.free([1, 2, 3, 4], "A")
    rig.free([1, 2, 3], "B")
    assert rig.arena.fits({"A": 2, "B": 5})
    ids = rig.arena.alloc_many({"A": 2, "B": 5})
    for name, granted in ids.items():
        rig.got(name, granted)
    rig.verify()
    assert (rig.span("A"), rig.span("B")) == (4, 7)


def test_flush_of_all_pools_reads_back_once(backend):
    rig = Rig.pair(backend, 24)
    rig.alloc(8, "A")
    rig.alloc(8, "B")
    rig.free(rig.arena["A"].virtual_to_physical.new_tensor([1, 2]), "A")
    rig.free(rig.arena["B"].virtual_to_physical.new_tensor([1, 8]), "B")
    before = rig.arena.stats()
    results = rig.arena.flush(urgent=True)
    after = rig.arena.stats()
    rig.verify()
    assert results == {"A": FlushResult(2, 16, 0, 0, ""), "B": FlushResult(1, 8, 1, 0, "")}
    assert after.device_to_host_copies - before.device_to_host_copies == 1
    assert after.host_to_device_copies - before.host_to_device_copies == 1
    assert after.layout_version - before.layout_version == 1


@pytest.mark.parametrize(("limits", "moves"), [({"max_moves": 3}, 3), ({"max_bytes": 39}, 4)])
def test_budget_holds_for_the_sum(backend, limits, moves):
    rig = Rig.pair(backend, 24)
    rig.alloc(8, "A")
    rig.alloc(8, "B")
    rig.free([1, 2, 3], "A")
    rig.free([1, 2, 3], "B")
    results = rig.arena.flush(**limits)
    rig.verify()
    assert sum(result.moves for result in results.values()) == moves
    assert [result.stopped_by for result in results.values()] == ["", "budget"]
