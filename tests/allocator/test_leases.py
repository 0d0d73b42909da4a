"""Leases: pages of an outside reader or writer are neither moved nor reused before the release."""

import pytest
import torch

from kvdefrag import FlushResult, OutOfPages, UsageError
from kvdefrag.allocator.testing import ManualFence

from .rig import Rig, state_of


def eight(backend: str, grows: str = "up", **options: object) -> Rig:
    rig = Rig.of(backend, 9, grows, **options)
    rig.alloc(8)
    return rig


@pytest.mark.parametrize("grows", ["up", "down"])
def test_freed_page_is_not_reused_before_the_release(backend, grows):  # fault 36
    rig = eight(backend, grows)
    (place,) = rig.pages([2])
    lease = rig.pool.lease([2])
    rig.free([2])
    rig.free([5, 6])
    assert (rig.pending(), rig.holes(), rig.pool.available()) == (3, 0, 0)
    lease_of_another = rig.pool.lease([1])
    lease.release()
    rig.alloc(rig.pool.available())
    assert place in rig.pages(rig.live["a"])
    lease_of_another.release()


def test_alloc_until_full_beside_a_leased_page(backend):  # fault 36
    rig = Rig.of(backend, 9)
    rig.alloc(5)
    lease = rig.pool.lease([2])
    rig.free([2])
    v2p = rig.pages(rig.live["a"])
    while rig.pool.available():
        rig.flush(urgent=True)
        rig.alloc(1)
    assert 2 not in rig.pages(rig.live["a"])
    assert rig.pages(rig.live["a"])[:4] == v2p
    assert (rig.pool.live_pages, rig.pending()) == (7, 1)
    with pytest.raises(OutOfPages):
        rig.pool.alloc(1)
    lease.release()
    assert rig.pool.available() == 1
    assert rig.pages(rig.alloc(1)) == [2]


@pytest.mark.parametrize("freed", [False, True])
@pytest.mark.parametrize("urgent", [False, True])
def test_flush_stops_at_the_highest_leased_page(backend, urgent, freed):
    rig = Rig.of(backend, 17)
    rig.alloc(12)
    rig.free([1, 2, 3, 4, 6])
    lease = rig.pool.lease(torch.tensor([5, 10, 10], dtype=torch.int32))
    if freed:
        rig.free([10])
    for moves in (2, 0):
        result = rig.flush(urgent=urgent)
        assert (result.moves, result.pending, result.stopped_by) == (moves, freed, "lease")
    assert rig.pages([12, 11, 9, 5]) == [1, 2, 9, 5]
    assert rig.span() == 10
    lease.release()
    assert rig.flush(urgent=urgent).stopped_by == ""
    assert rig.span() == 7 - freed


def test_nested_leases_count(backend):  # fault 36
    rig = eight(backend)
    leases = [rig.pool.lease([2, 3]) for _ in range(3)]
    assert rig.arena.stats().pools["a"].leases == 3
    rig.free([2])
    for lease in leases:
        assert rig.pending() == 1
        assert rig.pool.available() == 0
        lease.release()
    assert (rig.pending(), rig.holes(), rig.pool.available()) == (0, 1, 1)
    assert rig.arena.stats().pools["a"].leases == 0


@pytest.mark.parametrize("first", [0, 1])
def test_pages_wait_for_every_lease_at_their_free(backend, first):
    """Overlapping leases and frees between them."""
    rig = eight(backend)
    rig.free([8])  # no lease yet: a hole at once
    leases = [rig.pool.lease([2])]
    rig.free([2])
    leases.append(rig.pool.lease([3]))
    rig.free([3, 7])
    later = rig.pool.lease([1])
    rig.free([6])
    assert (rig.holes(), rig.pending()) == (1, 4)
    leases[first].release()
    # [2] waits for the first lease alone, [3, 7] for two, [6] for all three.
    assert (rig.holes(), rig.pending()) == ((2, 3) if first == 0 else (1, 4))
    leases[1 - first].release()
    assert (rig.holes(), rig.pending()) == (4, 1)
    later.release()
    assert (rig.holes(), rig.pending()) == (5, 0)
    assert sorted(rig.pages(rig.alloc(5))) == [2, 3, 6, 7, 8]


