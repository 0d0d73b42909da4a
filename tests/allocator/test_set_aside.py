"""What a repair sets aside, until its report is released."""

import pytest
import torch

from kvdefrag import UsageError

from .damaged_arena import P2V, V2P, DamagedRig


@pytest.mark.parametrize("table", [V2P, P2V])
def test_page_set_aside_stays_under_its_lease(backend, table):
    """The report gives it back, the lease has yet to."""
    rig = DamagedRig(backend, 1)
    lease = rig.pool.lease([8])
    getattr(rig.pool, table)[8] = -1
    report = rig.arena.repair()
    rig.live["A"].remove(8)
    report.release()
    rig.verify()
    rig.alloc(rig.pool.available(), "A")
    assert 8 not in rig.pages(rig.live["A"], "A")
    lease.release()
    assert rig.pages(rig.alloc(1, "A"), "A") == [8]


@pytest.mark.parametrize("report_first", [False, True])
def test_page_set_aside_stays_pending_on_its_fence(backend, report_first):
    rig = DamagedRig(backend, 1, pending=True)
    rig.pool.physical_to_virtual[12] = 3
    report = rig.arena.repair()
    assert report.pools["A"].ambiguous == ((12, (3,)),)
    ends = [report.release, rig.fence.finish]
    for end in ends if report_first else reversed(ends):
        assert rig.flush("A", max_moves=0).pending == 1
        end()
    assert rig.flush("A", max_moves=0).pending == 0
    assert rig.span("A") == 11


@pytest.mark.parametrize("first", [0, 1])
def test_each_report_gives_back_its_own(backend, first):
    rig = DamagedRig(backend, 1)
    reports = []
    for virtual in (8, 5):
        rig.pool.virtual_to_physical[virtual] = -1
        reports.append(rig.arena.repair())
        rig.live["A"].remove(virtual)
    free_ids = rig.arena.stats().pools["A"].free_ids
    for index, report in enumerate((reports[first], reports[1 - first])):
        report.release()
        rig.verify()
        assert rig.arena.stats().pools["A"].free_ids == free_ids + index + 1
        assert rig.pending("A") == 1 - index


def test_refused_id_while_pages_are_set_aside(backend):
    rig = DamagedRig(backend, 1)
    rig.pool.virtual_to_physical[8] = -1
    report = rig.arena.repair()
    rig.live["A"].remove(8)
    rig.pool.free(torch.tensor([8]))
    with pytest.raises(UsageError, match="virtual id 8"):
        rig.arena.check()
    rig.verify()
    assert 8 not in rig.alloc(rig.pool.available(), "A").tolist()
    report.release()
    assert rig.alloc(1, "A").tolist() == [8]


def test_neighbour_of_pages_set_aside(backend):
    """They do not move: the neighbour has the room beyond the present span, and no more."""
    rig = DamagedRig(backend, 2)
    rig.pool.virtual_to_physical[8] = -1
    before = rig.arena["B"].available()
    report = rig.arena.repair()
    rig.live["A"].remove(8)
    assert rig.arena["B"].available() == before - 2  # two holes below page 11
    rig.flush("A", urgent=True)
    assert rig.pages([10, 11], "A") == [9, 2]
    rig.alloc(rig.arena["B"].available(), "B")
    report.release()
    rig.flush("A", urgent=True)
    rig.alloc(rig.arena["B"].available(), "B")
    assert rig.arena["A"].available() == rig.arena["B"].available() == 0


@pytest.mark.parametrize("leased", [False, True])
def test_clear_works_as_well(backend, leased):
    rig = DamagedRig(backend, 2, pending=True)
    rig.pool.virtual_to_physical[8] = 5
    report = rig.arena.repair()
    lease = rig.pool.lease([4]) if leased else None
    if lease is not None:
        with pytest.raises(UsageError, match="clear: 1 leases"):
            rig.arena.clear()
        lease.release()
    rig.arena.clear()
    rig.live = {"A": [], "B": []}
    rig.verify()
    report.release()
    rig.verify()
    assert rig.alloc(30, "A").tolist() == list(range(1, 31))
    assert rig.pages(rig.live["A"], "A") == list(range(1, 31))
