"""arena.repair(): every injected fault is named, and what is certain stays; nothing is guessed."""

import pytest
import torch

from kvdefrag import CorruptState, UsageError
from kvdefrag.allocator.testing import ManualFence

from .damaged_arena import DAMAGES, P2V, V2P, DamagedRig, guards_intact
from .rig import Rig, state_of

SMALL = (
    "two ids on one page", "v2p huge", "p2v negative", "p2v of a hole", "p2v sink row",
    "live page in the hole list", "duplicate free id", "span counter low",
)  # fmt: skip
HAZARDS = [(False, False), (True, False), (False, True), (True, True)]
CASES = [
    *(("host", name, 1, False, False) for name in DAMAGES),
    *(("host", name, 2, True, True) for name in DAMAGES),
    *(("triton", name, 2, True, True) for name in SMALL),
]


def found(rig: Rig) -> list[str]:
    with pytest.raises(CorruptState) as raised:
        rig.arena.check(deep=True)
    return raised.value.violations


@pytest.mark.parametrize(("backend", "name", "pools", "pending", "leased"), CASES)
def test_damage_is_named_and_repaired(backend, name, pools, pending, leased):  # fault 14
    damage = DAMAGES[name]
    rig = DamagedRig(backend, pools, pending, leased)
    homes, numbers = rig.homes(), rig.numbers()
    damage.inject(rig.pool._band)

    violations = found(rig)
    finding = damage.finding.format(**numbers)
    assert any("pool 'A': " in text and finding in text for text in violations)
    # What B is promised follows from A.
    assert not any("pool 'B'" in text for text in violations if not text.startswith("capacity"))

    report = rig.arena.repair()
    assert report.changed
    assert set(report.pools["A"].violations) <= set(violations)
    if pools == 2:
        assert report.pools["B"].before == report.pools["B"].after
        assert (report.pools["B"].changed_rows, report.pools["B"].ambiguous) == (0, ())
    ambiguous = report.pools["A"].ambiguous
    doubtful_ids = {virtual for entry in ambiguous for virtual in entry.virtual_ids}
    assert (len(ambiguous) > 0) == (report.pools["A"].changed_rows > 0) or "sink" in name
    assert set(damage.doubtful) == doubtful_ids & set(rig.live["A"])
    for virtual in damage.doubtful:
        rig.live["A"].remove(virtual)
        del homes["A"][virtual]
    rig.verify()
    assert rig.homes() == homes

    kept_out = {entry.page for entry in ambiguous} | ({11} if leased else set())
    rig.alloc(rig.pool.available(), "A")
    assert not kept_out & set(rig.pages(rig.live["A"], "A"))
    assert not doubtful_ids & set(rig.live["A"])

    before = rig.pool.available()
    report.release()
    rig.verify()
    assert rig.pool.available() >= before
    if rig.lease is not None:
        rig.lease.release()
    rig.fence.finish()
    rig.alloc(rig.pool.available(), "A")
    assert rig.span("A") == (24 if pools == 1 else 36 - 1 - 5)
    assert {entry.page for entry in ambiguous} & set(range(1, 25)) <= set(
        rig.pages(rig.live["A"], "A")
    )
    assert len(rig.live["A"]) == rig.span("A")
    with pytest.raises(UsageError, match="the report was released before"):
        report.release()


@pytest.mark.parametrize("pools", [1, 2])
@pytest.mark.parametrize(("pending", "leased"), HAZARDS)
def test_repair_of_a_sound_arena_changes_nothing(backend, pools, pending, leased):
    rig = DamagedRig(backend, pools, pending, leased)
    if not leased:
        rig.free([11], "A")  # a hole at the frontier
    before = state_of(rig.arena)
    report = rig.arena.repair()
    assert not report.changed
    for pool in report.pools.values():
        assert (pool.violations, pool.changed_rows, pool.ambiguous) == ((), 0, ())
        assert pool.before == pool.after
    assert state_of(rig.arena) == before
    report.release()
    assert state_of(rig.arena) == before
    rig.verify()


def test_report_tells_the_counts(backend):
    rig = DamagedRig(backend, 1)
    rig.pool._band.live += 3
    rig.pool.virtual_to_physical[8] = 5
    report = rig.arena.repair().pools["A"]
    assert (report.before.live_pages, report.after.live_pages) == (12, 7)
    assert (report.after.hole_pages, report.after.pending_pages) == (2, 2)
    assert (report.after.span_pages, report.after.free_ids) == (11, 24 - 7 - 2)
    assert report.ambiguous == ((5, (5, 8)), (8, (8,)))
    assert report.changed_rows == 4  # both rows of 5 and 8


