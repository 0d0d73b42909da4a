"""Tables that disagree: nothing moves, nothing is overwritten, and everybody is told."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from kvdefrag import CorruptState, PoolSpec
from kvdefrag.allocator.faults import JOURNAL_CALLS
from kvdefrag.allocator.testing import ManualFence
from kvdefrag.kernels.record import CORRUPT, RECORD_WORDS

from .rig import Rig, bytes_of, state_of

V2P, P2V = "virtual_to_physical", "physical_to_virtual"
# Pages 2 and 3 are holes, so that 8 goes to 2 and 7 to 3. The row that is flipped, and the finding.
FLIPS = [
    (V2P, 8, 5, "v2p and p2v disagree", 8, 2),
    (V2P, 7, -1, "v2p and p2v disagree", 7, 3),
    (V2P, 8, 2**40, "v2p and p2v disagree", 8, 2),
    (P2V, 8, -1, "physical page has no owner", 8, 2),
    (P2V, 7, 6, "v2p and p2v disagree", 7, 3),
    (P2V, 8, 2**62, "v2p and p2v disagree", 8, 2),
    (P2V, 8, -7, "v2p and p2v disagree", 8, 2),
    (P2V, 2, 5, "physical page already has an owner", 8, 2),
]
GUARDED: dict[str, Callable[[Rig], object]] = {
    "alloc": lambda rig: rig.pool.alloc(1),
    "try_alloc": lambda rig: rig.pool.try_alloc(1),
    "alloc_many": lambda rig: rig.arena.alloc_many({"a": 1}),
    "alloc nothing": lambda rig: rig.pool.alloc(0),
    "free": lambda rig: rig.pool.free([1]),
    "flush": lambda rig: rig.pool.flush(),
    "arena flush": lambda rig: rig.arena.flush(urgent=True),
    "available": lambda rig: rig.pool.available(),
    "fits": lambda rig: rig.arena.fits({"a": 1}),
    "prewarm": lambda rig: rig.arena.prewarm(),
    "forward": lambda rig: rig.arena.forward_launched(ManualFence(), {"a": [1]}),
    "lease": lambda rig: rig.pool.lease([1]),
    "block": lambda rig: rig.arena.block_moves("test"),
    "check": lambda rig: rig.arena.check(),
    "deep check": lambda rig: rig.arena.check(deep=True),
}


def fresh(backend: str, page_bytes: int = 8) -> Rig:
    rig = Rig.of(backend, 11, page_bytes=page_bytes)
    rig.alloc(8)
    rig.free([2, 3])
    return rig


def contents(rig: Rig) -> list[bytes]:
    tables = [getattr(pool, name) for pool in rig.arena.pools.values() for name in (V2P, P2V)]
    return [bytes_of(words) for words in (rig.memory, *tables)]


def unheard(rig: Rig) -> None:
    """From now on nothing shows in the mirror, as when a fault is still on its way to the host."""
    rig.arena._shared.record.mirror = np.zeros(RECORD_WORDS, np.int64)


def stopped(backend: str) -> Rig:
    """An arena that has seen its tables disagree."""
    rig = fresh(backend)
    rig.pool.virtual_to_physical[8] = 5
    rig.pool.flush()
    with pytest.raises(CorruptState):
        rig.arena.check()
    return rig


@pytest.mark.parametrize(("table", "row", "value", "why", "source", "target"), FLIPS)
def test_batch_with_a_bad_pair_moves_nothing(backend, table, row, value, why, source, target):
    rig = fresh(backend)
    getattr(rig.pool, table)[row] = value
    before = contents(rig)
    unheard(rig)
    rig.pool.flush(urgent=True)
    assert contents(rig) == before
    rig.pool.free([1])  # the device no longer listens
    assert contents(rig) == before
    with pytest.raises(CorruptState, match=why) as raised:
        rig.pool.flush()
    fault = raised.value.fault
    assert (fault.pool, fault.source_page, fault.target_page) == ("a", source, target)
    assert fault.virtual_id == (value if (table, row) == (P2V, source) else source)
    assert fault.index == 8 - source
    assert contents(rig) == before


def test_large_pages_stay_as_well(backend):
    rig = fresh(backend, page_bytes=1 << 14)
    rig.pool.virtual_to_physical[8] = 5
    before = contents(rig)
    rig.pool.flush(urgent=True)
    assert contents(rig) == before


def test_fault_names_its_call(backend):
    rig = fresh(backend)
    rig.pool.virtual_to_physical[8] = 5
    rig.pool.flush()
    with pytest.raises(CorruptState) as raised:
        rig.arena.check()
    assert raised.value.fault.call_number == 3  # alloc, free, flush
    assert raised.value.violations == [str(raised.value.fault)]
    assert "call 3, index 0" in str(raised.value)


def test_first_bad_pair_is_kept(backend):
    rig = fresh(backend)
    rig.pool.virtual_to_physical[[7, 8]] = 5
    rig.pool.flush()
    with pytest.raises(CorruptState) as raised:
        rig.arena.check()
    assert raised.value.fault.source_page == 8


@pytest.mark.parametrize("call", GUARDED.values(), ids=GUARDED)
def test_next_call_of_any_kind_sees_the_mirror(backend, call):
    rig = fresh(backend)
    rig.pool.virtual_to_physical[8] = 5
    rig.pool.flush()
    before = contents(rig)
    with pytest.raises(CorruptState, match="v2p and p2v disagree: virtual id 8") as raised:
        call(rig)
    assert raised.value.fault.source_page == 8
    assert contents(rig) == before


def test_mirror_from_before_a_clear_is_no_fault(backend):
    rig = fresh(backend)
    unheard(rig)
    rig.arena._shared.record.mirror[CORRUPT.value] = 1
    assert rig.pool.available() == 4
    assert not rig.arena._shared.record.mirror.any()


def test_error_tells_the_last_calls(backend):
    rig = fresh(backend)
    rig.pool.virtual_to_physical[8] = 5
    rig.pool.flush()
    with pytest.raises(CorruptState) as raised:
        rig.arena.check()
    assert raised.value.journal == (
        (1, "a", "alloc", 8),
        (2, "a", "free", 2),
        (3, "a", "move", 2),
    )
    assert "(last calls: 1: alloc 8 of 'a', 2: free 2 of 'a', 3: move 2 of 'a')" in str(
        raised.value
    )


def test_journal_is_bounded(backend):
    rig = fresh(backend)
    for _ in range(JOURNAL_CALLS):
        rig.free(rig.alloc(1).tolist())
    journal = rig.arena._shared.record.journal()
    assert len(journal) == JOURNAL_CALLS
    assert journal[-1] == (2 + 2 * JOURNAL_CALLS, "a", "free", 1)


@pytest.mark.parametrize("call", GUARDED.values(), ids=GUARDED)
def test_guarded_calls_raise_and_change_nothing(backend, call):
    rig = stopped(backend)
    before = state_of(rig.arena)
    with pytest.raises(CorruptState, match="v2p and p2v disagree"):
        call(rig)
    assert state_of(rig.arena) == before


def test_questions_are_still_answered(backend):
    rig = stopped(backend)
    assert rig.pool.translate([1, 2, 6]).tolist() == [1, 0, 6]
    assert rig.pool.translate_tokens([1, 2, 6]).tolist() == [1, 0, 6]
    assert rig.arena.stats().flush_calls == 1
    assert rig.pool.num_pages == 11


def test_clear_makes_it_new(backend):
    rig = stopped(backend)
    rig.arena.clear()
    rig.live["a"].clear()
    assert rig.arena.check(deep=True) is None
    new = Rig.of(backend, 11)
    cleared, made = state_of(rig.arena)["a"], state_of(new.arena)["a"]
    for part in ("v2p", "p2v", "hole list", "id list", "counts"):
        assert cleared[part] == made[part]
    assert rig.alloc(10).tolist() == list(range(1, 11))


def test_whole_arena_stops_on_the_device(backend):
    rig = Rig.pair(backend, 20)
    rig.alloc(6, "A")
    rig.alloc(6, "B")
    rig.free([2], "A")
    rig.arena["A"].virtual_to_physical[6] = 3
    unheard(rig)
    rig.arena["A"].flush()
    before = contents(rig)
    assert rig.arena["B"].alloc(2).tolist() == [0, 0]
    rig.arena["B"].free([1, 2])
    assert contents(rig) == before
    with pytest.raises(CorruptState, match="pool 'A'"):
        rig.arena["B"].flush()


def test_free_finds_a_wrong_row(backend):
    rig = fresh(backend)
    rig.pool.physical_to_virtual[5] = 6
    before = contents(rig)
    rig.pool.free(torch.tensor([5]))
    assert contents(rig) == before
    with pytest.raises(CorruptState, match="v2p and p2v disagree: virtual id 5, source page 5"):
        rig.pool.flush()


@pytest.mark.parametrize(
    ("table", "row", "value", "why"),
    [(P2V, 9, 4, "physical page already has an owner"), (V2P, 9, 4, "virtual id is already bound")],
)
def test_alloc_finds_a_taken_row(backend, table, row, value, why):
    rig = Rig.of(backend, 11)
    rig.alloc(8)
    getattr(rig.pool, table)[row] = value
    before = contents(rig)
    assert rig.pool.alloc(1).tolist() == [0]
    assert contents(rig) == before
    with pytest.raises(CorruptState, match=why):
        rig.arena.check()


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (3, "page 3 is twice in the hole list"),
        (9, "page 9 is in the hole list but outside the band of 8 pages"),
        (0, "page 0 is in the hole list but outside"),
        (-5, "page -5 is in the hole list but outside"),
        (2**62, "is in the hole list but outside"),
    ],
)
@pytest.mark.parametrize("grows", ["up", "down"])
def test_hole_list_is_checked_before_anything_moves(backend, grows, entry, why):
    rig = Rig.of(backend, 11, grows)
    rig.alloc(8)
    holes = rig.pages([2, 3])
    rig.free([2, 3])
    if grows == "down" and entry in (3, 9):
        entry = 1 if entry == 9 else holes[1]
        why = why.replace("page 9", "page 1").replace("page 3", f"page {entry}")
    rig.pool._band.holes.buffer[0] = entry
    before = contents(rig)
    with pytest.raises(CorruptState, match=why):
        rig.pool.flush()
    assert contents(rig) == before
    with pytest.raises(CorruptState, match=why):
        rig.pool.alloc(1)


def test_live_page_in_the_hole_list_is_no_target(backend):
    rig = fresh(backend)
    rig.pool._band.holes.buffer[0] = 4
    before = contents(rig)
    rig.pool.flush()
    assert contents(rig) == before
    with pytest.raises(CorruptState, match="physical page already has an owner: virtual id 7"):
        rig.arena.check()


def test_bad_pair_of_a_pool_with_a_mover_is_no_address(backend):
    seen = []
    spec = PoolSpec("a", 8, mover=lambda *pairs: seen.append([p.tolist() for p in pairs]))
    rig = Rig(backend, spec, total_bytes=88)
    ids = rig.pool.alloc(8)
    rig.pool.free(ids[1:3])
    rig.pool.virtual_to_physical[8] = 5
    rig.pool.flush()
    assert seen == [[[0, 0], [0, 0]]]