@pytest.mark.parametrize("pinned", ["leased", "freed"])
def test_neighbours_have_the_room_beyond_the_present_span(backend, pinned):
    rig = Rig.pair(backend, 16)
    rig.alloc(6, "A")
    rig.alloc(8, "B")
    rig.free([1, 2, 3], "B")
    assert rig.arena["A"].available() == 4
    lease = rig.arena["B"].lease([4])
    if pinned == "freed":
        rig.free([4], "B")
    before = state_of(rig.arena)
    assert rig.arena["A"].available() == 1
    assert not rig.arena.fits({"A": 2})
    assert rig.arena["A"].try_alloc(2) is None
    assert state_of(rig.arena) == before
    # The other way round nothing is pinned: B can have all of A's room and its own holes.
    rig.free([6, 5], "A")
    assert rig.arena["B"].available() == 3 + 3
    lease.release()
    rig.alloc(rig.arena["A"].available(), "A")
    assert rig.arena["A"].available() == rig.arena["B"].available() == 0
    assert rig.arena["A"].live_pages + rig.arena["B"].live_pages == 15


def test_leases_on_both_pools(backend):
    rig = Rig.pair(backend, 20)
    for name in "AB":
        rig.alloc(8, name)
        rig.free([1, 2], name)
    with rig.arena["A"].lease([6]), rig.arena["B"].lease([8]):
        results = rig.arena.flush(urgent=True)
        assert results["A"] == FlushResult(2, 16, 0, 0, "")
        assert results["B"] == FlushResult(0, 0, 0, 0, "lease")
        rig.free([8], "A")
        rig.free([7], "B")
        assert [rig.pending(name) for name in "AB"] == [1, 1]
        rig.verify()
    assert [rig.pending(name) for name in "AB"] == [0, 0]
    rig.arena.flush(urgent=True)
    assert [rig.span(name) for name in "AB"] == [5, 5]
    rig.verify()


def test_clear_is_refused(backend):
    rig = Rig.pair(backend, 20)
    rig.alloc(4, "A")
    rig.alloc(4, "B")
    lease = rig.arena["B"].lease([2])
    rig.arena.forward_launched(ManualFence(), {"A": [1]})
    before = state_of(rig.arena)
    with pytest.raises(UsageError, match="clear: 1 leases hold pages of 'B'"):
        rig.arena.clear()
    assert state_of(rig.arena) == before
    lease.release()
    rig.arena.clear()
    assert rig.arena["A"].available() == 19


@pytest.mark.parametrize("bad", [[5, 2], [2, 5], [99, 5], [-1], [0, 3], [8, 2**62]])
def test_lease_of_an_id_that_is_not_allocated(backend, bad):
    """A UsageError once, at the next flush that finds holes; it holds the others."""
    rig = eight(backend)
    rig.free([2, 6])
    wrong = next(index for index, virtual in enumerate(bad) if virtual not in (3, 5, 8))
    lease = rig.pool.lease(torch.tensor(bad))
    before = state_of(rig.arena)
    with pytest.raises(UsageError, match=rf"virtual_ids\[{wrong}\]: a lease of pool 'a'"):
        rig.pool.flush()
    assert {**state_of(rig.arena), "call_number": 0} == {**before, "call_number": 0}
    good = torch.tensor([virtual for virtual in bad if virtual in (3, 5, 8)], dtype=torch.int64)
    places = rig.pages(good)
    result = rig.flush(urgent=True)
    assert rig.pages(good) == places
    assert result.stopped_by == ("lease" if 8 in bad else "")
    lease.release()
    rig.flush()
    assert rig.span() == 6