def test_pending_page_that_is_live_as_well(backend):  # fault 14
    """What the tables say together holds: the page is live, and pending no more."""
    rig = DamagedRig(backend, 1, pending=True)
    v2p, p2v = rig.pool.virtual_to_physical, rig.pool.physical_to_virtual
    rig.pool.pages[12] = rig.pool.pages[3]
    v2p[12], p2v[12], p2v[3] = 12, 12, -1
    assert any("page 12 is pending but bound to id 12" in text for text in found(rig))
    report = rig.arena.repair().pools["A"]
    assert (report.changed_rows, report.ambiguous) == (0, ())
    assert (report.before.pending_pages, report.after.pending_pages) == (1, 0)
    rig.verify()
    assert rig.pages([12], "A") == [12]
    rig.alloc(rig.pool.available(), "A")


@pytest.mark.parametrize("ids", [[4, 4], [0, 5], [20, 2**62, 6]])
def test_refused_ids_leave_no_trace(backend, ids):
    rig = DamagedRig(backend, 2)
    rig.pool.free(torch.tensor(ids))
    rig.live["A"] = [virtual for virtual in rig.live["A"] if virtual not in ids]
    homes = rig.homes()
    report = rig.arena.repair()
    assert report.changed
    assert report.pools["A"].ambiguous == ()
    rig.verify()
    assert rig.homes() == homes
    assert rig.arena.check() is None


CALLS = {
    "urgent flush": lambda rig: rig.pool.flush(urgent=True),
    "idle flush": lambda rig: rig.arena.flush(),
    "free": lambda rig: rig.pool.free([10]),
    "alloc": lambda rig: rig.pool.alloc(2),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(("pools", "pending"), [(1, False), (2, True)])
def test_call_that_ran_into_a_fault_is_undone(backend, call, pools, pending):
    """The tables are whole again, as after a bit that flipped for a moment: so is all the rest."""
    rig = DamagedRig(backend, pools, pending)
    homes = rig.homes()
    v2p, p2v = (getattr(rig.pool, name) for name in (V2P, P2V))
    rows = [(v2p, 11), (v2p, 10), (p2v, 2), (p2v, 9)]
    before = [(table, row, int(table[row])) for table, row in rows]
    for table, row, value in before:
        table[row] = 6 if value == -1 else 4
    rig.arena._shared.record.mirror = rig.arena._shared.record.mirror.copy()
    call(rig)
    for table, row, value in before:
        table[row] = value
    with pytest.raises(CorruptState):
        rig.arena.check()
    with pytest.raises(CorruptState):
        rig.pool.alloc(1)
    report = rig.arena.repair()
    assert report.changed
    assert all(pool.changed_rows == 0 for pool in report.pools.values())
    assert rig.homes() == homes
    rig.verify()
    rig.fence.finish()
    rig.flush("A", urgent=True)
    assert (rig.span("A"), rig.holes("A"), rig.pending("A")) == (9, 0, 0)
    rig.alloc(rig.pool.available(), "A")


def test_way_on_after_a_finding_in_the_hole_list(backend):
    rig = DamagedRig(backend, 2, pending=True)
    rig.pool._band.holes.buffer[0] = 2**62
    with pytest.raises(CorruptState, match="in the hole list"):
        rig.arena.flush()
    with pytest.raises(CorruptState, match="in the hole list"):
        rig.pool.available()
    rig.arena.repair()
    rig.verify()
    assert rig.flush("A", urgent=True).moves == 2


def test_pools_that_claim_the_same_bytes_are_no_guess(backend):
    rig = DamagedRig(backend, 2)
    rig.pool.virtual_to_physical[20] = 33
    rig.pool.physical_to_virtual[33] = 20
    assert any("bound outside the band" in text for text in found(rig))
    with pytest.raises(CorruptState, match="bytes are disjoint"):
        rig.arena.repair()
    with pytest.raises(CorruptState, match="bytes are disjoint"):
        rig.pool.alloc(1)
    rig.arena.clear()
    rig.live = {"A": [], "B": []}
    rig.verify()
    assert guards_intact(rig.tables)


def test_a_repair_lets_the_stream_wait_for_forwards(backend):
    rig = DamagedRig(backend, 1)
    fence = ManualFence()
    rig.arena.forward_launched(fence, {"A": [11]})
    rig.arena.repair()
    assert fence.waits == 0  # nothing was wrong
    rig.pool._band.holes.buffer[rig.pool._band.holes.head] = -3
    rig.arena.repair()
    assert fence.waits == 1
    assert rig.flush("A").moves == 2