def test_lease_of_a_wrong_id_waits_for_holes_or_a_check(backend):
    rig = eight(backend)
    with rig.pool.lease(torch.tensor([9])):
        assert rig.pool.flush() == FlushResult()
        rig.pool.free([3])
        assert rig.pool.flush() == FlushResult(pending=1)
        with pytest.raises(UsageError, match="names an id that was not allocated"):
            rig.arena.check()


def test_lease_ends_with_an_exception(backend):
    rig = eight(backend)
    with pytest.raises(KeyError), rig.pool.lease([8]):  # noqa: PT012
        rig.free([2])
        raise KeyError
    assert rig.flush() == FlushResult(1, 8, 0, 0, "")


def test_second_release_is_an_error(backend):
    rig = eight(backend)
    lease = rig.pool.lease([2, 3])
    rig.free([2])
    with lease:
        lease.release()
    with pytest.raises(UsageError, match="the lease of 2 pages of pool 'a' was released before"):
        lease.release()
    assert (rig.holes(), rig.pending()) == (1, 0)


def test_empty_lease_pins_the_pool_alone(backend):
    rig = eight(backend)
    with rig.pool.lease([]):
        rig.free([2])
        assert rig.pending() == 1
    assert rig.holes() == 1


def test_lease_costs_one_launch(backend):
    rig = eight(backend)
    ids = torch.tensor([2, 3])
    before = rig.arena.stats()
    with rig.pool.lease(ids):
        pass
    after = rig.arena.stats()
    assert after.launches - before.launches == 1
    assert after.host_to_device_copies == before.host_to_device_copies


def test_refused_id_in_a_free_under_a_lease(backend):
    """Its void goes nowhere: the pages stay pending and come back, and no other."""
    rig = eight(backend)
    lease = rig.pool.lease([1])
    rig.pool.free(torch.tensor([4, 4, 0, 7]))
    rig.live["a"] = [1, 2, 3, 5, 6, 8]
    with pytest.raises(UsageError, match="virtual id 4"):
        rig.arena.check()
    rig.verify()
    assert (rig.pending(), rig.holes()) == (2, 0)
    lease.release()
    assert sorted(rig.pages(rig.alloc(2))) == [4, 7]


@pytest.mark.parametrize("lease_first", [False, True])
def test_lease_forward_and_block_together(backend, lease_first):
    """Each holds on its own, whichever ends first."""
    rig = Rig.of(backend, 17)
    rig.alloc(12)
    fence = ManualFence()
    rig.arena.forward_launched(fence, {"a": [12, 8]})
    lease = rig.pool.lease([8])
    block = rig.arena.block_moves("test")
    rig.free([8, 1])  # leased, and written by the forward
    for urgent in (False, True):
        result = rig.flush(urgent=urgent)
        assert (result.moves, result.pending, result.stopped_by) == (0, 2, "")
    assert fence.waits == 0
    if lease_first:
        lease.release()
        assert rig.flush() == FlushResult(0, 0, 0, 0, "blocked")
        assert rig.holes() == 2
        block.release()
        assert rig.flush().stopped_by == "forward"
        assert rig.holes() == 2
        fence.finish()
    else:
        fence.finish()
        block.release()
        assert rig.flush() == FlushResult(pending=2)
        lease.release()
    assert rig.flush().moves == 2
    assert rig.pages([12, 11]) == [1, 8]


def test_move_under_a_forward_then_lease(backend):
    """Pending pages wait for their fence whatever is leased afterwards."""
    rig = Rig.of(backend, 17)
    rig.alloc(12)
    rig.free([2])
    fence = ManualFence()
    rig.arena.forward_launched(fence)
    rig.flush()
    lease = rig.pool.lease([12])
    assert rig.pages([12]) == [2]
    fence.finish()
    rig.free([12])
    assert rig.flush() == FlushResult(0, 0, 1, 1, "")
    assert rig.span() == 11
    lease.release()
    assert rig.flush().moves == 1
